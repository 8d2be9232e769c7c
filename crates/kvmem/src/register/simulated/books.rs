//! *Books*: what one NIC has given out, and what it can take.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Counts, Fault};
use crate::arena::Errno;
use crate::register::{Key, Memlock, RegisterLimit, RegistrarError};

pub(super) const REGISTER: &str = "simulated register";
pub(super) const DEREGISTER: &str = "simulated deregister";

/// What a simulated NIC can take. The default: anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicLimits {
    /// The most bytes that one key can cover.
    pub max_bytes: u64,
    /// How many keys can stand at once.
    pub max_keys: u64,
    /// Bytes for a key at which registering is quickest.
    pub preferred_chunk_bytes: Option<u64>,
    /// A limit on pinned bytes. All NICs of the machine with the same account are counted
    /// together; `used_bytes` are those that others had pinned before.
    pub memlock: Option<Memlock>,
}

impl Default for NicLimits {
    fn default() -> NicLimits {
        NicLimits {
            max_bytes: u64::MAX,
            max_keys: u64::MAX,
            preferred_chunk_bytes: None,
            memlock: None,
        }
    }
}

/// A key that has been given.
#[derive(Debug)]
struct Live {
    range: Range<usize>,
    /// Bytes that became resident when it was registered.
    untouched: u64,
    /// Whether it stands, and is not just being made or given back.
    settled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) limits: NicLimits,
    counts: Counts,
    /// By handle.
    keys: BTreeMap<u64, Live>,
    faults: Vec<Fault>,
    /// Keys ever given.
    given: u64,
    held_bytes: u64,
    pub(super) flight: Flight,
}

impl Books {
    pub(super) fn new(limits: NicLimits) -> Books {
        Books { limits, ..Books::default() }
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Bytes under keys, those that are just being made included.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn held_keys(&self) -> u64 {
        self.keys.len() as u64
    }

    /// A call comes in. Every fault sees every call of its kind, so that each counts from when it
    /// was injected.
    pub(super) fn arrive(&mut self, register: bool) -> Option<Errno> {
        match register {
            true => self.counts.registers += 1,
            false => self.counts.deregisters += 1,
        }
        let mut errno = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.register == register) {
            errno = errno.or(fault.strikes());
        }
        errno
    }

    pub(super) fn count_refused(&mut self) {
        self.counts.refused += 1;
    }

    /// Whether these bytes can have a key, but for what holds for several NICs.
    pub(super) fn allow(&self, bytes: u64) -> Result<(), RegistrarError> {
        let refused =
            |errno, exceeded| Err(RegistrarError::new(REGISTER, errno, "").exceeded(exceeded));
        if bytes == 0 {
            return Err(RegistrarError::new(REGISTER, Errno::EINVAL, "register at least one byte"));
        }
        if bytes > self.limits.max_bytes {
            let limit_bytes = self.limits.max_bytes;
            return refused(
                Errno::EINVAL,
                RegisterLimit::KeyBytes { limit_bytes, need_bytes: bytes },
            );
        }
        if self.held_keys() >= self.limits.max_keys {
            return refused(Errno::ENOMEM, RegisterLimit::Keys { limit: 0, need: 1 });
        }
        Ok(())
    }

    /// A key that is going to stand.
    pub(super) fn reserve(&mut self, nic: usize, range: Range<usize>, untouched: u64) -> Key {
        self.given += 1;
        self.held_bytes += range.len() as u64;
        let handle = (nic as u64 + 1) << 40 | self.given;
        self.keys.insert(handle, Live { range, untouched, settled: false });
        Key { handle, lkey: self.given, rkey: Some(self.given as u32) }
    }

    /// The key stands from now on.
    pub(super) fn settle(&mut self, handle: u64) {
        if let Some(live) = self.keys.get_mut(&handle) {
            live.settled = true;
            self.counts.live_keys += 1;
            self.counts.live_bytes += live.range.len() as u64;
            self.counts.most_live_keys = self.counts.most_live_keys.max(self.counts.live_keys);
        }
    }

    /// What a key is for, if it stands. One that does not is counted.
    pub(super) fn standing(&mut self, handle: u64) -> Option<Range<usize>> {
        let range =
            self.keys.get(&handle).filter(|live| live.settled).map(|live| live.range.clone());
        self.counts.strange_keys += u64::from(range.is_none());
        range
    }

    /// A key is about to be given back: how many of its bytes became resident when it was
    /// registered.
    pub(super) fn unsettle(&mut self, handle: u64) -> u64 {
        self.keys.get_mut(&handle).map_or(0, |live| {
            live.settled = false;
            live.untouched
        })
    }

    /// The key does not stand any more.
    pub(super) fn remove(&mut self, handle: u64) {
        if let Some(live) = self.keys.remove(&handle) {
            let bytes = live.range.len() as u64;
            self.held_bytes -= bytes;
            self.counts.live_keys -= 1;
            self.counts.live_bytes -= bytes;
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            most_in_flight: self.flight.most,
            most_untouched_in_flight: self.flight.most_untouched,
            ..self.counts
        }
    }
}

/// Calls in flight.
#[derive(Debug, Default)]
pub(super) struct Flight {
    now: usize,
    untouched_now: usize,
    pub(super) most: usize,
    pub(super) most_untouched: usize,
}

impl Flight {
    pub(super) fn take_off(&mut self, untouched: bool) {
        self.now += 1;
        self.untouched_now += usize::from(untouched);
        self.most = self.most.max(self.now);
        self.most_untouched = self.most_untouched.max(self.untouched_now);
    }

    pub(super) fn land(&mut self, untouched: bool) {
        self.now -= 1;
        self.untouched_now -= usize::from(untouched);
    }
}
