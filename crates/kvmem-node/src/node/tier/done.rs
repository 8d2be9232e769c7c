//! *Done*: what the threads of the tier have done becomes a part of the state.

use super::Waiting;
use crate::node::Node;
use crate::tier::{Offered, TierDone};

impl Node {
    /// Takes what a thread of the tier has done. Returns the calls that waited for it, once for
    /// each key.
    pub(crate) fn tier_done(&mut self, done: TierDone, now: u64) -> Vec<Waiting> {
        let ended = self.job_done(done, now);
        self.note_evictions();
        ended
    }

    fn job_done(&mut self, done: TierDone, now: u64) -> Vec<Waiting> {
        match done {
            TierDone::Stored(values) => {
                for (value, offered) in &values {
                    self.value_stored(value, *offered);
                }
                let stored = values.iter().filter(|(_, offered)| *offered == Offered::Stored);
                let stored: Vec<u32> = stored.map(|(value, _)| value.slot).collect();
                let queue = self.tier.as_mut().expect("there is a tier");
                queue.refuses = stored.is_empty();
                if stored.is_empty() {
                    // A tier that takes no values would be offered the same ones without an end.
                    self.stop_storing();
                }
                self.touch_ancestors(&stored);
                Vec::new()
            }
            TierDone::Fetched(values) => {
                let fetched = values.into_iter();
                fetched.flat_map(|(value, hit)| self.value_fetched(&value, hit, now)).collect()
            }
            TierDone::LookedUp(values) => {
                let values = values.into_iter();
                values.flat_map(|(value, len)| self.looked_up(value, len)).collect()
            }
            TierDone::Cleared(cleared) => {
                self.cleared(cleared);
                Vec::new()
            }
            TierDone::Removed(values, removed) => {
                values.into_iter().flat_map(|value| self.value_removed(value, removed)).collect()
            }
        }
    }
}
