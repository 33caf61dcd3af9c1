// SPDX-License-Identifier: MIT
#include "kernels/select.h"

#include <cstdlib>
#include <cstring>

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace eaglecpp::kernels {

// Defined in this file, so that tests can use the kernels without ggml's libraries.
Barrier barrier_of_ggml = nullptr;

#if defined(EAGLECPP_KERNELS_X86)
extern const KernelTable table_avx2, table_avx512;
const PackedProduct * products_avx_vnni(ggml_type type);
#elif defined(EAGLECPP_KERNELS_ARM)
extern const KernelTable table_neon;
const PackedProduct * products_neon_i8mm(ggml_type type);
#endif

namespace {

#if defined(EAGLECPP_KERNELS_X86)
// Reads cpuid leaf 7, sub-leaf 1, because __builtin_cpu_supports of gcc 12 has no name for AVX-VNNI.
bool has_avx_vnni() {
    unsigned eax = 7, ebx = 0, ecx = 1, edx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (eax >> 4) & 1;
}
#elif defined(EAGLECPP_KERNELS_ARM)
bool has_dot_products() {
#if defined(__APPLE__)
    return true;  // every 64-bit Mac has dot products
#elif defined(__linux__)
    constexpr unsigned long asimddp = 1UL << 20;
    return getauxval(AT_HWCAP) & asimddp;
#else
    return false;
#endif
}
bool has_i8mm() {
#if defined(__APPLE__)
    int found = 0;  // Macs have i8mm from the M2 on
    size_t n_bytes = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &n_bytes, nullptr, 0) == 0 && found;
#elif defined(__linux__)
    constexpr unsigned long i8mm = 1UL << 13;
    return getauxval(AT_HWCAP2) & i8mm;
#else
    return false;
#endif
}
#endif

}  // namespace

KernelTable with_products(const KernelTable & other, const char * name, PackedProducts products) {
    KernelTable table = other;
    table.name = name;
    table.packed = products;
    return table;
}

std::vector<const KernelTable *> usable_tables([[maybe_unused]] const Processor & has) {
    std::vector<const KernelTable *> tables;
#if defined(EAGLECPP_KERNELS_X86)
#if defined(EAGLECPP_KERNELS_AVX512)
    if (has.avx2 && has.avx512 && has.avx512_vnni) tables.push_back(&table_avx512);
#endif
#if defined(EAGLECPP_KERNELS_AVX_VNNI)
    static const KernelTable table_avx_vnni = with_products(table_avx2, "avx_vnni", products_avx_vnni);
    if (has.avx2 && has.avx_vnni) tables.push_back(&table_avx_vnni);
#endif
#if defined(EAGLECPP_KERNELS_AVX2)
    if (has.avx2) tables.push_back(&table_avx2);
#endif
#elif defined(EAGLECPP_KERNELS_ARM)
    static const KernelTable table_neon_i8mm = with_products(table_neon, "neon_i8mm", products_neon_i8mm);
    if (has.dot_products && has.i8mm) tables.push_back(&table_neon_i8mm);
    if (has.dot_products) tables.push_back(&table_neon);
#endif
    return tables;
}

Processor this_processor() {
    Processor has;
#if defined(EAGLECPP_KERNELS_X86)
    __builtin_cpu_init();
    has.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    has.avx512_vnni = __builtin_cpu_supports("avx512vnni");
    has.avx_vnni = has_avx_vnni();
#elif defined(EAGLECPP_KERNELS_ARM)
    has.dot_products = has_dot_products();
    has.i8mm = has_i8mm();
#endif
    return has;
}

std::vector<const KernelTable *> usable_tables() {
    return usable_tables(this_processor());
}

const KernelTable * chosen_table() {
    static const KernelTable * chosen = []() -> const KernelTable * {
        const std::vector<const KernelTable *> tables = usable_tables();
        if (const char * wanted = std::getenv("EAGLECPP_KERNELS")) {
            for (const KernelTable * t : tables) {
                if (std::strcmp(t->name, wanted) == 0) return t;
            }
        }
        return tables.empty() ? nullptr : tables.front();
    }();
    return chosen;
}

}  // namespace eaglecpp::kernels
