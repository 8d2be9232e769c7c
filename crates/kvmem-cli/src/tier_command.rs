//! `kvmem tier`: looks into the file of a disk tier, or verifies its values.

mod inspect;
mod verify;

use std::fmt;
use std::path::Path;

use kvmem_tier::device::{Engine, FileDevice};
use kvmem_tier::format::{BLOCK, Digest, Extent, SuperblockError};
use kvmem_tier::{Contents, Inspection, TierError};
use serde::Serialize;

use crate::args::{TierArgs, TierCommand};
use crate::output::Failure;
use kvmem_trace::escape::shown;

/// Carries out the subcommand.
pub(crate) fn run(args: &TierArgs) -> Result<(), Failure> {
    match &args.command {
        TierCommand::Inspect(args) => inspect::run(args),
        TierCommand::Verify(args) => verify::run(args),
    }
}

/// Transfers in flight at once: as many as a tier that serves has.
const DEPTH: u32 = 32;

/// Opens a file without a right to write to it, and reads its index.
fn inspected(path: &Path) -> Result<(FileDevice, Inspection), Failure> {
    let device = FileDevice::open_read_only(path, DEPTH)
        .map_err(|error| Failure::usage(format_args!("cannot open {}: {error}", shown(path))))?;
    let inspection = kvmem_tier::inspect(&device).map_err(|error| failure(path, &error, 1))?;
    Ok((device, inspection))
}

/// Status 2 for a file that is no tier at all, 1 for a tier that is damaged.
fn unusable(path: &Path, inspection: &Inspection, error: &TierError) -> Failure {
    let is_tier = inspection.superblocks.iter().any(|copy| match copy {
        Ok(_) => true,
        Err(error) => !matches!(error, SuperblockError::Foreign | SuperblockError::Version { .. }),
    });
    failure(path, error, if is_tier { 1 } else { 2 })
}

fn failure(path: &Path, error: &TierError, exit_status: u8) -> Failure {
    Failure::new(format_args!("{}: {error}", shown(path)), exit_status)
}

/// Where a value or a part begins in the file, in bytes.
fn offset(contents: &Contents, block: u32) -> u64 {
    contents.superblock.layout.data.start + u64::from(block) * BLOCK as u64
}

/// A range of the file.
#[derive(Debug, Serialize)]
struct ExtentFigures {
    /// Where it begins in the file.
    offset: u64,
    bytes: u64,
}

impl ExtentFigures {
    fn of(contents: &Contents, extents: &[Extent]) -> Vec<ExtentFigures> {
        let figures = |extent: &Extent| ExtentFigures {
            offset: offset(contents, extent.start),
            bytes: u64::from(extent.blocks) * BLOCK as u64,
        };
        extents.iter().map(figures).collect()
    }
}

/// How the file is reached.
fn access(device: &FileDevice) -> String {
    let engine = match device.engine() {
        Engine::IoUring => "io_uring",
        Engine::Threads => "threads",
    };
    let cache = if device.is_direct() { "direct I/O" } else { "through the page cache" };
    let fixed = if device.fixed_buffers().transfers > 0 { ", fixed buffers" } else { "" };
    format!("{engine}, {cache}{fixed}")
}

/// Formats a digest or an identity as hexadecimal digits.
struct Hex([u8; 16]);

impl From<Digest> for Hex {
    fn from(digest: Digest) -> Hex {
        Hex(digest.0)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_32_digits() {
        let digest = Digest([0, 1, 0xab, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]);
        assert_eq!(Hex::from(digest).to_string(), "0001ab000000000000000000000000ff");
    }
}
