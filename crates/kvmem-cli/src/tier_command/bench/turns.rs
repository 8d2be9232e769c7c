//! *Turns*: passes of the tier and plain ones, timed one after the other.

use std::time::Instant;

use kvmem_bench::stats::median;
use rustix::time::{ClockId, clock_gettime};

use super::report::{PassFigures, TierBenchRow};
use crate::output::Failure;

/// What takes part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Tier,
    Plain,
}

/// Time of a pass.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    seconds: f64,
    cpu_seconds: f64,
}

/// Times a pass of each side, in the given order; returns those of the tier and the plain one.
pub(super) fn both(
    sides: [Side; 2],
    mut pass: impl FnMut(Side) -> Result<(), Failure>,
) -> Result<(Pass, Pass), Failure> {
    let mut timed = |side| {
        let (start, cpu) = (Instant::now(), processor_time());
        pass(side)?;
        Ok::<_, Failure>(Pass {
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: processor_time() - cpu,
        })
    };
    let (first, second) = (timed(sides[0])?, timed(sides[1])?);
    Ok(if sides[0] == Side::Tier { (first, second) } else { (second, first) })
}

/// Returns the processor time of this process in seconds, with the kernel's threads for its rings.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sums up the passes of one kind, each with `bytes` bytes of values.
pub(super) fn row(
    transfer: &'static str,
    len: usize,
    bytes: u64,
    passes: &[(Pass, Pass)],
) -> TierBenchRow {
    let gb = bytes as f64 / 1e9;
    let median_of = |figure: &dyn Fn(&(Pass, Pass)) -> f64| {
        median(passes.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let figures = |of: fn(&(Pass, Pass)) -> Pass| PassFigures {
        gb_per_s: median_of(&|turn| gb / of(turn).seconds),
        cpu_s_per_gb: median_of(&|turn| of(turn).cpu_seconds / gb),
    };
    TierBenchRow {
        transfer,
        value_bytes: len as u64,
        turns: passes.len() as u64,
        tier: figures(|turn| turn.0),
        plain: figures(|turn| turn.1),
        speed_ratio: median_of(&|(tier, plain)| plain.seconds / tier.seconds),
        cpu_ratio: median_of(&|(tier, plain)| tier.cpu_seconds / plain.cpu_seconds),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn medians_and_ratios_are_those_of_the_turns() {
        let pass = |seconds, cpu_seconds| Pass { seconds, cpu_seconds };
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
    fn each_side_is_timed_whatever_the_order() {
        for sides in [[Side::Tier, Side::Plain], [Side::Plain, Side::Tier]] {
            let mut order = Vec::new();
            let (tier, plain) = both(sides, |side| {
                order.push(side);
                if side == Side::Tier {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            })
            .unwrap();
            assert!(order == sides && tier.seconds >= 0.02 && plain.seconds < tier.seconds);
        }
    }
}
