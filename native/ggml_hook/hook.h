// SPDX-License-Identifier: MIT
// Puts our kernels into ggml's CPU backend. That backend asks its "extra buffer types" before it computes a node; what
// one of them is asked comes to us first, so that we run inside the unmodified backend, in its threads and without
// splitting graphs. What we take:
//   - products of weights that were placed in our buffer type when they were loaded (LoadScope);
//   - in graphs planned inside a ComputeScope: products of F32, F16 and BF16 weights where they lie, and attention;
//   - in such graphs of a backend that was given to take_graphs_of(): what lies between the products (fusion.h).
// All other code in the process, llama_cpp.Llama for example, keeps ggml's own kernels, and may load models and compute
// graphs at any time: the hook changes nothing of ggml's but four pointers, each at once and before any model of ours
// is loaded. A thread that is inside ggml meanwhile sees the old one or the new one, and both give it the same. What a
// LoadScope or a ComputeScope changes is seen by its own thread only.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <string>
#include <vector>

#include "base/types.h"

namespace eaglecpp::kernels {

struct Status {
    bool is_active = false;
    bool is_possible = false;  // on this processor and system
    std::string table;         // instruction set of the kernels in use
    std::string why_not;       // a sentence, when not active
};

// Whether the ggml in this process is the version that ggml_abi.h was taken from. One that was built without git does
// not tell; it passes, because the version of llama-cpp-python is checked when eaglecpp is imported, and the kernels
// are tried before they are used.
bool is_known_ggml();
// Whether its commit says so. Pointers that no trial covers are replaced only then.
bool is_pinned_ggml();

// A function that ggml's CPU backend gives out by its name; null where it has none.
void * cpu_function(const char * name);

// From the very library that holds `known`, because llama_cpp loads its libraries with local visibility; null where it
// has none.
void * symbol_beside(void * known, const char * name);

// A product of Q8_0 weights [n_in, n_out], which lie in a buffer of this type, with rows x [n_in, n_rows], computed by
// a CPU backend of its own; `out` is empty where that fails.
struct TriedProduct {
    ggml_backend_ptr cpu;
    std::vector<float> out;
};
TriedProduct try_product(ggml_backend_buffer_type_t type, const std::vector<float> & weights,
                         const std::vector<float> & x, int n_in, int n_threads);

// Installs the hook on the first call. Warns where it does not become active though it is possible.
const Status & status();

// The CPU's buffer type for packed weights, null when not active; and whether matrices of this type and number of
// inputs can live there.
ggml_backend_buffer_type_t weights_buffer_type();
bool can_hold(ggml_type type, int64_t n_in);

// what a thread has asked for
struct Scope {
    bool is_loading = false;      // inside a LoadScope that asks for our kernels
    bool is_repacking = true;     // not inside a LoadScope without ggml's own types
    bool is_computing = false;    // inside a ComputeScope
    bool stays_in_place = false;  // inside a NoOffloadScope (offload.h)
};

// Puts back at its end what the thread had asked for before.
class ScopeKeeper : Pinned {
  public:
    ScopeKeeper();
    ~ScopeKeeper();

  private:
    const Scope before_;
};

// While it lives, models that this thread loads with use_extra_bufts place their matrices as told: packed by us
// (`kernels`), by ggml (`repack`), both (what we do not take) or as they lie in the file.
struct LoadScope : ScopeKeeper {
    LoadScope(bool kernels, bool repack);
};

// A graph of the backend that there is no memory for leaves it as it was. With `fuses`, graphs are computed in steps of
// several nodes (fusion.h) inside a ComputeScope. Does nothing when the hook is not active, or for another backend than
// the CPU's.
void take_graphs_of(ggml_backend_t backend, bool fuses);

// Gives a graph that is computed more than once as it is a number to be known by.
void name_graph(ggml_cgraph * graph);

// While it lives, graphs that this thread computes use our kernels also for weights that are not packed. Does nothing
// when `on` is false or the hook is not active.
struct ComputeScope : ScopeKeeper {
    explicit ComputeScope(bool on);
};

}  // namespace eaglecpp::kernels
