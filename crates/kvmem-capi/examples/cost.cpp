// Measures the cost of an allocation and its free in C++, compared with Rust on a heap in the same
// state.
//
// cost_cpp.rs builds and loads this file, and passes its loops in Rust, which are the same as those
// below. Runs take turns, so other load on the machine affects both. The clock is the thread's
// processor time; the table shows medians.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include <time.h>

#include "kvmem.hpp"
#include "kvmem/compat/mooncake_offset_allocator.hpp"

namespace {

constexpr std::uint64_t CAPACITY = std::uint64_t{1} << 40;
constexpr std::size_t LIVE = 1000;

/// Selects a loop. The numbers are those of cost_cpp.rs.
enum Loop : std::uint32_t {
    /// Allocates and frees at once.
    PAIR = 0,
    /// Frees a random one of LIVE ranges, and allocates another in its place.
    REPLACE = 1,
    /// Requests more than is free now.
    FULL = 2,
    /// Requests more than a space of this capacity can ever allocate.
    IMPOSSIBLE = 3,
};

/// The requested sizes, the same in C++ and Rust.
std::uint64_t pair_size(std::uint64_t i) { return 4096 + (i & 7) * 4096; }
std::uint64_t replace_size(std::uint32_t x) { return 4096 + ((x >> 20) & 15) * 512; }

/// Returns the processor time of this thread, in nanoseconds.
double thread_time() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

/// A loop in Rust, called with its number, the rounds, and the clock.
using RustLoop = double (*)(std::uint32_t, std::uint64_t, double (*)());

template <class Allocate>
double run(Loop loop, std::uint64_t count, Allocate allocate) {
    using Allocated = decltype(allocate(std::uint64_t{1}));
    std::vector<Allocated> live;
    for (std::size_t i = 0; i < LIVE; ++i) {
        live.push_back(allocate(4096));
    }
    std::uint32_t x = 1;
    std::uint64_t failed = 0;
    const double start = thread_time();
    switch (loop) {
    case PAIR:
        for (std::uint64_t i = 0; i < count; ++i) {
            const Allocated allocated = allocate(pair_size(i));
            failed += !allocated;
        }
        break;
    case REPLACE:
        for (std::uint64_t i = 0; i < count; ++i) {
            x = x * 1664525 + 1013904223;
            Allocated &at = live[(x >> 8) % LIVE];
            at.reset();
            at = allocate(replace_size(x));
            failed += !at;
        }
        break;
    case FULL:
        for (std::uint64_t i = 0; i < count; ++i) {
            failed += !allocate(CAPACITY);
        }
        failed -= count;
        break;
    case IMPOSSIBLE:
        for (std::uint64_t i = 0; i < count; ++i) {
            failed += !allocate(2 * CAPACITY);
        }
        failed -= count;
        break;
    }
    const double took = thread_time() - start;
    if (failed != 0) {
        std::printf("%llu requests had the wrong result\n",
                    static_cast<unsigned long long>(failed));
    }
    return took / static_cast<double>(count);
}

double median(std::vector<double> runs) {
    std::nth_element(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2),
                     runs.end());
    return runs[runs.size() / 2];
}

} // namespace

/// Runs all loops and prints a table. `rust` and `rust_raw` are the loops in Rust; they return
/// nanoseconds per round. Returns the largest difference between the compat header and Rust's own
/// handles.
extern "C" double cost(RustLoop rust, RustLoop rust_raw, std::uint64_t count, std::uint32_t runs) {
    const char *names[] = {"allocate + free", "free random + allocate", "out of space",
                           "impossible"};
    std::printf("%-28s %10s %10s %12s %12s %12s\n", "ns, median of interleaved", "rust", "rust raw",
                "kvmem.hpp", "compat", "compat-rust");
    double greatest = 0;
    for (const Loop loop : {PAIR, REPLACE, FULL, IMPOSSIBLE}) {
        std::vector<double> times[4];
        for (std::uint32_t i = 0; i < runs; ++i) {
            times[0].push_back(rust(loop, count, thread_time));
            times[1].push_back(rust_raw(loop, count, thread_time));
            // A new space each time, as in Rust: the previous run would leave another heap state.
            kvmem::OffsetAllocator space(CAPACITY);
            times[2].push_back(
                run(loop, count, [&](std::uint64_t bytes) { return space.allocate(bytes); }));
            const auto compat = mooncake::offset_allocator::OffsetAllocator::create(0, CAPACITY);
            times[3].push_back(
                run(loop, count, [&](std::uint64_t bytes) { return compat->allocate(bytes); }));
        }
        const double of_rust = median(times[0]);
        const double of_compat = median(times[3]);
        std::printf("%-28s %10.1f %10.1f %12.1f %12.1f %+12.1f\n", names[loop], of_rust,
                    median(times[1]), median(times[2]), of_compat, of_compat - of_rust);
        greatest = std::max(greatest, of_compat - of_rust);
    }
    return greatest;
}
