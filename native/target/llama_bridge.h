// SPDX-License-Identifier: MIT
// Contains all uses of llama.cpp beyond its public C header: functions looked up by name at run time, the list of
// architectures that record layer inputs, and devices. When the pinned version of llama-cpp-python changes, check this
// file and the AMX probe (amx.h).
#pragma once

#include <ggml-backend.h>
#include <llama-cpp.h>

#include <set>
#include <string>
#include <vector>

#include "base/memory.h"

namespace eaglecpp {

// Sends the log lines of llama.cpp and ggml to our log.
void route_logs();

// Starts llama.cpp (backends, log) once per process. Later calls do almost nothing.
void llama_start();

// Returns true if the log lines of a failure in llama.cpp (ErrorTrail) report a lack of memory of any kind.
bool is_lack_of_memory(const std::string & logged);

// Returns true if llama.cpp's graph of this architecture records the input of every block. For other architectures,
// requesting an input aborts the process.
bool records_layer_inputs(const std::string & architecture);

// Functions that llama.cpp exports but does not declare in its public header (src/llama-ext.h). A function is null if
// this libllama lacks it.
struct StagingFunctions {
    // Records the hidden states at the input of a block.
    void (*set_layer_input)(llama_context * ctx, uint32_t layer, bool on);
    float * (*get_layer_input)(llama_context * ctx, uint32_t layer);
    // Records the states for MTP heads, from the next decode on. of_outputs: records only the states of output rows,
    // not of all rows.
    void (*set_states)(llama_context * ctx, bool on, bool of_outputs);
    float * (*get_states)(llama_context * ctx);              // states of every row
    float * (*get_state)(llama_context * ctx, int32_t row);  // null if the row has no state
};
const StagingFunctions & staging();
void check_state_functions();  // Error(unsupported) if this libllama lacks the functions for states

// Returns the model's tensors with this GGUF name. Usually this is one tensor. Embeddings are two tensors if they are
// also the output head and are needed in two kinds of memory. If libllama has no list of all tensors, returns at most
// one tensor. If libllama has no accessor at all, returns no tensor.
std::vector<const ggml_tensor *> model_tensors(const llama_model * model, const char * name);

// Error(unsupported) if split_mode 'tensor' gives a device no part of a weight. llama.cpp zeroes the result of such a
// device by multiplying old memory with 0, but old memory may contain NaN (ggml-backend-meta.cpp, allreduce_fallback).
void check_parts(const llama_model * model, size_t n_devices);

// Returns true if the tensor's rows are in host memory in the file's layout. ggml's description of a buffer does not
// show this: extra CPU buffer types store weights in private layouts. Some of these types report host memory anyway,
// and some cannot be read at all.
bool has_plain_rows(const ggml_tensor * tensor);

// Returns true if the reference version of ggml's CPU attention can be selected. It computes a row in the same way in
// every batch. ggml's faster version for one row and its tiled version for many rows add in different orders.
bool has_reference_kernels();
void set_reference_kernels(llama_context * ctx, bool on);

// Returns the backends that compute a context's graphs on the CPU; empty if libllama does not report them.
std::vector<ggml_backend_t> cpu_backends(llama_context * ctx);

struct DeviceInfo {
    std::string name, description, kind;
    size_t memory_total, memory_free;
};
std::vector<DeviceInfo> list_devices();

// Returns the GPUs in llama.cpp's order: first GPUs on RPC servers, then local GPUs. Returns integrated GPUs only if
// there are no other GPUs. `lost`: relays of servers to leave out.
std::vector<ggml_backend_dev_t> list_gpus(const std::set<std::string> & lost = {});

// Returns true if the device is on another machine, reached through llama.cpp's RPC backend.
bool is_on_server(ggml_backend_dev_t device);

// An RPC server that was lost. The relay between ggml and the server (eaglecpp/engine/rpc_relay.py) writes the reason
// into a pipe. From then on it answers ggml with zeros.
struct LostServer {
    std::string endpoint;  // address of the server
    std::string relay;     // address of the relay, as ggml knows it
    std::string why;
};
// Watches an RPC server. `pipe` is the file descriptor that the server's relay writes to. The pipe stays open for the
// life of the process.
void watch_rpc_server(const std::string & endpoint, const std::string & relay, int pipe);
// Returns the servers lost so far. Takes one system call per server.
std::vector<LostServer> lost_rpc_servers();

// Returns the device for `draft_device`: the device with this name, or null for the CPU. "auto" selects the first GPU,
// or the CPU if the target has no layer on a GPU. Error(value)
ggml_backend_dev_t find_device(const std::string & wanted, int n_gpu_layers);

// Returns the memory of a context and its model, by kind; empty if libllama does not report it.
std::vector<MemoryUse> memory_use(const llama_context * ctx);

// Selects the buffer type of the tensors whose names match a pattern, before llama.cpp chooses.
struct TensorPlace {
    std::string pattern;  // a regular expression
    ggml_backend_buffer_type_t buffer;
};

// Returns the places for --override-tensor, then the places for --n-cpu-moe (-1 = all layers). Error(value)
std::vector<TensorPlace> tensor_places(int n_cpu_moe, const std::vector<std::string> & overrides);

}  // namespace eaglecpp
