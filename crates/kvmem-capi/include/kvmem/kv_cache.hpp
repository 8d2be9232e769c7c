// KV cache: values under keys, stored in blocks of a pool. Part of kvmem.hpp.
#ifndef KVMEM_KV_CACHE_HPP
#define KVMEM_KV_CACHE_HPP

#include <array>
#include <functional>
#include <iterator>

#include "kv_fetching.hpp"
#include "kv_reservation.hpp"
#include "lower_tier.hpp"

namespace kvmem {

/// Statistics of the queue above a lower tier.
using WriteBehindStats = kvmem_write_behind_stats;

/// Receives evicted values; see kvmem_kv_cache_evict_fn and `KvCacheOptions`.
using KvEvictFn = std::function<void(KvValue)>;

/// Options of a cache: those of C.
struct KvCacheOptions
    : detail::WithDefaults<kvmem_kv_cache_options, kvmem_kv_cache_options_init> {
    /// Receives each evicted value. Empty: evicted bytes are freed at once. Called by the thread
    /// that inserts, reserves or evicts, by several threads at once; the cache holds no lock during
    /// the call. A value that the function keeps stays in use in the pool. Its exceptions are
    /// dropped. It is destroyed when the cache and all its reservations are gone.
    ///
    /// To store evicted values and find them again, use `lower_tier`, with a `CustomTier`.
    KvEvictFn on_evict;
    /// A lower tier that receives each evicted value, and that `KvCache::get_batch` asks for
    /// values that the cache does not have: a `DiskTier`, `TierSet`, `CustomTier` or `Chain`. NULL:
    /// none. Not with `on_evict`. The cache keeps what it needs of the tier.
    const LowerTier *lower_tier = nullptr;
};

/// Statistics of a cache.
using KvCacheStats = kvmem_kv_cache_stats;

/// Values under keys. Any thread can look up a value. A value is pinned while it is used, and
/// evicted when the cache needs space. A key is any bytes. The cache keeps its pool's memory.
class KvCache {
public:
    /// Makes an empty cache on a pool. The pool may have other users.
    explicit KvCache(const Pool &pool, const KvCacheOptions &options = {}) {
        kvmem_kv_cache_options wanted = options;
        auto kept = options.on_evict ? std::make_unique<KvEvictFn>(options.on_evict) : nullptr;
        if (kept) {
            wanted.on_evict = &evicted;
            wanted.on_evict_user = kept.get();
            wanted.on_evict_release = &release;
        }
        if (options.lower_tier != nullptr) {
            wanted.lower_tier =
                detail::present(options.lower_tier->native_lower_tier(), "the tier");
        }
        kvmem_kv_cache *made = nullptr;
        detail::check(kvmem_kv_cache_create(pool.native_handle(), &wanted, &made));
        (void)kept.release();
        cache_.reset(made);
    }

    /// Returns the value under a key, pinned: from memory, or else from the lower tier, which is
    /// fetched and put into the cache; empty if neither has one. This counts as a use. Blocks while
    /// the tier reads.
    std::optional<KvValue> get(std::string_view key) const {
        return found(&kvmem_kv_cache_get, key);
    }

    /// Returns the value that memory has under a key, pinned; empty if it has none. This counts as
    /// a use, and calls no lower tier.
    std::optional<KvValue> get_in_memory(std::string_view key) const {
        return found(&kvmem_kv_cache_get_in_memory, key);
    }

    /// Returns the values of keys, pinned, in the same order; empty where neither the cache nor its
    /// lower tier has one. Values that the cache does not have are fetched from the tier, all at
    /// once, and put into the cache. `keys` is a range of values that convert to
    /// `std::string_view`, which must own its keys.
    template <class Keys>
    std::vector<std::optional<KvValue>> get_batch(const Keys &keys) const {
        const std::vector<kvmem_kv_cache_key> list = all(keys);
        return KvValue::list(list.size(), [&](kvmem_kv_cache_value *values) {
            return kvmem_kv_cache_get_batch(native_handle(), list.data(), list.size(), values);
        });
    }

    /// Returns what `get_batch` returns, as far as it is there at `deadline`. Fetches that have
    /// begun by then end in the background, and their values are in the cache afterwards. The
    /// others are cancelled.
    template <class Keys, class Clock, class Duration>
    std::vector<std::optional<KvValue>>
    get_batch_until(const Keys &keys,
                       const std::chrono::time_point<Clock, Duration> &deadline) const {
        const std::vector<kvmem_kv_cache_key> list = all(keys);
        return KvValue::list(list.size(), [&](kvmem_kv_cache_value *values) {
            return kvmem_kv_cache_get_batch_until(native_handle(), list.data(), list.size(),
                                                     detail::until(deadline), values);
        });
    }

    /// Begins to fetch from the lower tier what the cache lacks of `keys`, and returns at once. A
    /// thread of the cache reads. Other calls for the same keys share the reads.
    template <class Keys>
    KvFetching start_fetch(const Keys &keys) const {
        const std::vector<kvmem_kv_cache_key> list = all(keys);
        kvmem_kv_cache_fetching *fetching = nullptr;
        detail::check(kvmem_kv_cache_start_fetch(native_handle(), list.data(), list.size(),
                                                 &fetching));
        return KvFetching(fetching, list.size());
    }

    /// Starts to fetch into the processor's caches what `get` and `reserve` of these keys read
    /// first. The cache misses of calls that follow for these keys then overlap. A hint: changes
    /// nothing, and does not count as a use. `keys` is a range of values that convert to
    /// `std::string_view`; O(keys).
    template <class Keys>
    void prefetch(const Keys &keys) const {
        using Element = decltype(*std::begin(keys));
        static_assert(std::is_lvalue_reference_v<Element> ||
                          std::is_same_v<std::decay_t<Element>, std::string_view>,
                      "the range must own its keys: some of them are passed on together");
        std::array<kvmem_kv_cache_key, 16> some;
        std::size_t count = 0;
        for (const auto &one : keys) {
            const std::string_view key(one);
            some[count++] = {key.data(), key.size()};
            if (count == some.size()) {
                detail::check(kvmem_kv_cache_prefetch(native_handle(), some.data(), count));
                count = 0;
            }
        }
        detail::check(kvmem_kv_cache_prefetch(native_handle(), some.data(), count));
    }

    /// Returns whether a key has a value, in memory or in the lower tier. This does not count as a
    /// use. The tier is asked if memory has none, and may wait for a network.
    bool contains(std::string_view key) const {
        std::uint32_t contains = 0;
        detail::check(kvmem_kv_cache_contains(native_handle(), key.data(), key.size(), &contains));
        return contains != 0;
    }

    /// Returns whether memory has a value under a key. This does not count as a use.
    bool contains_in_memory(std::string_view key) const {
        std::uint32_t contains = 0;
        detail::check(kvmem_kv_cache_contains_in_memory(native_handle(), key.data(), key.size(),
                                                        &contains));
        return contains != 0;
    }

    /// Returns the number of values in memory, those that are being written included, and in the
    /// lower tier, each value once: see kvmem_kv_cache_len.
    std::uint64_t len() const {
        std::uint64_t values = 0;
        detail::check(kvmem_kv_cache_len(native_handle(), &values));
        return values;
    }

    /// Returns the number of values in memory, those that are being written included.
    std::uint64_t len_in_memory() const {
        std::uint64_t values = 0;
        detail::check(kvmem_kv_cache_len_in_memory(native_handle(), &values));
        return values;
    }

    /// Copies bytes into a block and puts it under a key, replacing the key's value. Evicts values
    /// until the new one fits; returns false if it cannot. The lower tier gets the hints with it.
    bool insert(std::string_view key, bytes_view value, const KvHints &hints = {}) {
        const kvmem_value_hints native = hints.native();
        return detail::allocated(kvmem_kv_cache_insert(native_handle(), key.data(), key.size(),
                                                       value.data(), value.size(), &native));
    }

    bool insert(std::string_view key, const void *value, std::size_t bytes,
                const KvHints &hints = {}) {
        return insert(key, detail::bytes_of(value, bytes), hints);
    }

    /// Inserts values as `insert` does, all of them or none; returns false if they cannot fit.
    bool insert_batch(const std::vector<KvNewValue> &values) {
        std::vector<kvmem_kv_cache_new_value> list;
        for (const KvNewValue &one : values) {
            list.push_back({one.key.data(), one.key.size(), one.bytes.data(), one.bytes.size(),
                            one.hints.native()});
        }
        return detail::allocated(
            kvmem_kv_cache_insert_batch(native_handle(), list.data(), list.size()));
    }

    /// Reserves a block of `bytes` bytes for a value that is written in place and then committed.
    /// Evicts values until the block fits; empty if it cannot.
    std::optional<KvReservation> reserve(std::string_view key, std::uint64_t bytes) {
        kvmem_kv_cache_reserved reserved;
        if (!detail::allocated(kvmem_kv_cache_reserve(native_handle(), key.data(), key.size(),
                                                      bytes, &reserved))) {
            return std::nullopt;
        }
        return KvReservation(reserved);
    }

    /// Removes the value under a key from memory and from the lower tier. Returns whether memory
    /// had one. Its bytes are freed when its last pin is released. Throws
    /// KVMEM_ERR_INVALIDATE_FAILED if the tier failed: the value is removed from memory
    /// nevertheless, and the key is not fetched until `clear` succeeds.
    bool remove(std::string_view key) {
        std::uint32_t removed = 0;
        detail::check(kvmem_kv_cache_remove(native_handle(), key.data(), key.size(), &removed));
        return removed != 0;
    }

    /// Removes the value under a key from memory alone. Returns whether memory had one.
    bool remove_in_memory(std::string_view key) {
        std::uint32_t removed = 0;
        detail::check(
            kvmem_kv_cache_remove_in_memory(native_handle(), key.data(), key.size(), &removed));
        return removed != 0;
    }

    /// Removes all values from memory and from the lower tier. Pinned ones stay valid. Throws as
    /// `remove`: no key is fetched then until this succeeds.
    void clear() { detail::check(kvmem_kv_cache_clear(native_handle())); }

    /// Removes all values from memory alone. Pinned ones stay valid.
    void clear_in_memory() { detail::check(kvmem_kv_cache_clear_in_memory(native_handle())); }

    /// Evicts values until the cache holds at most `bytes` bytes, or no value can be evicted.
    /// Returns how many bytes remain.
    std::uint64_t evict_to(std::uint64_t bytes) {
        std::uint64_t held = 0;
        detail::check(kvmem_kv_cache_evict_to(native_handle(), bytes, &held));
        return held;
    }

    /// Waits until every value that the cache evicted before has been given to the lower tier,
    /// until `deadline` at most. Returns whether all were.
    template <class Clock, class Duration>
    bool flush_until(const std::chrono::time_point<Clock, Duration> &deadline) const {
        std::uint32_t flushed = 0;
        detail::check(kvmem_kv_cache_flush(native_handle(), detail::until(deadline), &flushed));
        return flushed != 0;
    }

    /// Waits until every value that the cache evicted before has been given to the lower tier.
    void flush() const {
        detail::check(kvmem_kv_cache_flush(native_handle(), UINT64_MAX, nullptr));
    }

    /// Returns the statistics of the queue above the lower tier; zeros without one.
    WriteBehindStats write_behind_stats() const {
        WriteBehindStats stats;
        detail::check(kvmem_kv_cache_get_write_behind_stats(native_handle(), &stats));
        return stats;
    }

    /// Returns the message of the latest failure of the lower tier in a writer of the queue; empty
    /// if there was none.
    std::string write_behind_error() const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_kv_cache_write_behind_error(native_handle(), buffer, capacity, needed);
        });
    }

    KvCacheStats stats() const {
        KvCacheStats stats;
        detail::check(kvmem_kv_cache_get_stats(native_handle(), &stats));
        return stats;
    }

    /// Checks the invariants. No other thread may be in a call on the cache. KVMEM_ERR_CHECK_FAILED
    /// is a defect of the library.
    void check() const { detail::check(kvmem_kv_cache_check(native_handle())); }

    kvmem_kv_cache *native_handle() const noexcept { return cache_.get(); }

private:
    /// Returns the value that a look-up of the C interface finds.
    template <class LookUp>
    std::optional<KvValue> found(LookUp look_up, std::string_view key) const {
        kvmem_kv_cache_value value;
        const kvmem_status status = look_up(native_handle(), key.data(), key.size(), &value);
        if (status == KVMEM_ERR_NOT_FOUND) {
            return std::nullopt;
        }
        detail::check(status);
        return KvValue(value);
    }

    /// Returns all keys of a range, which owns them.
    template <class Keys>
    static std::vector<kvmem_kv_cache_key> all(const Keys &keys) {
        using Element = decltype(*std::begin(keys));
        static_assert(std::is_lvalue_reference_v<Element> ||
                          std::is_same_v<std::decay_t<Element>, std::string_view>,
                      "the range must own its keys: all of them are passed on together");
        std::vector<kvmem_kv_cache_key> list;
        for (const auto &one : keys) {
            const std::string_view key(one);
            list.push_back({key.data(), key.size()});
        }
        return list;
    }

    static void evicted(void *user, const kvmem_kv_cache_value *value, const void *,
                        std::uint64_t) noexcept {
        try {
            (*static_cast<KvEvictFn *>(user))(KvValue(value->pin));
        } catch (...) {
            // The insertion that evicts goes on.
        }
    }

    static void release(void *user) noexcept { delete static_cast<KvEvictFn *>(user); }

    detail::Handle<kvmem_kv_cache, kvmem_kv_cache_destroy> cache_;
};

} // namespace kvmem

#endif
