//! *Tier*: a disk below the node.

use std::path::Path;
use std::sync::Arc;

use kvmem_tier::{DiskTier, DiskTierOptions};

use crate::args::ServeArgs;
use crate::output::Failure;
use kvmem_trace::escape::shown;

/// Opens the disk tier that `--tier` names, or makes one. Returns also how many values it has.
pub(super) fn open(args: &ServeArgs) -> Result<Option<(Arc<DiskTier>, u64)>, Failure> {
    let Some(path) = &args.tier else { return Ok(None) };
    let options = DiskTierOptions { bytes: len(args, path), ..DiskTierOptions::default() };
    let (tier, found) = DiskTier::open(path, &options)
        .map_err(|error| Failure::usage(format_args!("--tier {}: {error}", shown(path))))?;
    Ok(Some((Arc::new(tier), found.entries)))
}

/// Returns the bytes of the file; `None`: a tier that is there keeps its length.
fn len(args: &ServeArgs, path: &Path) -> Option<u64> {
    let default = || (!path.exists()).then(|| args.size.saturating_mul(4));
    args.tier_size.or_else(default)
}
