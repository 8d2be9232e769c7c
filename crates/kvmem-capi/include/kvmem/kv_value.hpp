// KV value: a pinned value of a cache. Part of kvmem.hpp.
#ifndef KVMEM_KV_VALUE_HPP
#define KVMEM_KV_VALUE_HPP

#include <optional>
#include <string_view>
#include <vector>

#include "pool.hpp"

namespace kvmem {

/// A pinned value. It is neither evicted nor freed while this object exists. Can be moved and not
/// copied. May outlive its cache. Any thread.
class KvValue {
public:
    /// The bytes, for reading.
    bytes_view bytes() const noexcept {
        return pin_ ? detail::bytes_of(value_.data, value_.bytes) : bytes_view();
    }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Offset of the first byte in the pool.
    std::uint64_t offset() const noexcept { return pin_ ? value_.offset : 0; }

    /// The key that the value was put under. Valid as long as this object.
    std::string_view cache_key() const {
        const void *key = nullptr;
        std::uint64_t bytes = 0;
        detail::check(kvmem_kv_cache_pin_cache_key(pin_.get(), &key, &bytes));
        return std::string_view(static_cast<const char *>(key), bytes);
    }

    /// The registration key with which `device` can access the value. Valid as long as the value.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_kv_cache_pin_key(pin_.get(), device.c_str(), &key));
        return key;
    }

    /// Returns whether the key has been given another value since, or was removed or cleared; see
    /// kvmem_kv_cache_pin_is_superseded.
    bool is_superseded() const {
        std::uint32_t superseded = 0;
        detail::check(kvmem_kv_cache_pin_is_superseded(pin_.get(), &superseded));
        return superseded != 0;
    }

    /// Adds another pin on the same value.
    KvValue clone() const { return KvValue(pin_.get()); }

    /// Whether this holds a value: false after a move.
    explicit operator bool() const noexcept { return static_cast<bool>(pin_); }

private:
    friend class KvCache;
    friend class KvFetching;
    friend class KvReservation;

    explicit KvValue(const kvmem_kv_cache_value &value) noexcept : pin_(value.pin), value_(value) {}

    /// Clones a pin.
    explicit KvValue(const kvmem_kv_cache_pin *pin) {
        detail::check(kvmem_kv_cache_pin_clone(pin, &value_));
        pin_.reset(value_.pin);
    }

    /// Returns the values that `call(out_values)` gives, pinned; empty where a pin is NULL.
    template <class Call>
    static std::vector<std::optional<KvValue>> list(std::size_t count, Call call) {
        std::vector<kvmem_kv_cache_value> values(count);
        std::vector<std::optional<KvValue>> found;
        // Before the call: nothing may throw while this has the pins.
        found.reserve(count);
        detail::check(call(values.data()));
        for (const kvmem_kv_cache_value &value : values) {
            if (value.pin == nullptr) {
                found.push_back(std::nullopt);
            } else {
                found.push_back(KvValue(value));
            }
        }
        return found;
    }

    detail::Handle<kvmem_kv_cache_pin, kvmem_kv_cache_pin_release> pin_;
    kvmem_kv_cache_value value_;
};

} // namespace kvmem

#endif
