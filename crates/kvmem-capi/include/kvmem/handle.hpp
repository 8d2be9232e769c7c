// Handle: how objects of the C interface are owned. Part of kvmem.hpp.
//
// There are two kinds of owners:
//
// - Handle: one owner. Moving hands it on; the last word is the object's _destroy function. What else was made of the object keeps by
//   itself what it needs of it (kvmem.h says so), so the order of destruction is free.
// - Shared: an object whose parts call it when they go, from any thread: allocations of a space, blocks of a pool. The C interface asks that an object
//   is not destroyed while another thread is in a call on it; so every part counts, and the object goes with the last of them. One number
//   counts both: the owner is its top bit.
#ifndef KVMEM_HANDLE_HPP
#define KVMEM_HANDLE_HPP

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

/// One owner. The pointer is never followed: it is a handle.
template <class T, kvmem_status (*Destroy)(T *)>
using Handle = std::unique_ptr<T, Destroyer<T, Destroy>>;

/// What an object is kept with that nothing is kept with.
struct Nothing {};

/// An object and those who use it. `With` is destroyed after it.
template <class T, kvmem_status (*Destroy)(T *), class With = Nothing>
class Shared {
public:
    explicit Shared(With with = With()) : with_(std::move(with)) {}
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    ~Shared() {
        if (object_ != nullptr) {
            Destroy(object_);
        }
    }

    T *get() const noexcept { return object_; }
    T **out() noexcept { return &object_; }
    With &with() noexcept { return with_; }
    const With &with() const noexcept { return with_; }

    /// Whether the owner is still there. Acquire pairs with the release in `disown`.
    bool owned() const noexcept { return (users_.load(std::memory_order_acquire) & OWNER) != 0; }

    /// How many parts there are. Relaxed: an estimate while other threads allocate.
    std::uint64_t parts() const noexcept { return users_.load(std::memory_order_relaxed) & ~OWNER; }

    /// One part more; how many there were. Relaxed: who calls has the owner or a part, so it cannot go meanwhile.
    std::uint64_t keep() noexcept { return users_.fetch_add(1, std::memory_order_relaxed) & ~OWNER; }

    /// One part less.
    void let_go() noexcept { less(1); }

    /// The owner goes.
    void disown() noexcept { less(OWNER); }

private:
    static constexpr std::uint64_t OWNER = std::uint64_t{1} << 63;

    /// Release pairs with the acquire of whoever takes the last away: all calls on the object are over then.
    void less(std::uint64_t part) noexcept {
        if (users_.fetch_sub(part, std::memory_order_acq_rel) == part) {
            delete this;
        }
    }

    std::atomic<std::uint64_t> users_{OWNER};
    T *object_ = nullptr;
    With with_;
};

/// The owner's side.
template <class S>
struct Disown {
    void operator()(S *shared) const noexcept { shared->disown(); }
};

template <class S>
using Owner = std::unique_ptr<S, Disown<S>>;

/// A part's side: who has one has a part of `S`, or nothing. Moves only.
template <class S>
class Part {
public:
    Part() noexcept = default;

    /// Takes over a part that was counted.
    explicit Part(S *counted) noexcept : shared_(counted) {}
    Part(Part &&other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
    Part &operator=(Part &&other) = delete;
    Part(const Part &) = delete;
    ~Part() {
        if (shared_ != nullptr) {
            shared_->let_go();
        }
    }

    S *get() const noexcept { return shared_; }
    S *operator->() const noexcept { return shared_; }
    explicit operator bool() const noexcept { return shared_ != nullptr; }
    void swap(Part &other) noexcept { std::swap(shared_, other.shared_); }

private:
    S *shared_ = nullptr;
};

/// A text of the C interface: `call(buffer, capacity, needed)`, again if it has grown meanwhile.
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
        if (status != KVMEM_BUFFER_TOO_SMALL) {
            fail(status);
        }
    }
}

/// A list of the C interface, as `text`.
template <class T, class Call>
std::vector<T> list(Call call) {
    std::uint64_t count = 0;
    check(call(nullptr, 0, &count));
    for (;;) {
        std::vector<T> found(count);
        const kvmem_status status = call(found.data(), found.size(), &count);
        if (status == KVMEM_OK) {
            found.resize(count);
            return found;
        }
        if (status != KVMEM_BUFFER_TOO_SMALL) {
            fail(status);
        }
    }
}

} // namespace detail
} // namespace kvmem

#endif
