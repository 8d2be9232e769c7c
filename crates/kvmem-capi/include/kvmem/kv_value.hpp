// KV value: what stands under a key of a cache, pinned. Part of kvmem.hpp.
#ifndef KVMEM_KV_VALUE_HPP
#define KVMEM_KV_VALUE_HPP

#include <string_view>

#include "pool.hpp"

namespace kvmem {

/// A value, pinned: it is neither evicted nor freed until this goes. Moves; does not copy. It may outlive its cache. Any thread.
class KvValue {
public:
    /// The bytes, to be read.
    bytes_view bytes() const noexcept { return pin_ ? detail::bytes_of(value_.data, value_.bytes) : bytes_view(); }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Where they begin in the pool.
    std::uint64_t offset() const noexcept { return pin_ ? value_.offset : 0; }

    /// The key that it was put in under: good until this goes.
    std::string_view cache_key() const {
        const void *key = nullptr;
        std::uint64_t bytes = 0;
        detail::check(kvmem_kv_pin_cache_key(pin_.get(), &key, &bytes));
        return std::string_view(static_cast<const char *>(key), bytes);
    }

    /// The key with which `device` can reach it. It is good as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_pin_key(pin_.get(), device.c_str(), &key));
        return key;
    }

    /// Whether its cache's key has been given another value since, or was removed or cleared; see kvmem_kv_pin_is_superseded.
    bool is_superseded() const {
        std::uint32_t superseded = 0;
        detail::check(kvmem_kv_pin_is_superseded(pin_.get(), &superseded));
        return superseded != 0;
    }

    /// One pin more on the same value.
    KvValue clone() const { return KvValue(pin_.get()); }

    /// Whether there is a value: not after it was moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(pin_); }

private:
    friend class KvCache;
    friend class KvRoom;

    explicit KvValue(const kvmem_kv_value &value) noexcept : pin_(value.pin), value_(value) {}

    /// A pin of its own on what another has pinned.
    explicit KvValue(const kvmem_kv_pin *pin) {
        detail::check(kvmem_kv_pin_clone(pin, &value_));
        pin_.reset(value_.pin);
    }

    detail::Handle<kvmem_kv_pin, kvmem_kv_pin_release> pin_;
    kvmem_kv_value value_;
};

} // namespace kvmem

#endif
