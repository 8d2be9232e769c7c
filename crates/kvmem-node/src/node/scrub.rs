//! *Scrubbing*: values with checksums are verified while nobody asks for them.

use super::node::Node;
use super::{BlockHandle, EventKind, SessionIndex};
use crate::error::CallError;
use crate::format::State;

/// A value to verify. It stays at its position in the order of eviction, and is not evicted
/// meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scrubbing {
    pub(crate) slot: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) checksum: u32,
}

impl Node {
    /// Returns the next value with a checksum from entry `from` on, and the entry to go on with.
    /// Looks at `max` entries at most.
    pub(crate) fn next_to_scrub(&mut self, from: u32, max: u32) -> (Option<Scrubbing>, u32) {
        let all = self.locals.len() as u32;
        let end = from.saturating_add(max).min(all);
        for slot in from..end {
            let entry = self.entry(slot);
            let committed = self.word(slot).state == State::Committed;
            if let Some(checksum) = entry.checksum().filter(|_| committed) {
                let (offset, len) = (entry.extent().start, self.len_of(slot));
                self.locals[slot as usize].verifying = true;
                return (Some(Scrubbing { slot, offset, len, checksum }), slot + 1);
            }
        }
        (None, if end == all { 0 } else { end })
    }

    /// Takes the result of a verification, and withdraws a value that is damaged.
    pub(crate) fn scrubbed(&mut self, value: &Scrubbing, whole: bool) {
        self.counters.scrubbed += 1;
        if !std::mem::take(&mut self.locals[value.slot as usize].verifying) {
            // It went meanwhile, and has a pin instead.
            self.end_server_pin(value.slot);
        } else if !whole {
            self.counters.damaged += 1;
            self.withdraw(value.slot, EventKind::Damaged);
        }
    }

    /// Withdraws values that a client has found damaged. It has them pinned.
    pub(crate) fn report_damage(
        &mut self,
        session: SessionIndex,
        handles: &[BlockHandle],
    ) -> Result<usize, CallError> {
        if self.is_read_only(session) {
            return Err(CallError::ReadOnly);
        }
        let mut withdrawn = 0;
        for handle in handles {
            let (slot, word) = self.live(*handle)?;
            let pinned = self.sessions.get(session).pins.contains_key(&slot);
            if pinned && word.state == State::Committed {
                self.counters.damaged += 1;
                self.withdraw(slot, EventKind::Damaged);
                withdrawn += 1;
            }
        }
        Ok(withdrawn)
    }
}
