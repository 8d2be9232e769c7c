// Region: bytes that are mapped, resident and placed (layer 1). Part of kvmem.hpp.
#ifndef KVMEM_REGION_HPP
#define KVMEM_REGION_HPP

#include "progress.hpp"
#include "span.hpp"

namespace kvmem {

/// On which NUMA nodes pages lie.
enum class Numa : std::uint32_t {
    any = KVMEM_NUMA_ANY,
    /// On those named, and on no other.
    bind = KVMEM_NUMA_BIND,
    /// On those named in turn, on others when those are full.
    interleave = KVMEM_NUMA_INTERLEAVE,
};

/// How a region is to be mapped. What is not said is as kvmem_region_options_init has it.
struct RegionOptions {
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between; "" is "2M,thp,4k".
    std::string pages;
    /// Fail if the first kind cannot take everything.
    bool strict = false;
    /// A sealed memory file, which other processes can attach.
    bool shared = false;
    Numa numa = Numa::any;
    std::vector<std::uint32_t> numa_nodes;
    /// `populate_none`, `populate_auto`, or a number of threads.
    std::uint32_t populate = populate_none;
    /// A page without access before and behind.
    bool guard_pages = false;
    /// A forked child has nothing at these addresses.
    bool dont_fork = true;
    /// Core dumps leave the region out.
    bool dont_dump = true;
    ProgressFn progress;
    /// Not owned; used until the call is over.
    const Cancel *cancel = nullptr;
    /// How long populating may take; 0: as long as it takes.
    std::chrono::nanoseconds time_budget{0};
};

namespace detail {

/// Options for C, good as long as `options` and `teller`.
inline kvmem_region_options native(const RegionOptions &options, const Teller &teller) {
    kvmem_region_options wanted;
    check(kvmem_region_options_init(&wanted, sizeof wanted));
    wanted.pages = or_null(options.pages);
    wanted.strict = options.strict;
    wanted.backing = options.shared ? KVMEM_BACKING_SHARED : KVMEM_BACKING_PRIVATE;
    wanted.numa_policy = static_cast<std::uint32_t>(options.numa);
    wanted.numa_nodes = options.numa_nodes.data();
    wanted.numa_node_count = options.numa_nodes.size();
    wanted.populate = options.populate;
    wanted.guard_pages = options.guard_pages;
    wanted.dont_fork = options.dont_fork;
    wanted.dont_dump = options.dont_dump;
    wanted.progress = teller.function();
    wanted.progress_user = teller.user();
    wanted.cancel = native(options.cancel);
    wanted.time_budget_ns = nanoseconds(options.time_budget);
    return wanted;
}

} // namespace detail

/// What a machine says to a region before it is mapped.
struct Preflight {
    /// Whether nothing stands in the way.
    bool fits;
    /// Every limit that will bite, and what to do about it; for people.
    std::string report;
};

/// Asks whether a region of `bytes` bytes can be mapped and registered here, before anything is mapped.
inline Preflight preflight(std::uint64_t bytes, const RegionOptions &options = {}) {
    const detail::Teller teller(options.progress);
    const kvmem_region_options wanted = detail::native(options, teller);
    std::uint32_t fits = 0;
    std::string report = detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
        return kvmem_preflight_report(bytes, &wanted, &fits, KVMEM_TEXT, buffer, capacity, needed);
    });
    return {fits != 0, std::move(report)};
}

/// What a region is made of, as it was found when it was mapped.
using RegionInfo = kvmem_region_info;

/// One range of addresses with memory. Moves; does not copy. What was made on it keeps the memory, so it may go before that.
class Region {
public:
    /// Maps at least `bytes` bytes, whole or not at all.
    explicit Region(std::uint64_t bytes, const RegionOptions &options = {}) {
        const detail::Teller teller(options.progress);
        const kvmem_region_options wanted = detail::native(options, teller);
        kvmem_region *made = nullptr;
        detail::check(kvmem_region_map(bytes, &wanted, &made));
        *this = Region(Handle(made));
    }

    /// Maps the memory that another process shares by `fd`, which stays the caller's. `expected_bytes`, if not 0, is how long it has to be.
    static Region attach(int fd, std::uint64_t expected_bytes = 0) {
        kvmem_region *made = nullptr;
        detail::check(kvmem_region_attach(fd, expected_bytes, &made));
        return Region(Handle(made));
    }

    /// A region over memory that was made elsewhere. `release` is called when nobody uses it any more, by any thread; if it throws,
    /// std::terminate is called. If this throws, `release` is not called.
    static Region wrap(void *data, std::uint64_t bytes, std::function<void()> release = nullptr) {
        auto kept = release ? std::make_unique<std::function<void()>>(std::move(release)) : nullptr;
        kvmem_region *made = nullptr;
        detail::check(kvmem_region_wrap(data, bytes, kept ? &released : nullptr, kept.get(), &made));
        kept.release();
        return Region(Handle(made));
    }

    /// The first address; NULL after it was moved from.
    void *data() const noexcept { return region_ ? data_ : nullptr; }

    /// Bytes that may be used: what was asked for, in whole pages.
    std::uint64_t size() const noexcept { return region_ ? size_ : 0; }
    bytes_span bytes() const noexcept { return detail::bytes_of(data(), size()); }

    RegionInfo info() const {
        RegionInfo info;
        detail::check(kvmem_region_get_info(get(), &info));
        return info;
    }

    /// The receipt, as lines for people: what was asked, what was got, and why not better.
    std::string report() const { return report(KVMEM_TEXT); }

    /// The receipt as JSON.
    std::string report_json() const { return report(KVMEM_JSON); }

    /// Makes `[offset, offset + bytes)` resident and writable, without changing a byte of it.
    void populate(std::uint64_t offset, std::uint64_t bytes, std::uint32_t how = populate_auto,
                  ProgressFn progress = nullptr, const Cancel *cancel = nullptr) const {
        const detail::Teller teller(std::move(progress));
        detail::check(kvmem_region_populate(get(), offset, bytes, how, teller.function(), teller.user(),
                                            detail::native(cancel)));
    }

    /// Makes the pages resident in all other mappings that this process has of its memory, such as an engine's that was given the
    /// descriptor. Returns how many bytes those have.
    std::uint64_t populate_elsewhere(std::uint32_t how = populate_auto) const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_region_populate_elsewhere(get(), how, &bytes));
        return bytes;
    }

    /// How many bytes of `[offset, offset + bytes)` are resident now.
    std::uint64_t resident_bytes(std::uint64_t offset, std::uint64_t bytes) const {
        std::uint64_t resident = 0;
        detail::check(kvmem_region_residency(get(), offset, bytes, &resident, nullptr));
        return resident;
    }

    /// Gives the pages of `[offset, offset + bytes)` back: the bytes are zero afterwards. Whole pages only.
    void discard(std::uint64_t offset, std::uint64_t bytes) const {
        detail::check(kvmem_region_discard(get(), offset, bytes));
    }

    /// A descriptor by which another process attaches the memory. The caller closes it.
    int share(bool read_only) const {
        int fd = -1;
        detail::check(kvmem_region_share(get(), read_only, &fd));
        return fd;
    }

    /// NULL after it was moved from.
    kvmem_region *native_handle() const noexcept { return get(); }

    /// Hands the object over to the caller, who destroys it: kvmem_region_destroy.
    kvmem_region *release() noexcept { return region_.release(); }

private:
    using Handle = detail::Handle<kvmem_region, kvmem_region_destroy>;

    explicit Region(Handle made) : region_(std::move(made)) {
        const RegionInfo found = info();
        data_ = found.data;
        size_ = found.bytes;
    }

    static void released(void *user) noexcept {
        const std::unique_ptr<std::function<void()>> release(static_cast<std::function<void()> *>(user));
        (*release)();
    }

    std::string report(std::uint32_t format) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_region_report(get(), format, buffer, capacity, needed);
        });
    }

    kvmem_region *get() const noexcept { return region_.get(); }

    Handle region_;
    void *data_ = nullptr;
    std::uint64_t size_ = 0;
};

} // namespace kvmem

#endif
