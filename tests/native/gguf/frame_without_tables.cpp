// SPDX-License-Identifier: MIT
// A function that is compiled without unwind tables, as a C compiler does.
extern "C" void call_without_tables(void (*f)()) {
    f();
    // prevents a tail call
    __asm__ volatile("");
}
