// SPDX-License-Identifier: MIT
#include "kernels/hook.h"

#include <ggml-alloc.h>
#include <ggml-cpp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include "base/log.h"
#include "kernels/attention.h"
#include "kernels/fusion.h"
#include "kernels/ggml_abi.h"
#include "kernels/product_ops.h"
#include "kernels/select.h"
#include "kernels/weights_buffer.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

namespace eaglecpp::kernels {

namespace {

// ggml's version that ggml_abi.h was taken from
constexpr const char * known_commit = "0c1e570";

const KernelTable * table_ = nullptr;
abi::BufferType * buffer_type_ = nullptr;
thread_local bool is_loading_ = false;    // inside a LoadScope that asks for our kernels
thread_local bool is_repacking_ = true;   // not inside a LoadScope without ggml's own types
thread_local bool is_computing_ = false;  // inside a ComputeScope
thread_local LateLogits * late_logits_ = nullptr;

bool is_ours(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && ggml_backend_buffer_get_type(buffer) == (ggml_backend_buffer_type_t)buffer_type_;
}

// --- what ggml calls
// ---------------------------------------------------------------------------------------------------

// Products of packed weights: nobody else can compute these.
class Packed : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = product_work_size(*table_, n_threads, op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        finish_packing(op->src[0]);
        multiply_packed(*table_, *params, op);
        return true;
    }
};

// Operations that ggml could compute, too. The thread that starts a graph asks for the work sizes; whether it is inside
// a ComputeScope is written on the node then, for the threads that compute it. `extra` of a node is free: the CPU
// backend uses it for weights only.
class Tagged : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const_cast<ggml_tensor *>(op)->extra = is_computing_ ? this : nullptr;
        return is_computing_ && size_of(n_threads, op, size);
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        if (op->extra != this) return false;
        compute(*params, op);
        return true;
    }

  private:
    virtual bool size_of(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual void compute(const ComputeParams & params, ggml_tensor * op) = 0;
};

class Dense : public Tagged {
    bool size_of(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }
    void compute(const ComputeParams & params, ggml_tensor * op) override { multiply_dense(*table_, params, op); }
};

class Attention : public Tagged {
    bool size_of(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = table_->attention_work_size(n_threads, op);
        return true;
    }
    void compute(const ComputeParams & params, ggml_tensor * op) override { table_->attention(params, op); }
};

// Several nodes at once, in the place of one of them (fusion.h).
class Steps : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = Step::of(op).work_size(*table_, n_threads);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        const Step & step = Step::of(op);
        for (const ggml_tensor * p : step.products) finish_packing(p->src[0]);
        step.compute(*table_, *params);
        return true;
    }
};

// ggml's classes have other names than those of ggml_abi.h, which UBSan would take for a mistake.
#if defined(__GNUC__)
#define FOREIGN_CLASS __attribute__((no_sanitize("vptr")))
#else
#define FOREIGN_CLASS
#endif

// Asked in the place of one of ggml's own types, which is asked about all that is not ours.
class Extra : public abi::ExtraBufferType {
  public:
    FOREIGN_CLASS bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) override {
        return ggmls->supports_op(dev, op);
    }

    FOREIGN_CLASS abi::TensorTraits * get_tensor_traits(const ggml_tensor * op) override {
        abi::TensorTraits * ours = traits(op);
        return ours ? ours : ggmls->get_tensor_traits(op);
    }

    abi::ExtraBufferType * ggmls = nullptr;

  private:
    abi::TensorTraits * traits(const ggml_tensor * op) {
        switch (op->op) {
            case GGML_OP_GLU:
            case GGML_OP_MUL:
            case GGML_OP_RMS_NORM:
            case GGML_OP_ROPE:
            case GGML_OP_SET_ROWS:
                return Step::is_step(op) ? &steps_ : nullptr;
            case GGML_OP_MUL_MAT:
            case GGML_OP_MUL_MAT_ID:
                if (Step::is_step(op)) return &steps_;
                if (is_ours(op->src[0])) return &packed_;
                return is_for(op, dense_) && can_multiply_dense(*table_, op) ? &dense_ : nullptr;
            case GGML_OP_FLASH_ATTN_EXT:
                return is_for(op, attention_) && table_->attention && attention_fits(op) ? &attention_ : nullptr;
            default:
                return nullptr;
        }
    }

    // being planned by a thread of ours, or planned so
    static bool is_for(const ggml_tensor * op, const Tagged & tagged) { return is_computing_ || op->extra == &tagged; }

    Packed packed_;
    Dense dense_;
    Attention attention_;
    Steps steps_;
};

// What a device answers for our weights, when they are placed and for every operation on them.
bool takes_op(const ggml_tensor * op) {
    if (!op->src[0] || !is_ours(op->src[0]) || !can_multiply_packed(*table_, op)) return false;
    const bool is_placing = !op->src[0]->data;
    if (is_placing && !is_loading_) return false;
    for (int i = 1; i < 3; ++i) {
        const ggml_tensor * x = op->src[i];
        if (x && x->buffer && !ggml_backend_buffer_is_host(x->buffer)) return false;
    }
    return true;
}

// --- whole graphs
// ----------------------------------------------------------------------------------------------------

using GraphCompute = ggml_status (*)(ggml_backend_t, ggml_cgraph *);
std::atomic<GraphCompute> compute_of_ggml_{nullptr};

bool is_packed_product(const ggml_tensor * node) {
    return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) && is_ours(node->src[0]);
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph * graph) {
    if (!is_computing_) return compute_of_ggml_.load()(backend, graph);
    try {
        thread_local Fusions fusions;
        const Fusion & fusion = fusions.of(graph, ((abi::Graph *)graph)->uid, is_packed_product);
        fusion.mark();
        const ggml_status status = compute_of_ggml_.load()(backend, graph);
        fusion.unmark();
        return status;
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    }
}

// --- installing
// --------------------------------------------------------------------------------------------------------

ggml_backend_reg_t cpu_registry() {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr;
}

// A pointer of ggml's that other threads may be reading.
template <typename T>
struct Patch {
    T * place;
    T ggmls;

    void apply(T * at, T ours) {
        place = at;
        ggmls = *at;
        store(ours);
    }
    void undo() { store(ggmls); }

  private:
    void store(T value) {
        static_assert(sizeof(std::atomic<T>) == sizeof(T) && std::atomic<T>::is_always_lock_free);
        ((std::atomic<T> *)place)->store(value, std::memory_order_release);
    }
};

struct Patches {
    Patch<void *> extra;
    Patch<decltype(abi::DeviceInterface::supports_op)> supports_op;
    Patch<decltype(abi::DeviceInterface::supports_buft)> supports_buft;
    Patch<decltype(abi::RegistryInterface::get_proc_address)> get_proc_address;
} patches_;

// What llama.cpp goes through when it places weights, null-terminated: our type in front, where it is not ours to
// refuse, and then ggml's own.
std::vector<ggml_backend_buffer_type_t> placement_;

ggml_backend_buffer_type_t * placement_list(ggml_backend_dev_t) {
    static ggml_backend_buffer_type_t only_ours[] = {(ggml_backend_buffer_type_t)buffer_type_, nullptr};
    return is_repacking_ ? placement_.data() : only_ours;
}

void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    if (std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0) return (void *)placement_list;
    return patches_.get_proc_address.ggmls(reg, name);
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    for (int i = 0; i < 4; ++i) {  // as many as ggml looks at
        if (op->src[i] && op->src[i]->buffer && is_ours(op->src[i])) return takes_op(op);
    }
    return patches_.supports_op.ggmls(dev, op);
}

bool supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    return type == (ggml_backend_buffer_type_t)buffer_type_ || patches_.supports_buft.ggmls(dev, type);
}

// Returns the type whose questions come to us from now on, null where ggml has none.
ggml_backend_buffer_type_t find_asked_type(ggml_backend_dev_t cpu) {
    const auto get = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        cpu_registry(), "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * b = get ? get(cpu) : nullptr; b && *b; ++b) placement_.push_back(*b);
    for (ggml_backend_buffer_type_t type : placement_) {
        // KleidiAI knows its weights by this very pointer
        const bool is_kleidiai = std::strstr(ggml_backend_buft_name(type), "KLEIDIAI");
        if (!is_kleidiai && ((abi::BufferType *)type)->context) return type;
    }
    return nullptr;
}

// From the very library that holds `known`: llama_cpp loads them with local visibility.
void * symbol_beside(void * known, const char * name) {
#ifdef _WIN32
    (void)known, (void)name;
    return nullptr;  // libraries are not searched there yet
#else
    Dl_info info;
    if (!known || !dladdr(known, &info)) return nullptr;
    void * library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : nullptr;
#endif
}

// Multiplies known weights through the whole backend, with one thread and with two: an interface that is not what
// ggml_abi.h says shows here, before a model depends on it.
bool trial_succeeds() {
    constexpr int n_in = 64, n_out = 40, n_rows = 6;
    ggml_context_ptr weights(ggml_init({ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * w = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, n_in, n_out);
    ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), (ggml_backend_buffer_type_t)buffer_type_));
    if (!buffer) return false;
    std::vector<float> values(n_in * n_out), x(n_in * n_rows), y(n_out * n_rows);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (float)((int)(i * 37 % 255) - 127);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (float)((int)(i * 53 % 255) - 127);
    for (int i = 0; i < n_out; ++i) values[(size_t)i * n_in] = 127, values[(size_t)i * n_in + 32] = 127;
    for (int i = 0; i < n_rows; ++i) x[(size_t)i * n_in] = 127, x[(size_t)i * n_in + 32] = 127;
    std::vector<uint8_t> rounded(ggml_nbytes(w));
    ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), rounded.data(), 0, n_out, n_in, nullptr);
    ggml_backend_tensor_set(w, rounded.data(), 0, rounded.size());
    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    const auto set =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(cpu_registry(), "ggml_backend_set_n_threads");
    if (!cpu || !set) return false;
    for (int n_threads : {1, 2}) {
        set(cpu.get(), n_threads);
        ggml_context_ptr ctx(ggml_init({4 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
        ggml_tensor * in = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, n_rows);
        ggml_tensor * out = ggml_mul_mat(ctx.get(), w, in);
        ggml_cgraph * graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, out);
        ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(ctx.get(), cpu.get()));
        if (!memory) return false;
        ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
        if (ggml_backend_graph_compute(cpu.get(), graph) != GGML_STATUS_SUCCESS) return false;
        ggml_backend_tensor_get(out, y.data(), 0, y.size() * sizeof(float));
        for (int r = 0; r < n_rows; ++r) {
            for (int o = 0; o < n_out; ++o) {
                double exact = 0;  // whole numbers with the largest 127: rounding to 8 bits changes nothing
                for (int i = 0; i < n_in; ++i) exact += (double)values[(size_t)o * n_in + i] * x[(size_t)r * n_in + i];
                if (std::fabs(exact - y[(size_t)r * n_out + o]) > 1e-3 * (1e5 + std::fabs(exact))) return false;
            }
        }
    }
    return true;
}

Status install() {
    Status s;
    table_ = chosen_table();
    if (!table_) {
        s.why_not = "no kernels for this processor: they need AVX2 or NEON with dot products";
        return s;
    }
    s.table = table_->name;
#ifdef _WIN32
    s.why_not = "not made for Windows yet";
    return s;
#endif
    s.is_possible = true;
    if (!is_known_ggml()) {
        s.why_not = std::string("made for ggml ") + known_commit + ", found " + ggml_commit();
        return s;
    }
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    void * in_cpu = cpu ? ggml_backend_reg_get_proc_address(cpu_registry(), "ggml_backend_set_n_threads") : nullptr;
    barrier_of_ggml = (Barrier)symbol_beside(in_cpu, "ggml_barrier");
    const auto init = (abi::BufferInit)symbol_beside((void *)&ggml_backend_buft_name, "ggml_backend_buffer_init");
    if (!barrier_of_ggml || !init) {
        s.why_not = "this libggml does not export what the kernels are hooked into";
        return s;
    }
    const auto asked = (abi::BufferType *)find_asked_type(cpu);
    if (!asked) {
        s.why_not = "this libggml was built without repacking of weights (GGML_CPU_REPACK=OFF)";
        return s;
    }
    buffer_type_ = make_weights_buffer_type(*table_, cpu, init);
    placement_.insert(placement_.begin(), (ggml_backend_buffer_type_t)buffer_type_);
    placement_.push_back(nullptr);
    static Extra extra;
    extra.ggmls = (abi::ExtraBufferType *)asked->context;
    Patches & p = patches_;
    p.supports_op.apply(&((abi::Device *)cpu)->iface.supports_op, supports_op);
    p.supports_buft.apply(&((abi::Device *)cpu)->iface.supports_buft, supports_buft);
    p.get_proc_address.apply(&((abi::Registry *)cpu_registry())->iface.get_proc_address, get_proc_address);
    p.extra.apply(&asked->context, static_cast<abi::ExtraBufferType *>(&extra));
    s.is_active = trial_succeeds();
    if (!s.is_active) {
        p.extra.undo(), p.get_proc_address.undo(), p.supports_buft.undo(), p.supports_op.undo();
        s.why_not = "a trial product through ggml's backend failed";
    }
    return s;
}

// As ggml does it for a backend without a way of its own, but for logits that may stay where they are.
void get_tensor(ggml_backend_t backend, const ggml_tensor * t, void * to, size_t offset, size_t n_bytes) {
    ggml_backend_synchronize(backend);
    const bool is_late =
        late_logits_ && std::strcmp(t->name, "result_output") == 0 && late_logits_->take(t, to, offset, n_bytes);
    if (!is_late) ggml_backend_tensor_get(t, to, offset, n_bytes);
}

}  // namespace

bool is_known_ggml() {
    const std::string commit = ggml_commit();
    return commit.rfind(known_commit, 0) == 0 || commit == "unknown";
}

const Status & status() {
    static const Status s = [] {
        const Status found = install();
        if (found.is_active) {
            log_line(LogLevel::debug, "CPU kernels: " + found.table);
        } else if (found.is_possible) {
            log_line(LogLevel::warning, "eaglecpp's CPU kernels are off, and ggml's slower ones run: " + found.why_not);
        } else {
            log_line(LogLevel::debug, "CPU kernels off: " + found.why_not);
        }
        return found;
    }();
    return s;
}

ggml_backend_buffer_type_t weights_buffer_type() {
    return status().is_active ? (ggml_backend_buffer_type_t)buffer_type_ : nullptr;
}

bool can_hold(ggml_type type, int64_t n_in) {
    if (!status().is_active) return false;
    const PackedProduct * p = table_->packed(type);
    return p && n_in % p->n_unit == 0;
}

void name_graph(ggml_cgraph * graph) {
    static std::atomic<uint64_t> n_named{0};
    constexpr uint64_t not_of_ggml = 1ull << 63;
    if (status().is_active) ((abi::Graph *)graph)->uid = not_of_ggml | ++n_named;
}

void fuse_graphs_of(ggml_backend_t backend) {
    if (!status().is_active || !backend) return;
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    if (!device || ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) return;
    GraphCompute & compute = ((abi::Backend *)backend)->iface.graph_compute;
    if (compute == compute_graph) return;
    compute_of_ggml_ = compute;  // the same for all
    compute = compute_graph;
    auto & get = ((abi::Backend *)backend)->iface.get_tensor_async;
    if (!get) get = get_tensor;
}

void LateLogits::begin(int n_rows) {
    *this = {};
    n_rows_ = n_rows;
}

bool LateLogits::take(const ggml_tensor * t, void * to, size_t offset, size_t n_bytes) {
    const bool is_whole_batch = n_rows_ > 0 && ggml_nrows(t) == n_rows_ && offset == 0 && n_bytes == ggml_nbytes(t);
    if (!is_whole_batch || !ggml_is_contiguous(t)) return false;
    from_ = (const char *)t->data;
    to_ = (const char *)to;
    n_row_ = n_bytes / (size_t)n_rows_;
    // Every row of llama.cpp's buffer says which one it is: a graph may compute them in another order than the batch
    // has, and llama.cpp then swaps rows of its buffer when they are asked for.
    for (int32_t i = 0; i < n_rows_; ++i) std::memcpy((char *)to + (size_t)i * n_row_, &i, sizeof(i));
    return true;
}

const float * LateLogits::find(const float * copied) const {
    const std::less<const char *> is_before;
    const char * p = (const char *)copied;
    if (!from_ || is_before(p, to_) || !is_before(p, to_ + (size_t)n_rows_ * n_row_)) return copied;
    int32_t row;
    std::memcpy(&row, p, sizeof(row));
    return (const float *)(from_ + (size_t)row * n_row_);
}

LoadScope::LoadScope(bool kernels, bool repack, bool is_mapped)
    : is_loading_before_(is_loading_), is_repacking_before_(is_repacking_) {
    is_loading_ = kernels && status().is_active;
    is_repacking_ = repack;
    pack_later(is_mapped);
}

LoadScope::~LoadScope() {
    is_loading_ = is_loading_before_;
    is_repacking_ = is_repacking_before_;
    pack_later(false);
}

ComputeScope::ComputeScope(bool on, LateLogits * logits) : before_(is_computing_), logits_before_(late_logits_) {
    is_computing_ = on && status().is_active;
    late_logits_ = is_computing_ ? logits : nullptr;
}

ComputeScope::~ComputeScope() {
    is_computing_ = before_;
    late_logits_ = logits_before_;
}

}  // namespace eaglecpp::kernels
