// SPDX-License-Identifier: MIT
// Tests which form of attention a drafter uses on the CPU. It uses fused attention if our kernel runs it, and otherwise
// explicit attention. For the few rows of a draft, ggml's own fused attention takes several times as long. Both forms
// give the same drafts, so no other test would detect a wrong choice.
#include "../check.h"
#include "../gguf/draft_files.h"
#include "draft/hidden_state_drafter.h"
#include "engine/engine.h"
#include "tiny_models.h"

using namespace eaglecpp;

static bool is_fused(EngineOptions options, const char * kernels, const char * flash_attn) {
    options.kernels = kernels;
    options.flash_attn = flash_attn;
    const Engine engine(options);
    CHECK(engine.target().model().uses_kernels() == (std::string(kernels) == "auto"));
    return static_cast<const HiddenStateDrafter *>(engine.drafter())->flash_attn();
}

TEST(attention_is_fused_where_our_kernel_runs_it) {
    const test::TinyPair files;
    const std::string &target = files.target, &draft = files.draft, latent = files.folder.file("latent.gguf");
    write_draft_file(latent, Kind::latent);

    CHECK(is_fused(test::tiny_options(target, draft), "auto", "auto"));
    CHECK(!is_fused(test::tiny_options(target, draft), "off", "auto"));
    CHECK(!is_fused(test::tiny_options(target, latent), "auto", "auto"));
    for (const char * kernels : {"auto", "off"}) {
        CHECK(is_fused(test::tiny_options(target, draft), kernels, "on"));
        CHECK(!is_fused(test::tiny_options(target, draft), kernels, "off"));
    }
}
