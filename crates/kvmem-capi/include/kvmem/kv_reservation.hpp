// KV reservation: a block for a new value of a cache, and the lease for a fetched one. Part of
// kvmem.hpp.
#ifndef KVMEM_KV_RESERVATION_HPP
#define KVMEM_KV_RESERVATION_HPP

#include <variant>

#include "kv_value.hpp"

namespace kvmem {

/// The right to put a value under a key that was fetched from a lower tier. The lease becomes
/// invalid if a value is put, removed or cleared under the key meanwhile. Released by the
/// destructor. Can be moved and not copied. May outlive its cache. Any thread.
class KvLease {
public:
    /// Returns whether no value has been put or removed under the key so far. The answer may change
    /// at once; the commit decides.
    bool is_valid() const {
        std::uint32_t valid = 0;
        detail::check(kvmem_kv_cache_lease_is_valid(lease_.get(), &valid));
        return valid != 0;
    }

    /// Whether this holds a lease: false after a move or a commit.
    explicit operator bool() const noexcept { return static_cast<bool>(lease_); }

private:
    friend class KvCache;
    friend class KvReservation;

    explicit KvLease(kvmem_kv_cache_lease *lease) noexcept : lease_(lease) {}

    detail::Handle<kvmem_kv_cache_lease, kvmem_kv_cache_lease_release> lease_;
};

/// The key has no value, and that of a lower tier may be old. Treat it as a miss.
struct KvUnavailable {};

/// The result of `KvCache::lease`: the lease; the value, pinned, if the key has one; or neither.
using KvLeased = std::variant<KvLease, KvValue, KvUnavailable>;

struct KvSuperseded;

/// A block for a value that the processor or a device writes in place. The destructor frees it
/// unless it was committed.
class KvReservation {
public:
    /// The bytes, for writing.
    bytes_span bytes() const noexcept {
        return reservation_ ? detail::bytes_of(reserved_.data, reserved_.bytes) : bytes_span();
    }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Offset of the first byte in the pool.
    std::uint64_t offset() const noexcept { return reservation_ ? reserved_.offset : 0; }

    /// The key that the value will be put under. Valid as long as the reservation.
    std::string_view cache_key() const {
        const void *key = nullptr;
        std::uint64_t bytes = 0;
        detail::check(kvmem_kv_cache_reservation_cache_key(reservation_.get(), &key, &bytes));
        return std::string_view(static_cast<const char *>(key), bytes);
    }

    /// The registration key with which `device` can write the block. Valid as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_cache_reservation_key(reservation_.get(), device.c_str(), &key));
        return key;
    }

    /// Sets the number of blocks of the prefix that come before the value; the default is 0. Blocks
    /// at the end of a prefix are evicted before those at its start, in whatever order they are
    /// committed and looked up.
    void set_depth(std::uint32_t depth) {
        detail::check(kvmem_kv_cache_reservation_set_depth(reservation_.get(), depth));
    }

    /// Puts the value under its key: `std::move(reservation).commit()`. Returns it pinned.
    KvValue commit() && {
        kvmem_kv_cache_value value = {};
        const kvmem_status status = kvmem_kv_cache_reservation_commit(reservation_.get(), &value);
        if (status == KVMEM_OK) {
            (void)reservation_.release();
        }
        detail::check(status);
        return KvValue(value);
    }

    /// Puts the value under its key if the lease is still valid:
    /// `std::move(reservation).commit_leased(std::move(lease))`. Otherwise nothing changes, and the
    /// result returns the reservation. Consumes the lease in both cases.
    ///
    /// Throws with KVMEM_ERR_INVALID_ARGUMENT if the lease is for another key or another cache;
    /// both stay as they were.
    std::variant<KvValue, KvSuperseded> commit_leased(KvLease &&lease) &&;

    /// Whether this holds a reservation: false after a move or a commit.
    explicit operator bool() const noexcept { return static_cast<bool>(reservation_); }

private:
    friend class KvCache;

    explicit KvReservation(const kvmem_kv_cache_reserved &reserved) noexcept
        : reservation_(reserved.reservation), reserved_(reserved) {}

    detail::Handle<kvmem_kv_cache_reservation, kvmem_kv_cache_reservation_release> reservation_;
    kvmem_kv_cache_reserved reserved_;
};

/// The value was not committed, because the lease was not valid.
struct KvSuperseded {
    /// The reservation, with its contents. Programs usually drop it.
    KvReservation reservation;
    /// The key's current value, if it has one. This does not count as a use.
    std::optional<KvValue> found;
};

inline std::variant<KvValue, KvSuperseded> KvReservation::commit_leased(KvLease &&lease) && {
    kvmem_kv_cache_value value = {};
    const kvmem_status status =
        kvmem_kv_cache_reservation_commit_leased(reservation_.get(), lease.lease_.get(), &value);
    if (status == KVMEM_ERR_SUPERSEDED) {
        (void)lease.lease_.release();
        KvSuperseded superseded{std::move(*this), std::nullopt};
        if (value.pin != nullptr) {
            superseded.found = KvValue(value);
        }
        return superseded;
    }
    detail::check(status);
    (void)lease.lease_.release();
    (void)reservation_.release();
    return KvValue(value);
}

} // namespace kvmem

#endif
