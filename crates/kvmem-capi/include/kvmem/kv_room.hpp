// KV room: where a value of a cache is written, and the lease under which one that was fetched is put in. Part of kvmem.hpp.
#ifndef KVMEM_KV_ROOM_HPP
#define KVMEM_KV_ROOM_HPP

#include <variant>

#include "kv_value.hpp"

namespace kvmem {

/// The right to put in under a key what is fetched from a lower tier, unless something is put, removed or cleared under it meanwhile: that breaks
/// it. It is given up when it goes. Moves; does not copy. It may outlive its cache. Any thread.
class KvLease {
public:
    /// Whether nothing has been put or removed under the key so far. That may change at once: what counts is the commit.
    bool is_unbroken() const {
        std::uint32_t unbroken = 0;
        detail::check(kvmem_kv_lease_is_unbroken(lease_.get(), &unbroken));
        return unbroken != 0;
    }

    /// Whether there is a lease: not after it was moved from or committed under.
    explicit operator bool() const noexcept { return static_cast<bool>(lease_); }

private:
    friend class KvCache;
    friend class KvRoom;

    explicit KvLease(kvmem_kv_lease *lease) noexcept : lease_(lease) {}

    detail::Handle<kvmem_kv_lease, kvmem_kv_lease_release> lease_;
};

/// There is no value, and what a lower tier has may be old. Take it for a miss.
struct KvBusy {};

/// What `KvCache::lease` found: the lease; the value, pinned, if there is one; or neither.
using KvLeased = std::variant<KvLease, KvValue, KvBusy>;

struct KvSuperseded;

/// Room for a value, to be written in place, by the processor or a device. It is given back if it goes before it was committed.
class KvRoom {
public:
    /// The bytes, to be written.
    bytes_span bytes() const noexcept { return room_ ? detail::bytes_of(made_.data, made_.bytes) : bytes_span(); }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Where they begin in the pool.
    std::uint64_t offset() const noexcept { return room_ ? made_.offset : 0; }

    /// The key that the value will be put in under: good as long as the room.
    std::string_view cache_key() const {
        const void *key = nullptr;
        std::uint64_t bytes = 0;
        detail::check(kvmem_kv_reservation_cache_key(room_.get(), &key, &bytes));
        return std::string_view(static_cast<const char *>(key), bytes);
    }

    /// The key with which `device` can write it. It is good as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_reservation_key(room_.get(), device.c_str(), &key));
        return key;
    }

    /// Says that `depth` blocks of the prefix come before the value; 0 is the default. Blocks at the end of a prefix are evicted before those at
    /// its start, in whatever order they are committed.
    void set_depth(std::uint32_t depth) { detail::check(kvmem_kv_reservation_set_depth(room_.get(), depth)); }

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

    /// The same if nothing was put, removed or cleared under the key since the lease was taken:
    /// `std::move(room).commit_leased(std::move(lease))`. Otherwise nothing has changed, and the result has the room. The lease ends.
    ///
    /// A lease of another key or another cache is a mistake, and thrown (KVMEM_INVALID_ARGUMENT): then both stay as they were.
    std::variant<KvValue, KvSuperseded> commit_leased(KvLease &&lease) &&;

    /// Whether there is room: not after it was moved from or committed.
    explicit operator bool() const noexcept { return static_cast<bool>(room_); }

private:
    friend class KvCache;

    explicit KvRoom(const kvmem_kv_room &made) noexcept : room_(made.reservation), made_(made) {}

    detail::Handle<kvmem_kv_reservation, kvmem_kv_abandon> room_;
    kvmem_kv_room made_;
};

/// What was not committed: the lease was broken.
struct KvSuperseded {
    /// The room, with what was written there: to be dropped, in general.
    KvRoom room;
    /// What the key has now, if anything. It does not count as used.
    std::optional<KvValue> found;
};

inline std::variant<KvValue, KvSuperseded> KvRoom::commit_leased(KvLease &&lease) && {
    kvmem_kv_value value = {};
    const kvmem_status status = kvmem_kv_commit_leased(room_.get(), lease.lease_.get(), &value);
    if (status == KVMEM_SUPERSEDED) {
        (void)lease.lease_.release();
        KvSuperseded superseded{std::move(*this), std::nullopt};
        if (value.pin != nullptr) {
            superseded.found = KvValue(value);
        }
        return superseded;
    }
    detail::check(status);
    (void)lease.lease_.release();
    (void)room_.release();
    return KvValue(value);
}

} // namespace kvmem

#endif
