// SPDX-License-Identifier: MIT
// What files must not say: values that llama.cpp accepts when it loads and that end the process, hang or write out of
// bounds once ggml computes with them on a worker thread, where no assertion can be caught.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "gguf/reader.h"

namespace eaglecpp {

// The headers of a model: of one file, or of all parts of one that was split, whose names follow llama.cpp's pattern.
class ModelFiles {
  public:
    // Error(not_found | gguf)
    explicit ModelFiles(const std::string & path);

    const std::vector<GgufReader> & parts() const { return parts_; }
    const GgufReader & header() const { return parts_.front(); }  // the only one with settings
    const TensorInfo * find_tensor(const std::string & name) const;

  private:
    std::vector<GgufReader> parts_;
};

// before the model is loaded; Error(gguf)
void check_weights(const ModelFiles & model);

// before llama.cpp sees the adapter; Error(gguf | mismatch)
void check_lora(const GgufReader & lora, const ModelFiles & target);

// types alone; Error(gguf)
void check_projector(const GgufReader & projector);

// of a file and what llama.cpp made of it; Error(gguf)
void check_settings(const ModelFiles & files, const llama_model * model);

// What a position takes in a cache of keys and values of plain attention, in all layers: numbers of both. Rather too
// few than too many.
struct CellSize {
    double keys = 0, values = 0;
};
CellSize cell_size(const GgufReader & header, const llama_model * model);

}  // namespace eaglecpp
