// Lower tier: storage for what a cache evicts. Part of kvmem.hpp.
#ifndef KVMEM_LOWER_TIER_HPP
#define KVMEM_LOWER_TIER_HPP

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "handle.hpp"
#include "kv_hints.hpp"
#include "span.hpp"

namespace kvmem {

/// Storage for what a cache evicts: a `DiskTier`, a `TierSet`, a `CustomTier`, or a `Chain` of two
/// lower tiers. See `KvCacheOptions::lower_tier`. Caches and chains keep what they need of it. Can
/// be moved and not copied. Any thread.
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

/// A value that a cache passes to a `Tier`. Valid during the call.
class TierValue {
public:
    std::string_view key() const noexcept {
        return std::string_view(static_cast<const char *>(value_->key), value_->key_bytes);
    }
    bytes_view bytes() const noexcept { return detail::bytes_of(value_->data, value_->bytes); }

    /// Its hints, with what is left of its time to live.
    KvHints hints() const noexcept {
        const kvmem_value_hints &hints = value_->hints;
        return {std::chrono::milliseconds(hints.ttl_ms), hints.priority, hints.depth,
                static_cast<DataType>(hints.data_type)};
    }

    /// Returns whether the key has received another value since, or was removed or cleared. Only in
    /// the thread in which `Tier::store` was called.
    bool is_superseded() const {
        std::uint32_t superseded = 0;
        detail::check(kvmem_tier_value_is_superseded(value_, &superseded));
        return superseded != 0;
    }

private:
    friend class CustomTier;

    explicit TierValue(const kvmem_tier_value &value) noexcept : value_(&value) {}

    const kvmem_tier_value *value_;
};

/// A value that a cache wants from a `Tier`. Valid during the call.
struct TierRead {
    std::string_view key;
    /// Memory for the value: as many bytes as `Tier::ask` said.
    bytes_span into;
};

/// A lower tier that the program implements. Any thread calls it, several at once; the cache holds
/// no lock during a call. A removal and a store of one key may come from two threads at once: the
/// tier orders them by a lock of its own, and under this lock asks `TierValue::is_superseded`.
class Tier {
public:
    virtual ~Tier() = default;

    /// Stores values, and replaces those that are there. Returns whether it has stored each; a
    /// value that is not stored leaves no older one behind. If it throws, the cache does not fetch
    /// these keys any more until it is cleared.
    virtual std::vector<bool> store(const std::vector<TierValue> &values) = 0;

    /// Returns the number of bytes of each key's value; empty where the tier has none. May wait,
    /// for a network. If it throws, the keys are misses.
    virtual std::vector<std::optional<std::uint64_t>>
    ask(const std::vector<std::string_view> &keys) = 0;

    /// Reads values into memory. Returns whether the bytes of each are whole and right: a value may
    /// have gone, or have another length, since `ask`. Of the values of a call, the last one counts
    /// as used last. If it throws, the keys are misses.
    virtual std::vector<bool> fetch(const std::vector<TierRead> &reads) = 0;

    /// Removes the values of keys. If it throws, the tier may still have them, and the cache does
    /// not fetch the keys any more until it is cleared.
    virtual void remove(const std::vector<std::string_view> &keys) = 0;

    /// Removes every value, or throws.
    virtual void clear() = 0;
};

/// A lower tier of the program.
class CustomTier : public LowerTier {
public:
    /// The tier lives as long as this object, or a cache or chain above it.
    explicit CustomTier(std::shared_ptr<Tier> tier) {
        auto user = std::make_unique<std::shared_ptr<Tier>>(std::move(tier));
        kvmem_tier_callbacks callbacks = {};
        callbacks.struct_size = sizeof callbacks;
        callbacks.user = user.get();
        callbacks.store = &store;
        callbacks.ask = &ask;
        callbacks.fetch = &fetch;
        callbacks.remove = &remove;
        callbacks.clear = &clear;
        callbacks.release = &release;
        kvmem_lower_tier *made = nullptr;
        detail::check(kvmem_lower_tier_custom(&callbacks, &made));
        (void)user.release();
        lower_tier_.reset(made);
    }

private:
    /// Calls the tier. Returns 0, or 1 if it throws.
    template <class Call>
    static int guarded(void *user, Call call) noexcept {
        try {
            call(**static_cast<std::shared_ptr<Tier> *>(user));
            return 0;
        } catch (...) {
            return 1;
        }
    }

    static std::vector<std::string_view> list(const kvmem_kv_cache_key *keys, std::uint64_t count) {
        std::vector<std::string_view> list;
        for (std::uint64_t index = 0; index < count; ++index) {
            list.emplace_back(static_cast<const char *>(keys[index].key), keys[index].key_bytes);
        }
        return list;
    }

    static void store(void *user, const kvmem_tier_value *values, std::uint64_t count,
                      std::uint32_t *out_outcomes) noexcept {
        guarded(user, [&](Tier &tier) {
            std::vector<TierValue> passed;
            for (std::uint64_t index = 0; index < count; ++index) {
                passed.push_back(TierValue(values[index]));
            }
            const std::vector<bool> stored = tier.store(passed);
            for (std::uint64_t index = 0; index < count && index < stored.size(); ++index) {
                out_outcomes[index] = stored[index] ? KVMEM_TIER_STORED : KVMEM_TIER_NOT_STORED;
            }
        });
    }

    static void ask(void *user, const kvmem_kv_cache_key *keys, std::uint64_t count,
                    std::uint64_t *out_bytes) noexcept {
        guarded(user, [&](Tier &tier) {
            const auto found = tier.ask(list(keys, count));
            for (std::uint64_t index = 0; index < count && index < found.size(); ++index) {
                out_bytes[index] = found[index].value_or(UINT64_MAX);
            }
        });
    }

    static void fetch(void *user, const kvmem_tier_read *reads, std::uint64_t count,
                      std::uint32_t *out_found) noexcept {
        guarded(user, [&](Tier &tier) {
            std::vector<TierRead> passed;
            for (std::uint64_t index = 0; index < count; ++index) {
                const kvmem_tier_read &read = reads[index];
                passed.push_back({{static_cast<const char *>(read.key), read.key_bytes},
                                  detail::bytes_of(read.data, read.bytes)});
            }
            const std::vector<bool> found = tier.fetch(passed);
            for (std::uint64_t index = 0; index < count && index < found.size(); ++index) {
                out_found[index] = found[index] ? 1 : 0;
            }
        });
    }

    static int remove(void *user, const kvmem_kv_cache_key *keys, std::uint64_t count) noexcept {
        return guarded(user, [&](Tier &tier) { tier.remove(list(keys, count)); });
    }

    static int clear(void *user) noexcept {
        return guarded(user, [](Tier &tier) { tier.clear(); });
    }

    static void release(void *user) noexcept { delete static_cast<std::shared_ptr<Tier> *>(user); }
};

/// Two lower tiers, one below the other. Both get each value that a cache above evicts, and both
/// remove what it removes. A fetch reads from the upper one, and the rest from the lower one.
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
