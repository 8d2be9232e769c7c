// KV hints: what a program knows about the worth of a value. Part of kvmem.hpp.
#ifndef KVMEM_KV_HINTS_HPP
#define KVMEM_KV_HINTS_HPP

#include <chrono>
#include <string>

#include "error.hpp"

namespace kvmem {

/// Hints about the worth of a value of a cache.
struct KvHints {
    /// After this time the value is a miss, also in the lower tier. 0: it stays until it is
    /// evicted.
    std::chrono::milliseconds ttl{0};
    /// 0 to 3: the lower tier evicts values of a lower priority first. The cache's own policy
    /// ignores it.
    std::uint32_t priority = 0;
    /// Number of blocks of the prefix that come before the value. Blocks at the end of a prefix are
    /// evicted before those at its start, in whatever order they are inserted and looked up.
    std::uint32_t depth = 0;

    /// Throws KVMEM_ERR_INVALID_ARGUMENT if the time is negative.
    kvmem_value_hints native() const {
        if (ttl.count() < 0) {
            throw error(KVMEM_ERR_INVALID_ARGUMENT,
                        "ttl is " + std::to_string(ttl.count()) + " ms: use at least 0");
        }
        return {static_cast<std::uint64_t>(ttl.count()), priority, depth};
    }
};

} // namespace kvmem

#endif
