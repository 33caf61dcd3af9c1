// SPDX-License-Identifier: MIT
#include "target/llama_bridge.h"

#include <ggml-cpp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <regex>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "ggml_hook/hook.h"

#ifndef _WIN32
#include <fcntl.h>
#include <unistd.h>
#endif

namespace eaglecpp {

namespace {

// Address of an exported function, or null if libllama does not export the function. A Symbol converts to a pointer to
// any type of function.
struct Symbol {
    void * address;
    template <typename F>
    operator F *() const {
        return (F *)address;
    }
};

// Returns the address of the first name in the list that is exported. The list has a function's plain C name, Itanium's
// mangled name and Microsoft's mangled name.
Symbol find(std::initializer_list<const char *> names) {
    for (const char * name : names) {
        if (void * p = kernels::symbol_next_to((void *)&llama_decode, name)) return {p};
    }
    return {nullptr};
}

struct MemorySizes {
    size_t model, context, compute;
};

// Functions that libllama exports. In every ABI that llama.cpp is built for, a member function takes its object as the
// first argument.
struct Functions {
    const ggml_tensor * (*get_tensor)(const llama_model *,
                                      const char *) = find({"_ZNK11llama_model10get_tensorEPKc",
                                                            "?get_tensor@llama_model@@QEBAPEBUggml_tensor@@PEBD@Z"});
    ggml_backend_sched_t (*get_sched)(const llama_context *) =
        find({"_ZNK13llama_context9get_schedEv", "?get_sched@llama_context@@QEBAPEAUggml_backend_sched@@XZ"});

    // libllama must use the same standard library, because strings, vectors and maps are passed to these functions.
    // GNU's mangled name says which of its two string types a function returns. LLVM's name is plain.
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI && !defined(_GLIBCXX_DEBUG)
    static constexpr const char * tensor_map_name = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model";
#elif defined(_LIBCPP_VERSION)
    static constexpr const char * tensor_map_name = "_Z29llama_internal_get_tensor_mapPK11llama_model";
#else
    static constexpr const char * tensor_map_name = "";
#endif
    const std::vector<std::pair<std::string, ggml_tensor *>> & (*get_tensor_map)(const llama_model *) =
        find({tensor_map_name});
    std::map<ggml_backend_buffer_type_t, MemorySizes> (*get_memory)(const llama_context *) =
        find({"_Z26llama_get_memory_breakdownPK13llama_context"});
    ggml_backend_meta_get_split_state_t split_of =
        find({"_Z33llama_meta_device_get_split_statePK11ggml_tensorPv",
              "?llama_meta_device_get_split_state@@YA?AUggml_backend_meta_split_state@@PEBUggml_tensor@@PEAX@Z"});
    void (*set_use_ref)(ggml_backend_t, bool) = Symbol{kernels::cpu_function("ggml_backend_cpu_set_use_ref")};
};

const Functions & llama() {
    static const Functions all;
    return all;
}

}  // namespace

// Joins parts of lines. GGML_LOG_LEVEL_CONT marks a part that continues the previous line.
static void on_log(ggml_log_level level, const char * text, void *) {
    thread_local std::string line;
    thread_local LogLevel line_level = LogLevel::info;
    if (level != GGML_LOG_LEVEL_CONT) {
        line_level = level == GGML_LOG_LEVEL_ERROR  ? LogLevel::error
                     : level == GGML_LOG_LEVEL_WARN ? LogLevel::warning
                     : level == GGML_LOG_LEVEL_INFO ? LogLevel::info
                                                    : LogLevel::debug;
    }
    line += text;
    if (!line.empty() && line.back() == '\n') {
        log_line(line_level, line);
        line.clear();
    }
}

void route_logs() {
    llama_log_set(on_log, nullptr);
}

void llama_start() {
    route_logs();  // routes again, because llama_cpp installs its own callback when it is imported, perhaps after us
    static std::once_flag once;
    std::call_once(once, [] {
        ggml_backend_load_all();
        llama_backend_init();
        // Installs the hook before ggml decides where weights may be stored. A separate thread installs the hook,
        // because the installation computes with the kernels. A child forked from a thread that has computed would wait
        // for OpenMP's threads (base/process.h).
        std::thread([] { kernels::status(); }).join();
    });
}

bool is_lack_of_memory(const std::string & logged) {
    for (const char * words : {" to allocate ", "Malloc failed", "bad_alloc"}) {
        if (logged.find(words) != std::string::npos) return true;
    }
    return false;
}

const StagingFunctions & staging() {
    static const StagingFunctions all = {
        find({"llama_set_embeddings_layer_inp", "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
              "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"}),
        find({"llama_get_embeddings_layer_inp", "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
              "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"}),
        find({"llama_set_embeddings_nextn", "_Z26llama_set_embeddings_nextnP13llama_contextbb",
              "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z"}),
        find({"llama_get_embeddings_nextn", "_Z26llama_get_embeddings_nextnP13llama_context",
              "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z"}),
        find({"llama_get_embeddings_nextn_ith", "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
              "?llama_get_embeddings_nextn_ith@@YAPEAMPEAUllama_context@@H@Z"}),
    };
    return all;
}

void check_state_functions() {
    if (staging().set_states && staging().get_states && staging().get_state) return;
    fail(ErrorKind::unsupported,
         "this libllama does not export llama_set_embeddings_nextn; install the pinned version of llama-cpp-python");
}

std::vector<const ggml_tensor *> model_tensors(const llama_model * model, const char * name) {
    std::vector<const ggml_tensor *> found;
    if (llama().get_tensor_map) {
        for (const auto & [own, tensor] : llama().get_tensor_map(model)) {
            if (own == name) found.push_back(tensor);
        }
        return found;
    }
    const ggml_tensor * first = llama().get_tensor ? llama().get_tensor(model, name) : nullptr;
    if (first) found.push_back(first);
    return found;
}

void check_parts(const llama_model * model, size_t n_devices) {
    if (!llama().split_of || !llama().get_tensor_map) return;
    std::pair<size_t, const llama_model *> data{n_devices, model};  // llama_meta_device_get_split_state_userdata
    for (const auto & [name, tensor] : llama().get_tensor_map(model)) {
        ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
        if (!dev || ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_META) continue;
        const ggml_backend_meta_split_state split = llama().split_of(tensor, &data);
        const bool is_split = split.axis >= 0 && split.axis < GGML_MAX_DIMS;
        if (!is_split || !std::count(split.ne, split.ne + n_devices, 0)) continue;
        fail(ErrorKind::unsupported,
             "split_mode 'tensor': a GPU would get no part of tensor '%s' and compute NaN; use split_mode 'layer', "
             "fewer GPUs or another tensor_split",
             name.c_str());
    }
}

bool has_plain_rows(const ggml_tensor * tensor) {
    if (!tensor->buffer || !tensor->data) return false;
    // Memory that is mapped from a file has a separate buffer type. ggml has no function that returns this type, so it
    // is taken from a buffer.
    static const ggml_backend_buffer_type_t mapped = [] {
        alignas(64) static uint8_t bytes[64];
        const ggml_backend_buffer_ptr buffer(ggml_backend_cpu_buffer_from_ptr(bytes, sizeof(bytes)));
        return ggml_backend_buffer_get_type(buffer.get());
    }();
    const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(tensor->buffer);
    if (type == ggml_backend_cpu_buffer_type() || type == mapped) return true;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (type == ggml_backend_dev_host_buffer_type(ggml_backend_dev_get(i))) return true;
    }
    return false;
}

bool has_reference_kernels() {
    return llama().get_sched && llama().set_use_ref;
}

std::vector<ggml_backend_t> cpu_backends(llama_context * ctx) {
    std::vector<ggml_backend_t> found;
    if (!llama().get_sched) return found;
    ggml_backend_sched_t sched = llama().get_sched(ctx);
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        ggml_backend_dev_t device = ggml_backend_get_device(backend);
        if (device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) found.push_back(backend);
    }
    return found;
}

void set_reference_kernels(llama_context * ctx, bool on) {
    for (ggml_backend_t backend : cpu_backends(ctx)) llama().set_use_ref(backend, on);
}

bool records_layer_inputs(const std::string & architecture) {
    // Architectures whose graph in llama.cpp's src/models fills t_layer_inp, directly or through a base class.
    static const std::set<std::string> names = {
        "llama",       "qwen3",         "qwen3moe",     "qwen3next",  "qwen35",         "qwen35moe",
        "qwen4exp",    "gpt-oss",       "gemma4",       "minimax-m2", "minimax-01",     "lfm2",
        "lfm2moe",     "hunyuan-dense", "hunyuan_vl",   "nemotron_h", "nemotron_h_moe", "mimo2",
        "bailingmoe3", "nanbeige",      "muse-glimmer", "deepseek4",
    };
    return names.count(architecture) > 0;
}

// --- devices -------------------------------------------------------------------------------------------------------

std::vector<DeviceInfo> list_devices() {
    llama_start();
    std::vector<DeviceInfo> out;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        DeviceInfo info{ggml_backend_dev_name(dev), ggml_backend_dev_description(dev), "", 0, 0};
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(dev);
        info.kind = type == GGML_BACKEND_DEVICE_TYPE_CPU     ? "cpu"
                    : type == GGML_BACKEND_DEVICE_TYPE_ACCEL ? "accel"
                                                             : "gpu";
        ggml_backend_dev_memory(dev, &info.memory_free, &info.memory_total);
        out.push_back(info);
    }
    return out;
}

std::vector<ggml_backend_dev_t> list_gpus(const std::set<std::string> & lost) {
    std::vector<ggml_backend_dev_t> out, local, integrated;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (lost.count(ggml_backend_dev_description(dev))) continue;
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(dev);
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU) (is_on_server(dev) ? out : local).push_back(dev);
        if (type == GGML_BACKEND_DEVICE_TYPE_IGPU) integrated.push_back(dev);
    }
    if (local.empty()) local = integrated;
    out.insert(out.end(), local.begin(), local.end());
    return out;
}

bool is_on_server(ggml_backend_dev_t device) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);  // null for a device that combines several devices
    return reg && std::strncmp(ggml_backend_reg_name(reg), "RPC", strlen("RPC")) == 0;
}

#ifdef _WIN32
void watch_rpc_server(const std::string &, const std::string &, int) {}

std::vector<LostServer> lost_rpc_servers() {
    return {};
}
#else
namespace {
struct WatchedServers {
    std::mutex mutex;
    std::vector<std::pair<LostServer, int>> all;  // servers with their pipes; a lost server has a reason
};

WatchedServers & watched_servers() {
    static auto * out = new WatchedServers;  // never freed, because static models may outlive it
    return *out;
}
}  // namespace

void watch_rpc_server(const std::string & endpoint, const std::string & relay, int pipe) {
    fcntl(pipe, F_SETFL, fcntl(pipe, F_GETFL) | O_NONBLOCK);
    const std::lock_guard<std::mutex> lock(watched_servers().mutex);
    watched_servers().all.push_back({{endpoint, relay, ""}, pipe});
}

std::vector<LostServer> lost_rpc_servers() {
    const std::lock_guard<std::mutex> lock(watched_servers().mutex);
    std::vector<LostServer> out;
    for (auto & [server, pipe] : watched_servers().all) {
        char text[256];
        const ssize_t n = server.why.empty() ? read(pipe, text, sizeof(text)) : -1;
        if (n >= 0) {
            server.why = n > 1 ? std::string(text, n - 1) : "its relay has ended";
            log_line(LogLevel::error, "RPC server " + server.endpoint + " was lost: " + server.why);
        }
        if (!server.why.empty()) out.push_back(server);
    }
    return out;
}
#endif

ggml_backend_dev_t find_device(const std::string & wanted, int n_gpu_layers) {
    llama_start();
    if (wanted == "cpu") return nullptr;
    if (wanted == "auto") {
        ggml_backend_dev_t gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
        if (!gpu) gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
        return n_gpu_layers == 0 ? nullptr : gpu;
    }
    ggml_backend_dev_t dev = ggml_backend_dev_by_name(wanted.c_str());
    if (dev) return dev;
    std::string names;
    for (const auto & d : list_devices()) names += (names.empty() ? "" : ", ") + d.name;
    fail(ErrorKind::value, "draft_device: expected auto, cpu or one of %s, found '%s'", names.c_str(), wanted.c_str());
}

std::vector<MemoryUse> memory_use(const llama_context * ctx) {
    std::vector<MemoryUse> out;
    // The mangled name of get_tensor_map depends on libllama's standard library. The name of get_memory does not.
    if (!llama().get_memory || !llama().get_tensor_map) return out;
    for (const auto & [buffer, sizes] : llama().get_memory(ctx)) {
        ggml_backend_dev_t device = ggml_backend_buft_is_host(buffer) ? nullptr : ggml_backend_buft_get_device(buffer);
        if (!device) device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        out.push_back({device, sizes.model, sizes.context, sizes.compute});
    }
    return out;
}

static ggml_backend_buffer_type_t buffer_by_name(const std::string & name) {
    std::string names;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        ggml_backend_buffer_type_t buffer = ggml_backend_dev_buffer_type(dev);
        if (!buffer) continue;
        if (name == ggml_backend_buft_name(buffer) || name == ggml_backend_dev_name(dev)) return buffer;
        names += (names.empty() ? "" : ", ") + std::string(ggml_backend_buft_name(buffer));
    }
    fail(ErrorKind::value, "override_tensor: expected one of the buffers %s, found '%s'", names.c_str(), name.c_str());
}

std::vector<TensorPlace> tensor_places(int n_cpu_moe, const std::vector<std::string> & overrides) {
    llama_start();
    std::vector<TensorPlace> out;
    for (const std::string & list : overrides) {
        for (size_t at = 0; at <= list.size();) {
            const size_t end = std::min(list.find(',', at), list.size());
            const std::string entry = list.substr(at, end - at);
            at = end + 1;
            const size_t equals = entry.find('=');
            fail_if(equals == 0 || equals == std::string::npos, ErrorKind::value,
                    "override_tensor: expected PATTERN=BUFFER, found '%s'", entry.c_str());
            const std::string pattern = entry.substr(0, equals);
            try {
                std::regex{pattern};
            } catch (const std::regex_error & e) {
                fail(ErrorKind::value, "override_tensor: '%s' is not a regular expression: %s", pattern.c_str(),
                     e.what());
            }
            out.push_back({pattern, buffer_by_name(entry.substr(equals + 1))});
        }
    }
    // From llama.cpp's common/common.h, LLM_FFN_EXPS_REGEX.
    const std::string experts = "\\.ffn_(up|down|gate|gate_up)_(ch|)exps";
    if (n_cpu_moe < 0) out.push_back({experts, ggml_backend_cpu_buffer_type()});
    for (int i = 0; i < n_cpu_moe; ++i) {
        out.push_back({"blk\\." + std::to_string(i) + experts, ggml_backend_cpu_buffer_type()});
    }
    return out;
}

}  // namespace eaglecpp
