// Tier inspection: what the file of a disk tier holds, and whether its values are those that were
// stored. Part of kvmem.hpp.
#ifndef KVMEM_TIER_INSPECTION_HPP
#define KVMEM_TIER_INSPECTION_HPP

#include <string>
#include <vector>

#include "progress.hpp"

namespace kvmem {

/// Contents of the file of a disk tier.
using DiskTierInspection = kvmem_disk_tier_inspection;

/// A value that is not what was stored.
using DiskTierDamagedValue = kvmem_disk_tier_damaged_value;

/// What a verification has found. Its `damaged` values are not what was stored.
struct DiskTierVerification : kvmem_disk_tier_verification {
    /// The first of the damaged values, in the order of the file.
    std::vector<DiskTierDamagedValue> damaged_values;
};

/// How the values of a disk tier are verified.
struct DiskTierVerifyOptions {
    /// Maximum number of damaged values that are named. All are counted.
    std::size_t max_damaged_values = 1000;
    /// Receives progress, by the calling thread.
    ProgressFn progress;
    /// Ends the verification early, if it is set: see `CancelToken`.
    const CancelToken *cancel = nullptr;
    /// The `key_file` of a tier, with which each value is decrypted and decompressed, too.
    std::string key_file;
};

namespace detail {

/// The functions that look into the file of a disk tier that is not open.
class TierInspecting {
public:
    /// Reads what a file or block device holds, and writes nothing. A program that has it open as a
    /// tier must close it first. Throws KVMEM_ERR_BAD_TIER if the file is no tier or its index is
    /// damaged, KVMEM_ERR_IN_USE if it is open as a tier.
    static DiskTierInspection inspect(const std::string &path) {
        DiskTierInspection found;
        check(kvmem_disk_tier_inspect(path.c_str(), &found));
        return found;
    }

    /// Reads every value in a file or block device, compares it with its checksum, and writes
    /// nothing. Damaged values are a part of the result. Throws as `inspect`, and
    /// KVMEM_ERR_CANCELLED.
    static DiskTierVerification verify(const std::string &path,
                                       const DiskTierVerifyOptions &options = {}) {
        const ProgressCallback progress(options.progress);
        DiskTierVerification found;
        found.damaged_values.resize(options.max_damaged_values);
        check(kvmem_disk_tier_verify(
            path.c_str(), options.key_file.empty() ? nullptr : options.key_file.c_str(),
            progress.function(), progress.user(), native(options.cancel), &found,
            found.damaged_values.data(), found.damaged_values.size()));
        if (found.damaged < found.damaged_values.size()) {
            found.damaged_values.resize(static_cast<std::size_t>(found.damaged));
        }
        return found;
    }

protected:
    TierInspecting() = default;
};

} // namespace detail
} // namespace kvmem

#endif
