// KV cache: values under keys, in blocks of a pool. Part of kvmem.hpp.
#ifndef KVMEM_KV_CACHE_HPP
#define KVMEM_KV_CACHE_HPP

#include <string_view>

#include "pool.hpp"

namespace kvmem {

/// Which value goes first when room is needed.
enum class Eviction : std::uint32_t {
    /// What was least recently used.
    lru = KVMEM_EVICT_LRU,
    /// Values must be used again soon after they have come, or they go.
    scan_resistant = KVMEM_EVICT_SCAN_RESISTANT,
};

/// How a cache is to be. What is not said is as kvmem_kv_options_init has it.
struct KvOptions {
    /// At most so many bytes are held; nothing: as many as find room in the pool.
    std::optional<std::uint64_t> max_bytes;
    /// At most so many values are held; nothing: about 2^32.
    std::optional<std::uint64_t> max_blocks;
    /// An insertion that leaves more bytes than the high one evicts down to the low one. Both or neither.
    std::optional<std::uint64_t> low_watermark;
    std::optional<std::uint64_t> high_watermark;
    Eviction eviction = Eviction::lru;
    /// Into how many shards keys are divided; 1 makes LRU exact; 0: some for each processor.
    std::uint32_t shards = 0;
};

/// What a cache holds, and what it has done.
using KvStats = kvmem_kv_stats;

/// A value, pinned: it is neither evicted nor freed until this goes. Moves; does not copy. It may outlive its cache. Any thread.
class KvValue {
public:
    /// The bytes, to be read.
    bytes_view bytes() const noexcept { return pin_ ? detail::bytes_of(value_.data, value_.bytes) : bytes_view(); }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Where they begin in the pool.
    std::uint64_t offset() const noexcept { return pin_ ? value_.offset : 0; }

    /// The key with which `device` can reach it. It is good as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_pin_key(pin_.get(), device.c_str(), &key));
        return key;
    }

    /// Whether there is a value: not after it was moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(pin_); }

private:
    friend class KvCache;
    friend class KvRoom;

    explicit KvValue(const kvmem_kv_value &value) noexcept : pin_(value.pin), value_(value) {}

    detail::Handle<kvmem_kv_pin, kvmem_kv_pin_release> pin_;
    kvmem_kv_value value_;
};

/// Room for a value, to be written in place, by the processor or a device. It is given back if it goes before it was committed.
class KvRoom {
public:
    /// The bytes, to be written.
    bytes_span bytes() const noexcept { return room_ ? detail::bytes_of(made_.data, made_.bytes) : bytes_span(); }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Where they begin in the pool.
    std::uint64_t offset() const noexcept { return room_ ? made_.offset : 0; }

    /// The key with which `device` can write it. It is good as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_reservation_key(room_.get(), device.c_str(), &key));
        return key;
    }

    /// Puts the value in: `std::move(room).commit()`. It is pinned as long as the result.
    KvValue commit() && {
        kvmem_kv_value value = {};
        const kvmem_status status = kvmem_kv_commit(room_.get(), &value);
        if (status == KVMEM_OK) {
            (void)room_.release();
        }
        detail::check(status);
        return KvValue(value);
    }

    /// Whether there is room: not after it was moved from or committed.
    explicit operator bool() const noexcept { return static_cast<bool>(room_); }

private:
    friend class KvCache;

    explicit KvRoom(const kvmem_kv_room &made) noexcept : room_(made.reservation), made_(made) {}

    detail::Handle<kvmem_kv_reservation, kvmem_kv_abandon> room_;
    kvmem_kv_room made_;
};

/// Values under keys: found by any thread, pinned while they are used, evicted when room is needed. A key is any bytes. It keeps its pool's memory.
class KvCache {
public:
    /// On a pool, which may have other users too.
    explicit KvCache(const Pool &pool, const KvOptions &options = {}) {
        kvmem_kv_options wanted;
        detail::check(kvmem_kv_options_init(&wanted, sizeof wanted));
        wanted.max_bytes = options.max_bytes.value_or(wanted.max_bytes);
        wanted.max_blocks = options.max_blocks.value_or(wanted.max_blocks);
        wanted.low_watermark_bytes = options.low_watermark.value_or(wanted.low_watermark_bytes);
        wanted.high_watermark_bytes = options.high_watermark.value_or(wanted.high_watermark_bytes);
        wanted.eviction = static_cast<std::uint32_t>(options.eviction);
        wanted.shards = options.shards;
        kvmem_kv_cache *made = nullptr;
        detail::check(kvmem_kv_create(pool.native_handle(), &wanted, &made));
        cache_.reset(made);
    }

    /// The value under a key, if there is one. It counts as used.
    std::optional<KvValue> get(std::string_view key) const {
        kvmem_kv_value value;
        const kvmem_status status = kvmem_kv_get(native_handle(), key.data(), key.size(), &value);
        if (status == KVMEM_NOT_FOUND) {
            return std::nullopt;
        }
        detail::check(status);
        return KvValue(value);
    }

    /// Whether there is a value under a key. It does not count as used.
    bool contains(std::string_view key) const {
        std::uint32_t contains = 0;
        detail::check(kvmem_kv_contains(native_handle(), key.data(), key.size(), &contains));
        return contains != 0;
    }

    /// Copies bytes into a block and puts it under a key, in the place of what is there. Evicts until it fits; false if it does not.
    bool insert(std::string_view key, bytes_view value) {
        return detail::granted(
            kvmem_kv_insert(native_handle(), key.data(), key.size(), value.data(), value.size()));
    }

    bool insert(std::string_view key, const void *value, std::size_t bytes) {
        return insert(key, detail::bytes_of(value, bytes));
    }

    /// Makes room for a value of `bytes` bytes, to be written in place and then committed. Evicts until it fits; nothing if it does not.
    std::optional<KvRoom> reserve(std::string_view key, std::uint64_t bytes) {
        kvmem_kv_room room;
        if (!detail::granted(kvmem_kv_reserve(native_handle(), key.data(), key.size(), bytes, &room))) {
            return std::nullopt;
        }
        return KvRoom(room);
    }

    /// Takes the value under a key out; false if there is none. Its bytes are free when it is pinned no more.
    bool remove(std::string_view key) {
        const kvmem_status status = kvmem_kv_remove(native_handle(), key.data(), key.size());
        if (status != KVMEM_NOT_FOUND) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    /// Takes every value out. Those that are pinned stay good.
    void clear() { detail::check(kvmem_kv_clear(native_handle())); }

    /// Evicts until at most `bytes` bytes are held, or nothing is left that can go; how many are held then.
    std::uint64_t evict_to(std::uint64_t bytes) {
        std::uint64_t held = 0;
        detail::check(kvmem_kv_evict_to(native_handle(), bytes, &held));
        return held;
    }

    KvStats stats() const {
        KvStats stats;
        detail::check(kvmem_kv_get_stats(native_handle(), &stats));
        return stats;
    }

    /// Checks the invariants, while no other thread is in the cache; throws with KVMEM_CHECK_FAILED, which is a defect of the library.
    void verify() const { detail::check(kvmem_kv_check(native_handle())); }

    kvmem_kv_cache *native_handle() const noexcept { return cache_.get(); }

private:
    detail::Handle<kvmem_kv_cache, kvmem_kv_destroy> cache_;
};

} // namespace kvmem

#endif
