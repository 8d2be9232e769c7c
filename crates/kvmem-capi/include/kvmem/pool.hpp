// Pool: memory that is mapped, populated, registered and divided into blocks: all four layers in
// one. Part of kvmem.hpp.
#ifndef KVMEM_POOL_HPP
#define KVMEM_POOL_HPP

#include "offset.hpp"
#include "registration.hpp"

namespace kvmem {

/// Properties of a pool.
using PoolInfo = kvmem_pool_info;

/// A reference to a block, as plain data: all that another process needs to find it.
using BlockRef = kvmem_block_ref;

/// Properties of an attached pool.
using AttachedPoolInfo = kvmem_attached_pool_info;

/// Options of a pool: those of C.
struct PoolOptions : detail::WithDefaults<kvmem_pool_options, kvmem_pool_options_init> {
    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas; "":
    /// "2M,thp,4k".
    std::string pages;
    std::vector<std::uint32_t> numa_nodes;
    /// Registrars for the whole pool. Not owned; used until the pool is built.
    const Registrars *registrars = nullptr;
    /// "auto", "sequential", "parallel" or "parallel:N"; "" is "auto".
    std::string policy;
    /// Sizes that are hot from the start, at most 32.
    std::vector<std::uint64_t> hot_sizes;
    /// Not owned; used until the pool is built.
    const CancelToken *cancel = nullptr;
    ProgressFn progress;
};

namespace detail {

using PoolShare = Shared<kvmem_pool, kvmem_pool_destroy, ProgressCallback>;

inline kvmem_pool_options native(const PoolOptions &options, const ProgressCallback &callback) {
    kvmem_pool_options wanted = options;
    wanted.pages = or_null(options.pages);
    wanted.numa_nodes = options.numa_nodes.data();
    wanted.numa_node_count = options.numa_nodes.size();
    wanted.registrars = native(options.registrars);
    wanted.policy = or_null(options.policy);
    wanted.hot_sizes = options.hot_sizes.data();
    wanted.hot_size_count = options.hot_sizes.size();
    wanted.cancel = native(options.cancel);
    wanted.progress = callback.function();
    wanted.progress_user = callback.user();
    return wanted;
}

} // namespace detail

/// Bytes of a pool; the destructor frees them. Can be moved and not copied. May outlive its pool,
/// whose memory and keys then stay. Any thread may destroy it.
class Block {
public:
    /// Makes an empty object.
    Block() noexcept = default;
    Block(Block &&other) noexcept
        : pool_(std::move(other.pool_)), raw_(std::exchange(other.raw_, {})) {}
    Block &operator=(Block &&other) noexcept {
        Block taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~Block() {
        if (pool_) {
            kvmem_block_free(&raw_);
        }
    }

    /// The first address.
    void *data() const noexcept { return raw_.data; }

    /// Length in bytes, exactly as requested.
    std::uint64_t size() const noexcept { return raw_.bytes; }

    /// The bytes. A new block contains the bytes of an earlier block, or zeros: see
    /// `PoolOptions::init_on`.
    bytes_span bytes() const noexcept { return detail::bytes_of(raw_.data, raw_.bytes); }

    /// Offset in the pool.
    std::uint64_t offset() const noexcept { return raw_.offset; }

    /// Whether this holds a block.
    explicit operator bool() const noexcept { return static_cast<bool>(pool_); }

    /// Frees the block now.
    void reset() noexcept { *this = Block(); }

    /// Frees the tail; the block then has `bytes` bytes. O(1).
    void shrink(std::uint64_t bytes) { detail::check(kvmem_block_shrink(&raw_, bytes)); }

    /// Extends the block in place with the free bytes behind it; it then has `bytes` bytes. Returns
    /// false if those bytes are not free. O(1).
    bool extend(std::uint64_t bytes) {
        const kvmem_status status = kvmem_block_extend(&raw_, bytes);
        if (status != KVMEM_ERR_CANNOT_EXTEND && !detail::out_of_space(status)) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    /// The key with which `device` can access the whole block. Valid as long as the block.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_block_key(&raw_, device.c_str(), &key));
        return key;
    }

    /// A reference for another process that has attached the pool.
    BlockRef reference() const {
        BlockRef reference;
        detail::check(kvmem_block_reference(&raw_, &reference));
        return reference;
    }

    /// Quarantines a block whose memory has proved faulty: its bytes are not used again as long as
    /// the pool exists. This object is empty afterwards.
    void quarantine(const std::string &why) {
        detail::check(kvmem_block_quarantine(&raw_, why.c_str()));
        raw_ = {};
        detail::Ref<detail::PoolShare>().swap(pool_);
    }

    void swap(Block &other) noexcept {
        pool_.swap(other.pool_);
        std::swap(raw_, other.raw_);
    }

    friend void swap(Block &a, Block &b) noexcept { a.swap(b); }

    /// The plain data of the block. This object still owns it.
    const kvmem_block &native_handle() const noexcept { return raw_; }

private:
    friend class Pool;

    /// Takes ownership of a block that was just allocated.
    void take(detail::PoolShare *pool) noexcept {
        pool->acquire();
        detail::Ref<detail::PoolShare>(pool).swap(pool_);
    }

    detail::Ref<detail::PoolShare> pool_;
    kvmem_block raw_ = {};
};

/// Memory that is mapped, populated, registered and divided into blocks. Any thread. Blocks may
/// outlive the pool; they keep its memory.
class Pool {
public:
    /// Builds a pool of at least `bytes` bytes. Takes as long as the kernel needs to clear and pin
    /// that much memory.
    explicit Pool(std::uint64_t bytes, const PoolOptions &options = {})
        : pool_(new detail::PoolShare(detail::ProgressCallback(options.progress))) {
        const kvmem_pool_options wanted = detail::native(options, pool_->extra());
        detail::check(kvmem_pool_create(bytes, &wanted, pool_->out()));
    }

    /// Allocates a block of `bytes` bytes; empty if there is no space. Throws if `bytes` is 0.
    /// O(1), some nanoseconds for a hot size.
    std::optional<Block> allocate(std::uint64_t bytes) {
        return try_allocate(
            [&](kvmem_block *got) { return kvmem_pool_allocate(get(), bytes, got); });
    }

    /// Allocates a block whose first address is a multiple of `align`, a power of two.
    std::optional<Block> allocate_aligned(std::uint64_t bytes, std::uint64_t align) {
        return try_allocate([&](kvmem_block *got) {
            return kvmem_pool_allocate_aligned(get(), bytes, align, got);
        });
    }

    /// Allocates `count` blocks of `bytes` bytes each, or none. O(count).
    std::optional<std::vector<Block>> allocate_batch(std::uint64_t bytes, std::uint64_t count) {
        if (count > detail::small_batch && detail::exceeds_free_bytes(metrics(), bytes, count)) {
            return std::nullopt;
        }
        // At least one element, because `data()` of an empty vector may be NULL.
        std::vector<kvmem_block> raw(count == 0 ? 1 : count);
        return try_allocate_all(raw, [&] {
            const kvmem_status status = kvmem_pool_allocate_batch(get(), bytes, count, raw.data());
            raw.resize(count);
            return status;
        });
    }

    /// Allocates `total` bytes in at most `max_blocks` blocks, as few and as long as possible, or
    /// none. `max_blocks` may be UINT64_MAX.
    std::optional<std::vector<Block>> allocate_scattered(std::uint64_t total,
                                                         std::uint64_t max_blocks) {
        if (max_blocks > detail::small_batch) {
            max_blocks = detail::useful_range_count(metrics(), total, max_blocks);
        }
        // At least one element, because `data()` of an empty vector may be NULL.
        std::vector<kvmem_block> raw(max_blocks == 0 ? 1 : max_blocks);
        return try_allocate_all(raw, [&] {
            std::uint64_t count = 0;
            const kvmem_status status =
                kvmem_pool_allocate_scattered(get(), total, max_blocks, raw.data(), &count);
            raw.resize(count);
            return status;
        });
    }

    PoolInfo info() const {
        PoolInfo info;
        detail::check(kvmem_pool_get_info(get(), &info));
        return info;
    }

    /// Reports the pages, timings and decisions of the pool.
    std::string report() const { return report(KVMEM_TEXT); }
    std::string report_json() const { return report(KVMEM_JSON); }

    Metrics metrics() const {
        Metrics metrics;
        detail::check(kvmem_pool_get_metrics(get(), &metrics));
        return metrics;
    }

    /// Returns the free ranges by size, ascending.
    std::vector<Bin> bins() const {
        return detail::list<Bin>([&](Bin *bins, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_pool_bins(get(), bins, capacity, count);
        });
    }

    /// Returns the whole pool in address order.
    std::vector<MapRange> map() const {
        return detail::list<MapRange>(
            [&](MapRange *ranges, std::uint64_t capacity, std::uint64_t *count) {
                return kvmem_pool_map(get(), ranges, capacity, count);
            });
    }

    /// Waits until `bytes` bytes are ready, no more will become ready, or the time is over. Returns
    /// how many are ready then.
    std::uint64_t wait_ready(std::uint64_t bytes, std::chrono::nanoseconds timeout) const {
        std::uint64_t ready = 0;
        detail::check(kvmem_pool_wait_ready(get(), bytes, detail::nanoseconds(timeout), &ready));
        return ready;
    }

    /// Grows the pool to at least `bytes` bytes, in whole parts, up to `max_bytes` of its options.
    void grow_to(std::uint64_t bytes) { detail::check(kvmem_pool_grow_to(get(), bytes)); }

    /// Shrinks the pool to the fewest whole parts with at least `bytes` bytes. Returns the new
    /// length. Throws with KVMEM_ERR_IN_USE if a block lies behind the new end.
    std::uint64_t shrink_to(std::uint64_t bytes) {
        std::uint64_t capacity = 0;
        detail::check(kvmem_pool_shrink_to(get(), bytes, &capacity));
        return capacity;
    }

    /// Returns all ranges in magazines to the pool, where they coalesce.
    void trim() { detail::check(kvmem_pool_trim(get())); }

    /// Checks the invariants of the metadata; throws with KVMEM_ERR_CHECK_FAILED, a defect of the
    /// library.
    void check() const { detail::check(kvmem_pool_check(get())); }

    /// Makes the pages resident in the aliases: all other shared, writable mappings of the memory
    /// file in this process, for example those of an engine that received the descriptor. Returns
    /// their length in bytes.
    std::uint64_t populate_aliases(std::uint32_t how = populate_auto) const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_pool_populate_aliases(get(), how, &bytes));
        return bytes;
    }

    /// Returns a descriptor with which another process attaches the memory. The caller closes it.
    int share(bool read_only) const {
        int fd = -1;
        detail::check(kvmem_pool_share(get(), read_only, &fd));
        return fd;
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_pool *native_handle() const noexcept { return get(); }

private:
    kvmem_pool *get() const noexcept { return pool_ ? pool_->get() : nullptr; }

    std::string report(std::uint32_t format) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_pool_report(get(), format, buffer, capacity, needed);
        });
    }

    /// Runs a call that allocates; empty if there is no space. The call writes directly into the
    /// result: reading a copy would stall on the bytes just written.
    template <class Call>
    std::optional<Block> try_allocate(Call call) {
        std::optional<Block> got(std::in_place);
        if (detail::allocated(call(&got->raw_))) {
            got->take(pool_.get());
        } else {
            got.reset();
        }
        return got;
    }

    /// Runs a call that fills `raw`, and takes ownership of the results; empty if there is no
    /// space.
    template <class Call>
    std::optional<std::vector<Block>> try_allocate_all(const std::vector<kvmem_block> &raw,
                                                       Call call) {
        std::vector<Block> all;
        all.reserve(raw.size());
        if (!detail::allocated(call())) {
            return std::nullopt;
        }
        for (const kvmem_block &one : raw) {
            all.emplace_back().raw_ = one;
            all.back().take(pool_.get());
        }
        return all;
    }

    detail::Owner<detail::PoolShare> pool_;
};

/// The memory of another process's pool. It stays mapped as long as this object, also if that
/// process ends.
class AttachedPool {
public:
    /// Maps the memory. `fd` comes from that process's Pool::share and stays the caller's; the
    /// object keeps a duplicate.
    explicit AttachedPool(int fd, bool writable = false) {
        kvmem_attached_pool *made = nullptr;
        detail::check(kvmem_attached_pool_attach(fd, writable, &made));
        pool_.reset(made);
    }

    /// The bytes of a block, for reading. Only the process of the pool knows whether the block is
    /// still allocated; the two processes must agree on that.
    bytes_view bytes(const BlockRef &reference) const {
        void *data = nullptr;
        detail::check(kvmem_attached_pool_data(native_handle(), &reference, 0, &data));
        return detail::bytes_of(static_cast<const void *>(data), reference.bytes);
    }

    /// The bytes of a block, for writing; throws with KVMEM_ERR_READ_ONLY if the pool was not
    /// attached as writable.
    bytes_span writable_bytes(const BlockRef &reference) const {
        void *data = nullptr;
        detail::check(kvmem_attached_pool_data(native_handle(), &reference, 1, &data));
        return detail::bytes_of(data, reference.bytes);
    }

    AttachedPoolInfo info() const {
        AttachedPoolInfo info;
        detail::check(kvmem_attached_pool_get_info(native_handle(), &info));
        return info;
    }

    kvmem_attached_pool *native_handle() const noexcept { return pool_.get(); }

private:
    detail::Handle<kvmem_attached_pool, kvmem_attached_pool_destroy> pool_;
};

} // namespace kvmem

#endif
