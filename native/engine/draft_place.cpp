// SPDX-License-Identifier: MIT
#include "engine/draft_place.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "kernels/attention.h"

namespace eaglecpp {

// What backends and others may want of a device in the meantime, a screen for one.
static constexpr size_t n_margin = 256 << 20;

// The target's output device; where that is on another machine or the CPU, the first GPU of this machine. A round of
// the drafter is many short waits, which no network answers in time.
static ggml_backend_dev_t best_device(const Target & target) {
    ggml_backend_dev_t dev = target.model().output_device();
    if (dev && !is_on_server(dev)) return dev;
    ggml_backend_dev_t integrated = nullptr;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        dev = ggml_backend_dev_get(i);
        if (is_on_server(dev)) continue;
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_GPU) return dev;
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_IGPU && !integrated) integrated = dev;
    }
    return integrated;
}

static std::unique_ptr<FeatureDrafter> load_drafter(const EngineOptions & options, const DraftFile & file,
                                                    const Target & target, DrafterOptions d) {
    // ggml's fused attention on the CPU takes several times as long as the explicit form for the few rows of a draft
    // level; our kernel takes less (not measured for latent attention). The explicit form's scores take memory for
    // every row that attends, which in a drafter of several layers are all rows of a commit.
    const bool is_cpu = !d.device || ggml_backend_dev_type(d.device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool has_kernel = d.use_kernels && kernels::attention_type_fits(d.type_kv) && !file.spec().has_latent();
    const bool is_fused = !is_cpu || has_kernel || file.spec().n_layer > 1;
    d.flash_attn = options.flash_attn == "on" || (options.flash_attn == "auto" && is_fused);
    auto drafter = std::make_unique<FeatureDrafter>(file, d);
    const DraftSpec & s = drafter->spec();
    if (!s.has_embedding) {
        const ggml_tensor * table = target.model().embedding();
        if (!table) {
            fail(ErrorKind::unsupported,
                 "%s has no token embedding of its own, and the target's lies in memory whose rows cannot be read; use "
                 "repack='off', or a drafter that carries its own",
                 options.draft_path.c_str());
        }
        drafter->share_embedding(table);
    }
    if (!s.has_head && target.model().head()) drafter->share_head(target.model().head(), target.model().head_to_copy());
    drafter->finish();
    drafter->reserve();
    return drafter;
}

PlacedDrafter place_drafter(const EngineOptions & options, const DraftFile & file, const Target & target) {
    DrafterOptions d;
    d.n_threads = target.options().n_threads;
    d.n_ctx = target.n_ctx();
    d.n_sequences = target.options().n_sequences;
    d.n_draft_rows_max = std::max(128, 2 * options.n_draft_max);
    d.type_kv = type_by_name(options.draft_type_kv);
    d.window = options.draft_window;
    d.use_kernels = target.model().uses_kernels();
    if (options.draft_device != "auto" || target.model().is_cpu()) {
        d.device = find_device(options.draft_device, options.n_gpu_layers);
        return {load_drafter(options, file, target, d), ""};
    }
    d.device = best_device(target);
    if (!d.device) return {load_drafter(options, file, target, d), ""};
    const char * name = ggml_backend_dev_name(d.device);
    std::string why = strf("the drafter runs on the CPU: beside it less than %.2f GiB would be free on %s",
                           n_margin / (double)(1 << 30), name);
    try {
        auto drafter = load_drafter(options, file, target, d);
        size_t n_free = 0, n_total = 0;
        ggml_backend_dev_memory(d.device, &n_free, &n_total);
        if (n_total == 0 || n_free >= n_margin) return {std::move(drafter), ""};
    } catch (const Error & e) {
        if (e.kind != ErrorKind::out_of_memory) throw;
        why = strf("the drafter runs on the CPU: there was no room on %s (%s)", name, e.what());
    }
    why += "; fewer layers of the target (-ngl), a shorter context or a smaller drafter make room";
    log_line(LogLevel::warning, why);
    d.device = nullptr;
    return {load_drafter(options, file, target, d), why};
}

}  // namespace eaglecpp
