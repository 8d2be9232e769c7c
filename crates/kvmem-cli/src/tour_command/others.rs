//! *Others*: how much of the processors other programs had meanwhile, which makes times longer.
//!
//! A quick measurement lasts some hundredths of a second, and counts the time by the clock: the
//! work of all threads together cannot be had otherwise. Where other programs want the same
//! processors, its threads wait for their turn, and after each turn of another the processor's
//! caches are its; a look-up that takes 37 ns alone was seen to take a thousand. So what others had
//! is told beside such figures.

use std::fs::read_to_string;

/// Processor time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    /// Of all processors, idle or not.
    all: u64,
    /// In which they were at work, or taken away by a host.
    busy: u64,
    /// In which they worked for this process and its children that have ended.
    own: u64,
}

impl Ticks {
    /// Until now; `None` where the kernel does not tell.
    pub(super) fn now() -> Option<Ticks> {
        Ticks::of(&read_to_string("/proc/stat").ok()?, &read_to_string("/proc/self/stat").ok()?)
    }

    fn of(machine: &str, process: &str) -> Option<Ticks> {
        // user nice system idle iowait irq softirq steal; what follows is in the first two already.
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

    /// The share of the processors that others have had since `before`.
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
