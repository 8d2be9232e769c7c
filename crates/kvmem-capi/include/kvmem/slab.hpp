// Slab allocator: blocks of any size, small ones from each thread's own magazines (layer 4), and
// the standard library's allocators on top of it. Part of kvmem.hpp.
#ifndef KVMEM_SLAB_HPP
#define KVMEM_SLAB_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory_resource>
#include <new>
#include <optional>

#include "region.hpp"

namespace kvmem {

/// A detected misuse of blocks.
using SlabFault = kvmem_slab_fault;

/// Statistics of a slab allocator.
using SlabStats = kvmem_slab_allocator_stats;

/// Options of a slab allocator: those of C.
struct SlabOptions
    : detail::WithDefaults<kvmem_slab_allocator_options, kvmem_slab_allocator_options_init> {
    /// Receives detected misuse, in the thread that caused it; the operation is then skipped. It
    /// must not use the allocator. If it throws, std::terminate is called. Empty: misuse aborts the
    /// process.
    std::function<void(const SlabFault &)> on_fault;
};

namespace detail {

/// Throws std::bad_alloc if there is no memory, and the error if a call failed for another reason.
inline void expect(kvmem_status status) {
    if (status == KVMEM_ERR_NO_MEMORY || status == KVMEM_ERR_TOO_LARGE ||
        status == KVMEM_ERR_OUT_OF_SPACE) {
        throw std::bad_alloc();
    }
    check(status);
}

} // namespace detail

/// Allocates blocks that are aligned to 16 bytes. Any thread may allocate, and may free blocks of
/// another thread. The destructor unmaps the slabs with all blocks in them; blocks above `limit`
/// must be freed first.
class SlabAllocator {
public:
    explicit SlabAllocator(const SlabOptions &options = {}) : SlabAllocator(options, nullptr) {}

    /// Takes pages only from `region`, which must be private and have no other user. The allocator
    /// takes the region over; if this throws, it stays the caller's.
    explicit SlabAllocator(Region &&region, const SlabOptions &options = {})
        : SlabAllocator(options, detail::present(region.native_handle(), "the Region")) {
        // The handle of the region is no longer valid.
        (void)region.release();
    }

    /// Allocates a block of `bytes` bytes, not initialized. Throws std::bad_alloc if there is no
    /// memory, error if `bytes` is 0. O(1).
    void *allocate(std::uint64_t bytes) {
        void *block = nullptr;
        detail::expect(kvmem_slab_allocator_allocate(native_handle(), bytes, &block));
        return block;
    }

    /// Allocates a block of `bytes` bytes, all zero.
    void *allocate_zeroed(std::uint64_t bytes) {
        void *block = nullptr;
        detail::expect(kvmem_slab_allocator_allocate_zeroed(native_handle(), bytes, &block));
        return block;
    }

    /// Allocates a block with a copy of the bytes.
    void *copy(bytes_view bytes) {
        void *block = nullptr;
        detail::expect(
            kvmem_slab_allocator_copy(native_handle(), bytes.data(), bytes.size(), &block));
        return block;
    }

    /// Frees a block; NULL does nothing. `bytes` is the size of its allocation. O(1). Does nothing
    /// after a move.
    void deallocate(void *block, std::uint64_t bytes) noexcept {
        kvmem_slab_allocator_free(native_handle(), block, bytes);
    }

    /// Frees a chain of blocks of one size. Each block stores the address of the next one at
    /// `next_offset`, the last one NULL.
    void deallocate_chain(void *first, std::uint64_t bytes, std::uint64_t next_offset) {
        detail::check(kvmem_slab_allocator_free_chain(native_handle(), first, bytes, next_offset));
    }

    /// Allocates `count` blocks of one size; fewer only if no memory is left.
    std::vector<void *> allocate_batch(std::uint64_t bytes, std::uint64_t count) {
        std::vector<void *> blocks;
        // A process has no addresses for more.
        if (count > (std::uint64_t{1} << 47) / sizeof(void *)) {
            throw std::bad_alloc();
        }
        // At least one element, because `data()` of an empty vector may be NULL.
        blocks.resize(count == 0 ? 1 : count);
        std::uint64_t got = 0;
        detail::expect(kvmem_slab_allocator_allocate_batch(native_handle(), bytes, count,
                                                           blocks.data(), &got));
        blocks.resize(got);
        return blocks;
    }

    /// Frees blocks of one size. None of them may be NULL.
    void deallocate_batch(const std::vector<void *> &blocks, std::uint64_t bytes) {
        detail::check(
            kvmem_slab_allocator_free_batch(native_handle(), blocks.data(), blocks.size(), bytes));
    }

    /// Returns the number of bytes that a request for `bytes` bytes really takes.
    std::uint64_t usable(std::uint64_t bytes) const {
        std::uint64_t usable = 0;
        detail::check(kvmem_slab_allocator_usable(native_handle(), bytes, &usable));
        return usable;
    }

    /// Returns all cached memory of all threads.
    void trim() { detail::check(kvmem_slab_allocator_trim(native_handle())); }

    /// Returns memory that was not used within the working set's time. For programs that allocate
    /// nothing for a while.
    void tick() { detail::check(kvmem_slab_allocator_tick(native_handle())); }

    SlabStats stats() const {
        SlabStats stats;
        detail::check(kvmem_slab_allocator_get_stats(native_handle(), &stats));
        return stats;
    }

    /// With debugging enabled, passes every block in use to `on_fault` and returns their number;
    /// otherwise returns 0.
    std::uint64_t report_leaks() const {
        std::uint64_t leaks = 0;
        detail::check(kvmem_slab_allocator_report_leaks(native_handle(), &leaks));
        return leaks;
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_slab_allocator *native_handle() const noexcept {
        return state_ ? state_->handle.get() : nullptr;
    }

private:
    /// An allocator and its callback, which is destroyed after it.
    struct State {
        std::function<void(const SlabFault &)> on_fault;
        detail::Handle<kvmem_slab_allocator, kvmem_slab_allocator_destroy> handle;
    };

    SlabAllocator(const SlabOptions &options, kvmem_region *region)
        : state_(new State{options.on_fault, {}}) {
        kvmem_slab_allocator_options wanted = options;
        wanted.region = region;
        if (state_->on_fault) {
            wanted.on_fault = &fault;
            wanted.on_fault_user = &state_->on_fault;
        }
        kvmem_slab_allocator *made = nullptr;
        detail::check(kvmem_slab_allocator_create(&wanted, &made));
        state_->handle.reset(made);
    }

    static void fault(void *user, const kvmem_slab_fault *fault) noexcept {
        (*static_cast<std::function<void(const SlabFault &)> *>(user))(*fault);
    }

    std::unique_ptr<State> state_;
};

namespace detail {

/// The alignment of all blocks.
inline constexpr std::size_t BLOCK_ALIGN = 16;

/// Allocates for the standard library: any alignment, also 0 bytes. An alignment above 16 takes a
/// longer block, whose address is stored before the bytes.
inline void *allocate(kvmem_slab_allocator *slab, std::size_t bytes, std::size_t align) {
    const bool plain = align <= BLOCK_ALIGN;
    if (!plain && bytes > std::numeric_limits<std::size_t>::max() - align) {
        throw std::bad_alloc();
    }
    const std::size_t length = plain ? (bytes == 0 ? 1 : bytes) : bytes + align;
    void *block = nullptr;
    expect(kvmem_slab_allocator_allocate(slab, length, &block));
    if (plain) {
        return block;
    }
    // Blocks are aligned to 16 bytes, so at least 16 bytes precede `aligned`: space for an address.
    char *begin = static_cast<char *>(block);
    char *aligned = begin + (align - reinterpret_cast<std::uintptr_t>(begin) % align);
    reinterpret_cast<void **>(aligned)[-1] = block;
    return aligned;
}

inline void deallocate(kvmem_slab_allocator *slab, void *at, std::size_t bytes,
                       std::size_t align) noexcept {
    if (align <= BLOCK_ALIGN) {
        kvmem_slab_allocator_free(slab, at, bytes == 0 ? 1 : bytes);
    } else if (at != nullptr) {
        kvmem_slab_allocator_free(slab, static_cast<void **>(at)[-1], bytes + align);
    }
}

} // namespace detail

/// A `std::pmr::memory_resource` over a SlabAllocator, which is not owned and must outlive it. Any
/// thread. Two are equal if they use the same allocator.
class SlabResource : public std::pmr::memory_resource {
public:
    explicit SlabResource(const SlabAllocator &slab) noexcept : slab_(slab.native_handle()) {}

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        return detail::allocate(slab_, bytes, align);
    }

    void do_deallocate(void *at, std::size_t bytes, std::size_t align) override {
        detail::deallocate(slab_, at, bytes, align);
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *same = dynamic_cast<const SlabResource *>(&other);
        return same != nullptr && same->slab_ == slab_;
    }

    kvmem_slab_allocator *slab_;
};

/// An allocator for containers, over a SlabAllocator, which is not owned and must outlive them:
/// `std::list<int, kvmem::StdAllocator<int>>`. It moves and swaps with its container. Any thread.
/// Two are equal if they use the same allocator.
template <class T>
class StdAllocator {
public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    StdAllocator(const SlabAllocator &slab) noexcept : slab_(slab.native_handle()) {}

    template <class U>
    StdAllocator(const StdAllocator<U> &other) noexcept : slab_(other.native_handle()) {}

    T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return static_cast<T *>(detail::allocate(slab_, count * sizeof(T), alignof(T)));
    }

    void deallocate(T *at, std::size_t count) noexcept {
        detail::deallocate(slab_, at, count * sizeof(T), alignof(T));
    }

    kvmem_slab_allocator *native_handle() const noexcept { return slab_; }

private:
    kvmem_slab_allocator *slab_;
};

template <class T, class U>
bool operator==(const StdAllocator<T> &a, const StdAllocator<U> &b) noexcept {
    return a.native_handle() == b.native_handle();
}

template <class T, class U>
bool operator!=(const StdAllocator<T> &a, const StdAllocator<U> &b) noexcept {
    return !(a == b);
}

} // namespace kvmem

#endif
