//! *NIC state*: the keys and limits of one simulated NIC.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{CallCounts, Fault};
use kvmem::arena::Errno;
use kvmem::register::{Key, Memlock, RegisterLimit, RegistrarError};

pub(super) const REGISTER: &str = "simulated register";
pub(super) const DEREGISTER: &str = "simulated deregister";

/// The limits of a simulated NIC. By default there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLimits {
    /// The largest number of bytes that one key can cover.
    pub max_bytes: u64,
    /// The largest number of keys at once.
    pub max_keys: u64,
    /// The chunk length in bytes at which registering is fastest.
    pub preferred_chunk_bytes: Option<u64>,
    /// A limit on pinned bytes. All NICs of the machine with the same account share it;
    /// `used_bytes` are the bytes pinned by others before.
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

/// An issued key.
#[derive(Debug)]
struct IssuedKey {
    range: Range<usize>,
    /// Bytes that became resident when it was registered.
    untouched: u64,
    /// Whether the key is valid: neither being registered nor being deregistered.
    valid: bool,
}

/// The keys, limits, faults and counts of one NIC.
#[derive(Debug, Default)]
pub(super) struct NicState {
    pub(super) limits: NicLimits,
    counts: CallCounts,
    /// By handle.
    keys: BTreeMap<u64, IssuedKey>,
    faults: Vec<Fault>,
    /// The number of keys ever issued.
    issued: u64,
    held_bytes: u64,
}

impl NicState {
    pub(super) fn new(limits: NicLimits) -> NicState {
        NicState { limits, ..NicState::default() }
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Returns the bytes under all keys, including keys that are being registered.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn held_keys(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Counts a call and returns the error of an injected fault. Every fault sees every call of
    /// its kind, so each counts from the call after its injection.
    pub(super) fn count_call(&mut self, register: bool) -> Option<Errno> {
        match register {
            true => self.counts.registers += 1,
            false => self.counts.deregisters += 1,
        }
        let mut errno = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.register == register) {
            errno = errno.or(fault.count_call());
        }
        errno
    }

    pub(super) fn count_failure(&mut self) {
        self.counts.failed += 1;
    }

    /// Checks the limits of this NIC alone for a key of this many bytes.
    pub(super) fn allow(&self, bytes: u64) -> Result<(), RegistrarError> {
        let failed =
            |errno, exceeded| Err(RegistrarError::new(REGISTER, errno, "").exceeded(exceeded));
        if bytes == 0 {
            return Err(RegistrarError::new(REGISTER, Errno::EINVAL, "register at least one byte"));
        }
        if bytes > self.limits.max_bytes {
            let limit_bytes = self.limits.max_bytes;
            return failed(
                Errno::EINVAL,
                RegisterLimit::KeyBytes { limit_bytes, need_bytes: bytes },
            );
        }
        if self.held_keys() >= self.limits.max_keys {
            return failed(Errno::ENOMEM, RegisterLimit::Keys { limit: 0, need: 1 });
        }
        Ok(())
    }

    /// Reserves a key for a call that will succeed.
    pub(super) fn reserve(&mut self, nic: usize, range: Range<usize>, untouched: u64) -> Key {
        self.issued += 1;
        self.held_bytes += range.len() as u64;
        let handle = (nic as u64 + 1) << 40 | self.issued;
        self.keys.insert(handle, IssuedKey { range, untouched, valid: false });
        Key { handle, lkey: self.issued, rkey: Some(self.issued as u32) }
    }

    /// Makes a reserved key valid.
    pub(super) fn make_valid(&mut self, handle: u64) {
        if let Some(live) = self.keys.get_mut(&handle) {
            live.valid = true;
            self.counts.live_keys += 1;
        }
    }

    /// Returns the range of a valid key. Counts an unknown one.
    pub(super) fn valid_range(&mut self, handle: u64) -> Option<Range<usize>> {
        let range = self.keys.get(&handle).filter(|live| live.valid).map(|live| live.range.clone());
        self.counts.unknown_keys += u64::from(range.is_none());
        range
    }

    /// Makes a key invalid that is about to be deregistered; returns how many of its bytes became
    /// resident when it was registered.
    pub(super) fn make_invalid(&mut self, handle: u64) -> u64 {
        self.keys.get_mut(&handle).map_or(0, |live| {
            live.valid = false;
            live.untouched
        })
    }

    /// Removes a deregistered key.
    pub(super) fn remove(&mut self, handle: u64) {
        if let Some(live) = self.keys.remove(&handle) {
            self.held_bytes -= live.range.len() as u64;
            self.counts.live_keys -= 1;
        }
    }

    pub(super) fn counts(&self) -> CallCounts {
        self.counts
    }
}
