// Lower tier: what caches have below them. Part of kvmem.hpp.
#ifndef KVMEM_LOWER_TIER_HPP
#define KVMEM_LOWER_TIER_HPP

#include "handle.hpp"

namespace kvmem {

/// What a cache may have below it: a `DiskTier`, a `TierSet`, or a `Chain` of two lower tiers. See
/// `KvCacheOptions::lower_tier`. Caches and chains keep what they need of it. Can be moved and not
/// copied. Any thread.
class LowerTier {
public:
    kvmem_lower_tier *native_lower_tier() const noexcept { return lower_tier_.get(); }

protected:
    LowerTier() noexcept = default;
    LowerTier(LowerTier &&) noexcept = default;
    LowerTier &operator=(LowerTier &&) noexcept = default;
    ~LowerTier() = default;

    detail::Handle<kvmem_lower_tier, kvmem_lower_tier_destroy> lower_tier_;
};

/// Two lower tiers, one below the other. Both get each value that a cache above evicts, and both
/// are told of removals. A fetch asks the upper one, and the lower one for the rest.
class Chain : public LowerTier {
public:
    Chain(const LowerTier &upper, const LowerTier &lower) {
        kvmem_lower_tier *made = nullptr;
        detail::check(
            kvmem_lower_tier_chain(upper.native_lower_tier(), lower.native_lower_tier(), &made));
        lower_tier_.reset(made);
    }
};

} // namespace kvmem

#endif
