# SPDX-License-Identifier: MIT
# Imported targets for the libraries inside the installed `llama_cpp` package. The package's own CMake files are not
# used, because they name the wheel's second copy in `site-packages/lib`. Linking that copy would load libllama twice
# into one process, with two backend registries.
set(EAGLECPP_LLAMA_CPP_PYTHON "0.3.36")

if(NOT EAGLECPP_LLAMA_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u, pathlib; s = u.find_spec('llama_cpp'); print(pathlib.Path(s.submodule_search_locations[0]).parent.as_posix() if s else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT found)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no llama_cpp. Install llama-cpp-python==${EAGLECPP_LLAMA_CPP_PYTHON} "
                        "or pass -DEAGLECPP_LLAMA_DIR=<site-packages folder with llama_cpp>.")
  endif()
  set(EAGLECPP_LLAMA_DIR "${found}")
endif()

file(GLOB dist_info "${EAGLECPP_LLAMA_DIR}/llama_cpp_python-*.dist-info")
if(NOT dist_info MATCHES "llama_cpp_python-${EAGLECPP_LLAMA_CPP_PYTHON}\\.dist-info")
  message(FATAL_ERROR "Expected llama-cpp-python ${EAGLECPP_LLAMA_CPP_PYTHON} in ${EAGLECPP_LLAMA_DIR}, found: ${dist_info}")
endif()
message(STATUS "llama.cpp: ${EAGLECPP_LLAMA_DIR}/llama_cpp/lib")

foreach(name ggml-base ggml ggml-cpu llama)
  add_library(llama_cpp::${name} SHARED IMPORTED GLOBAL)
  find_library(lib_${name} NAMES ${name} PATHS "${EAGLECPP_LLAMA_DIR}/llama_cpp/lib" NO_DEFAULT_PATH)
  if(NOT lib_${name})
    # in builds with GGML_BACKEND_DL, ggml-cpu is a plug-in, not a library to link
    if(name STREQUAL "ggml-cpu")
      continue()
    endif()
    message(FATAL_ERROR "lib${name} is not in ${EAGLECPP_LLAMA_DIR}/llama_cpp/lib")
  endif()
  set_target_properties(llama_cpp::${name} PROPERTIES
    IMPORTED_LOCATION "${lib_${name}}" IMPORTED_IMPLIB "${lib_${name}}"
    INTERFACE_INCLUDE_DIRECTORIES "${EAGLECPP_LLAMA_DIR}/include")
endforeach()
target_link_libraries(llama_cpp::ggml INTERFACE llama_cpp::ggml-base)
target_link_libraries(llama_cpp::llama INTERFACE llama_cpp::ggml)
