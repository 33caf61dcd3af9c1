// SPDX-License-Identifier: MIT
// The one file that knows llama.cpp beyond its public C header: staging functions looked up by name at run time, the
// list of architectures that record layer inputs, and devices. When the pinned version of llama-cpp-python moves, this
// and the AMX probe (amx.h) are what to check.
#pragma once

#include <ggml-backend.h>
#include <llama-cpp.h>

#include <string>
#include <vector>

#include "base/memory.h"

namespace eaglecpp {

// Sends the log of llama.cpp and ggml to our sink.
void route_logs();

// Starts llama.cpp once per process: backends, log sink. Cheap afterwards.
void llama_start();

// Whether what llama.cpp logged when it gave back nothing (ErrorTrail) tells of a lack of memory, of whatever kind.
bool is_lack_of_memory(const std::string & logged);

// True when llama.cpp's graph of this architecture records the input of every block; asking the others aborts.
bool records_layer_inputs(const std::string & architecture);

// What llama.cpp exports and its public header does not declare (src/llama-ext.h); null where this libllama has none.
struct StagingFunctions {
    // tapping of block inputs
    void (*set_layer_input)(llama_context * ctx, uint32_t layer, bool on);
    float * (*get_layer_input)(llama_context * ctx, uint32_t layer);
    // what heads for further tokens read: a state of every row, or of those with output, from the next decode on
    void (*set_states)(llama_context * ctx, bool on, bool of_outputs);
    float * (*get_states)(llama_context * ctx);              // of every row
    float * (*get_state)(llama_context * ctx, int32_t row);  // null if it has none
};
const StagingFunctions & staging();
void check_state_functions();  // Error(unsupported) when this libllama lacks those for states

// The weights of the model that carry a GGUF name: none, one, or, for embeddings that serve as the output head as well
// and are wanted in two kinds of memory, two. At most one is found where libllama does not export the list of all, none
// where it exports no accessor.
std::vector<const ggml_tensor *> model_tensors(const llama_model * model, const char * name);

// True when the tensor's rows lie in host memory as the file has them. What ggml says of a buffer is not enough: extra
// CPU buffer types keep weights in layouts of their own, some call themselves host memory, some cannot be read at all.
bool has_plain_rows(const ggml_tensor * tensor);

// ggml's CPU attention has a faster form for one row and a tiled one for many, which add in different orders; its
// reference form treats every row alike, whatever the batch. True when it can be chosen.
bool has_reference_kernels();
void set_reference_kernels(llama_context * ctx, bool on);

// The backends that compute a context's graphs on the CPU; none where libllama does not tell.
std::vector<ggml_backend_t> cpu_backends(llama_context * ctx);

struct DeviceInfo {
    std::string name, description, kind;
    size_t memory_total, memory_free;
};
std::vector<DeviceInfo> list_devices();

// on another machine, by llama.cpp's RPC backend
bool is_on_server(ggml_backend_dev_t device);

// An RPC server that has gone away. Its relay (eaglecpp/engine/rpc_relay.py) answers ggml in its place with zeros,
// after it has written why into a pipe.
struct LostServer {
    std::string endpoint;  // of the server
    std::string relay;     // as ggml knows it
    std::string why;
};
// `pipe`: a file descriptor to read from; it stays open for the life of the process
void watch_rpc_server(const std::string & endpoint, const std::string & relay, int pipe);
// until now; a system call for each server
std::vector<LostServer> lost_rpc_servers();

// What `draft_device` names: a device by its name, null for the CPU; with "auto" the first GPU, unless the target has
// no layer on any. Error(value)
ggml_backend_dev_t find_device(const std::string & wanted, int n_gpu_layers);

// What a context and its model hold, by kind of memory; empty where libllama does not tell.
std::vector<MemoryUse> memory_use(const llama_context * ctx);

// Where tensors go whose names match, before llama.cpp's own choice.
struct TensorPlace {
    std::string pattern;  // a regular expression
    ggml_backend_buffer_type_t buffer;
};

// Of llama.cpp's --n-cpu-moe (-1 = all layers) and --override-tensor, whose entries come first. Error(value)
std::vector<TensorPlace> tensor_places(int n_cpu_moe, const std::vector<std::string> & overrides);

}  // namespace eaglecpp
