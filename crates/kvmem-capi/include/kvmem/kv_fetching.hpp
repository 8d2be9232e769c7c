// KV fetching: values that are being fetched from a lower tier. Part of kvmem.hpp.
#ifndef KVMEM_KV_FETCHING_HPP
#define KVMEM_KV_FETCHING_HPP

#include <chrono>
#include <optional>
#include <vector>

#include "kv_value.hpp"

namespace kvmem {
namespace detail {

/// Returns the nanoseconds until a point in time; 0 if it has passed.
template <class Clock, class Duration>
std::uint64_t until(const std::chrono::time_point<Clock, Duration> &deadline) {
    const auto now = Clock::now();
    if (deadline <= now) {
        return 0;
    }
    // A later deadline would overflow the nanoseconds.
    constexpr auto longest = std::chrono::hours(24 * 365 * 100);
    const auto left = deadline - now;
    if (left > longest) {
        return UINT64_MAX;
    }
    const auto nanoseconds = std::chrono::ceil<std::chrono::nanoseconds>(left);
    return static_cast<std::uint64_t>(nanoseconds.count());
}

} // namespace detail

/// Values of several keys, some of which are being fetched from the lower tier by a thread of the
/// cache. The destructor cancels what no thread has begun to fetch, unless other calls want the
/// same values. Can be moved and not copied. Keeps its cache. Any thread.
class KvFetching {
public:
    /// Returns whether all fetches are done.
    bool is_done() const {
        std::uint32_t done = 0;
        detail::check(kvmem_kv_cache_fetching_is_done(fetching_.get(), &done));
        return done != 0;
    }

    /// Waits until all fetches are done.
    void wait() const { (void)wait_ns(UINT64_MAX); }

    /// Waits until all fetches are done, until `deadline` at most. Returns whether they are.
    template <class Clock, class Duration>
    bool wait_until(const std::chrono::time_point<Clock, Duration> &deadline) const {
        return wait_ns(detail::until(deadline));
    }

    /// Waits until all fetches are done, for `timeout` at most. Returns whether they are.
    template <class Rep, class Period>
    bool wait_for(const std::chrono::duration<Rep, Period> &timeout) const {
        return wait_until(std::chrono::steady_clock::now() +
                          std::chrono::ceil<std::chrono::nanoseconds>(timeout));
    }

    /// Takes the values that are there, without waiting, in the order of the keys; the others are
    /// empty, and are cancelled or end in the background. This holds nothing afterwards.
    std::vector<std::optional<KvValue>> take() {
        auto found = KvValue::list(keys_, [this](kvmem_kv_cache_value *values) {
            return kvmem_kv_cache_fetching_take(fetching_.get(), values, keys_);
        });
        (void)fetching_.release();
        return found;
    }

    /// Lets all fetches go on without this object, which holds nothing afterwards. Their values are
    /// in the cache when they end, and are not pinned.
    void detach() {
        detail::check(kvmem_kv_cache_fetching_detach(fetching_.get()));
        (void)fetching_.release();
    }

    /// Cancels what no thread has begun to fetch, as the destructor does.
    void cancel() noexcept { fetching_.reset(); }

    /// Whether this holds fetches: false after a move, `take`, `detach` or `cancel`.
    explicit operator bool() const noexcept { return static_cast<bool>(fetching_); }

private:
    friend class KvCache;

    KvFetching(kvmem_kv_cache_fetching *fetching, std::size_t keys) noexcept
        : fetching_(fetching), keys_(keys) {}

    bool wait_ns(std::uint64_t timeout) const {
        std::uint32_t done = 0;
        detail::check(kvmem_kv_cache_fetching_wait(fetching_.get(), timeout, &done));
        return done != 0;
    }

    detail::Handle<kvmem_kv_cache_fetching, kvmem_kv_cache_fetching_cancel> fetching_;
    std::size_t keys_;
};

} // namespace kvmem

#endif
