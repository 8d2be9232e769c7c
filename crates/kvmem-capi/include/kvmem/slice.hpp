// Slice allocator: blocks of any size, small ones from each thread's own magazines (layer 4), and the standard library's allocators over it.
// Part of kvmem.hpp.
#ifndef KVMEM_SLICE_HPP
#define KVMEM_SLICE_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory_resource>
#include <new>
#include <optional>

#include "region.hpp"

namespace kvmem {

/// A misuse of blocks that was found.
using SliceFault = kvmem_slice_fault;

/// Figures of an allocator of blocks.
using SliceStats = kvmem_slice_stats;

/// How an allocator of blocks is to be. What is not said is as kvmem_slice_options_init has it.
struct SliceOptions {
    /// Blocks of more bytes than this are the system's: at most 8192, which is the default.
    std::optional<std::uint64_t> limit;
    /// How long full magazines are kept that nobody needs; 0: 15 seconds.
    std::chrono::nanoseconds working_set{0};
    /// The most bytes that all magazines together may keep; nothing: no bound.
    std::optional<std::uint64_t> stranded_bytes;
    /// KVMEM_SLICE_FROM_ENVIRONMENT, KVMEM_SLICE_PLAIN, or the others combined by `|`.
    std::uint32_t settings = KVMEM_SLICE_FROM_ENVIRONMENT;
    /// Is told of misuse, by the thread that did it; then the operation is left out. It must not use the allocator; if it throws,
    /// std::terminate is called. Without it misuse ends the process.
    std::function<void(const SliceFault &)> on_fault;
};

namespace detail {

/// Throws what the standard library would if there is no memory, and the error if a call failed for
/// another reason.
inline void expect(kvmem_status status) {
    if (status == KVMEM_NO_MEMORY || status == KVMEM_TOO_LARGE || status == KVMEM_NO_ROOM) {
        throw std::bad_alloc();
    }
    check(status);
}

} // namespace detail

/// Allocates blocks, at multiples of 16, by any thread; any thread may free what another has allocated. Blocks from slabs go with it; those above
/// `limit` have to be freed before.
class SliceAllocator {
public:
    explicit SliceAllocator(const SliceOptions &options = {}) : SliceAllocator(options, nullptr) {}

    /// Pages come from `region` and from nowhere else. It is private, in nobody else's use, and belongs to the allocator afterwards. If this throws it
    /// stays the caller's.
    explicit SliceAllocator(Region &&region, const SliceOptions &options = {})
        : SliceAllocator(options, detail::present(region.native_handle(), "the Region")) {
        // Its handle is good no more.
        (void)region.release();
    }

    /// A block of `bytes` bytes, not initialized. Throws std::bad_alloc if there is no memory, error if `bytes` is 0. O(1).
    void *allocate(std::uint64_t bytes) {
        void *block = nullptr;
        detail::expect(kvmem_slice_alloc(native_handle(), bytes, &block));
        return block;
    }

    /// A block of `bytes` bytes, all zero.
    void *allocate_zeroed(std::uint64_t bytes) {
        void *block = nullptr;
        detail::expect(kvmem_slice_alloc_zeroed(native_handle(), bytes, &block));
        return block;
    }

    /// A block with a copy of bytes.
    void *copy(bytes_view bytes) {
        void *block = nullptr;
        detail::expect(kvmem_slice_copy(native_handle(), bytes.data(), bytes.size(), &block));
        return block;
    }

    /// Frees a block; NULL is none. `bytes` is what it was allocated with. O(1). Does nothing after
    /// the allocator was moved from.
    void deallocate(void *block, std::uint64_t bytes) noexcept {
        kvmem_slice_free(native_handle(), block, bytes);
    }

    /// Frees a chain of blocks of one size: each has, `next_offset` bytes from its beginning, the address of the next one, and the last one NULL.
    void deallocate_chain(void *first, std::uint64_t bytes, std::uint64_t next_offset) {
        detail::check(kvmem_slice_free_chain(native_handle(), first, bytes, next_offset));
    }

    /// `count` blocks of one size at once; fewer only if there is no memory for more.
    std::vector<void *> allocate_batch(std::uint64_t bytes, std::uint64_t count) {
        std::vector<void *> blocks;
        // More than a process has addresses for.
        if (count > (std::uint64_t{1} << 47) / sizeof(void *)) {
            throw std::bad_alloc();
        }
        // One element at least: `data()` of an empty vector may be NULL.
        blocks.resize(count == 0 ? 1 : count);
        std::uint64_t got = 0;
        detail::expect(kvmem_slice_alloc_batch(native_handle(), bytes, count, blocks.data(), &got));
        blocks.resize(got);
        return blocks;
    }

    /// Frees blocks of one size at once. None of them is NULL.
    void deallocate_batch(const std::vector<void *> &blocks, std::uint64_t bytes) {
        detail::check(kvmem_slice_free_batch(native_handle(), blocks.data(), blocks.size(), bytes));
    }

    /// Bytes that a request for `bytes` bytes really takes.
    std::uint64_t usable(std::uint64_t bytes) const {
        std::uint64_t usable = 0;
        detail::check(kvmem_slice_usable(native_handle(), bytes, &usable));
        return usable;
    }

    /// Gives back what is cached, of all threads.
    void trim() { detail::check(kvmem_slice_trim(native_handle())); }

    /// Gives back what nobody came for in the working set's time: for programs that have fallen silent.
    void tick() { detail::check(kvmem_slice_tick(native_handle())); }

    SliceStats stats() const {
        SliceStats stats;
        detail::check(kvmem_slice_get_stats(native_handle(), &stats));
        return stats;
    }

    /// With debugging on, tells `on_fault` of every block that is in use now; how many. Else 0.
    std::uint64_t report_leaks() const {
        std::uint64_t leaks = 0;
        detail::check(kvmem_slice_report_leaks(native_handle(), &leaks));
        return leaks;
    }

    /// NULL after it was moved from.
    kvmem_slice_allocator *native_handle() const noexcept { return state_ ? state_->handle.get() : nullptr; }

private:
    /// An allocator and whom it tells: that goes after it.
    struct State {
        std::function<void(const SliceFault &)> on_fault;
        detail::Handle<kvmem_slice_allocator, kvmem_slice_destroy> handle;
    };

    SliceAllocator(const SliceOptions &options, kvmem_region *region) : state_(new State{options.on_fault, {}}) {
        kvmem_slice_options wanted;
        detail::check(kvmem_slice_options_init(&wanted, sizeof wanted));
        wanted.region = region;
        wanted.limit_bytes = options.limit.value_or(wanted.limit_bytes);
        wanted.working_set_ns = detail::nanoseconds(options.working_set);
        wanted.stranded_bytes = options.stranded_bytes.value_or(wanted.stranded_bytes);
        wanted.settings = options.settings;
        if (state_->on_fault) {
            wanted.on_fault = &fault;
            wanted.on_fault_user = &state_->on_fault;
        }
        kvmem_slice_allocator *made = nullptr;
        detail::check(kvmem_slice_create(&wanted, &made));
        state_->handle.reset(made);
    }

    static void fault(void *user, const kvmem_slice_fault *fault) noexcept {
        (*static_cast<std::function<void(const SliceFault &)> *>(user))(*fault);
    }

    std::unique_ptr<State> state_;
};

namespace detail {

/// The alignment that blocks have of themselves.
inline constexpr std::size_t BLOCK_ALIGN = 16;

/// Allocates as the standard library asks: any alignment, 0 bytes too. A greater alignment takes a longer block, whose address stands before the bytes.
inline void *allocate(kvmem_slice_allocator *slices, std::size_t bytes, std::size_t align) {
    const bool plain = align <= BLOCK_ALIGN;
    if (!plain && bytes > std::numeric_limits<std::size_t>::max() - align) {
        throw std::bad_alloc();
    }
    const std::size_t length = plain ? (bytes == 0 ? 1 : bytes) : bytes + align;
    void *block = nullptr;
    expect(kvmem_slice_alloc(slices, length, &block));
    if (plain) {
        return block;
    }
    // Blocks are at multiples of 16, so that at least 16 bytes are left before: room for an address.
    char *begin = static_cast<char *>(block);
    char *aligned = begin + (align - reinterpret_cast<std::uintptr_t>(begin) % align);
    reinterpret_cast<void **>(aligned)[-1] = block;
    return aligned;
}

inline void deallocate(kvmem_slice_allocator *slices, void *at, std::size_t bytes, std::size_t align) noexcept {
    if (align <= BLOCK_ALIGN) {
        kvmem_slice_free(slices, at, bytes == 0 ? 1 : bytes);
    } else if (at != nullptr) {
        kvmem_slice_free(slices, static_cast<void **>(at)[-1], bytes + align);
    }
}

} // namespace detail

/// A `std::pmr::memory_resource` over a SliceAllocator, which is not owned and outlives it. Any thread. Two are equal if they are over the same one.
class SliceResource : public std::pmr::memory_resource {
public:
    explicit SliceResource(const SliceAllocator &slices) noexcept : slices_(slices.native_handle()) {}

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        return detail::allocate(slices_, bytes, align);
    }

    void do_deallocate(void *at, std::size_t bytes, std::size_t align) override {
        detail::deallocate(slices_, at, bytes, align);
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *same = dynamic_cast<const SliceResource *>(&other);
        return same != nullptr && same->slices_ == slices_;
    }

    kvmem_slice_allocator *slices_;
};

/// An allocator for containers, over a SliceAllocator, which is not owned and outlives them: `std::list<int, kvmem::StdAllocator<int>>`. It moves and swaps
/// with its container. Any thread. Two are equal if they are over the same one.
template <class T>
class StdAllocator {
public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    StdAllocator(const SliceAllocator &slices) noexcept : slices_(slices.native_handle()) {}

    template <class U>
    StdAllocator(const StdAllocator<U> &other) noexcept : slices_(other.native_handle()) {}

    T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return static_cast<T *>(detail::allocate(slices_, count * sizeof(T), alignof(T)));
    }

    void deallocate(T *at, std::size_t count) noexcept {
        detail::deallocate(slices_, at, count * sizeof(T), alignof(T));
    }

    kvmem_slice_allocator *native_handle() const noexcept { return slices_; }

private:
    kvmem_slice_allocator *slices_;
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
