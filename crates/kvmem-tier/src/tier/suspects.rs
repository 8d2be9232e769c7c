//! *Suspects*: values that the device failed to read, and that are read again.
//!
//! A drive that resets or a path that fails over returns errors for seconds, and the right bytes
//! afterwards. A worn sector returns errors for ever, while all others are read. One failed read
//! does not tell which it is, so the value stays as a *suspect*:
//!
//! - The next read tries again. From the second failure on, a failure begins a pause: of a second,
//!   then twice as long each time, at most a minute. During a pause the tier says that it has no
//!   such value, and does not call the device. A caller that repeats a failing load for ever thus
//!   makes two reads, and a few later.
//! - A failure is *isolated* if the device has read another value by the same fetch or by the one
//!   before. The fourth isolated failure quarantines the value: the device works, and this place
//!   does not. That takes three seconds at least. While the whole device fails, no value is lost.
//! - A read that succeeds ends the suspicion, as does a removal, an eviction or a new value.
//!
//! Suspects are in memory alone: the next process reads each value anew.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::format::Digest;

/// The most suspects: about 4 MiB. One more takes the place of any other one, whose failures are
/// forgotten.
const MAX_SUSPECTS: usize = 1 << 16;
/// Isolated failures that quarantine a value.
const MAX_ISOLATED: u32 = 4;
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A value of which reads have failed.
struct Suspect {
    /// Reads that failed, those during a pause not counted.
    failures: u32,
    /// Of these, the isolated ones.
    isolated: u32,
    /// No read is made before.
    again: Instant,
}

/// The suspects by digest. Each is in the index, too.
#[derive(Default)]
pub(super) struct Suspects {
    values: HashMap<Digest, Suspect>,
    /// Whether the last fetch has read a value.
    device_works: bool,
}

impl Suspects {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn has(&self, digest: &Digest) -> bool {
        !self.values.is_empty() && self.values.contains_key(digest)
    }

    /// Returns whether a value is not read now. Reads the clock only for a suspect.
    pub(super) fn is_paused(&self, digest: &Digest, now: impl FnOnce() -> Instant) -> bool {
        !self.values.is_empty() && self.values.get(digest).is_some_and(|one| now() < one.again)
    }

    /// Records whether a fetch has read a value. Returns whether its failures are isolated.
    pub(super) fn end_fetch(&mut self, has_read: bool) -> bool {
        std::mem::replace(&mut self.device_works, has_read) || has_read
    }

    /// Records that a read of a value failed. Returns whether the value is to be quarantined.
    pub(super) fn add_failure(&mut self, digest: &Digest, isolated: bool, now: Instant) -> bool {
        if self.values.len() >= MAX_SUSPECTS
            && !self.values.contains_key(digest)
            && let Some(&other) = self.values.keys().next()
        {
            self.values.remove(&other);
        }
        let new = Suspect { failures: 0, isolated: 0, again: now };
        let one = self.values.entry(*digest).or_insert(new);
        // A read that began before the pause says no more than the one that began it.
        if now < one.again {
            return false;
        }
        one.failures = one.failures.saturating_add(1);
        one.isolated += u32::from(isolated);
        one.again = now + pause(one.failures);
        one.isolated == MAX_ISOLATED
    }

    /// Ends the suspicion of a value.
    pub(super) fn remove(&mut self, digest: &Digest) {
        if !self.values.is_empty() {
            self.values.remove(digest);
        }
    }

    /// Ends all pauses.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        self.values.values_mut().for_each(|one| one.again = now);
    }
}

/// Returns the pause after a number of failures.
fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        _ => Duration::from_secs(1 << (failures - 2).min(6)).min(MAX_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Digest = Digest([7; 16]);

    /// The seconds after which reads fail, until the value is quarantined or 100 have failed. Reads
    /// are tried every 100 ms.
    fn failures(isolated: impl Fn(usize) -> bool) -> (Vec<f64>, bool) {
        let begin = Instant::now();
        let (mut suspects, mut at) = (Suspects::default(), Vec::new());
        for tenth in 0.. {
            let now = begin + Duration::from_millis(100) * tenth;
            if suspects.is_paused(&KEY, || now) {
                continue;
            }
            let is_lost = suspects.add_failure(&KEY, isolated(at.len()), now);
            at.push(f64::from(tenth) / 10.0);
            if is_lost || at.len() == 100 {
                return (at, is_lost);
            }
        }
        unreachable!("reads fail for ever");
    }

    #[test]
    fn a_place_that_fails_while_the_device_works_is_quarantined() {
        assert_eq!(failures(|_| true), (vec![0.0, 0.1, 1.1, 3.1], true));
        // Only those failures count that are isolated.
        let (at, is_lost) = failures(|before| before % 2 == 1);
        assert_eq!((at.len(), is_lost), (8, true), "{at:?}");
        let mut suspects = Suspects::default();
        let fetches = [(false, false), (true, true), (false, true), (false, false), (true, true)];
        for (has_read, isolated) in fetches {
            assert_eq!(suspects.end_fetch(has_read), isolated);
        }
    }

    #[test]
    fn a_device_that_fails_as_a_whole_loses_nothing_and_is_called_seldom() {
        let (at, is_lost) = failures(|_| false);
        assert!(!is_lost);
        let pauses: Vec<f64> = at.windows(2).map(|two| (two[1] - two[0]).round()).collect();
        assert_eq!(pauses[..9], [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        assert!(pauses[9..].iter().all(|&pause| pause == 60.0));
    }

    /// Reads that were in flight when the first ones failed prove nothing more.
    #[test]
    fn failures_during_a_pause_do_not_count() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        assert!((0..100).all(|_| !suspects.add_failure(&KEY, true, now)));
        let later = now + Duration::from_secs(1);
        assert!(suspects.is_paused(&KEY, || now) && !suspects.is_paused(&KEY, || later));
        assert!(suspects.has(&KEY) && !suspects.has(&Digest([8; 16])));
        suspects.end_pauses(now);
        assert!(!suspects.is_paused(&KEY, || now));
        suspects.remove(&KEY);
        assert_eq!(suspects.len(), 0);
    }

    #[test]
    fn a_device_with_many_values_has_a_limited_number_of_suspects() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        let digest = |number: u64| Digest([number.to_le_bytes(); 2].concat().try_into().unwrap());
        for number in 0..MAX_SUSPECTS as u64 + 100 {
            for _ in 0..2 {
                assert!(!suspects.add_failure(&digest(number), true, now));
            }
            // The last one is never among those that are forgotten.
            assert!(suspects.is_paused(&digest(number), || now));
        }
        assert_eq!(suspects.len(), MAX_SUSPECTS);
    }
}
