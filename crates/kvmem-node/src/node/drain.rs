//! *Draining*: before a server ends, the tier gets the values that it lacks.

use super::node::Node;
use crate::format::State;

impl Node {
    /// Returns the values that the tier takes and does not have, pinned ones too, and their bytes.
    /// The last one is the one that was used last. O(n log n) for n entries that were ever used.
    pub(crate) fn to_drain(&self) -> (Vec<u32>, u64) {
        let mut values: Vec<(u64, u32)> = self
            .committed_slots()
            .filter(|slot| self.is_to_store(*slot))
            .map(|slot| (self.entry(slot).used_at(), slot))
            .collect();
        values.sort_unstable();
        let values: Vec<u32> = values.into_iter().map(|(_, slot)| slot).collect();
        let bytes = values.iter().map(|slot| self.len_of(*slot)).sum();
        (values, bytes)
    }

    /// Begins to store the last of these values, as many as may be stored at a time. Returns their
    /// bytes.
    pub(crate) fn drain(&mut self, values: &mut Vec<u32>) -> u64 {
        let mut begun = 0;
        while self.may_store() && !values.is_empty() {
            let mut job = Vec::new();
            let mut bytes = 0;
            while !self.is_full_job(bytes, job.len()) {
                let Some(slot) = values.pop() else { break };
                // Another value may have the entry by now.
                if self.word(slot).state == State::Committed && self.is_to_store(slot) {
                    bytes += self.len_of(slot);
                    job.push(self.storing(slot));
                }
            }
            if !job.is_empty() {
                self.begin_storing(job);
            }
            begun += bytes;
        }
        begun
    }
}
