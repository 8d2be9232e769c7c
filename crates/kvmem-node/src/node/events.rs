//! *Events*: what was stored and what went, for routers that send a request where its prefix is.
//!
//! # Numbers
//!
//! A number has the *epoch* of its server in its upper bits, and counts the events of that server
//! in the lower ones. The epoch is random, so a number of an earlier server never looks like one of
//! this server, and a client that goes on with such a number learns that it missed events.
//!
//! | bits | what they are |
//! |---|---|
//! | 63 | 0 in all numbers of events; a position with a 1 means the end of the log |
//! | 40 to 62 | the epoch, not 0 |
//! | 0 to 39 | counts the events of the server |

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::format::{MAX_NAMESPACES, State};
use crate::socket::fill_random;

/// What happened to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// It can be found under its key.
    Stored,
    /// Another value came under its key.
    Replaced,
    /// A client or an operator removed it.
    Removed,
    /// Its memory was needed, or its time was over.
    Evicted,
    /// Its bytes did not have its checksum.
    Damaged,
    /// The tier has let values go whose keys it does not know: it was full, their bytes were
    /// damaged, or an operator has cleared it. The event has no key, and the namespace
    /// [`NO_NAMESPACE`]. [`NodeClient::locate`](crate::NodeClient::locate) returns which values the
    /// tier still has.
    TierEvicted,
}

/// The namespace of events that concern all of them.
pub const NO_NAMESPACE: u16 = u16::MAX;

const _: () = assert!(MAX_NAMESPACES < NO_NAMESPACE as usize);

/// Something that happened to a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts the events of the server, from a start that differs after each restart.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// The namespace of the key, or [`NO_NAMESPACE`].
    pub namespace: u16,
    /// The key; empty if the event has none.
    pub key: Vec<u8>,
}

/// Events from a position on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// In the order of their numbers, without events of namespaces that the client may not use.
    pub events: Vec<Event>,
    /// The position to go on with.
    pub next: u64,
    /// Whether events between the requested position and the first one of `events` were lost: the
    /// server has the latest ones, and none of an earlier server. What the caller knows
    /// from earlier events may be wrong then. Position 0 is that of the oldest event, so a request
    /// for it never loses any.
    pub lost: bool,
}

/// Bits of a number that count.
const COUNTER_BITS: u32 = 40;

/// Positions from this one on are the end of the log.
const END: u64 = 1 << 63;

/// Returns a random number before the first event of a server.
fn random_start() -> u64 {
    let mut random = [0; 8];
    loop {
        // The call fails only for flags or sizes other than these.
        let _ = fill_random(&mut random);
        let start = u64::from_ne_bytes(random) & (END - 1) & !((1 << COUNTER_BITS) - 1);
        if start != 0 {
            return start;
        }
    }
}

/// Events that one call looks at. It may see few of them.
const MAX_LOOKED_AT: usize = 4096;

/// The last events.
#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<(EventKind, u16, Box<[u8]>)>,
    /// The number of the next event.
    next: u64,
    max: usize,
}

impl EventLog {
    pub(super) fn new(max: usize) -> EventLog {
        EventLog { events: VecDeque::new(), next: random_start(), max }
    }

    pub(super) fn add(&mut self, kind: EventKind, namespace: u16, key: &[u8]) {
        self.next += 1;
        if self.max == 0 {
            return;
        }
        if self.events.len() == self.max {
            self.events.pop_front();
        }
        self.events.push_back((kind, namespace, key.into()));
    }

    /// Returns where to begin for position `from`, and whether events before it were lost.
    fn begin(&self, from: u64) -> (u64, bool) {
        let first = self.next - self.events.len() as u64;
        match from {
            END.. => (self.next, false),
            0 => (first, false),
            from if (first..=self.next).contains(&from) => (from, false),
            // The position is that of a dropped event, or of another server.
            _ => (first, true),
        }
    }

    /// Returns the events from a position in the log on.
    fn from(&self, from: u64) -> impl Iterator<Item = &(EventKind, u16, Box<[u8]>)> {
        self.events.range(self.events.len() - (self.next - from) as usize..)
    }

    /// Returns at most `max` events from position `from` on, of those that the caller `sees` by
    /// their numbers and namespaces.
    pub(super) fn since(
        &self,
        from: u64,
        max: usize,
        mut sees: impl FnMut(u64, u16) -> bool,
    ) -> Events {
        let (from, lost) = self.begin(from);
        let (mut events, mut next) = (Vec::new(), from);
        for (kind, namespace, key) in self.from(from).take(MAX_LOOKED_AT) {
            if events.len() == max {
                break;
            }
            let (number, kind, namespace) = (next, *kind, *namespace);
            next += 1;
            if sees(number, namespace) {
                events.push(Event { number, kind, namespace, key: key.to_vec() });
            }
        }
        Events { events, next, lost }
    }
}

/// Where the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory, whether the tier has it or not.
    Memory,
    /// In the tier alone.
    Tier,
    Nowhere,
}

/// A change of the values of a node, for the [publisher](crate::kv_events) of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The value of a key in a namespace is now in this place.
    Placed(u16, &'a [u8], Place),
    /// The tier has let values go whose keys it does not know.
    TierEvicted,
}

impl super::Node {
    /// Says where the values of at most `max` events from position `from` on are now. Returns the
    /// next position; `None`: events were lost.
    pub(crate) fn changes_since(
        &self,
        from: u64,
        max: usize,
        mut take: impl FnMut(Change<'_>),
    ) -> Option<u64> {
        let (from, lost) = self.events.begin(from);
        if lost {
            return None;
        }
        let mut next = from;
        for (kind, namespace, key) in self.events.from(from).take(max) {
            next += 1;
            let place = match kind {
                // What came in its place has an event of its own.
                EventKind::Replaced => continue,
                EventKind::TierEvicted => {
                    take(Change::TierEvicted);
                    continue;
                }
                // If it has gone meanwhile, an event of its own says so.
                EventKind::Stored => Place::Memory,
                EventKind::Removed | EventKind::Evicted | EventKind::Damaged => {
                    self.place_of(*namespace, key)
                }
            };
            take(Change::Placed(*namespace, key, place));
        }
        Some(next)
    }

    /// Returns where the value of a key is. Without a tier, one that has just gone is nowhere: if
    /// it has come back meanwhile, an event of its own says so.
    fn place_of(&self, namespace: u16, key: &[u8]) -> Place {
        if !self.has_tier() {
            Place::Nowhere
        } else if self.find(namespace, key).is_some() {
            Place::Memory
        } else if self.is_only_in_tier(namespace, key) {
            Place::Tier
        } else {
            Place::Nowhere
        }
    }

    /// Says which values are in memory, of `max` entries from `from` on. Returns the entry to go on
    /// with.
    pub(crate) fn placed_in_memory(
        &self,
        from: u32,
        max: u32,
        mut take: impl FnMut(Change<'_>),
    ) -> Option<u32> {
        let all = self.locals.len() as u32;
        let end = from.saturating_add(max).min(all);
        for slot in from..end {
            let (word, entry) = (self.word(slot), self.entry(slot));
            if word.state == State::Committed {
                let key = &entry.key()[..word.key_len.into()];
                take(Change::Placed(entry.namespace(), key, Place::Memory));
            }
        }
        (end < all).then_some(end)
    }

    /// Says which values the tier alone has, of those whose keys are known: of the first `names`
    /// keys the last `max`. Returns how many keys are left. A key that goes meanwhile is replaced
    /// by the last one, so none is left out.
    pub(crate) fn placed_in_tier(
        &self,
        names: u32,
        max: u32,
        mut take: impl FnMut(Change<'_>),
    ) -> Option<u32> {
        let names = names.min(self.tier_names() as u32);
        let end = names.saturating_sub(max);
        for at in (end..names).rev() {
            let Some((namespace, key)) = self.tier_name(at as usize) else { continue };
            if self.find(*namespace, key).is_none() && self.is_only_in_tier(*namespace, key) {
                take(Change::Placed(*namespace, key, Place::Tier));
            }
        }
        (end > 0).then_some(end)
    }

    /// Returns the name of a namespace.
    pub(crate) fn name_of_namespace(&self, namespace: u16) -> &str {
        &self.namespaces.get(namespace).name
    }

    /// Returns the bytes of memory of the value of a key.
    pub(crate) fn extent_in_memory(&self, namespace: u16, key: &[u8]) -> Option<Range<u64>> {
        self.find(namespace, key).map(|slot| self.entry(slot).extent())
    }

    /// Lets the log have at least this number of events.
    pub(crate) fn log_at_least(&mut self, events: usize) {
        self.events.max = self.events.max.max(events);
    }

    /// Returns at most `max` events from position `from` on, of the namespaces whose names the
    /// caller `sees`. `None` stands for a name that the number of a namespace had before.
    pub(crate) fn events_since(
        &self,
        from: u64,
        max: usize,
        sees: impl Fn(Option<&str>) -> bool,
    ) -> Events {
        let mut seen = [None; MAX_NAMESPACES];
        let mut seen_before = None;
        self.events.since(from, max, |number, namespace| {
            if namespace == NO_NAMESPACE {
                return true;
            }
            let it = self.namespaces.get(namespace);
            if number < it.events_from {
                return *seen_before.get_or_insert_with(|| sees(None));
            }
            *seen[usize::from(namespace)].get_or_insert_with(|| sees(Some(&it.name)))
        })
    }

    /// Returns whether a caller that has waited for these events waits on: there is none, and none
    /// is left to look at.
    pub(crate) fn is_waited_for(&self, found: &Events) -> bool {
        found.events.is_empty() && !found.lost && found.next == self.events.next
    }

    /// Returns the number of the next event.
    pub(crate) fn next_event(&self) -> u64 {
        self.events.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_has_an_epoch_and_counts_from_zero() {
        for _ in 0..100 {
            let start = random_start();
            assert!((1..END >> COUNTER_BITS).contains(&(start >> COUNTER_BITS)), "{start:#x}");
            assert_eq!(start.trailing_zeros().min(COUNTER_BITS), COUNTER_BITS, "{start:#x}");
        }
    }

    #[test]
    fn dropped_events_are_reported() {
        let mut log = EventLog::new(3);
        let start = log.next;
        for key in 0..5_u8 {
            log.add(EventKind::Stored, 0, &[key]);
        }
        let found = log.since(start, 2, |_, _| true);
        let numbers: Vec<(u64, u8)> =
            found.events.iter().map(|it| (it.number - start, it.key[0])).collect();
        assert_eq!((numbers, found.next - start, found.lost), (vec![(2, 2), (3, 3)], 4, true));
        // A client that begins has lost nothing.
        assert!(
            !log.since(0, 2, |_, _| true).lost
                && log.since(0, 2, |_, _| true).events == found.events
        );
        let rest = log.since(found.next, 10, |_, _| true);
        assert_eq!((rest.events.len(), rest.next - start, rest.lost), (1, 5, false));
        let none = Events { next: rest.next, ..Events::default() };
        assert_eq!(log.since(rest.next, 10, |_, _| true), none);
        assert_eq!(log.since(u64::MAX, 10, |_, _| true), none);
    }

    #[test]
    fn a_position_of_another_server_is_reported_whatever_its_number() {
        for _ in 0..100 {
            let (mut before, mut log) = (EventLog::new(9), EventLog::new(9));
            (0..3).for_each(|key| before.add(EventKind::Stored, 0, &[key]));
            // The restarted server passes the count of the one before.
            (0..7).for_each(|key| log.add(EventKind::Stored, 0, &[key]));
            let found = log.since(before.since(0, 10, |_, _| true).next, 10, |_, _| true);
            assert!(found.lost && found.events.len() == 7);
            assert!(!log.since(found.next, 10, |_, _| true).lost);
        }
    }
}
