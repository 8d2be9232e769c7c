// Progress: how far long calls have come, and how they are ended early. Part of kvmem.hpp.
#ifndef KVMEM_PROGRESS_HPP
#define KVMEM_PROGRESS_HPP

#include <chrono>
#include <functional>
#include <memory>

#include "handle.hpp"

namespace kvmem {

/// How far it has come.
using Progress = kvmem_progress;

/// Is told of progress, by the threads that work, one call at a time. If it throws, std::terminate is called, as for a thread's function; a
/// `Cancel` ends the work.
using ProgressFn = std::function<void(const Progress &)>;

/// A token that ends mapping, registering or building early: then the call throws, with KVMEM_CANCELLED. Any thread may use it.
class Cancel {
public:
    Cancel() {
        kvmem_cancel *made = nullptr;
        detail::check(kvmem_cancel_create(&made));
        token_.reset(made);
    }

    /// What it was given to ends at its next chunk. It cannot be taken back.
    void use() const { detail::check(kvmem_cancel_use(token_.get())); }

    const kvmem_cancel *native_handle() const noexcept { return token_.get(); }

private:
    detail::Handle<kvmem_cancel, kvmem_cancel_destroy> token_;
};

/// Populate: nothing, or by as many threads as pay. Any other number is a number of threads.
inline constexpr std::uint32_t populate_none = KVMEM_POPULATE_NONE;
inline constexpr std::uint32_t populate_auto = KVMEM_POPULATE_AUTO;

namespace detail {

/// A function of C++ that C calls. It stays where it is.
class Teller {
public:
    explicit Teller(ProgressFn tell) : tell_(tell ? std::make_unique<ProgressFn>(std::move(tell)) : nullptr) {}

    kvmem_progress_fn function() const noexcept { return tell_ ? &call : nullptr; }
    void *user() const noexcept { return tell_.get(); }

private:
    static void call(void *user, const kvmem_progress *progress) noexcept {
        (*static_cast<ProgressFn *>(user))(*progress);
    }

    std::unique_ptr<ProgressFn> tell_;
};

inline const kvmem_cancel *native(const Cancel *cancel) {
    return cancel == nullptr ? nullptr : present(cancel->native_handle(), "the Cancel");
}

inline std::uint64_t nanoseconds(std::chrono::nanoseconds time) noexcept {
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

/// A text that may be missing.
inline const char *or_null(const std::string &text) noexcept { return text.empty() ? nullptr : text.c_str(); }

} // namespace detail
} // namespace kvmem

#endif
