// SPDX-License-Identifier: MIT
// Tests whether eaglecpp detects that a target runs on the CPU. A llama.cpp with RPC support reports that it can use
// GPUs, even without an RPC server or a GPU. If eaglecpp believed this report, a target on the CPU would lose its row
// order and its threads.
#include <dlfcn.h>
#include <llama.h>

#include "../check.h"
#include "../engine/tiny_models.h"
#include "counting_device.h"
#include "engine/engine.h"
#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/offload.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static bool is_cpu(const std::string & path, int n_gpu_layers) {
    EngineOptions options = tiny_options(path, "");
    options.n_gpu_layers = n_gpu_layers;
    return Target(options).model().is_cpu();
}

// ggml lists the integrated GPU first. llama.cpp skips it if there is another GPU.
static kernels::abi::Device integrated = {
    {
        /*get_name=*/[](ggml_backend_dev_t) { return "Integrated0"; },
        /*get_description=*/[](ggml_backend_dev_t) { return "an integrated GPU"; },
        /*get_memory=*/[](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 1 << 30; },
        /*get_type=*/[](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_IGPU; },
        /*get_props=*/
        [](ggml_backend_dev_t, ggml_backend_dev_props * props) {
            *props = {};
            props->name = "Integrated0", props->type = GGML_BACKEND_DEVICE_TYPE_IGPU;
        },
    },
    /*reg=*/nullptr,
    /*context=*/nullptr,
};

static void a_small_model_drafts_where_it_was_told(const Folder & folder, const std::string & target) {
    const std::string draft = folder.file("small.gguf");
    write_target(draft);
    EngineOptions options = tiny_options(target, draft);
    options.draft_device = "Counting0";
    const Engine engine(options);
    CHECK_MSG(engine.drafter()->device_name() == "Counting0", engine.drafter()->device_name());
}

// The function below replaces a function of libllama in all calls from eaglecpp. If takes_samplers is false, it refuses
// samplers. libllama does the same if tensors are split over devices.
static bool takes_samplers = true;

extern "C" bool llama_set_sampler(llama_context * ctx, llama_seq_id id, llama_sampler * sampler) {
    static const auto real = (decltype(&llama_set_sampler))dlsym(RTLD_NEXT, "llama_set_sampler");
    return takes_samplers && real(ctx, id, sampler);
}

static void a_refused_sampler_runs_on_the_host(const std::string & target) {
    EngineOptions options = tiny_options(target, "");
    options.n_gpu_layers = -1;
    Tokens texts[2];
    for (bool takes : {true, false}) {
        takes_samplers = takes;
        Engine engine(options);
        texts[takes] = generate(engine, engine.open_sequence(), {1, 5, 7}, greedy({}, 12));
    }
    takes_samplers = true;
    CHECK(texts[0].size() == 12 && texts[0] == texts[1]);
}

static void a_copied_device_is_asked_nothing() {
    auto & device = *(kernels::abi::Device *)ggml_backend_dev_by_name("Counting0");
    {
        const NoOffloadScope installs(true);
    }
    kernels::abi::Device copy = device;
    const ggml_tensor op = {};
    CHECK(!copy.iface.offload_op((ggml_backend_dev_t)&copy, &op));
}

int main() {
    const Folder folder;
    const std::string path = folder.file("target.gguf");
    write_target(path);

    // The registry of ggml's RPC backend before any server has been added.
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

    static kernels::abi::Registry igpu = rpc;
    igpu.iface.get_name = [](ggml_backend_reg_t) { return "Integrated"; };
    igpu.iface.get_device_count = [](ggml_backend_reg_t) { return (size_t)1; };
    igpu.iface.get_device = [](ggml_backend_reg_t, size_t) { return (ggml_backend_dev_t)&integrated; };
    integrated.reg = (ggml_backend_reg_t)&igpu;
    ggml_backend_register((ggml_backend_reg_t)&igpu);
    ggml_backend_register(ggml_backend_init());
    CHECK(!is_cpu(path, -1));
    CHECK(is_cpu(path, 0));
    a_small_model_drafts_where_it_was_told(folder, path);
    a_refused_sampler_runs_on_the_host(path);
    a_copied_device_is_asked_nothing();
    return result();
}
