// Handle: ownership of objects of the C interface. Part of kvmem.hpp.
//
// There are two kinds of ownership:
//
// - Handle: a single owner, which calls the object's _destroy function. Other objects made of it
//   keep what they need by themselves (see kvmem.h), so the order of destruction is free.
// - Shared: for objects that their allocations call when they are destroyed, from any thread: the
//   allocations of a space, the blocks of a pool. The C interface requires that no thread is in a
//   call on an object while it is destroyed. Each allocation therefore holds a reference, and the
//   last reference destroys the object. One number counts both kinds of references: its top bit is
//   the owner's.
#ifndef KVMEM_HANDLE_HPP
#define KVMEM_HANDLE_HPP

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace kvmem {
namespace detail {

template <class T, kvmem_status (*Destroy)(T *)>
struct Destroyer {
    void operator()(T *object) const noexcept { Destroy(object); }
};

/// A single owner. The pointer is a handle and is never dereferenced.
template <class T, kvmem_status (*Destroy)(T *)>
using Handle = std::unique_ptr<T, Destroyer<T, Destroy>>;

/// Options of C with their defaults. The structures of C++ add what C has as plain pointers: texts,
/// lists, objects and functions, which hide the members of C with the same names.
template <class Options, kvmem_status (*Init)(Options *, std::uint64_t)>
struct WithDefaults : Options {
    WithDefaults() { check(Init(this, sizeof(Options))); }
};

/// The default for objects that keep nothing alive.
struct NoExtra {};

/// A reference-counted object. `Extra` is destroyed after it.
template <class T, kvmem_status (*Destroy)(T *), class Extra = NoExtra>
class Shared {
public:
    explicit Shared(Extra extra = Extra()) : extra_(std::move(extra)) {}
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    ~Shared() {
        if (object_ != nullptr) {
            Destroy(object_);
        }
    }

    T *get() const noexcept { return object_; }
    T **out() noexcept { return &object_; }
    Extra &extra() noexcept { return extra_; }
    const Extra &extra() const noexcept { return extra_; }

    /// Returns whether the owner still exists. Acquire pairs with the release in `disown`.
    bool owned() const noexcept { return (refs_.load(std::memory_order_acquire) & OWNER) != 0; }

    /// Returns the number of references. Relaxed: an estimate while other threads allocate.
    std::uint64_t refs() const noexcept { return refs_.load(std::memory_order_relaxed) & ~OWNER; }

    /// Adds a reference; returns how many there were before. Relaxed: the caller has the owner or a
    /// reference, so the object cannot be destroyed meanwhile.
    std::uint64_t acquire() noexcept {
        return refs_.fetch_add(1, std::memory_order_relaxed) & ~OWNER;
    }

    /// Drops a reference.
    void release() noexcept { drop(1); }

    /// Drops the owner.
    void disown() noexcept { drop(OWNER); }

private:
    static constexpr std::uint64_t OWNER = std::uint64_t{1} << 63;

    /// Release pairs with the acquire of the thread that drops the last reference: all calls on the
    /// object are complete then.
    void drop(std::uint64_t count) noexcept {
        if (refs_.fetch_sub(count, std::memory_order_acq_rel) == count) {
            delete this;
        }
    }

    std::atomic<std::uint64_t> refs_{OWNER};
    T *object_ = nullptr;
    Extra extra_;
};

/// Drops the owner's reference.
template <class S>
struct Disown {
    void operator()(S *shared) const noexcept { shared->disown(); }
};

template <class S>
using Owner = std::unique_ptr<S, Disown<S>>;

/// A reference that an allocation holds, or none. Can only be moved.
template <class S>
class Ref {
public:
    Ref() noexcept = default;

    /// Takes over a reference that is already counted.
    explicit Ref(S *counted) noexcept : shared_(counted) {}
    Ref(Ref &&other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
    Ref &operator=(Ref &&other) = delete;
    Ref(const Ref &) = delete;
    ~Ref() {
        if (shared_ != nullptr) {
            shared_->release();
        }
    }

    S *get() const noexcept { return shared_; }
    S *operator->() const noexcept { return shared_; }
    explicit operator bool() const noexcept { return shared_ != nullptr; }
    void swap(Ref &other) noexcept { std::swap(shared_, other.shared_); }

private:
    S *shared_ = nullptr;
};

/// Returns a text of the C interface by `call(buffer, capacity, needed)`. Repeats the call if the
/// text has grown meanwhile.
template <class Call>
std::string text(Call call) {
    std::uint64_t needed = 0;
    check(call(nullptr, 0, &needed));
    for (;;) {
        std::string said(needed, '\0');
        const kvmem_status status = call(said.data(), said.size(), &needed);
        if (status == KVMEM_OK) {
            said.resize(needed - 1);
            return said;
        }
        if (status != KVMEM_ERR_BUFFER_TOO_SMALL) {
            fail(status);
        }
    }
}

/// Returns a list of the C interface by `call(buffer, capacity, count)`. Repeats the call if the
/// list has grown meanwhile.
template <class T, class Call>
std::vector<T> list(Call call) {
    std::uint64_t count = 0;
    check(call(nullptr, 0, &count));
    for (;;) {
        // At least one element: without a buffer, a call only counts, and the list may have grown.
        std::vector<T> found(std::max<std::uint64_t>(count, 1));
        const kvmem_status status = call(found.data(), found.size(), &count);
        if (status == KVMEM_OK) {
            found.resize(count);
            return found;
        }
        if (status != KVMEM_ERR_BUFFER_TOO_SMALL) {
            fail(status);
        }
    }
}

} // namespace detail
} // namespace kvmem

#endif
