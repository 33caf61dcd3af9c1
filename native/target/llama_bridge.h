// SPDX-License-Identifier: MIT
// All uses of llama.cpp beyond its public C header: staging functions looked up by name at run time, the list of
// architectures that record layer inputs, and devices. When the pinned version of llama-cpp-python changes, check this
// file and the AMX probe (amx.h).
#pragma once

#include <ggml-backend.h>
#include <llama-cpp.h>

#include <string>
#include <vector>

#include "base/memory.h"

namespace eaglecpp {

// Sends the log of llama.cpp and ggml to our log.
void route_logs();

// Starts llama.cpp (backends, log) once per process. Later calls are cheap.
void llama_start();

// Returns true if llama.cpp's log of a failure (ErrorTrail) reports missing memory of any kind.
bool is_lack_of_memory(const std::string & logged);

// Returns true if llama.cpp's graph of this architecture records the input of every block. For others, asking aborts.
bool records_layer_inputs(const std::string & architecture);

// Functions that llama.cpp exports without declaring them in its public header (src/llama-ext.h). Null if this libllama
// lacks them.
struct StagingFunctions {
    // Hidden states at the inputs of blocks.
    void (*set_layer_input)(llama_context * ctx, uint32_t layer, bool on);
    float * (*get_layer_input)(llama_context * ctx, uint32_t layer);
    // States for heads for further tokens, of every row or of output rows, starting with the next decode.
    void (*set_states)(llama_context * ctx, bool on, bool of_outputs);
    float * (*get_states)(llama_context * ctx);              // of every row
    float * (*get_state)(llama_context * ctx, int32_t row);  // null if the row has none
};
const StagingFunctions & staging();
void check_state_functions();  // Error(unsupported) if this libllama lacks the functions for states

// Returns the model's weights with this GGUF name: usually one, or two if embeddings also serve as the output head and
// are needed in two kinds of memory. Without libllama's list of all tensors, finds one or zero; without any accessor,
// zero.
std::vector<const ggml_tensor *> model_tensors(const llama_model * model, const char * name);

// Returns true if the tensor's rows lie in host memory as in the file. ggml's description of a buffer is not enough:
// extra CPU buffer types store weights in private layouts. Some of them claim to be host memory, and some cannot be
// read at all.
bool has_plain_rows(const ggml_tensor * tensor);

// ggml's CPU attention has a faster version for one row and a tiled version for many rows, which add in different
// orders. Its reference version treats every row alike, whatever the batch. Returns true if it can be selected.
bool has_reference_kernels();
void set_reference_kernels(llama_context * ctx, bool on);

// Returns the backends that compute a context's graphs on the CPU; empty if libllama does not report them.
std::vector<ggml_backend_t> cpu_backends(llama_context * ctx);

struct DeviceInfo {
    std::string name, description, kind;
    size_t memory_total, memory_free;
};
std::vector<DeviceInfo> list_devices();

// Returns true if the device is on another machine, via llama.cpp's RPC backend.
bool is_on_server(ggml_backend_dev_t device);

// An RPC server that was lost. Its relay (eaglecpp/engine/rpc_relay.py) writes the reason into a pipe, then answers
// ggml with zeros.
struct LostServer {
    std::string endpoint;  // the server's
    std::string relay;     // the relay's, as ggml knows it
    std::string why;
};
// pipe: a file descriptor to read from. It stays open for the life of the process.
void watch_rpc_server(const std::string & endpoint, const std::string & relay, int pipe);
// Returns the servers lost so far; one system call per server.
std::vector<LostServer> lost_rpc_servers();

// Returns the device for `draft_device`: a device by name, or null for the CPU. "auto" gives the first GPU unless the
// target has no layer on a GPU. Error(value)
ggml_backend_dev_t find_device(const std::string & wanted, int n_gpu_layers);

// Memory of a context and its model, by kind; empty if libllama does not report it.
std::vector<MemoryUse> memory_use(const llama_context * ctx);

// Buffer for tensors whose names match; takes precedence over llama.cpp's choice.
struct TensorPlace {
    std::string pattern;  // a regular expression
    ggml_backend_buffer_type_t buffer;
};

// Returns the entries for --override-tensor, then the entries for --n-cpu-moe (-1 = all layers). Error(value)
std::vector<TensorPlace> tensor_places(int n_cpu_moe, const std::vector<std::string> & overrides);

}  // namespace eaglecpp
