// Progress: reports of long calls, and their cancellation. Part of kvmem.hpp.
#ifndef KVMEM_PROGRESS_HPP
#define KVMEM_PROGRESS_HPP

#include <chrono>
#include <functional>
#include <memory>

#include "handle.hpp"

namespace kvmem {

/// The progress of long work.
using Progress = kvmem_progress;

/// Receives progress. Worker threads call it, one call at a time. If it throws, std::terminate is
/// called, as for a thread's function; use a `CancelToken` to end the work.
using ProgressFn = std::function<void(const Progress &)>;

/// A token that ends mapping, registering or building early: the call then throws with
/// KVMEM_ERR_CANCELLED. Any thread.
class CancelToken {
public:
    CancelToken() {
        kvmem_cancel *made = nullptr;
        detail::check(kvmem_cancel_create(&made));
        token_.reset(made);
    }

    /// Requests cancellation: work that was given the token ends at its next chunk. A request
    /// cannot be undone.
    void cancel() const { detail::check(kvmem_cancel_request(token_.get())); }

    const kvmem_cancel *native_handle() const noexcept { return token_.get(); }

private:
    detail::Handle<kvmem_cancel, kvmem_cancel_destroy> token_;
};

/// Populate: no pages, or with as many threads as improve the speed. Every other number is a number
/// of threads.
inline constexpr std::uint32_t populate_none = KVMEM_POPULATE_NONE;
inline constexpr std::uint32_t populate_auto = KVMEM_POPULATE_AUTO;

namespace detail {

/// Adapts a C++ function to a C callback. The address passed to C stays valid when this object
/// moves.
class ProgressCallback {
public:
    explicit ProgressCallback(ProgressFn function)
        : function_(function ? std::make_unique<ProgressFn>(std::move(function)) : nullptr) {}

    kvmem_progress_fn function() const noexcept { return function_ ? &call : nullptr; }
    void *user() const noexcept { return function_.get(); }

private:
    static void call(void *user, const kvmem_progress *progress) noexcept {
        (*static_cast<ProgressFn *>(user))(*progress);
    }

    std::unique_ptr<ProgressFn> function_;
};

inline const kvmem_cancel *native(const CancelToken *cancel) {
    return cancel == nullptr ? nullptr : present(cancel->native_handle(), "the CancelToken");
}

inline std::uint64_t nanoseconds(std::chrono::nanoseconds time) noexcept {
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

/// Returns NULL for an empty text.
inline const char *or_null(const std::string &text) noexcept {
    return text.empty() ? nullptr : text.c_str();
}

} // namespace detail
} // namespace kvmem

#endif
