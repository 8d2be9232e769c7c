// Pool: memory that is mapped, populated and registered, and handed out in blocks: all four layers in one. Part of kvmem.hpp.
#ifndef KVMEM_POOL_HPP
#define KVMEM_POOL_HPP

#include "offset.hpp"
#include "registration.hpp"

namespace kvmem {

/// What a pool is, and where.
using PoolInfo = kvmem_pool_info;

/// A block by plain data: what another process needs to find it.
using BlockRef = kvmem_block_ref;

/// What an attached pool is.
using AttachedInfo = kvmem_attached_info;

/// How a pool is to be. What is not said is as kvmem_pool_options_init has it.
struct PoolOptions {
    /// The most bytes that the pool can grow to; 0: its size.
    std::uint64_t max_bytes = 0;
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between; "" is "2M,thp,4k".
    std::string pages;
    /// Fail if the first kind cannot take everything.
    bool strict = false;
    /// A sealed memory file, which other processes can attach.
    bool shared = false;
    Numa numa = Numa::any;
    std::vector<std::uint32_t> numa_nodes;
    /// `populate_auto`, `populate_none` (a first touch can then end the process), or a number of threads.
    std::uint32_t populate = populate_auto;
    /// A page without access before and behind.
    bool guard_pages = false;
    /// The pool is there when the memory is mapped, and a thread makes it ready part by part.
    bool in_background = false;
    /// Parts that cannot be populated or registered are kept from use and reported; else there is no pool.
    bool quarantine = false;
    /// Sizes become hot that are asked for again and again, and are served without a lock.
    bool learn = true;
    /// With whom all of the pool is registered. Not owned; used until the pool is there.
    const Registrars *registrars = nullptr;
    /// "auto", "sequential", "parallel" or "parallel:N"; "" is "auto".
    std::string policy;
    /// Parts of at most so many bytes, whose edges no block straddles; 0: as the registrars take it best.
    std::uint64_t boundary = 0;
    /// Sizes that are hot from the beginning, at most 32.
    std::vector<std::uint64_t> hot_sizes;
    /// All magazines together keep at most so many bytes; nothing: a 32nd part of the pool.
    std::optional<std::uint64_t> stranded_bytes;
    /// Not owned; used until the pool is there.
    const Cancel *cancel = nullptr;
    ProgressFn progress;
};

namespace detail {

using PoolShare = Shared<kvmem_pool, kvmem_pool_destroy, Teller>;

inline kvmem_pool_options native(const PoolOptions &options, const Teller &teller) {
    kvmem_pool_options wanted;
    check(kvmem_pool_options_init(&wanted, sizeof wanted));
    wanted.max_bytes = options.max_bytes;
    wanted.pages = or_null(options.pages);
    wanted.strict = options.strict;
    wanted.backing = options.shared ? KVMEM_BACKING_SHARED : KVMEM_BACKING_PRIVATE;
    wanted.numa_policy = static_cast<std::uint32_t>(options.numa);
    wanted.populate = options.populate;
    wanted.numa_nodes = options.numa_nodes.data();
    wanted.numa_node_count = options.numa_nodes.size();
    wanted.guard_pages = options.guard_pages;
    wanted.in_background = options.in_background;
    wanted.quarantine = options.quarantine;
    wanted.learn = options.learn;
    if (options.registrars != nullptr) {
        wanted.registrars = present(options.registrars->native_handle(), "the Registrars of the options");
    }
    wanted.policy = or_null(options.policy);
    wanted.boundary_bytes = options.boundary;
    wanted.hot_sizes = options.hot_sizes.data();
    wanted.hot_size_count = options.hot_sizes.size();
    if (options.stranded_bytes) {
        wanted.stranded_bytes = *options.stranded_bytes;
    }
    wanted.cancel = native(options.cancel);
    wanted.progress = teller.function();
    wanted.progress_user = teller.user();
    return wanted;
}

} // namespace detail

/// Bytes of a pool, freed when it goes. Moves; does not copy. It may outlive its pool, whose memory and keys then stay, and be freed by any thread.
class Block {
public:
    /// No block.
    Block() noexcept = default;
    Block(Block &&other) noexcept : pool_(std::move(other.pool_)), raw_(std::exchange(other.raw_, {})) {}
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

    /// Its length, exactly as asked for.
    std::uint64_t size() const noexcept { return raw_.bytes; }

    /// The bytes. Fresh ones are as the last block left them, or zeros.
    bytes_span bytes() const noexcept { return detail::bytes_of(raw_.data, raw_.bytes); }

    /// Where it begins in the pool.
    std::uint64_t offset() const noexcept { return raw_.offset; }

    /// Whether there is a block.
    explicit operator bool() const noexcept { return static_cast<bool>(pool_); }

    /// Frees it now.
    void reset() noexcept { *this = Block(); }

    /// Gives back the tail: it is `bytes` bytes afterwards. O(1).
    void shrink(std::uint64_t bytes) { detail::check(kvmem_block_shrink(&raw_, bytes)); }

    /// Takes in free bytes that lie behind: it is `bytes` bytes afterwards; false if they are not free. Nothing is moved. O(1).
    bool extend(std::uint64_t bytes) {
        const kvmem_status status = kvmem_block_extend(&raw_, bytes);
        if (status != KVMEM_BLOCKED && !detail::no_room(status)) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    /// The key with which `device` can reach all of it. It is good as long as the block.
    Key key(const std::string &device) const {
        Key key;
        detail::check(kvmem_block_key(&raw_, device.c_str(), &key));
        return key;
    }

    /// By three numbers, for another process that has attached the pool.
    BlockRef reference() const {
        BlockRef reference;
        detail::check(kvmem_block_reference(&raw_, &reference));
        return reference;
    }

    /// Keeps the bytes from use for as long as the pool: for blocks that have turned out to be bad. There is no block afterwards.
    void condemn(const std::string &why) {
        detail::check(kvmem_block_condemn(&raw_, why.c_str()));
        raw_ = {};
        detail::Part<detail::PoolShare>().swap(pool_);
    }

    void swap(Block &other) noexcept {
        pool_.swap(other.pool_);
        std::swap(raw_, other.raw_);
    }

    friend void swap(Block &a, Block &b) noexcept { a.swap(b); }

    /// By plain data. It stays this object's to free.
    const kvmem_block &native_handle() const noexcept { return raw_; }

private:
    friend class Pool;

    /// What was just granted is this one's now.
    void take(detail::PoolShare *pool) noexcept {
        pool->keep();
        detail::Part<detail::PoolShare>(pool).swap(pool_);
    }

    detail::Part<detail::PoolShare> pool_;
    kvmem_block raw_ = {};
};

/// Memory that is mapped, populated and registered, and handed out in blocks. Any thread. Blocks may outlive it, and keep it then.
class Pool {
public:
    /// Builds a pool of at least `bytes` bytes. Takes as long as the kernel needs to clear and pin that much memory.
    explicit Pool(std::uint64_t bytes, const PoolOptions &options = {})
        : pool_(new detail::PoolShare(detail::Teller(options.progress))) {
        const kvmem_pool_options wanted = detail::native(options, pool_->with());
        detail::check(kvmem_pool_create(bytes, &wanted, pool_->out()));
    }

    /// A block of `bytes` bytes; nothing if there is no room. Throws if `bytes` is 0. O(1), some nanoseconds for a hot size.
    std::optional<Block> allocate(std::uint64_t bytes) {
        return grant([&](kvmem_block *got) { return kvmem_pool_allocate(get(), bytes, got); });
    }

    /// A block whose first address is a multiple of `align`, a power of two.
    std::optional<Block> allocate_aligned(std::uint64_t bytes, std::uint64_t align) {
        return grant([&](kvmem_block *got) { return kvmem_pool_allocate_aligned(get(), bytes, align, got); });
    }

    /// `count` blocks of `bytes` bytes each, or nothing. O(count).
    std::optional<std::vector<Block>> allocate_batch(std::uint64_t bytes, std::uint64_t count) {
        if (count > detail::few_results && detail::is_hopeless(metrics(), bytes, count)) {
            return std::nullopt;
        }
        // One element at least: `data()` of an empty vector may be NULL.
        std::vector<kvmem_block> raw(count == 0 ? 1 : count);
        return grant_many(raw, [&] {
            const kvmem_status status = kvmem_pool_allocate_batch(get(), bytes, count, raw.data());
            raw.resize(count);
            return status;
        });
    }

    /// `total` bytes in at most `max_blocks` blocks, as few and as long as can be had, or nothing.
    /// `max_blocks` may be UINT64_MAX.
    std::optional<std::vector<Block>> allocate_scattered(std::uint64_t total, std::uint64_t max_blocks) {
        if (max_blocks > detail::few_results) {
            max_blocks = detail::max_pieces(metrics(), total, max_blocks);
        }
        // As above.
        std::vector<kvmem_block> raw(max_blocks == 0 ? 1 : max_blocks);
        return grant_many(raw, [&] {
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

    /// What it is made of, how it came to be, and on what grounds.
    std::string report() const { return report(KVMEM_TEXT); }
    std::string report_json() const { return report(KVMEM_JSON); }

    Metrics metrics() const {
        Metrics metrics;
        detail::check(kvmem_pool_get_metrics(get(), &metrics));
        return metrics;
    }

    /// The free ranges by size, ascending.
    std::vector<Bin> bins() const {
        return detail::list<Bin>([&](Bin *bins, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_pool_bins(get(), bins, capacity, count);
        });
    }

    /// All of it in order of addresses.
    std::vector<MapRange> map() const {
        return detail::list<MapRange>([&](MapRange *ranges, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_pool_map(get(), ranges, capacity, count);
        });
    }

    /// Waits until so many bytes are ready, no more will be, or the time is over; how many are ready then.
    std::uint64_t wait_ready(std::uint64_t bytes, std::chrono::nanoseconds timeout) const {
        std::uint64_t ready = 0;
        detail::check(kvmem_pool_wait_ready(get(), bytes, detail::nanoseconds(timeout), &ready));
        return ready;
    }

    /// It is at least `bytes` long afterwards, in whole parts, up to `max_bytes` of its options.
    void grow_to(std::uint64_t bytes) { detail::check(kvmem_pool_grow_to(get(), bytes)); }

    /// It is as short as whole parts allow, but not shorter than `bytes`; how long. Throws with KVMEM_IN_USE if a block lies behind.
    std::uint64_t shrink_to(std::uint64_t bytes) {
        std::uint64_t capacity = 0;
        detail::check(kvmem_pool_shrink_to(get(), bytes, &capacity));
        return capacity;
    }

    /// Takes back what magazines keep, so that neighbours join.
    void trim() { detail::check(kvmem_pool_trim(get())); }

    /// Checks the books against their invariants; throws with KVMEM_CHECK_FAILED, which is a defect of the library.
    void verify() const { detail::check(kvmem_pool_check(get())); }

    /// Makes the pages resident in all other mappings that this process has of its memory, such as an engine's that was given the
    /// descriptor. Returns how many bytes those have.
    std::uint64_t populate_elsewhere(std::uint32_t how = populate_auto) const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_pool_populate_elsewhere(get(), how, &bytes));
        return bytes;
    }

    /// A descriptor by which another process attaches the memory. The caller closes it.
    int share(bool read_only) const {
        int fd = -1;
        detail::check(kvmem_pool_share(get(), read_only, &fd));
        return fd;
    }

    /// NULL after it was moved from.
    kvmem_pool *native_handle() const noexcept { return get(); }

private:
    kvmem_pool *get() const noexcept { return pool_ ? pool_->get() : nullptr; }

    std::string report(std::uint32_t format) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_pool_report(get(), format, buffer, capacity, needed);
        });
    }

    /// Written where it stays: a copy would wait for what was just written.
    template <class Call>
    std::optional<Block> grant(Call call) {
        std::optional<Block> got(std::in_place);
        if (detail::granted(call(&got->raw_))) {
            got->take(pool_.get());
        } else {
            got.reset();
        }
        return got;
    }

    template <class Call>
    std::optional<std::vector<Block>> grant_many(const std::vector<kvmem_block> &raw, Call call) {
        std::vector<Block> all;
        all.reserve(raw.size());
        if (!detail::granted(call())) {
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

/// The memory of a pool of another process, by what Pool::share gave there. It stays as long as this, whatever becomes of that process.
class AttachedPool {
public:
    /// `fd` stays the caller's; a duplicate is kept.
    explicit AttachedPool(int fd, bool writable = false) {
        kvmem_attached_pool *made = nullptr;
        detail::check(kvmem_pool_attach(fd, writable, &made));
        pool_.reset(made);
    }

    /// The bytes of a block, to be read. That it is still what it was is known to its own process alone: the two agree on that.
    bytes_view bytes(const BlockRef &reference) const {
        void *data = nullptr;
        detail::check(kvmem_attached_data(native_handle(), &reference, 0, &data));
        return detail::bytes_of(static_cast<const void *>(data), reference.bytes);
    }

    /// The bytes of a block, to be written; throws with KVMEM_READ_ONLY if it was not attached so.
    bytes_span writable_bytes(const BlockRef &reference) const {
        void *data = nullptr;
        detail::check(kvmem_attached_data(native_handle(), &reference, 1, &data));
        return detail::bytes_of(data, reference.bytes);
    }

    AttachedInfo info() const {
        AttachedInfo info;
        detail::check(kvmem_attached_get_info(native_handle(), &info));
        return info;
    }

    kvmem_attached_pool *native_handle() const noexcept { return pool_.get(); }

private:
    detail::Handle<kvmem_attached_pool, kvmem_attached_destroy> pool_;
};

} // namespace kvmem

#endif
