// SPDX-License-Identifier: MIT
// Adapts the headers of a Linux Python to a Windows compiler: changes the system properties that pyconfig.h defines and
// Python.h reads.
#if __has_include(<pyconfig.h>)
#include <pyconfig.h>
#undef HAVE_SYS_SELECT_H
#undef SIZEOF_LONG
#define SIZEOF_LONG 4
#undef SIZEOF_WCHAR_T
#define SIZEOF_WCHAR_T 2
#undef SIZEOF_PTHREAD_T
#endif
