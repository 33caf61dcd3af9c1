// SPDX-License-Identifier: MIT
// Adds our kernels to ggml's CPU backend. For each node, this backend asks its "extra buffer types" which of them
// computes the node. The hook answers in place of one extra buffer type, so our kernels run inside the unmodified
// backend, on its threads and without splitting graphs. Our kernels compute:
//   - products of weights that were loaded into our buffer type (LoadScope);
//   - in graphs planned inside a ComputeScope: products of unpacked F32, F16 and BF16 weights, and attention;
//   - in these graphs, if take_graphs_of() was called for the backend: norms, and the products after them in one step
//   (fusion.h).
//
// All other code in the process, for example llama_cpp.Llama, keeps ggml's kernels. It may load models and compute
// graphs at any time. The hook only replaces four pointers of ggml. It replaces each pointer atomically, and before any
// of our models is loaded. A thread inside ggml sees the old or the new pointer, and the results are the same with
// both. LoadScope and ComputeScope affect only the thread that creates them.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <string>
#include <vector>

#include "base/types.h"
#include "kernels/product_ops.h"

namespace eaglecpp::kernels {

struct Status {
    bool is_active = false;
    bool is_possible = false;  // the processor and the system can run the kernels
    std::string table;         // instruction set of the kernels in use
    std::string why_not;       // the reason, as a sentence, if the hook is not active
};

// Returns true if the ggml in this process has the version that ggml_abi.h was copied from. Also returns true for a
// ggml that was built without git, which has no version. In this case, eaglecpp's import has checked llama-cpp-python's
// version, and the trial run tests the kernels.
bool is_known_ggml();
// Returns true if the ggml in this process has exactly the commit that ggml_abi.h was copied from. Pointers that the
// trial run does not test are replaced only if this function returns true.
bool is_pinned_ggml();

// Returns a function that ggml's CPU backend exports by name, or null.
void * cpu_function(const char * name);

// Returns a symbol from the library that contains `known`, or null. llama_cpp loads its libraries with local
// visibility, so a global look-up would not find it.
void * symbol_next_to(void * known, const char * name);

// A product for the trial run. A new CPU backend multiplies Q8_0 weights [n_in, n_out], in a buffer of this type, with
// rows x [n_in, n_rows]. `out` is empty on failure.
struct TriedProduct {
    ggml_backend_ptr cpu;
    std::vector<float> out;
};
TriedProduct try_product(ggml_backend_buffer_type_t type, const std::vector<float> & weights,
                         const std::vector<float> & x, int n_in, int n_threads);

// Installs the hook on the first call and returns its status. Logs a warning if the hook is possible but did not become
// active.
const Status & status();

// weights_buffer_type() returns the CPU's buffer type for packed weights, or null if the hook is not active. can_hold()
// returns true if this buffer type can hold matrices of this type with n_in inputs.
ggml_backend_buffer_type_t weights_buffer_type();
bool can_hold(ggml_type type, int64_t n_in);

// Settings of the current thread.
struct Scope {
    bool is_loading = false;                // the thread is inside a LoadScope with our kernels
    bool is_repacking = true;               // the thread is not inside a LoadScope without ggml's repacking
    bool is_computing = false;              // the thread is inside a ComputeScope
    const ChosenGroups * chosen = nullptr;  // see ComputeScope
    bool stays_in_place = false;            // the thread is inside a NoOffloadScope (offload.h)
};

// Base class of scopes. Its destructor restores the thread's settings.
class ScopeKeeper : Pinned {
  public:
    ScopeKeeper();
    ~ScopeKeeper();

  private:
    const Scope before_;
};

// While a LoadScope exists, models that this thread loads with use_extra_bufts can store packed matrices. With
// `kernels`, we pack matrices; with `repack`, ggml packs matrices; with both, ggml packs the matrices that we do not
// pack. All other matrices stay in the file's layout.
struct LoadScope : ScopeKeeper {
    LoadScope(bool kernels, bool repack);
};

// Makes the backend's graphs fail with an error if memory is missing. With `fuses`, the backend computes graphs in
// steps of several nodes (fusion.h) inside a ComputeScope. Does nothing if the hook is not active or if the backend is
// not ggml's CPU backend.
void take_graphs_of(ggml_backend_t backend, bool fuses);

// Assigns a unique id to a graph that will be computed repeatedly without changes.
void name_graph(ggml_cgraph * graph);

// While a ComputeScope exists, graphs that this thread computes also use our kernels for weights that are not packed.
// With `chosen`, products of packed weights with chosen->n_out outputs compute only the chosen groups, in backends that
// fuse graphs. Does nothing if `on` is false or the hook is not active.
struct ComputeScope : ScopeKeeper {
    explicit ComputeScope(bool on, const ChosenGroups * chosen = nullptr);
};

}  // namespace eaglecpp::kernels
