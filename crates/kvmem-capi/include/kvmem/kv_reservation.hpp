// KV reservation: a block for a new value of a cache. Part of kvmem.hpp.
#ifndef KVMEM_KV_RESERVATION_HPP
#define KVMEM_KV_RESERVATION_HPP

#include "kv_hints.hpp"
#include "kv_value.hpp"

namespace kvmem {

/// A value to insert: its key, its bytes, and its hints.
struct KvNewValue {
    std::string_view key;
    bytes_view bytes;
    KvHints hints{};
};

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

    /// Sets the hints of the value; the default is none. Its time to live begins now.
    void set_hints(const KvHints &hints) {
        const kvmem_value_hints native = hints.native();
        detail::check(kvmem_kv_cache_reservation_set_hints(reservation_.get(), &native));
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

    /// Whether this holds a reservation: false after a move or a commit.
    explicit operator bool() const noexcept { return static_cast<bool>(reservation_); }

private:
    friend class KvCache;

    explicit KvReservation(const kvmem_kv_cache_reserved &reserved) noexcept
        : reservation_(reserved.reservation), reserved_(reserved) {}

    detail::Handle<kvmem_kv_cache_reservation, kvmem_kv_cache_reservation_release> reservation_;
    kvmem_kv_cache_reserved reserved_;
};

} // namespace kvmem

#endif
