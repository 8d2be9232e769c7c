// KV cache: values under keys, in blocks of a pool. Part of kvmem.hpp.
#ifndef KVMEM_KV_CACHE_HPP
#define KVMEM_KV_CACHE_HPP

#include <exception>
#include <functional>

#include "kv_room.hpp"

namespace kvmem {

/// Which value goes first when room is needed.
enum class Eviction : std::uint32_t {
    /// What was least recently used.
    lru = KVMEM_EVICT_LRU,
    /// Values must be used again soon after they have come, or they go.
    scan_resistant = KVMEM_EVICT_SCAN_RESISTANT,
};

/// Takes what leaves a cache for room; see kvmem_kv_evict_fn, and `KvOptions`.
using KvEvictFn = std::function<void(KvValue)>;

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
    /// Is given each value that is evicted: a lower tier; nothing: nobody is. By the thread that makes room, by several at once, under no lock of
    /// the cache's. The value stays as long as it is kept, and is in use in the pool meanwhile.
    ///
    /// Of several values of a key the latest may come first: ask `KvValue::is_superseded` under the lock under which values are taken, and do not
    /// take what is. If it throws, the value is *not taken*, and its key is not leased from then on, until `KvCache::clear_with` succeeds. Nobody
    /// else is told of the exception: the insertion that made room is another matter and goes on. Who wants to know catches it here.
    ///
    /// It goes when the cache is gone with all its leases and rooms.
    KvEvictFn on_evict;
};

/// What a cache holds, and what it has done.
using KvStats = kvmem_kv_stats;

namespace detail {

/// A function of C++ that tells a lower tier to forget, for C to call. What it throws comes out of `done`.
template <class Forget>
class Forgetting {
    static_assert(std::is_void_v<std::invoke_result_t<Forget &>>,
                  "who cannot forget throws: what a function returns would not be looked at");

public:
    explicit Forgetting(Forget &forget) noexcept : forget_(forget) {}

    static int call(void *user) noexcept {
        auto &self = *static_cast<Forgetting *>(user);
        try {
            std::invoke(self.forget_);
            return 0;
        } catch (...) {
            self.thrown_ = std::current_exception();
            return 1;
        }
    }

    /// The end of the call that it was given to.
    void done(kvmem_status status) {
        if (thrown_) {
            std::rethrow_exception(std::move(thrown_));
        }
        check(status);
    }

private:
    Forget &forget_;
    std::exception_ptr thrown_;
};

} // namespace detail

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
        auto kept = options.on_evict ? std::make_unique<KvEvictFn>(options.on_evict) : nullptr;
        if (kept) {
            wanted.on_evict = &evicted;
            wanted.on_evict_user = kept.get();
            wanted.on_evict_release = &release;
        }
        kvmem_kv_cache *made = nullptr;
        detail::check(kvmem_kv_create(pool.native_handle(), &wanted, &made));
        (void)kept.release();
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

    /// The right to put in what is fetched from a lower tier: take it before anything is asked of that. The value, if there is one; it counts as
    /// used.
    KvLeased lease(std::string_view key) const {
        kvmem_kv_leased leased;
        detail::check(kvmem_kv_get_lease(native_handle(), key.data(), key.size(), &leased));
        switch (leased.outcome) {
        case KVMEM_LEASED_LEASE:
            return KvLease(leased.lease);
        case KVMEM_LEASED_PRESENT:
            return KvValue(leased.value);
        default:
            return KvBusy();
        }
    }

    /// Takes the value under a key out; false if there is none. Its bytes are free when it is pinned no more.
    bool remove(std::string_view key) {
        const kvmem_status status = kvmem_kv_remove(native_handle(), key.data(), key.size());
        if (status != KVMEM_NOT_FOUND) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    /// The same where a lower tier has to forget it, too: `forget()` tells it, and throws if it cannot. It is called whether there is a value or
    /// not; meanwhile the key is not leased. What it throws is thrown here: then the value is out all the same, and the key is not leased until
    /// `clear_with` succeeds.
    template <class Forget>
    bool remove_with(std::string_view key, Forget &&forget) {
        detail::Forgetting<std::remove_reference_t<Forget>> forgetting(forget);
        std::uint32_t removed = 0;
        forgetting.done(kvmem_kv_remove_with(native_handle(), key.data(), key.size(), &forgetting.call,
                                             &forgetting, &removed));
        return removed != 0;
    }

    /// Takes every value out. Those that are pinned stay good.
    void clear() { detail::check(kvmem_kv_clear(native_handle())); }

    /// The same where a lower tier has to forget all, too, as with `remove_with`. Keys that are not leased because something failed before are
    /// leased again. If `forget` throws, the values are out all the same, and no key is leased until this succeeds.
    template <class Forget>
    void clear_with(Forget &&forget) {
        detail::Forgetting<std::remove_reference_t<Forget>> forgetting(forget);
        forgetting.done(kvmem_kv_clear_with(native_handle(), &forgetting.call, &forgetting));
    }

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
    static int evicted(void *user, const kvmem_kv_value *value, const void *, std::uint64_t) noexcept {
        try {
            (*static_cast<KvEvictFn *>(user))(KvValue(value->pin));
            return 0;
        } catch (...) {
            return 1;
        }
    }

    static void release(void *user) noexcept { delete static_cast<KvEvictFn *>(user); }

    detail::Handle<kvmem_kv_cache, kvmem_kv_destroy> cache_;
};

} // namespace kvmem

#endif
