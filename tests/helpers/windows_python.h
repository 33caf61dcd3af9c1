// SPDX-License-Identifier: MIT
// The headers of a Python for Linux, made fit for a compiler that builds for Windows: of what pyconfig.h says of the
// system, what Python.h reads.
#if __has_include(<pyconfig.h>)
#include <pyconfig.h>
#undef HAVE_SYS_SELECT_H
#undef SIZEOF_LONG
#define SIZEOF_LONG 4
#undef SIZEOF_WCHAR_T
#define SIZEOF_WCHAR_T 2
#undef SIZEOF_PTHREAD_T
#endif
