// SPDX-License-Identifier: MIT
// llama.cpp may keep tied embeddings twice. One copy is unchanged and used for look-ups. The other copy is for the
// product, and it is repacked or on a device. Rows may only be read from the unchanged copy.

#include <cstring>

#include "../check.h"
#include "base/error.h"
#include "draft/weights.h"
#include "gguf/reader.h"
#include "tiny_models.h"

using namespace eaglecpp;

static std::string memory_of(const ggml_tensor * t) {
    return t ? ggml_backend_buft_name(ggml_backend_buffer_get_type(t->buffer)) : "none";
}

static void check_rows(const Target & target, const std::string & path) {
    const ggml_tensor * table = target.model().embedding();
    if (!CHECK(table != nullptr)) return;
    CHECK_MSG(has_plain_rows(table), memory_of(table));
    const GgufReader file(path);
    const TensorInfo * info = file.find_tensor("token_embd.weight");
    std::vector<uint8_t> bytes(info->n_bytes);
    file.read(*info, 0, bytes.data(), bytes.size());
    const EmbeddingTable expected(bytes, info->type, (int)info->ne[0], (int)info->ne[1]);
    const EmbeddingTable found(table);
    std::vector<float> a(info->ne[0]), b(info->ne[0]);
    for (int i = 0; i < (int)info->ne[1]; ++i) {
        expected.row(i, a.data());
        found.row(i, b.data());
        CHECK_MSG(a == b, strf("row %d", i));
    }
}

TEST(packed_and_plain_copies_are_distinguished) {
    const test::Folder folder;
    const std::string path = folder.file("tied.gguf");
    test::TinyTarget shape;
    shape.is_tied = true;
    shape.n_vocab = 32;  // llama.cpp repacks weights of this size
    shape.type = shape.type_embd = GGML_TYPE_Q4_0;
    test::write_target(path, shape);
    for (const char * repack : {"on", "off"}) {
        TargetOptions options = test::tiny_options(path, "");
        options.repack = repack;
        const Target target(options);
        check_rows(target, path);
        const auto all = model_tensors(target.model().get(), "token_embd.weight");
        const std::string what =
            strf("repack %s: %zu copies, head in %s", repack, all.size(), memory_of(target.model().head()).c_str());
        if (all.size() == 1) {
            CHECK_MSG(target.model().head() == target.model().embedding(), what);
        } else {
            CHECK_MSG(all.size() == 2 && target.model().head() != target.model().embedding() &&
                          !has_plain_rows(target.model().head()),
                      what);
        }
        // Rows that are not repacked can always be copied to a device.
        CHECK_MSG(target.model().head_to_copy() == target.model().embedding(), what);
    }
}

TEST(untied_heads_are_their_own) {
    const test::TinyPair files;
    const Target target(test::tiny_options(files.target, ""));
    check_rows(target, files.target);
    CHECK(target.model().head() && std::strcmp(target.model().head()->name, "output.weight") == 0);
    CHECK(target.model().head_to_copy() == target.model().head());
}
