//! *Admission*: which of the values that a cache evicts are written.
//!
//! Drives wear out by being written, and most values that leave memory once are never asked for
//! again. With [`Admission::SecondEviction`] a value is written when its key is evicted a second
//! time within some memory: two Bloom filters, of which one is filled and the other remembers the
//! time before (a *doorkeeper*; Einziger, Friedman and Manes, *TinyLFU*, 2017). A key that collides
//! in a filter is written too early, never too late.
//!
//! A program may decide itself by an [`AdmissionPolicy`]: it knows more about its keys than how
//! often they were evicted.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::format::{BLOCK, Digest, blocks_of};

/// Which evicted values are written.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// Those whose key is evicted a second time.
    SecondEviction,
    /// Those that the program chooses.
    Custom(Arc<dyn AdmissionPolicy>),
}

/// Chooses the evicted values that are written. Any function of the key's bytes and the value's is
/// one.
pub trait AdmissionPolicy: Send + Sync {
    /// Returns whether the value is to be written. An older value of a key that is not admitted is
    /// removed from the tier.
    ///
    /// It is called in the thread that evicts, or in that of a
    /// [`WriteBehind`](kvmem::tier::WriteBehind), once for each value, while the order of
    /// the key is locked: it must be short, and must not call the cache or the tier. If it panics,
    /// the panic goes to the cache, which does not trust the tier about the key from then on.
    fn admits(&self, key: &[u8], value: &[u8]) -> bool;
}

impl<F: Fn(&[u8], &[u8]) -> bool + Send + Sync> AdmissionPolicy for F {
    fn admits(&self, key: &[u8], value: &[u8]) -> bool {
        self(key, value)
    }
}

impl Admission {
    /// Lets the program choose.
    ///
    /// ```
    /// use kvmem_tier::{Admission, DiskTierOptions};
    ///
    /// // Blocks of system prompts are worth a write, and so is all that is long.
    /// let admission = Admission::custom(|key: &[u8], value: &[u8]| {
    ///     key.starts_with(b"system/") || value.len() >= 1 << 20
    /// });
    /// let options = DiskTierOptions { admission, ..DiskTierOptions::default() };
    /// # drop(options);
    /// ```
    pub fn custom(policy: impl AdmissionPolicy + 'static) -> Admission {
        Admission::Custom(Arc::new(policy))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Admission::All => "All",
            Admission::SecondEviction => "SecondEviction",
            Admission::Custom(_) => "Custom(..)",
        })
    }
}

/// Decides about evicted values.
pub(super) struct Doorkeeper {
    filters: Option<Mutex<Filters>>,
    policy: Option<Arc<dyn AdmissionPolicy>>,
    budget: Option<Mutex<Budget>>,
}

impl Doorkeeper {
    /// Decides for a tier with room for `entries` values. `bytes_per_s` limits the bytes written
    /// per second.
    pub(super) fn new(admission: Admission, entries: u64, bytes_per_s: Option<u64>) -> Self {
        let (mut filters, mut policy) = (None, None);
        match admission {
            Admission::All => {}
            Admission::SecondEviction => filters = Some(Mutex::new(Filters::new(entries))),
            Admission::Custom(custom) => policy = Some(custom),
        }
        Doorkeeper {
            filters,
            policy,
            budget: bytes_per_s.map(|bytes_per_s| Mutex::new(Budget::new(bytes_per_s))),
        }
    }

    /// Counts `bytes` bytes that are written, whatever the rate.
    pub(super) fn count(&self, bytes: u64) {
        if let Some(budget) = &self.budget {
            budget.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, Instant::now());
        }
    }

    /// Returns whether a value is to be written now, and counts the bytes of its blocks then. What
    /// the policy rejects is no part of the rate.
    pub(super) fn admits(&self, digest: &Digest, key: &[u8], value: &[u8]) -> bool {
        fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        }
        let bytes = u64::from(blocks_of(value.len() as u64)) * BLOCK as u64;
        self.filters.as_ref().is_none_or(|filters| lock(filters).has_seen(digest))
            && self.policy.as_ref().is_none_or(|policy| policy.admits(key, value))
            && self.budget.as_ref().is_none_or(|budget| lock(budget).spend(bytes, Instant::now()))
    }
}

/// Bits of a filter for each key: with four hashes, one key in 40 collides when it is full.
const BITS_PER_KEY: u64 = 8;

/// Two Bloom filters of the keys that were evicted lately.
struct Filters {
    now: Vec<u64>,
    before: Vec<u64>,
    /// Keys in `now`, and how many it takes before the filters change places.
    keys: u64,
    max_keys: u64,
}

impl Filters {
    fn new(max_keys: u64) -> Self {
        let max_keys = max_keys.max(64);
        let words = (max_keys * BITS_PER_KEY).div_ceil(64) as usize;
        Filters { now: vec![0; words], before: vec![0; words], keys: 0, max_keys }
    }

    /// Returns whether the key was evicted before, and remembers it.
    fn has_seen(&mut self, digest: &Digest) -> bool {
        let bits = self.now.len() as u64 * 64;
        // The digest is a hash: its four parts are independent.
        let (parts, _) = digest.0.as_chunks::<4>();
        let bit = |part: &[u8; 4]| (u64::from(u32::from_le_bytes(*part)) * bits) >> 32;
        let is_set = |filter: &[u64], bit: u64| filter[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
        let in_now = parts.iter().all(|part| is_set(&self.now, bit(part)));
        let in_before = parts.iter().all(|part| is_set(&self.before, bit(part)));
        if !in_now {
            if self.keys == self.max_keys {
                std::mem::swap(&mut self.now, &mut self.before);
                self.now.fill(0);
                self.keys = 0;
            }
            for part in parts {
                let bit = bit(part);
                self.now[(bit / 64) as usize] |= 1 << (bit % 64);
            }
            self.keys += 1;
        }
        in_now || in_before
    }
}

/// Bytes that may be written: they accrue over time, up to a second's worth.
struct Budget {
    bytes_per_s: f64,
    bytes: f64,
    at: Option<Instant>,
}

impl Budget {
    fn new(bytes_per_s: u64) -> Self {
        let bytes_per_s = bytes_per_s as f64;
        Budget { bytes_per_s, bytes: bytes_per_s, at: None }
    }

    /// Takes `bytes` bytes out, as many as there are or more; what is overdrawn accrues first.
    fn take(&mut self, bytes: u64, now: Instant) {
        if let Some(before) = self.at.replace(now) {
            let accrued = now.saturating_duration_since(before).as_secs_f64() * self.bytes_per_s;
            self.bytes = (self.bytes + accrued).min(self.bytes_per_s);
        }
        self.bytes -= bytes as f64;
    }

    /// Takes `bytes` bytes out if any are there; a long value may overdraw.
    fn spend(&mut self, bytes: u64, now: Instant) -> bool {
        self.take(0, now);
        let admits = self.bytes > 0.0;
        if admits {
            self.bytes -= bytes as f64;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn digest(n: u64) -> Digest {
        let word = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let other = word.rotate_left(31).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let (low, high) = (word.to_le_bytes(), other.to_le_bytes());
        Digest(std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] }))
    }

    #[test]
    fn a_key_is_seen_when_it_comes_again_and_forgotten_after_many_others() {
        let mut filters = Filters::new(1000);
        let early = (0..1000).filter(|&n| filters.has_seen(&digest(n))).count();
        assert!(early < 50, "{early} of 1000 collide");
        assert!((0..1000).all(|n| filters.has_seen(&digest(n))));
        let others = (1000..3500).filter(|&n| filters.has_seen(&digest(n))).count();
        assert!(others < 150, "{others} of 2500 collide");
        let held = (0..1000).filter(|&n| filters.has_seen(&digest(n))).count();
        assert!(held < 100, "{held} of 1000 are still known");
    }

    #[test]
    fn a_budget_accrues_over_time_and_not_beyond_a_second() {
        let mut budget = Budget::new(1000);
        let start = Instant::now();
        assert!(budget.spend(600, start) && budget.spend(600, start));
        assert!(!budget.spend(1, start), "200 bytes are overdrawn");
        assert!(!budget.spend(1, start + Duration::from_millis(100)));
        assert!(budget.spend(100, start + Duration::from_millis(300)));
        let later = start + Duration::from_secs(100);
        assert!(budget.spend(999, later) && budget.spend(5000, later));
        assert!(!budget.spend(1, later + Duration::from_secs(3)));
        assert!(budget.spend(1, later + Duration::from_secs(5)));
    }

    #[test]
    fn all_are_admitted_unless_something_limits_them() {
        let all = Doorkeeper::new(Admission::All, 10, None);
        assert!((0..100).all(|n| all.admits(&digest(n), b"key", &[0; 100])));
        let second = Doorkeeper::new(Admission::SecondEviction, 1000, None);
        let seen = || second.admits(&digest(1), b"key", b"1");
        assert!(!seen() && seen());
        let slow = Doorkeeper::new(Admission::All, 10, Some(100));
        let admits = |value: &[u8]| slow.admits(&digest(1), b"key", value);
        assert!(admits(&[0; 1000]) && !admits(&[0]));
        // Values that a program stores itself count, too.
        let slow = Doorkeeper::new(Admission::All, 10, Some(1_000_000));
        slow.count(2_000_000);
        assert!(!slow.admits(&digest(1), b"key", &[0]));
    }

    #[test]
    fn a_policy_of_the_program_sees_key_and_value() {
        let custom = Admission::custom(|key: &[u8], value: &[u8]| key[0] == 7 && value.len() > 2);
        assert_eq!(format!("{custom:?}"), "Custom(..)");
        let doorkeeper = Doorkeeper::new(custom.clone(), 10, Some(100));
        let admits = |key: u8, value: &[u8]| doorkeeper.admits(&digest(1), &[key], value);
        // What it rejects does not use up the rate.
        assert!(!admits(6, &[0; 1000]) && !admits(7, &[0; 2]));
        assert!(admits(7, &[0; 1000]) && !admits(7, &[0; 1000]));
    }
}
