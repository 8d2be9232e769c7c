// Disk tier: values on a disk, found again after a restart. Part of kvmem.hpp.
#ifndef KVMEM_DISK_TIER_HPP
#define KVMEM_DISK_TIER_HPP

#include <functional>
#include <memory>

#include "tier_inspection.hpp"
#include "tier_values.hpp"

namespace kvmem {

/// Chooses the evicted values that are written, by key and value, which are valid only during the
/// call. Threads that evict or write behind a cache call it, several at once, while the order of
/// the key is locked: it must be short, and must not call the cache or the tier. If it throws, the
/// value is dropped.
using AdmitFn = std::function<bool(bytes_view key, bytes_view value)>;

/// Options of a disk tier: those of C.
struct DiskTierOptions
    : detail::WithDefaults<kvmem_disk_tier_options, kvmem_disk_tier_options_init> {
    /// With KVMEM_ADMIT_CUSTOM: chooses the evicted values that are written. Destroyed with the
    /// tier, or with the last tier of a set.
    AdmitFn on_admit;
};

namespace detail {

/// Options of C with a copy of the function that chooses values. The copy belongs to the tier once
/// it is open.
class AdmittingOptions {
public:
    explicit AdmittingOptions(const DiskTierOptions &options)
        : wanted_(options),
          kept_(options.on_admit ? std::make_unique<AdmitFn>(options.on_admit) : nullptr) {
        if (kept_) {
            wanted_.on_admit = &admits;
            wanted_.on_admit_user = kept_.get();
            wanted_.on_admit_release = &release;
        }
    }

    const kvmem_disk_tier_options *get() const noexcept { return &wanted_; }

    /// The tier has the function now.
    void opened() noexcept { (void)kept_.release(); }

private:
    static int admits(void *user, const void *key, std::uint64_t key_bytes, const void *value,
                      std::uint64_t value_bytes) noexcept {
        try {
            const auto *at_key = static_cast<const std::byte *>(key);
            const auto *at_value = static_cast<const std::byte *>(value);
            const auto &function = *static_cast<AdmitFn *>(user);
            return function(bytes_view(at_key, static_cast<std::size_t>(key_bytes)),
                            bytes_view(at_value, static_cast<std::size_t>(value_bytes)))
                       ? 1
                       : 0;
        } catch (...) {
            return 0;
        }
    }

    static void release(void *user) noexcept { delete static_cast<AdmitFn *>(user); }

    kvmem_disk_tier_options wanted_;
    std::unique_ptr<AdmitFn> kept_;
};

} // namespace detail

/// Values on a local disk, found again by their keys after a restart. A full tier evicts expired
/// values first, then those of the lowest priority. A damaged value is a miss, and never the wrong
/// bytes. Below a cache it receives what the cache evicts: see `KvCacheOptions::lower_tier`. One
/// process uses a file at a time. `DiskTier::inspect` and `DiskTier::verify` look into a file that
/// is not open.
class DiskTier : public detail::TierValues,
                 public detail::TierInspecting {
public:
    /// Opens the tier in a file or block device, and makes it if the file is new. Throws
    /// KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another process
    /// has it open as one.
    explicit DiskTier(const std::string &path, const DiskTierOptions &options = {}) {
        detail::AdmittingOptions wanted(options);
        kvmem_disk_tier *made = nullptr;
        detail::check(kvmem_disk_tier_open(path.c_str(), wanted.get(), &made, &report_));
        wanted.opened();
        adopt(made);
    }

    /// What opening the file found.
    const DiskTierReport &report() const noexcept { return report_; }

private:
    DiskTierReport report_;
};

/// Disk tiers on several devices, which hold values together. Each key belongs to one of them;
/// files may be named in any order. Transfers on different devices run side by side.
class TierSet : public detail::TierValues {
public:
    /// Opens the tiers in several files or block devices, side by side, and makes those that are
    /// new. Throws as `DiskTier`.
    explicit TierSet(const std::vector<std::string> &paths, const DiskTierOptions &options = {})
        : reports_(paths.size()) {
        open(paths, options, nullptr);
    }

    /// Opens those of the tiers that can be opened. The keys of the others belong to the rest
    /// meanwhile; see kvmem_disk_tier_open_available. Throws if none can be opened.
    static TierSet open_available(const std::vector<std::string> &paths,
                                  const DiskTierOptions &options = {}) {
        return TierSet(paths, options, std::vector<kvmem_status>(paths.size()));
    }

    /// What opening each file found; empty for those that could not be opened.
    const std::vector<std::optional<DiskTierReport>> &reports() const noexcept { return reports_; }

private:
    TierSet(const std::vector<std::string> &paths, const DiskTierOptions &options,
            std::vector<kvmem_status> results)
        : reports_(paths.size()) {
        open(paths, options, &results);
    }

    void open(const std::vector<std::string> &paths, const DiskTierOptions &options,
              std::vector<kvmem_status> *results) {
        detail::AdmittingOptions wanted(options);
        std::vector<const char *> list;
        for (const std::string &path : paths) {
            list.push_back(path.c_str());
        }
        std::vector<DiskTierReport> found(list.size());
        kvmem_disk_tier *made = nullptr;
        detail::check(results == nullptr
                          ? kvmem_disk_tier_open_set(list.data(), list.size(), wanted.get(), &made,
                                                found.data())
                          : kvmem_disk_tier_open_available(list.data(), list.size(), wanted.get(),
                                                          &made, found.data(), results->data()));
        wanted.opened();
        adopt(made);
        for (std::size_t at = 0; at < found.size(); at++) {
            if (results == nullptr || (*results)[at] == KVMEM_OK) {
                reports_[at] = found[at];
            }
        }
    }

    std::vector<std::optional<DiskTierReport>> reports_;
};

} // namespace kvmem

#endif
