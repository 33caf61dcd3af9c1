// SPDX-License-Identifier: MIT
// A function that is compiled without unwind tables, like the output of a C compiler.
extern "C" void call_without_tables(void (*f)()) {
    f();
    // this empty statement prevents a tail call
    __asm__ volatile("");
}
