// SPDX-License-Identifier: MIT
// A small mutator for compilers without libFuzzer: seeded, bounded by time, takes libFuzzer's -max_total_time=N and a
// corpus folder. Mutations: flipped bits, random bytes, interesting integers, cut, duplicated and swapped pieces.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
std::mt19937 rng(1);

size_t pick(size_t n) {
    return n == 0 ? 0 : rng() % n;
}

// header and metadata are where decisions are made: most mutations go there
size_t place(const Bytes & b) {
    return rng() % 8 == 0 ? pick(b.size()) : pick(std::min<size_t>(b.size(), 4096));
}

void mutate(Bytes & b) {
    static const uint64_t interesting[] = {0,
                                           1,
                                           0x7f,
                                           0x80,
                                           0xff,
                                           0x7fff,
                                           0xffff,
                                           0x7fffffff,
                                           0x80000000,
                                           0xffffffff,
                                           0x7fffffffffffffff,
                                           0x8000000000000000,
                                           0xffffffffffffffff};
    if (b.empty()) b.push_back(0);
    switch (rng() % 6) {
        case 0:
            b[place(b)] ^= (uint8_t)(1u << (rng() % 8));
            break;
        case 1:
            b[place(b)] = (uint8_t)rng();
            break;
        case 2: {
            const uint64_t v = interesting[pick(std::size(interesting))];
            const size_t n = std::min<size_t>(size_t(1) << (rng() % 4), b.size());
            std::memcpy(&b[std::min(place(b), b.size() - n)], &v, n);
            break;
        }
        case 3:
            b.resize(pick(b.size()) + 1);
            break;
        case 4: {
            const size_t from = place(b), n = std::min<size_t>(pick(64), b.size() - from);
            const Bytes piece(b.begin() + from, b.begin() + from + n);
            b.insert(b.begin() + place(b), piece.begin(), piece.end());
            break;
        }
        case 5: {
            const size_t from = place(b), n = std::min<size_t>(pick(64), b.size() - from);
            b.erase(b.begin() + from, b.begin() + from + n);
            break;
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    double seconds = 10;
    std::vector<Bytes> corpus;
    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        if (arg.rfind("-max_total_time=", 0) == 0) {
            seconds = std::atof(arg.c_str() + 16);
        } else if (arg[0] != '-') {
            for (const auto & entry : std::filesystem::directory_iterator(arg)) {
                std::ifstream f(entry.path(), std::ios::binary);
                corpus.emplace_back(std::istreambuf_iterator<char>(f), std::istreambuf_iterator<char>());
            }
        }
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "no corpus given\n");
        return 1;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    long n_runs = 0;
    for (; std::chrono::steady_clock::now() < end; ++n_runs) {
        Bytes input = corpus[pick(corpus.size())];
        for (unsigned i = 0; i <= rng() % 4; ++i) mutate(input);
        // what crashes the process is found here
        std::ofstream("last-input.bin", std::ios::binary)
            .write((const char *)input.data(), (std::streamsize)input.size());
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    std::printf("%ld runs in %.0f s, no crash\n", n_runs, seconds);
    return 0;
}
