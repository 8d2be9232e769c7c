//! *Turns*: passes of the tier and plain ones, timed one after the other.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvmem_bench::stats::median;
use kvmem_bench::tier::{Halves, PassTime, TierMeasureError, TierTransfer};

use super::failed;
use super::report::{PassFigures, TierBenchRow};
use kvmem_cli::output::Failure;

/// Turns of each kind of pass, at least.
const MIN_TURNS: u32 = 3;

/// A pass of the tier, and the plain one beside it.
type Turn = (PassTime, PassTime);

/// Takes turns for that long, at least [`MIN_TURNS`]; returns the rows of storing and of fetching.
/// The bar has advanced by `before` already.
pub(super) fn measure(
    mut halves: Halves<'_>,
    len: u64,
    turns: Duration,
    bar: &ProgressBar,
    before: Duration,
) -> Result<[TierBenchRow; 2], Failure> {
    let (mut stores, mut fetches) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut turn = 0;
    while turn < MIN_TURNS || start.elapsed() < turns {
        let tier_first = turn % 2 == 0;
        for (transfer, passes) in
            [(TierTransfer::Store, &mut stores), (TierTransfer::Fetch, &mut fetches)]
        {
            passes.push(both(tier_first, |is_tier| halves.pass(is_tier, transfer))?);
        }
        let done = before.saturating_add(start.elapsed().min(turns));
        bar.set_position(done.as_millis() as u64);
        turn += 1;
    }
    let bytes = halves.pass_bytes();
    Ok([row("store", len, bytes, &stores), row("fetch", len, bytes, &fetches)])
}

/// Makes a pass of each side; returns those of the tier and the plain one.
fn both(
    tier_first: bool,
    mut pass: impl FnMut(bool) -> Result<PassTime, TierMeasureError>,
) -> Result<Turn, Failure> {
    let (first, second) = (pass(tier_first).map_err(failed)?, pass(!tier_first).map_err(failed)?);
    Ok(if tier_first { (first, second) } else { (second, first) })
}

/// Sums up the passes of one kind, each with `bytes` bytes of values.
fn row(transfer: &'static str, len: u64, bytes: u64, passes: &[Turn]) -> TierBenchRow {
    let gb = bytes as f64 / 1e9;
    let median_of = |figure: &dyn Fn(&Turn) -> f64| {
        median(passes.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let figures = |of: fn(&Turn) -> PassTime| PassFigures {
        gb_per_s: median_of(&|turn| gb / of(turn).seconds),
        cpu_s_per_gb: median_of(&|turn| of(turn).cpu_seconds / gb),
    };
    TierBenchRow {
        transfer,
        value_bytes: len,
        turns: passes.len() as u64,
        tier: figures(|turn| turn.0),
        plain: figures(|turn| turn.1),
        speed_ratio: median_of(&|(tier, plain)| plain.seconds / tier.seconds),
        cpu_ratio: median_of(&|(tier, plain)| tier.cpu_seconds / plain.cpu_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_those_of_the_turns() {
        let pass = |seconds, cpu_seconds| PassTime { seconds, cpu_seconds };
        // The machine is twice as slow in the third turn: the ratio stays.
        let turns = [
            (pass(2.0, 1.0), pass(1.0, 0.5)),
            (pass(2.5, 1.5), pass(1.25, 0.5)),
            (pass(4.0, 3.0), pass(2.0, 1.0)),
        ];
        let row = row("store", 4096, 5_000_000_000, &turns);
        assert_eq!((row.tier.gb_per_s, row.plain.gb_per_s), (2.0, 4.0));
        assert_eq!((row.tier.cpu_s_per_gb, row.plain.cpu_s_per_gb), (0.3, 0.1));
        assert_eq!((row.speed_ratio, row.cpu_ratio, row.turns), (0.5, 3.0, 3));
    }

    #[test]
    fn each_side_has_its_time_whatever_the_order() {
        for tier_first in [true, false] {
            let mut order = Vec::new();
            let (tier, plain) = both(tier_first, |is_tier| {
                order.push(is_tier);
                Ok(PassTime { seconds: if is_tier { 2.0 } else { 1.0 }, cpu_seconds: 0.0 })
            })
            .unwrap_or_else(|_| panic!("no pass failed"));
            assert_eq!(order, [tier_first, !tier_first]);
            assert_eq!((tier.seconds, plain.seconds), (2.0, 1.0));
        }
    }
}
