// SPDX-License-Identifier: MIT
#include "gguf/reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <type_traits>

#include "base/error.h"
#include "base/log.h"
#include "gguf/guard.h"

namespace eaglecpp {

namespace fs = std::filesystem;

// Maximum number of tensors: ten times the number in the largest models. llama.cpp searches a list of all tensors for
// each tensor, so a file with more tensors would take too long to load.
static constexpr uint64_t n_tensors_max = 1 << 14;

bool is_weight_type(ggml_type type) {
    return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr;
}

GgufReader::GgufReader(std::string path) : path_(std::move(path)), gguf_(nullptr, gguf_free) {
    std::error_code ec;
    const fs::path file = fs::u8path(path_);
    if (!fs::exists(file, ec)) fail(ErrorKind::not_found, "%s: no such file", path_.c_str());
    if (!fs::is_regular_file(file, ec)) fail(ErrorKind::gguf, "%s: not a regular file", path_.c_str());
    file_size_ = fs::file_size(file, ec);

    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensors;
    } head = {};
    std::ifstream in(file, std::ios::binary);
    in.read((char *)&head, sizeof(head));
    fail_if(ec || in.gcount() == 0, ErrorKind::gguf, "%s: cannot be read: %s", path_.c_str(),
            file_size_ == 0 ? "the file is empty" : std::generic_category().message(errno).c_str());
    fail_if(std::string(head.magic, 4) != "GGUF", ErrorKind::gguf,
            "%s: not a GGUF file (first bytes %02x %02x %02x %02x, expected 'GGUF')", path_.c_str(),
            (uint8_t)head.magic[0], (uint8_t)head.magic[1], (uint8_t)head.magic[2], (uint8_t)head.magic[3]);
    fail_if(head.n_tensors > n_tensors_max, ErrorKind::gguf,
            "%s: the header counts %llu tensors, but the limit is %llu; the file is damaged, download it again",
            path_.c_str(), (unsigned long long)head.n_tensors, (unsigned long long)n_tensors_max);
    ErrorTrail trail;
    try {
        guarded([&] { gguf_.reset(gguf_init_from_file(path_.c_str(), {/*no_alloc=*/true, /*ctx=*/nullptr})); });
    } catch (const std::exception & e) {
        fail(ErrorKind::gguf, "%s: damaged GGUF header: %s", path_.c_str(), e.what());
    }
    fail_if(!gguf_, ErrorKind::gguf, "%s: damaged or truncated GGUF header, %llu bytes%s; download or convert it again",
            path_.c_str(), (unsigned long long)file_size_, trail.text().c_str());
    read_tensor_table();
}

void GgufReader::read_tensor_table() {
    const gguf_context * g = gguf_.get();
    const uint64_t data_offset = gguf_get_data_offset(g);
    for (int64_t i = 0; i < gguf_get_n_tensors(g); ++i) {
        TensorInfo t;
        t.name = gguf_get_tensor_name(g, i);
        t.type = gguf_get_tensor_type(g, i);
        std::copy_n(gguf_get_tensor_ne(g, i), GGML_MAX_DIMS, t.ne.begin());
        t.n_bytes = gguf_get_tensor_size(g, i);
        const uint64_t start = gguf_get_tensor_offset(g, i);
        t.offset = data_offset + start;
        // The comparisons are written so that untrusted offsets cannot overflow.
        fail_if(
            data_offset > file_size_ || start > file_size_ - data_offset || t.n_bytes > file_size_ - t.offset,
            ErrorKind::gguf,
            "%s: tensor '%s' ends at byte %llu, but the file has only %llu bytes; it is truncated, download it again",
            path_.c_str(), t.name.c_str(), (unsigned long long)(t.offset + t.n_bytes), (unsigned long long)file_size_);
        by_name_[t.name] = tensors_.size();
        tensors_.push_back(std::move(t));
    }
}

int64_t GgufReader::find(const std::string & key, std::initializer_list<gguf_type> types, const char * expected,
                         bool is_array) const {
    const gguf_context * g = gguf_.get();
    const int64_t id = gguf_find_key(g, key.c_str());
    if (id < 0) return id;
    const bool found_array = gguf_get_kv_type(g, id) == GGUF_TYPE_ARRAY;
    const gguf_type type = found_array ? gguf_get_arr_type(g, id) : gguf_get_kv_type(g, id);
    fail_if(found_array != is_array || std::count(types.begin(), types.end(), type) == 0, ErrorKind::gguf,
            "%s: key '%s': expected %s, found %s%s", path_.c_str(), key.c_str(), expected,
            found_array ? "an array of " : "", gguf_type_name(type));
    return id;
}

bool GgufReader::has(const std::string & key) const {
    return gguf_find_key(gguf_.get(), key.c_str()) >= 0;
}

std::optional<uint32_t> GgufReader::find_u32(const std::string & key) const {
    const gguf_context * g = gguf_.get();
    const int64_t id = find(key, {GGUF_TYPE_UINT16, GGUF_TYPE_UINT32, GGUF_TYPE_INT32}, "an integer");
    if (id < 0) return std::nullopt;
    const gguf_type type = gguf_get_kv_type(g, id);
    const int64_t value = type == GGUF_TYPE_UINT16   ? gguf_get_val_u16(g, id)
                          : type == GGUF_TYPE_UINT32 ? gguf_get_val_u32(g, id)
                                                     : (int64_t)gguf_get_val_i32(g, id);
    fail_if(value < 0 || value > INT32_MAX, ErrorKind::gguf, "%s: key '%s': expected 0 to %d, found %lld",
            path_.c_str(), key.c_str(), INT32_MAX, (long long)value);
    return (uint32_t)value;
}

std::optional<float> GgufReader::find_f32(const std::string & key) const {
    const gguf_context * g = gguf_.get();
    const int64_t id = find(key, {GGUF_TYPE_FLOAT32, GGUF_TYPE_FLOAT64}, "a float");
    if (id < 0) return std::nullopt;
    return gguf_get_kv_type(g, id) == GGUF_TYPE_FLOAT32 ? gguf_get_val_f32(g, id) : (float)gguf_get_val_f64(g, id);
}

std::optional<bool> GgufReader::find_bool(const std::string & key) const {
    const int64_t id = find(key, {GGUF_TYPE_BOOL}, "a bool");
    if (id < 0) return std::nullopt;
    return gguf_get_val_bool(gguf_.get(), id);
}

std::optional<std::string> GgufReader::find_str(const std::string & key) const {
    const int64_t id = find(key, {GGUF_TYPE_STRING}, "a string");
    if (id < 0) return std::nullopt;
    return gguf_get_val_str(gguf_.get(), id);
}

template <typename T>
std::optional<std::vector<T>> GgufReader::find_array(const std::string & key, std::initializer_list<gguf_type> types,
                                                     const char * expected) const {
    const gguf_context * g = gguf_.get();
    const int64_t id = find(key, types, expected, /*is_array=*/true);
    if (id < 0) return std::nullopt;
    std::vector<T> out(gguf_get_arr_n(g, id));
    if constexpr (std::is_same_v<T, std::string>) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = gguf_get_arr_str(g, id, i);
    } else if (!out.empty()) {
        std::copy_n((const T *)gguf_get_arr_data(g, id), out.size(), out.begin());
    }
    return out;
}

// Values above INT32_MAX become negative; the range checks of the callers reject them.
std::optional<std::vector<int32_t>> GgufReader::find_ints(const std::string & key) const {
    return find_array<int32_t>(key, {GGUF_TYPE_INT32, GGUF_TYPE_UINT32}, "an array of 32-bit integers");
}

std::optional<std::vector<float>> GgufReader::find_floats(const std::string & key) const {
    return find_array<float>(key, {GGUF_TYPE_FLOAT32}, "an array of 32-bit floats");
}

std::optional<std::vector<uint8_t>> GgufReader::find_bools(const std::string & key) const {
    return find_array<uint8_t>(key, {GGUF_TYPE_BOOL}, "an array of bools");
}

std::optional<std::vector<std::string>> GgufReader::find_strs(const std::string & key) const {
    return find_array<std::string>(key, {GGUF_TYPE_STRING}, "an array of strings");
}

std::optional<int64_t> GgufReader::find_of_layer(const std::string & key, int layer) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0 || gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return find_u32(key);
    std::vector<int32_t> all;
    if (gguf_get_arr_type(gguf_.get(), id) == GGUF_TYPE_BOOL) {
        const auto bools = *find_bools(key);
        all.assign(bools.begin(), bools.end());
    } else {
        all = *find_ints(key);
    }
    if (layer >= 0 && layer < (int)all.size()) return all[layer];
    fail(ErrorKind::gguf, "%s: key '%s': expected values for %d or more layers, found %zu values", path_.c_str(),
         key.c_str(), layer + 1, all.size());
}

template <typename T>
T GgufReader::required(const std::optional<T> & value, const std::string & key, const char * expected) const {
    if (!value) fail(ErrorKind::gguf, "%s: key '%s' is missing, expected %s", path_.c_str(), key.c_str(), expected);
    return *value;
}

uint32_t GgufReader::u32(const std::string & key) const {
    return required(find_u32(key), key, "an integer");
}

float GgufReader::f32(const std::string & key) const {
    return required(find_f32(key), key, "a float");
}

std::string GgufReader::str(const std::string & key) const {
    return required(find_str(key), key, "a string");
}

const TensorInfo * GgufReader::find_tensor(const std::string & name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void GgufReader::read(const TensorInfo & tensor, uint64_t offset, void * dst, uint64_t n) const {
    fail_if(offset > tensor.n_bytes || n > tensor.n_bytes - offset, ErrorKind::value,
            "tensor '%s': expected a range within its %llu bytes, found offset %llu and size %llu", tensor.name.c_str(),
            (unsigned long long)tensor.n_bytes, (unsigned long long)offset, (unsigned long long)n);
    std::ifstream file(fs::u8path(path_), std::ios::binary);
    file.seekg((std::streamoff)(tensor.offset + offset));
    file.read((char *)dst, (std::streamsize)n);
    fail_if(!file, ErrorKind::gguf,
            "%s: could not read %llu bytes of tensor '%s'; the file may have changed while in use", path_.c_str(),
            (unsigned long long)n, tensor.name.c_str());
}

}  // namespace eaglecpp
