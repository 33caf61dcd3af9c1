// SPDX-License-Identifier: MIT
// This function is compiled without unwind tables, as a C compiler does by default.
extern "C" void call_without_tables(void (*f)()) {
    f();
    // This empty statement prevents a tail call.
    __asm__ volatile("");
}
