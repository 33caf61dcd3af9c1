// SPDX-License-Identifier: MIT
// A function compiled without unwind tables, as by a C compiler.
extern "C" void call_without_tables(void (*f)()) {
    f();
    // prevents a tail call
    __asm__ volatile("");
}
