// SPDX-License-Identifier: MIT
// Images as a target reads them: rows of embeddings, made by a projector (llama.cpp's mtmd), which stand in a prompt in
// the place of tokens. Each row of each image has an id of its own below 0, so that prompts with images are lists of
// ids as all others: what is compared, cached, shared and parked by its tokens needs to know nothing of images.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

struct Image {
    std::string key;  // names its content
    Token first;      // id of row 0; row i has first - i
    int n_rows;
    bool is_whole;              // its rows see each other in both directions, and are read in one batch
    int n_columns;              // of rows that are numbered in three directions (M-RoPE); 0 = they are as text is
    std::vector<float> values;  // [n_rows, n_embd_inp of the target]

    bool has(Token token) const { return token <= first && token > first - n_rows; }
    // positions that it takes of the text
    int n_pos() const { return n_columns > 0 ? std::max(n_columns, (n_rows + n_columns - 1) / n_columns) : n_rows; }
    int column(Token token) const { return n_columns > 0 ? (first - token) % n_columns : 0; }
    int line(Token token) const { return n_columns > 0 ? (first - token) / n_columns : 0; }
    const float * row(Token token) const { return values.data() + (size_t)(first - token) * (values.size() / n_rows); }
};

// The images used of late, at most so many bytes of them; a text that is being read keeps its own. Any thread may call.
class Images {
  public:
    explicit Images(size_t n_bytes_max) : n_bytes_max_(n_bytes_max) {}

    // null = not here, or not any more
    std::shared_ptr<const Image> find(const std::string & key);
    std::shared_ptr<const Image> find(Token token);

    // Under new ids; `values` has n_rows rows. What is there under this key stays.
    std::shared_ptr<const Image> add(const std::string & key, int n_rows, bool is_whole, int n_columns,
                                     std::vector<float> values);

  private:
    template <typename Is>
    std::shared_ptr<const Image> find_if(Is && is);  // the caller has the mutex

    std::mutex mutex_;
    size_t n_bytes_max_;
    size_t n_bytes_ = 0;
    Token next_ = image_token_first;
    std::list<std::shared_ptr<const Image>> images_;  // used last first
};

}  // namespace eaglecpp
