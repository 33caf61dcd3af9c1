// SPDX-License-Identifier: MIT
// Whether a target is the CPU's. A llama.cpp that could ask RPC servers says that it can use GPUs, also where no server
// was named and there is no GPU; taken for a GPU's, the target would lose its order of rows and its threads.
#include <llama.h>

#include "../check.h"
#include "../engine/tiny_models.h"
#include "counting_device.h"
#include "kernels/ggml_abi.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static bool is_cpu(const std::string & path, int n_gpu_layers) {
    EngineOptions options = tiny_options(path, "");
    options.n_gpu_layers = n_gpu_layers;
    return Target(options).model().is_cpu();
}

int main() {
    const Folder folder;
    const std::string path = folder.file("target.gguf");
    write_target(path);

    // as ggml's RPC backend before anyone names a server
    static kernels::abi::Registry rpc = {
        /*api_version=*/2,
        {
            /*get_name=*/[](ggml_backend_reg_t) { return "RPC"; },
            /*get_device_count=*/[](ggml_backend_reg_t) { return (size_t)0; },
            /*get_device=*/[](ggml_backend_reg_t, size_t) { return (ggml_backend_dev_t) nullptr; },
            /*get_proc_address=*/[](ggml_backend_reg_t, const char *) { return (void *)nullptr; },
        },
        /*context=*/nullptr,
    };
    CHECK(!llama_supports_gpu_offload());
    ggml_backend_register((ggml_backend_reg_t)&rpc);
    CHECK(llama_supports_gpu_offload());
    CHECK(is_cpu(path, -1));

    ggml_backend_register(ggml_backend_init());
    CHECK(!is_cpu(path, -1));
    CHECK(is_cpu(path, 0));
    return result();
}
