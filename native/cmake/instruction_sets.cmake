# SPDX-License-Identifier: MIT
# Sets `instruction_sets`, the x86 instruction sets whose kernels are compiled. If pip compiled llama.cpp from its
# sources, its libraries run only on processors like this one (GGML_NATIVE). Then only the kernels that this processor
# uses are compiled, because each instruction set takes a fifth of the time of compilation.
option(EAGLECPP_ALL_KERNELS "Compile the kernels for all instruction sets" OFF)
set(instruction_sets avx2 avx_vnni avx512)

set(is_native "")
set(ggml_config "${EAGLECPP_LLAMA_DIR}/lib/cmake/ggml/ggml-config.cmake")
if(EXISTS "${ggml_config}")
  file(STRINGS "${ggml_config}" is_native REGEX "set\\(GGML_NATIVE +\"ON\"\\)")
endif()
if(is_native AND NOT EAGLECPP_ALL_KERNELS AND NOT EAGLECPP_TESTS AND NOT CMAKE_CROSSCOMPILING)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros ERROR_QUIET)
  if(macros MATCHES "__AVX512VNNI__" AND macros MATCHES "__AVX512BW__" AND macros MATCHES "__AVX512DQ__")
    set(instruction_sets avx512)
  elseif(macros MATCHES "__AVXVNNI__")
    set(instruction_sets avx2 avx_vnni)
  elseif(macros MATCHES "__AVX2__")
    set(instruction_sets avx2)
  endif()
endif()
message(STATUS "kernels: ${instruction_sets}")
