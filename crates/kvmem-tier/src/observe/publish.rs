//! *Publish*: gives the figures to the current recorder of the
//! [`metrics`](https://docs.rs/metrics) facade.

use std::sync::Arc;

use kvmem::pool::observe::publish;
use kvmem::tier::WriteBehindStats;

use crate::device::Device;
use crate::tier::DiskTier;
use crate::tier_set::TierSet;

/// Returns a function that publishes the figures of a tier, under the label `tier`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also). It holds a reference to the tier. A
/// call takes the lock of the tier's index for some nanoseconds.
pub fn publisher<D: Device + 'static>(
    name: &str,
    tier: &Arc<DiskTier<D>>,
) -> impl Fn() + Send + Sync + 'static + use<D> {
    let (name, tier) = (name.to_owned(), Arc::clone(tier));
    move || publish(&tier.stats(), &[("tier", &name)])
}

/// Returns a function that publishes the figures of each tier of a set, under the labels `tier` and
/// `file`: for [`Exporter::also`](kvmem::pool::observe::Exporter::also). `files` names them in the
/// order of [`TierSet::in_path_order`]; a tier beyond them has its number. It holds a reference to
/// the set. A call takes the lock of each index for some nanoseconds.
pub fn set_publisher<D: Device + 'static>(
    name: &str,
    files: &[&str],
    set: &Arc<TierSet<D>>,
) -> impl Fn() + Send + Sync + 'static + use<D> {
    let of_file =
        |number: usize| files.get(number).map_or_else(|| number.to_string(), ToString::to_string);
    let files: Vec<String> = (0..set.tiers().len()).map(of_file).collect();
    let (name, set) = (name.to_owned(), Arc::clone(set));
    move || {
        for (file, tier) in files.iter().zip(set.in_path_order()) {
            publish(&tier.stats(), &[("tier", &name), ("file", file)]);
        }
    }
}

/// Returns a function that publishes the figures of the queue between a cache and a tier, under the
/// label `tier`: for [`Exporter::also`](kvmem::pool::observe::Exporter::also). `stats` reads them,
/// as [`WriteBehind::stats`](kvmem::tier::WriteBehind::stats) does.
pub fn queue_publisher(
    name: &str,
    stats: impl Fn() -> WriteBehindStats + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    let name = name.to_owned();
    move || publish(&stats(), &[("tier", &name)])
}
