// Region: memory that is mapped, placed and populated (layer 1). Part of kvmem.hpp.
#ifndef KVMEM_REGION_HPP
#define KVMEM_REGION_HPP

#include "progress.hpp"
#include "span.hpp"

namespace kvmem {

/// Options of a region: those of C.
struct RegionOptions : detail::WithDefaults<kvmem_region_options, kvmem_region_options_init> {
    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas; "":
    /// "2M,thp,4k".
    std::string pages;
    std::vector<std::uint32_t> numa_nodes;
    ProgressFn progress;
    /// Not owned; used until the call returns.
    const CancelToken *cancel = nullptr;
};

namespace detail {

/// Converts options for C. Valid as long as `options` and `callback`.
inline kvmem_region_options native(const RegionOptions &options, const ProgressCallback &callback) {
    kvmem_region_options wanted = options;
    wanted.pages = or_null(options.pages);
    wanted.numa_nodes = options.numa_nodes.data();
    wanted.numa_node_count = options.numa_nodes.size();
    wanted.progress = callback.function();
    wanted.progress_user = callback.user();
    wanted.cancel = native(options.cancel);
    return wanted;
}

} // namespace detail

/// What the machine's limits mean for a region, before it is mapped.
struct Preflight {
    /// Whether no limit prevents the region.
    bool fits;
    /// A report of every limit that applies, and what to do about it.
    std::string report;
};

/// Checks whether a region of `bytes` bytes can be mapped and registered here, before anything is
/// mapped.
inline Preflight preflight(std::uint64_t bytes, const RegionOptions &options = {}) {
    const detail::ProgressCallback callback(options.progress);
    const kvmem_region_options wanted = detail::native(options, callback);
    std::uint32_t fits = 0;
    std::string report = detail::text([&](char *buffer, std::uint64_t capacity,
                                          std::uint64_t *needed) {
        return kvmem_preflight_report(bytes, &wanted, &fits, KVMEM_TEXT, buffer, capacity, needed);
    });
    return {fits != 0, std::move(report)};
}

/// Properties of a region, as measured when it was mapped.
using RegionInfo = kvmem_region_info;

/// One contiguous range of memory. Can be moved and not copied. Objects made on it keep the memory
/// mapped, so it may be destroyed before them.
class Region {
public:
    /// Maps at least `bytes` bytes, or throws.
    explicit Region(std::uint64_t bytes, const RegionOptions &options = {}) {
        const detail::ProgressCallback callback(options.progress);
        const kvmem_region_options wanted = detail::native(options, callback);
        kvmem_region *made = nullptr;
        detail::check(kvmem_region_map(bytes, &wanted, &made));
        *this = Region(Handle(made));
    }

    /// Maps the memory that another process shares by `fd`, which stays the caller's. If
    /// `expected_bytes` is not 0, the memory must have that length.
    static Region attach(int fd, std::uint64_t expected_bytes = 0) {
        kvmem_region *made = nullptr;
        detail::check(kvmem_region_attach(fd, expected_bytes, &made));
        return Region(Handle(made));
    }

    /// Makes a region over existing memory. `release` is called by any thread when no object uses
    /// the memory any more; if it throws, std::terminate is called. If this function throws,
    /// `release` is not called.
    static Region wrap(void *data, std::uint64_t bytes, std::function<void()> release = nullptr) {
        auto kept = release ? std::make_unique<std::function<void()>>(std::move(release)) : nullptr;
        kvmem_region *made = nullptr;
        detail::check(
            kvmem_region_wrap(data, bytes, kept ? &released : nullptr, kept.get(), &made));
        kept.release();
        return Region(Handle(made));
    }

    /// The first address; NULL after a move.
    void *data() const noexcept { return region_ ? data_ : nullptr; }

    /// Usable bytes: the requested bytes, rounded up to whole pages.
    std::uint64_t size() const noexcept { return region_ ? size_ : 0; }
    bytes_span bytes() const noexcept { return detail::bytes_of(data(), size()); }

    RegionInfo info() const {
        RegionInfo info;
        detail::check(kvmem_region_get_info(get(), &info));
        return info;
    }

    /// The receipt as text: what was requested, what was mapped, and what prevented better pages.
    std::string report() const { return report(KVMEM_TEXT); }

    /// The receipt as JSON.
    std::string report_json() const { return report(KVMEM_JSON); }

    /// Makes `[offset, offset + bytes)` resident and writable without changing its contents.
    void populate(std::uint64_t offset, std::uint64_t bytes, std::uint32_t how = populate_auto,
                  ProgressFn progress = nullptr, const CancelToken *cancel = nullptr) const {
        const detail::ProgressCallback callback(std::move(progress));
        detail::check(kvmem_region_populate(get(), offset, bytes, how, callback.function(),
                                            callback.user(), detail::native(cancel)));
    }

    /// Makes the pages resident in the aliases: all other shared, writable mappings of the memory
    /// file in this process, for example those of an engine that received the descriptor. Returns
    /// their length in bytes.
    std::uint64_t populate_aliases(std::uint32_t how = populate_auto) const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_region_populate_aliases(get(), how, &bytes));
        return bytes;
    }

    /// Returns how many bytes of `[offset, offset + bytes)` are resident now.
    std::uint64_t resident_bytes(std::uint64_t offset, std::uint64_t bytes) const {
        std::uint64_t resident = 0;
        detail::check(kvmem_region_residency(get(), offset, bytes, &resident, nullptr));
        return resident;
    }

    /// Gives the pages of `[offset, offset + bytes)` back to the kernel; the bytes are then zero.
    /// Both numbers must be multiples of the page size.
    void discard(std::uint64_t offset, std::uint64_t bytes) const {
        detail::check(kvmem_region_discard(get(), offset, bytes));
    }

    /// Returns a descriptor with which another process attaches the memory. The caller closes it.
    int share(bool read_only) const {
        int fd = -1;
        detail::check(kvmem_region_share(get(), read_only, &fd));
        return fd;
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_region *native_handle() const noexcept { return get(); }

    /// Hands the object over to the caller, which destroys it with kvmem_region_destroy.
    kvmem_region *release() noexcept { return region_.release(); }

private:
    using Handle = detail::Handle<kvmem_region, kvmem_region_destroy>;

    explicit Region(Handle made) : region_(std::move(made)) {
        const RegionInfo found = info();
        data_ = found.data;
        size_ = found.bytes;
    }

    static void released(void *user) noexcept {
        const std::unique_ptr<std::function<void()>> release(
            static_cast<std::function<void()> *>(user));
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
