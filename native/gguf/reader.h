// SPDX-License-Identifier: MIT
// Reads a GGUF header through ggml's parser and checks the types of its values. Errors name the file, the key, the
// expected value and the value found. Opening compares the tensor ranges with the file's size, so later reads need no
// checks. Tensor data is not loaded.
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
    std::array<int64_t, GGML_MAX_DIMS> ne;  // ggml order: fastest dimension first
    uint64_t offset;                        // offset from the start of the file
    uint64_t n_bytes;
};

// Returns true for types of weights: ggml can multiply with them and look up their rows. These are floats, and
// quantised types that ggml can dequantise. Returns false for integers and for the quantised types of activations.
bool is_weight_type(ggml_type type);

// is_block_arch() returns true for block drafters. reads_hidden_states() returns true for all drafters that read the
// target's hidden states: EAGLE drafters and block drafters.
inline bool is_block_arch(const std::string & architecture) {
    return architecture == "dflash" || architecture == "dflash_ex";
}
inline bool reads_hidden_states(const std::string & architecture) {
    return architecture == "eagle" || architecture == "eagle3" || architecture == "eagle31" ||
           is_block_arch(architecture);
}

class GgufReader {
  public:
    explicit GgufReader(std::string path);

    const std::string & path() const { return path_; }

    bool has(const std::string & key) const;

    // The find_*() functions return std::nullopt if the key is missing. They raise Error(gguf) if the key's value has
    // another type or is out of range.
    std::optional<uint32_t> find_u32(const std::string & key) const;
    std::optional<float> find_f32(const std::string & key) const;
    std::optional<bool> find_bool(const std::string & key) const;
    std::optional<std::string> find_str(const std::string & key) const;
    std::optional<std::vector<int32_t>> find_ints(const std::string & key) const;
    std::optional<std::vector<float>> find_floats(const std::string & key) const;
    std::optional<std::vector<uint8_t>> find_bools(const std::string & key) const;
    std::optional<std::vector<std::string>> find_strs(const std::string & key) const;
    // Reads the value of a layer. The file has one number or bool for all layers, or an array with one value per layer.
    // Error(gguf) if the array is too short.
    std::optional<int64_t> find_of_layer(const std::string & key, int layer) const;

    // These functions work like the find_*() functions, but raise Error(gguf) if the key is missing.
    uint32_t u32(const std::string & key) const;
    float f32(const std::string & key) const;
    std::string str(const std::string & key) const;

    const std::vector<TensorInfo> & tensors() const { return tensors_; }
    const TensorInfo * find_tensor(const std::string & name) const;

    // Reads `n` bytes of a tensor's data, starting at `offset` within it.
    void read(const TensorInfo & tensor, uint64_t offset, void * dst, uint64_t n) const;

  private:
    // Returns the index of a key, or -1 if it is missing. Error(gguf) if the key's value has a type that is not in
    // `types`.
    int64_t find(const std::string & key, std::initializer_list<gguf_type> types, const char * expected,
                 bool is_array = false) const;
    template <typename T>
    std::optional<std::vector<T>> find_array(const std::string & key, std::initializer_list<gguf_type> types,
                                             const char * expected) const;
    template <typename T>
    T required(const std::optional<T> & value, const std::string & key, const char * expected) const;
    void read_tensor_table();

    std::string path_;
    uint64_t file_size_ = 0;
    std::unique_ptr<gguf_context, void (*)(gguf_context *)> gguf_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, size_t> by_name_;  // indices into tensors_
};

}  // namespace eaglecpp
