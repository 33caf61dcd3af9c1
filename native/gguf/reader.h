// SPDX-License-Identifier: MIT
// Typed, checked access to a GGUF header through ggml's own parser. Every getter fails with the file, the key, what
// was expected and what was found. Tensor ranges are checked against the file's size on opening, so that data can be
// read later without further checks. Tensor data is not loaded.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace eaglecpp {

struct TensorInfo {
    std::string name;
    ggml_type type;
    std::array<int64_t, GGML_MAX_DIMS> ne;  // ggml order: fastest axis first
    uint64_t offset;                        // from the start of the file
    uint64_t n_bytes;
};

// True for types that ggml can multiply with and look rows up in: floats, and quantised types that it can dequantise.
// False for integers and for the quantised types that ggml uses only for activations.
bool is_weight_type(ggml_type type);

// Whether an architecture is a block drafter, and whether it is a drafter that reads hidden states of the target: EAGLE
// or a block drafter.
inline bool is_block_arch(const std::string & architecture) {
    return architecture == "dflash" || architecture == "dflash_ex";
}
inline bool reads_features(const std::string & architecture) {
    return architecture == "eagle" || architecture == "eagle3" || architecture == "eagle31" ||
           is_block_arch(architecture);
}

class GgufReader {
  public:
    explicit GgufReader(std::string path);

    const std::string & path() const { return path_; }

    bool has(const std::string & key) const;

    // std::nullopt when the key is absent; Error(gguf) when it has another type or is out of range
    std::optional<uint32_t> find_u32(const std::string & key) const;
    std::optional<float> find_f32(const std::string & key) const;
    std::optional<bool> find_bool(const std::string & key) const;
    std::optional<std::string> find_str(const std::string & key) const;
    std::optional<std::vector<int32_t>> find_ints(const std::string & key) const;
    std::optional<std::vector<float>> find_floats(const std::string & key) const;
    std::optional<std::vector<uint8_t>> find_bools(const std::string & key) const;
    std::optional<std::vector<std::string>> find_strs(const std::string & key) const;
    // what a model says of a layer: one number or bool for all, or an array of them, which must be long enough
    std::optional<int64_t> find_of_layer(const std::string & key, int layer) const;

    // as above, but the key must be there
    uint32_t u32(const std::string & key) const;
    float f32(const std::string & key) const;
    std::string str(const std::string & key) const;

    const std::vector<TensorInfo> & tensors() const { return tensors_; }
    const TensorInfo * find_tensor(const std::string & name) const;

    // reads `n` bytes of a tensor's data starting at `offset` within it
    void read(const TensorInfo & tensor, uint64_t offset, void * dst, uint64_t n) const;

  private:
    int64_t find(const std::string & key) const;
    template <typename T>
    std::optional<std::vector<T>> find_array(const std::string & key, std::initializer_list<gguf_type> types,
                                             const char * expected) const;
    template <typename T>
    T required(const std::optional<T> & value, const std::string & key, const char * expected) const;
    [[noreturn]] void wrong_type(const std::string & key, const char * expected) const;
    void read_tensor_table();

    std::string path_;
    uint64_t file_size_ = 0;
    std::unique_ptr<gguf_context, void (*)(gguf_context *)> gguf_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, size_t> by_name_;  // places in tensors_
};

}  // namespace eaglecpp
