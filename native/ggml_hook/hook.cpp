// SPDX-License-Identifier: MIT
#include "ggml_hook/hook.h"

#include <ggml-alloc.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/hook_state.h"
#include "kernels/product_ops.h"
#include "kernels/select.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace eaglecpp::kernels {

Ours ours;
thread_local Scope scope;

namespace {

// The ggml commit from which ggml_abi.h was copied.
constexpr const char * known_commit = "0c1e570";

// Returns true if our kernels can compute an operation on our packed weights. ggml calls this function when it loads
// weights and for every operation on them.
bool takes_op(const ggml_tensor * op) {
    if (!op->src[0] || !is_ours(op->src[0]) || !can_multiply_packed(*ours.table, op)) return false;
    const bool is_placing = !op->src[0]->data;
    if (is_placing && !scope.is_loading) return false;
    for (int i = 1; i < 3; ++i) {
        const ggml_tensor * x = op->src[i];
        if (x && x->buffer && !ggml_backend_buffer_is_host(x->buffer)) return false;
    }
    return true;
}

// A pointer inside ggml that is replaced while other threads may be reading it.
template <typename T>
struct Patch {
    T * at;
    T ggmls;

    void apply(T * pointer, T ours) {
        at = pointer;
        ggmls = *pointer;
        store(ours);
    }
    void undo() { store(ggmls); }

  private:
    void store(T value) {
        static_assert(sizeof(std::atomic<T>) == sizeof(T) && std::atomic<T>::is_always_lock_free);
        ((std::atomic<T> *)at)->store(value, std::memory_order_release);
    }
};

struct Patches {
    Patch<void *> extra;
    Patch<decltype(abi::BufferTypeInterface::alloc_buffer)> alloc_buffer;
    Patch<decltype(abi::DeviceInterface::supports_op)> supports_op;
    Patch<decltype(abi::DeviceInterface::supports_buft)> supports_buft;
    Patch<decltype(abi::RegistryInterface::get_proc_address)> get_proc_address;
} patches_;

// Buffer types that llama.cpp tries for weights, null-terminated: our type first, then ggml's types.
std::vector<ggml_backend_buffer_type_t> placement_;

ggml_backend_buffer_type_t * placement_list(ggml_backend_dev_t) {
    static ggml_backend_buffer_type_t only_ours[] = {ours.weights, nullptr};
    return scope.is_repacking ? placement_.data() : only_ours;
}

void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    if (std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0) return (void *)placement_list;
    return patches_.get_proc_address.ggmls(reg, name);
}

// Allocates a host buffer of ggml, such as a cache or the memory of packed weights.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t n) {
    const ggml_backend_buffer_t buffer = patches_.alloc_buffer.ggmls(type, n);
    if (buffer) prefer_large_pages(ggml_backend_buffer_get_base(buffer), n);
    return buffer;
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    for (int i = 0; i < 4; ++i) {  // ggml checks this number of sources
        if (op->src[i] && op->src[i]->buffer && is_ours(op->src[i])) return takes_op(op);
    }
    return patches_.supports_op.ggmls(dev, op);
}

bool supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    return type == ours.weights || patches_.supports_buft.ggmls(dev, type);
}

// Returns the extra buffer type that the hook replaces, or null.
ggml_backend_buffer_type_t find_answering_type(ggml_backend_dev_t cpu) {
    const auto get = (ggml_backend_dev_get_extra_bufts_t)cpu_function("ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * b = get ? get(cpu) : nullptr; b && *b; ++b) placement_.push_back(*b);
    for (ggml_backend_buffer_type_t type : placement_) {
        // KleidiAI's type must not be replaced, because KleidiAI identifies its weights by the context pointer of the
        // type.
        const bool is_kleidiai = std::strstr(ggml_backend_buft_name(type), "KLEIDIAI");
        if (!is_kleidiai && ((abi::BufferType *)type)->context) return type;
    }
    return nullptr;
}

// Multiplies known weights through the whole backend, with one thread and with two threads. If ggml's interface differs
// from ggml_abi.h, this trial fails before a model depends on the interface.
bool trial_succeeds() {
    constexpr int n_in = 64, n_out = 40, n_rows = 6;
    std::vector<float> values(n_in * n_out), x(n_in * n_rows);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (float)((int)(i * 37 % 255) - 127);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (float)((int)(i * 53 % 255) - 127);
    for (int i = 0; i < n_out; ++i) values[(size_t)i * n_in] = 127, values[(size_t)i * n_in + 32] = 127;
    for (int i = 0; i < n_rows; ++i) x[(size_t)i * n_in] = 127, x[(size_t)i * n_in + 32] = 127;
    for (int n_threads : {1, 2}) {
        const TriedProduct tried = try_product(ours.weights, values, x, n_in, n_threads);
        if (tried.out.empty()) return false;
        const auto & own = *(abi::CpuContext *)((abi::Backend *)tried.cpu.get())->context;
        if (own.n_threads != n_threads || !own.work_data || own.work_size == 0) return false;
        for (int r = 0; r < n_rows; ++r) {
            for (int o = 0; o < n_out; ++o) {
                double exact = 0;  // the values are integers up to 127, so rounding to 8 bits is exact
                for (int i = 0; i < n_in; ++i) exact += (double)values[(size_t)o * n_in + i] * x[(size_t)r * n_in + i];
                if (std::fabs(exact - tried.out[(size_t)r * n_out + o]) > 1e-3 * (1e5 + std::fabs(exact))) return false;
            }
        }
    }
    return true;
}

Status install() {
    Status s;
    const auto without = [&](const std::string & why) {
        s.why_not = why;
        return s;
    };
#ifdef _WIN32
    s.is_possible = true;  // most Windows processors could run the kernels; Microsoft's compiler builds no table
    return without("not supported on Windows yet");
#endif
    ours.table = chosen_table();
    s.is_possible = this_processor().avx2;
    if (!ours.table && s.is_possible) return without("eaglecpp was compiled for another processor; install it again");
    if (!ours.table) return without("no kernels for this processor: they need AVX2 or NEON with dot products");
    s.table = ours.table->name;
    s.is_possible = true;
    if (!is_known_ggml()) return without(std::string("expected ggml ") + known_commit + ", found " + ggml_commit());
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    barrier_of_ggml = (Barrier)symbol_next_to(cpu_function("ggml_backend_set_n_threads"), "ggml_barrier");
    if (!barrier_of_ggml) return without("this libggml does not export ggml_barrier");
    const auto answering = (abi::BufferType *)find_answering_type(cpu);
    if (!answering) return without("this libggml was built without repacking of weights (GGML_CPU_REPACK=OFF)");
    ours.weights = (ggml_backend_buffer_type_t)make_weights_buffer_type(cpu);
    placement_.insert(placement_.begin(), ours.weights);
    placement_.push_back(nullptr);
    Patches & p = patches_;
    p.supports_op.apply(&((abi::Device *)cpu)->iface.supports_op, supports_op);
    p.supports_buft.apply(&((abi::Device *)cpu)->iface.supports_buft, supports_buft);
    p.get_proc_address.apply(&((abi::Registry *)ggml_backend_dev_backend_reg(cpu))->iface.get_proc_address,
                             get_proc_address);
    p.extra.apply(&answering->context, node_traits_before((abi::ExtraBufferType *)answering->context));
    p.alloc_buffer.apply(&((abi::BufferType *)ggml_backend_cpu_buffer_type())->iface.alloc_buffer, alloc_buffer);
    s.is_active = trial_succeeds();
    if (!s.is_active) {
        p.alloc_buffer.undo(), p.extra.undo(), p.get_proc_address.undo(), p.supports_buft.undo(), p.supports_op.undo();
        s.why_not = "a trial multiplication through ggml's backend failed";
    }
    return s;
}

}  // namespace

void * cpu_function(const char * name) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return cpu ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name) : nullptr;
}

void * symbol_next_to(void * known, const char * name) {
#ifdef _WIN32
    HMODULE library = nullptr;
    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                       (LPCSTR)known, &library);
    return library ? (void *)GetProcAddress(library, name) : nullptr;
#else
    Dl_info info;
    if (!known || !dladdr(known, &info)) return nullptr;
    void * library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return dlsym(library ? library : RTLD_DEFAULT, name);  // dlopen fails for executables
#endif
}

bool is_pinned_ggml() {
    return std::string(ggml_commit()).rfind(known_commit, 0) == 0;
}

bool is_known_ggml() {
    return is_pinned_ggml() || std::string(ggml_commit()) == "unknown";
}

// Warns if EAGLECPP_KERNELS names an unknown table, or a table that this processor cannot run.
static void warn_of_unknown_choice() {
    const char * wanted = std::getenv("EAGLECPP_KERNELS");
    if (!ours.table || !wanted || !*wanted || std::strcmp(wanted, ours.table->name) == 0) return;
    std::string known;
    for (const KernelTable * t : usable_tables()) known += std::string(known.empty() ? "" : ", ") + t->name;
    log_line(LogLevel::warning, strf("EAGLECPP_KERNELS: expected kernels for this processor (%s), found '%s'; using %s",
                                     known.c_str(), wanted, ours.table->name));
}

const Status & status() {
    static const Status s = [] {
        const Status found = install();
        warn_of_unknown_choice();
        if (found.is_active) {
            log_line(LogLevel::debug, "CPU kernels: " + found.table);
        } else if (found.is_possible) {
            log_line(LogLevel::warning, "eaglecpp's CPU kernels are off, so ggml's kernels run: " + found.why_not);
        } else {
            log_line(LogLevel::debug, "CPU kernels off: " + found.why_not);
        }
        return found;
    }();
    return s;
}

ggml_backend_buffer_type_t weights_buffer_type() {
    return status().is_active ? ours.weights : nullptr;
}

bool can_hold(ggml_type type, int64_t n_in) {
    if (!status().is_active) return false;
    const PackedProduct * p = ours.table->packed(type);
    return p && n_in % p->n_unit == 0;
}

TriedProduct try_product(ggml_backend_buffer_type_t type, const std::vector<float> & weights,
                         const std::vector<float> & x, int n_in, int n_threads) {
    const int n_out = (int)weights.size() / n_in;
    ggml_context_ptr own(ggml_init({ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * w = ggml_new_tensor_2d(own.get(), GGML_TYPE_Q8_0, n_in, n_out);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(own.get(), type));
    TriedProduct tried{ggml_backend_ptr(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)), {}};
    const auto set = (ggml_backend_set_n_threads_t)cpu_function("ggml_backend_set_n_threads");
    if (!buffer || !tried.cpu || !set) return tried;
    std::vector<uint8_t> rounded(ggml_nbytes(w));
    ggml_quantize_chunk(GGML_TYPE_Q8_0, weights.data(), rounded.data(), 0, n_out, n_in, nullptr);
    ggml_backend_tensor_set(w, rounded.data(), 0, rounded.size());
    set(tried.cpu.get(), n_threads);
    ggml_context_ptr ctx(ggml_init({4 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * in = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, (int64_t)x.size() / n_in);
    ggml_tensor * out = ggml_mul_mat(ctx.get(), w, in);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(ctx.get(), tried.cpu.get()));
    if (!memory) return tried;
    ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
    if (ggml_backend_graph_compute(tried.cpu.get(), graph) != GGML_STATUS_SUCCESS) return tried;
    tried.out.resize(ggml_nelements(out));
    ggml_backend_tensor_get(out, tried.out.data(), 0, tried.out.size() * sizeof(float));
    return tried;
}

void name_graph(ggml_cgraph * graph) {
    static std::atomic<uint64_t> n_named{0};
    constexpr uint64_t not_of_ggml = 1ull << 63;
    if (status().is_active) ((abi::Graph *)graph)->uid = not_of_ggml | ++n_named;
}

void take_graphs_of(ggml_backend_t backend, bool fuses) {
    if (!status().is_active || !backend) return;
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    if (!device || ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) return;
    abi::BackendInterface & calls = ((abi::Backend *)backend)->iface;
    calls.graph_compute = compute_in_place_of(calls.graph_compute, fuses);
}

ScopeKeeper::ScopeKeeper() : before_(scope) {}

ScopeKeeper::~ScopeKeeper() {
    scope = before_;
}

LoadScope::LoadScope(bool kernels, bool repack) {
    scope.is_loading = kernels && status().is_active;
    scope.is_repacking = repack;
}

ComputeScope::ComputeScope(bool on, const ChosenGroups * chosen) {
    scope.is_computing = on && status().is_active;
    scope.chosen = chosen;
}

}  // namespace eaglecpp::kernels
