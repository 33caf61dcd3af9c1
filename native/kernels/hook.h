// SPDX-License-Identifier: MIT
// Puts our kernels into ggml's CPU backend. That backend asks its "extra buffer types" before it computes a node; one
// of ours, added to that list, runs inside the unmodified backend, in its threads and without splitting graphs. What it
// takes:
//   - products of weights that were placed in our buffer type when they were loaded (LoadScope);
//   - in graphs planned inside a ComputeScope: products of F32, F16 and BF16 weights where they lie, and attention;
//   - in such graphs of a backend that was given to fuse_graphs_of(): what lies between the products (fusion.h).
// All other code in the process, llama_cpp.Llama for example, keeps ggml's own kernels.
#pragma once

#include <ggml-backend.h>

#include <mutex>
#include <string>
#include <vector>

namespace eaglecpp::kernels {

struct Status {
    bool is_active = false;
    std::string table;    // instruction set of the kernels in use
    std::string why_not;  // a sentence, when not active
};

// Whether the ggml in this process is the version that ggml_abi.h was taken from.
bool is_known_ggml();

// Installs the hook on the first call; must come before the first model is loaded to be of use.
const Status & status();

// The CPU's buffer type for packed weights, null when not active; and whether matrices of this type and number of
// inputs can live there.
ggml_backend_buffer_type_t weights_buffer_type();
bool can_hold(ggml_type type, int64_t n_in);

// While it lives, models that this thread loads with use_extra_bufts place their matrices as told: packed by us
// (`kernels`), by ggml (`repack`), both (what we do not take) or as they lie in the file. `is_mapped`: the file stays
// as it is and is mapped, so packing may go on after the model is loaded (late_packing.h).
class LoadScope {
  public:
    LoadScope(bool kernels, bool repack, bool is_mapped = false);
    ~LoadScope();
    LoadScope(const LoadScope &) = delete;
    LoadScope & operator=(const LoadScope &) = delete;

  private:
    bool before_;
    std::unique_lock<std::mutex> lock_;
};

// The backend's graphs are computed in steps of several nodes (fusion.h), inside a ComputeScope. Does nothing when the
// hook is not active, or for another backend than the CPU's.
void fuse_graphs_of(ggml_backend_t backend);

// Gives a graph that is computed more than once as it is a number to be known by.
void name_graph(ggml_cgraph * graph);

// Logits that llama.cpp asked a backend given to fuse_graphs_of() to copy, and that still lie where they were computed:
// a megabyte for a round, of which one pass is read. What a later graph of the same scope would overwrite is copied.
class LateLogits {
  public:
    // where the logits lie that llama.cpp believes to be at `copied`
    const float * find(const float * copied) const;
    // before llama.cpp writes other ones there
    void forget() { copies_.clear(); }

    // for the hook
    void add(const void * from, void * to, size_t n_bytes);
    void copy();

  private:
    struct Copy {
        const char * from;
        char * to;
        size_t n_bytes;
    };
    std::vector<Copy> copies_;
};

// While it lives, graphs that this thread computes use our kernels also for weights that are not packed, and logits are
// left where they are, if `logits` is given. Does nothing when `on` is false or the hook is not active.
class ComputeScope {
  public:
    explicit ComputeScope(bool on, LateLogits * logits = nullptr);
    ~ComputeScope();
    ComputeScope(const ComputeScope &) = delete;
    ComputeScope & operator=(const ComputeScope &) = delete;

  private:
    bool before_;
    LateLogits * logits_before_;
};

}  // namespace eaglecpp::kernels
