// KV hints: what a program knows about the worth of a value. Part of kvmem.hpp.
#ifndef KVMEM_KV_HINTS_HPP
#define KVMEM_KV_HINTS_HPP

#include <chrono>
#include <string>

#include "error.hpp"

namespace kvmem {

/// The type of the elements of a value.
enum class DataType : std::uint32_t {
    /// It is not known.
    unknown = KVMEM_DATA_UNKNOWN,
    /// 8 bits of exponent, 7 of mantissa.
    bfloat16 = KVMEM_DATA_BFLOAT16,
    /// IEEE 754 binary16.
    float16 = KVMEM_DATA_FLOAT16,
    /// 4 bits of exponent, 3 of mantissa, without infinities.
    float8_e4m3fn = KVMEM_DATA_FLOAT8_E4M3FN,
    /// 5 bits of exponent, 2 of mantissa.
    float8_e5m2 = KVMEM_DATA_FLOAT8_E5M2,
};

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
    /// The type of the value's elements. A tier that compresses values tries it first.
    DataType data_type = DataType::unknown;

    /// Throws KVMEM_ERR_INVALID_ARGUMENT if the time is negative.
    kvmem_value_hints native() const {
        if (ttl.count() < 0) {
            throw error(KVMEM_ERR_INVALID_ARGUMENT,
                        "ttl is " + std::to_string(ttl.count()) + " ms: use at least 0");
        }
        return {static_cast<std::uint64_t>(ttl.count()), priority, depth,
                static_cast<std::uint32_t>(data_type), 0};
    }
};

} // namespace kvmem

#endif
