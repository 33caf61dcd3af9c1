// SPDX-License-Identifier: MIT
// A function as a C compiler without unwind tables makes it.
extern "C" void call_without_tables(void (*f)()) {
    f();
    // keeps the call from becoming a jump
    __asm__ volatile("");
}
