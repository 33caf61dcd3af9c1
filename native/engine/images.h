// SPDX-License-Identifier: MIT
// Images as a target reads them. A projector (llama.cpp's mtmd) turns an image into rows of embeddings, which take the
// place of tokens in a prompt. Each row has a unique id below 0, so a prompt with images is a list of ids like any
// other prompt. Code that compares, caches, shares or swaps out tokens needs no special case for images.
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

struct Image {
    std::string key;  // identifies the content of the image
    Token first;      // id of row 0; row i has the id first - i
    int n_rows;
    bool is_whole;              // the rows attend to each other in both directions and must be in one batch
    int n_columns;              // for rows numbered in three dimensions (M-RoPE); 0 = rows numbered like text
    std::vector<float> values;  // [n_rows, n_embd_inp of the target]

    bool has(Token token) const { return token <= first && token > first - n_rows; }
    // Returns the number of positions that the image takes in the text.
    int n_pos() const { return n_columns > 0 ? std::max(n_columns, (n_rows + n_columns - 1) / n_columns) : n_rows; }
    int column(Token token) const { return n_columns > 0 ? (first - token) % n_columns : 0; }
    int line(Token token) const { return n_columns > 0 ? (first - token) / n_columns : 0; }
    const float * row(Token token) const { return values.data() + (size_t)(first - token) * (values.size() / n_rows); }
};

// Keeps the most recently used images, up to n_bytes_max bytes, and the ids of the newest images. A sequence that reads
// an image has its own reference to the image. Thread-safe.
class Images {
  public:
    explicit Images(size_t n_bytes_max) : n_bytes_max_(n_bytes_max) {}

    // Returns the image with this key, or null if it is unknown or was evicted.
    std::shared_ptr<const Image> find(const std::string & key);
    std::shared_ptr<const Image> find(Token token);

    struct Name {
        std::string key;
        int n_rows;
    };
    // Returns the id of an image's first row. Equal keys always give the same id.
    Token first_id(const std::string & key, int n_rows);
    // Returns the key and the number of rows of the image that this row id belongs to, if the image is known.
    std::optional<Name> name(Token token);

    // Stores an image. `values` has n_rows rows. If the key is known, returns the stored image instead.
    std::shared_ptr<const Image> add(const std::string & key, int n_rows, bool is_whole, int n_columns,
                                     std::vector<float> values);

  private:
    template <typename Is>
    std::shared_ptr<const Image> find_if(Is && is);  // the caller holds the mutex

    std::mutex mutex_;
    size_t n_bytes_max_;
    size_t n_bytes_ = 0;
    Token next_ = image_token_first;
    std::map<Token, Name> names_;                     // by the id of the image's first row
    std::list<std::shared_ptr<const Image>> images_;  // the most recently used image comes first
};

}  // namespace eaglecpp
