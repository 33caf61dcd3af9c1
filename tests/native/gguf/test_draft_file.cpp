// SPDX-License-Identifier: MIT
#include <filesystem>

#include "../check.h"
#include "base/error.h"
#include "draft_files.h"
#include "gguf/draft_file.h"
#include "gguf/guard.h"

using namespace eaglecpp;

static std::string temp_file() {
    return (std::filesystem::temp_directory_path() / ("eaglecpp-draft-" + std::to_string(now_ms()) + ".gguf")).string();
}

static std::string error_of(const std::string & path) {
    try {
        DraftFile file(path);
    } catch (const Error & e) {
        return e.what();
    }
    return "";
}

TEST(reads_every_architecture) {
    const std::string path = temp_file();
    write_draft_file(path, Kind::eagle31);
    const DraftFile f31(path);
    CHECK(f31.spec().arch == "eagle31");
    CHECK(f31.spec().fc_norm && f31.spec().norm_output && !f31.spec().norm_before_fc);
    CHECK(f31.spec().target_layers == (std::vector<int32_t>{1, 3, 5}));
    CHECK(f31.spec().n_draft_vocab == 8 && f31.d2t()[3] == 6);
    CHECK(!f31.spec().has_embedding && f31.spec().has_head);
    CHECK(f31.tokens().size() == 20);
    write_draft_file(path, Kind::eagle3);
    const DraftFile f3(path);
    CHECK(f3.spec().arch == "eagle3" && !f3.spec().fc_norm && !f3.spec().norm_output);
    CHECK(!f3.spec().fuses_embedding && f3.spec().attn_scale == 0.25f);  // 1 / sqrt(16)
    write_draft_file(path, Kind::eagle);
    const DraftFile f1(path);
    CHECK(f1.spec().fuses_embedding && !f1.spec().has_all_norms() && f1.spec().n_fc_in() == 64);
    CHECK(f1.spec().target_layers == (std::vector<int32_t>{7}));
    std::filesystem::remove(path);
}

TEST(reads_latent_attention) {
    const std::string path = temp_file();
    write_draft_file(path, Kind::latent);
    const DraftSpec s = DraftFile(path).spec();
    CHECK(s.has_latent() && s.latent.kv_rank == 16 && s.latent.q_rank == 24);
    CHECK(s.latent.nope_dim == 12 && s.latent.rope_dim == 4 && s.latent.value_dim == 10);
    CHECK(s.key_dim() == 20 && s.value_dim() == 16 && s.n_head_kv == 1);
    CHECK(s.score_scale() == 0.25f && s.rope.n_rot == 4);
    write_draft_file(path, Kind::eagle31);
    CHECK(!DraftFile(path).spec().has_latent() && DraftFile(path).spec().score_scale() == 0.25f);  // 1 / sqrt(16)
    std::filesystem::remove(path);
}

TEST(every_flaw_is_refused_with_its_place) {
    const std::string path = temp_file();
    for (Kind kind : all_kinds) {
        write_draft_file(path, kind);
        CHECK(error_of(path).empty());
        for (const Flaw & flaw : flaws_of(kind)) {
            write_draft_file(path, kind, flaw);
            const std::string text = error_of(path);
            CHECK_MSG(text.find(flaw.word) != std::string::npos && text.find(path) != std::string::npos,
                      strf("'%s' and the path in '%s'", flaw.word, text.c_str()));
        }
    }
    std::filesystem::remove(path);
    CHECK(error_of(path).find("no such file") != std::string::npos);
    CHECK(error_of(std::filesystem::temp_directory_path().string()).find("not a regular file") != std::string::npos);
}

TEST(an_assertion_under_guard_becomes_an_error) {
    bool thrown = false;
    try {
        guarded([] { GGML_ABORT("planted"); });
    } catch (const Error & e) {
        thrown = e.kind == ErrorKind::broken && std::string(e.what()).find("planted") != std::string::npos;
    }
    CHECK(thrown);
}
