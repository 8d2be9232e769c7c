//! *Others*: the processor time of other programs, which makes measured times longer.
//!
//! A quick measurement lasts some hundredths of a second of wall-clock time, the only time that
//! covers the work of all threads together. On a busy machine its threads wait for other programs,
//! which also replace the contents of the caches: a look-up that takes 37 ns alone took a thousand.
//! The tour therefore prints the share of other programs beside such figures.

use std::fs::read_to_string;

/// Processor time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    /// Ticks of all processors, idle or not.
    all: u64,
    /// Ticks in which they worked, or a hypervisor had taken them.
    busy: u64,
    /// Ticks in which they worked for this process and its ended children.
    own: u64,
}

impl Ticks {
    /// Reads the ticks until now; `None` if the kernel does not report them.
    pub(super) fn now() -> Option<Ticks> {
        Ticks::of(&read_to_string("/proc/stat").ok()?, &read_to_string("/proc/self/stat").ok()?)
    }

    fn of(machine: &str, process: &str) -> Option<Ticks> {
        // user nice system idle iowait irq softirq steal; the first two include the rest.
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> =
            line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        let all = times.iter().sum();
        let idle = times.get(3)? + times.get(4)?;
        // The name of the program, in brackets, may have spaces. User and system time, then those
        // of children, are 12th to 15th after it.
        let (_, after) = process.rsplit_once(')')?;
        let own = after.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
        Some(Ticks { all, busy: all - idle, own: own.sum::<Result<_, _>>().ok()? })
    }

    /// Returns the share of the processors that other programs used since `before`.
    pub(super) fn others_since(self, before: Ticks) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        let busy = self.busy.saturating_sub(before.busy);
        let own = self.own.saturating_sub(before.own);
        busy.saturating_sub(own) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_had_is_told_from_the_own() {
        let process = |own: u64| format!("7 (a (b) c) R 1 2 3 4 5 6 7 8 9 10 {own} 20 3 4 20 0 9");
        let before = Ticks::of("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1 2", &process(10))
            .expect("all is there");
        assert_eq!(before, Ticks { all: 1000, busy: 150, own: 37 });
        let after =
            Ticks::of("cpu  140 0 60 830 50 0 0 20 9 9\n", &process(30)).expect("all is there");
        assert_eq!(after.others_since(before), 0.5, "70 of 100 were busy, 20 of them here");
        assert_eq!(Ticks::of("", ""), None);
    }

    #[test]
    fn time_goes_on() {
        let Some(before) = Ticks::now() else { return println!("skipped: there is no /proc/stat") };
        let share = Ticks::now().expect("as before").others_since(before);
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
