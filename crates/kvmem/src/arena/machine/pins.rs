//! *Pins*: how many bytes one call may pin.
//!
//! A driver for GPUs pins all pages of a call at once, and the kernel and the driver keep a table
//! of these pages. Two versions could not allocate a large table:
//!
//! - Drivers of NVIDIA from r580 on keep 16 bytes for each page of 4 KiB in one allocation, which
//!   the kernel limits to less than 2 GiB. A call for 512 GiB or more fails, whatever is free.
//! - Linux 6.11 to 6.13 collect a pointer for each page in one allocation of at most 4 MiB, until
//!   their stable releases have the fix (kernel commit 94efde1d1539). A call for more than 2 GiB
//!   fails.
//!
//! Calls in pieces of [`PIECE_BYTES`] stay below both. The driver holds its locks during a call, so
//! pieces also let other callers in between. Only memory whose layout is known has pieces: a copy
//! that begins in one and ends in another fails.
//!
//! Both limits apply to drivers that pin a whole call at once. RDMA drivers pin 512 pages at a
//! time, and io_uring at most 1 GiB, so neither limit concerns them.

use super::files::MachineFiles;
use super::files::Read;
use super::parse;

/// The bytes that one call should pin.
pub(crate) const PIECE_BYTES: u64 = 1 << 30;

/// The first driver of NVIDIA with one table for each call.
const FLAT_TABLE_SINCE: u64 = 580;
/// The smallest call that fails with such a driver.
const FLAT_TABLE_BYTES: u64 = 512 << 30;
/// The kernels that collect pointers in one allocation.
const POINTERS: std::ops::RangeInclusive<(u32, u32)> = (6, 11)..=(6, 13);
/// The largest call that works with such a kernel.
const POINTERS_BYTES: u64 = 2 << 30;

/// The driver for NVIDIA's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvidiaDriver {
    /// Its version: `580.65.06`.
    pub(crate) version: String,
    /// The largest number of bytes of one call; `None`: no known limit.
    pub(crate) max_bytes: Option<u64>,
}

/// Returns the driver for NVIDIA's GPUs; `None` if none is loaded.
pub(crate) fn nvidia_driver(files: &MachineFiles) -> Read<Option<NvidiaDriver>> {
    let path = "/sys/module/nvidia/version";
    let version = files.value_if_exists(path, nvidia_version)?;
    let Some(version) = version else {
        // Without the folder above, a missing file says nothing.
        files.names("/sys/module")?;
        return Ok(None);
    };
    let flat = parse::number(version.split('.').next().unwrap_or_default());
    let max_bytes = flat.filter(|major| *major >= FLAT_TABLE_SINCE).map(|_| FLAT_TABLE_BYTES - 1);
    Ok(Some(NvidiaDriver { version, max_bytes }))
}

/// Parses a version such as `580.65.06`: a number, and further ones after dots.
fn nvidia_version(text: &str) -> Option<String> {
    let text = text.trim();
    let numbers = text.split('.').all(|part| part.parse::<u32>().is_ok());
    (numbers && text.len() <= 32).then(|| text.to_owned())
}

/// Returns the largest number of bytes that one call can pin on a kernel; `None`: no known limit.
pub(crate) fn kernel_max_bytes(version: (u32, u32)) -> Option<u64> {
    POINTERS.contains(&version).then_some(POINTERS_BYTES)
}

/// Returns the largest number of bytes that a driver which pins a call at once should get in one
/// call on this machine; `None`: no limit applies.
pub(crate) fn max_pin_bytes(files: &MachineFiles) -> Option<u64> {
    let kernel = files.value("/proc/sys/kernel/osrelease", parse::release).ok();
    // At the limit itself the allocation is as large as the kernel can make: a piece is safe.
    let kernel = kernel.and_then(kernel_max_bytes).map(|_| PIECE_BYTES);
    let driver = nvidia_driver(files).ok().flatten().and_then(|driver| driver.max_bytes);
    [kernel, driver].into_iter().flatten().min()
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::super::MadeUpTree;
    use super::*;

    fn tree(driver: Option<&str>, release: &str) -> MadeUpTree {
        let mut files = vec![("proc/sys/kernel/osrelease", release), ("sys/module/a/b", "")];
        files.extend(driver.map(|version| ("sys/module/nvidia/version", version)));
        MadeUpTree::new("pins", &files)
    }

    #[test]
    fn the_smaller_limit_of_driver_and_kernel_applies() {
        for (driver, release, expected) in [
            (None, "6.8.0-31-generic", None),
            (None, "6.10.14", None),
            (None, "6.11.0-26-generic", Some(1 << 30)),
            (None, "6.12.9", Some(1 << 30)),
            (None, "6.13.1", Some(1 << 30)),
            (None, "6.14.0", None),
            (Some("575.57.08\n"), "6.8.0", None),
            (Some("580.65.06\n"), "6.8.0", Some((512 << 30) - 1)),
            (Some("595.10"), "6.12.0", Some(1 << 30)),
            (Some("new"), "6.8.0", None),
        ] {
            let tree = tree(driver, release);
            let found = max_pin_bytes(&MachineFiles::under(tree.root()));
            assert_eq!(found, expected, "{driver:?} {release}");
        }
    }

    #[test]
    fn a_driver_is_unknown_where_modules_are_hidden() {
        let tree = MadeUpTree::new("pins", &[("proc/a", "")]);
        assert!(nvidia_driver(&MachineFiles::under(tree.root())).is_err());
        let tree = self::tree(None, "6.8");
        assert_eq!(nvidia_driver(&MachineFiles::under(tree.root())), Ok(None));
        let tree = self::tree(Some("580.1; rm -r /"), "6.8");
        assert!(nvidia_driver(&MachineFiles::under(tree.root())).is_err());
    }
}
