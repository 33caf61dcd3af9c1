// SPDX-License-Identifier: MIT
// A tiny target of the llama architecture with seeded weights, and helpers that run generations with it. The drafters
// of gguf/draft_files.h fit this target.
#pragma once

#include <ggml.h>

#include <filesystem>
#include <string>

#include "engine/engine.h"

namespace eaglecpp::test {

struct TinyTarget {
    bool is_tied = false;                 // if true, the file has no output.weight
    ggml_type type = GGML_TYPE_F32;       // type of the matrices
    ggml_type type_embd = GGML_TYPE_F32;  // type of token_embd.weight
    int n_vocab = 20;                     // size of the drafters' vocabulary
    std::string architecture = "llama";
};

// A temporary folder. The destructor removes it.
class Folder {
  public:
    Folder();
    ~Folder();
    std::string file(const char * name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

void write_target(const std::string & path, const TinyTarget & shape = {});

// Writes the files of a tiny target and of an EAGLE 3.1 drafter for this target.
struct TinyPair {
    TinyPair();
    const Folder folder;
    const std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf");
};

// Returns options for a small and deterministic engine, with one thread and greedy sampling.
EngineOptions tiny_options(const std::string & target, const std::string & draft, int n_sequences = 1);
GenerateParams greedy(const Strategy & strategy, int max_tokens = 24);

// Runs a generation on an open sequence to its end, and returns the generated tokens.
Tokens generate(Engine & engine, int id, const Tokens & prompt, const GenerateParams & params);

}  // namespace eaglecpp::test
