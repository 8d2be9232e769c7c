//! *Prefixes*: after each step of a server, a copy of its files is recovered after each store of
//! the step.
//!
//! The copy follows the stores one by one. A recovery changes it; its own stores are then taken
//! back. A store that leaves its word as it was makes no other state, and no recovery. What a
//! recovery of each prefix must have:
//!
//! 1. The index has no damaged entry, and the invariants of the node hold.
//! 2. A value is one that could be found before the step or after it, or that the step has
//!    committed. A value of both is found, also if it moves in the step. In the last step of a
//!    server, one that is evicted may come back from the tier, and is not found meanwhile.
//! 3. Of a batch that the step has committed, all values are found or none.
//! 4. A session whose client lives has the grants that it had before the step and has after it.
//! 5. With all clients gone, nothing is in use but the values.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{ENTRIES_AT, ENTRY_BYTES, MAX_SESSIONS};
use crate::node::{FoundValue, FoundValues, Granting, Node, NodeMemory, NodeOptions};
use crate::test_stores::{Effect, effects_of};

/// What can be seen of a node between two steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) values: FoundValues,
    /// The first word of each value, which names it, and the address of its end.
    named: BTreeMap<(u16, Vec<u8>), (u64, usize)>,
    pub(super) granting: Vec<Granting>,
    pub(super) batches: u64,
}

impl Seen {
    pub(super) fn of(node: &Node) -> Seen {
        let values = node.found_values();
        let memory = node.memory.bytes.base().as_ptr().addr();
        let named =
            |it: &FoundValue| (node.first_word(it.offset), memory + (it.offset + it.len) as usize);
        let named = values.iter().map(|(key, it)| (key.clone(), named(it))).collect();
        Seen { values, named, granting: node.granting(true), batches: node.batches() }
    }

    /// Returns the keys of the values that have moved in the step from `before` to this: the last
    /// bytes of each were copied to its new place.
    fn moved(&self, before: &Seen, effects: &[Effect]) -> Vec<&(u16, Vec<u8>)> {
        let end = |effect: &Effect| match effect {
            Effect::Memory { address, before } => Some(address + before.len()),
            _ => None,
        };
        let copied: BTreeSet<usize> = effects.iter().filter_map(end).collect();
        let is_moved = |(key, (name, end)): &(&(u16, Vec<u8>), &(u64, usize))| {
            let same = before.named.get(*key).is_some_and(|(of, _)| of == name);
            same && before.values.get(*key) != self.values.get(*key) && copied.contains(end)
        };
        self.named.iter().filter(is_moved).map(|(key, _)| key).collect()
    }
}

/// The copy.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// `None` while it is recovered.
    memory: Option<NodeMemory>,
    options: NodeOptions,
    /// The addresses of the files of the server that runs: index and words.
    of_server: [usize; 2],
    pub(super) checked: u64,
}

/// The bytes of an entry that say which sessions use it.
const USERS: std::ops::Range<usize> = 128..160;

/// Bytes of the words of sessions.
const WORDS_BYTES: usize = 2 * MAX_SESSIONS * 8;

impl Prefixes {
    pub(super) fn new(memory: &NodeMemory, options: NodeOptions) -> Prefixes {
        let mut prefixes =
            Prefixes { memory: Some(memory.scratch()), options, of_server: [0; 2], checked: 0 };
        prefixes.follow(memory);
        prefixes
    }

    /// Follows the stores of another server from now on, whose files are as the copy.
    pub(super) fn follow(&mut self, memory: &NodeMemory) {
        self.of_server = addresses(memory);
    }

    /// Panics unless the copy is as the files of the server.
    pub(super) fn compare(&self, memory: &NodeMemory) {
        let copy = self.memory.as_ref().expect("it is not recovered now");
        assert!(copy.index_bytes() == memory.index_bytes(), "a store to the index was not noted");
    }

    /// Returns the place of a word in the copy, if it outlives the server.
    fn place(&self, effect: &Effect) -> Option<*mut u64> {
        let copy = addresses(self.memory.as_ref().expect("it is not recovered now"));
        let address = match *effect {
            Effect::Index { address, .. } => copy[0] + (address - self.of_server[0]),
            Effect::Word { address, .. } => {
                let at = address.checked_sub(self.of_server[1]).filter(|at| *at < WORDS_BYTES)?;
                copy[1] + at
            }
            Effect::Memory { .. } | Effect::Packet { .. } => return None,
        };
        Some(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Makes a store of the server to the copy. Returns whether it is one that outlives it.
    fn make(&self, effect: &Effect) -> bool {
        let (Effect::Index { after, .. } | Effect::Word { after, .. }) = *effect else {
            return false;
        };
        let Some(word) = self.place(effect) else { return false };
        // SAFETY: the word is one of the mapped copy, which only this thread uses.
        unsafe { word.write(after) };
        true
    }

    /// Takes back stores, the last one first.
    pub(super) fn take_back(&self, effects: &[Effect]) {
        for effect in effects.iter().rev() {
            let (Effect::Index { before, .. } | Effect::Word { before, .. }) = *effect else {
                continue;
            };
            if let Some(word) = self.place(effect) {
                // SAFETY: as in `make`.
                unsafe { word.write(before) };
            }
        }
    }

    /// Follows a step, and recovers each prefix of its stores.
    pub(super) fn check(
        &mut self,
        effects: &[Effect],
        before: &Seen,
        after: &Seen,
    ) -> Result<(), String> {
        let changed = self.changed_users(effects);
        let moved = after.moved(before, effects);
        let mut last = 0;
        for (index, effect) in effects.iter().enumerate() {
            let is_first = last == 0;
            if self.make(effect) {
                last = index + 1;
                // A word that stays the same leaves the state that was recovered just before.
                if !is_first && effect.changes_nothing() {
                    continue;
                }
                self.recover(before, after, &changed, &moved, false).map_err(|error| {
                    format!("after {last} of {} effects: {error}", effects.len())
                })?;
            }
        }
        if last > 0 {
            self.recover(before, after, &changed, &moved, true)
                .map_err(|error| format!("with all clients gone: {error}"))?;
        }
        Ok(())
    }

    /// Returns the values that a recovery of the copy finds now.
    pub(super) fn found(&mut self) -> Seen {
        self.with_recovered(false, &Seen::default(), |node, _| Seen::of(node))
            .expect("it was recovered before")
    }

    fn with_recovered<R>(
        &mut self,
        all_gone: bool,
        after: &Seen,
        look: impl FnOnce(&Node, u64) -> R,
    ) -> Result<R, String> {
        let memory = self.memory.take().expect("it is not recovered now");
        let places = addresses(&memory);
        let gone = |token| after.granting.iter().any(|it| it.token == token && !it.lives);
        let ((result, memory), effects) = effects_of(|| {
            let lives = |token| !all_gone && !gone(token);
            let recovered = Node::recover_simulated(memory, self.options.clone(), lives);
            let (node, report) = recovered.map_err(|error| format!("no recovery: {error}"))?;
            let checked = node.check();
            let result = look(&node, report.damaged);
            checked.map(|()| (result, node.into_memory()))
        })
        .transposed()?;
        self.memory = Some(memory);
        self.checked += 1;
        let of_server = std::mem::replace(&mut self.of_server, places);
        self.take_back(&effects);
        self.of_server = of_server;
        Ok(result)
    }

    /// Returns the entries whose users have changed: one may have released and pinned a value.
    fn changed_users(&self, effects: &[Effect]) -> BTreeSet<u32> {
        let entry = |effect: &Effect| {
            let Effect::Index { address, .. } = *effect else { return None };
            let at = (address - self.of_server[0]).checked_sub(ENTRIES_AT)?;
            USERS.contains(&(at % ENTRY_BYTES)).then_some((at / ENTRY_BYTES) as u32)
        };
        effects.iter().filter_map(entry).collect()
    }

    fn recover(
        &mut self,
        before: &Seen,
        after: &Seen,
        changed: &BTreeSet<u32>,
        moved: &[&(u16, Vec<u8>)],
        all_gone: bool,
    ) -> Result<(), String> {
        let align = self.options.align;
        self.with_recovered(all_gone, after, |node, damaged| {
            if damaged > 0 {
                return Err(format!("{damaged} entries are damaged"));
            }
            let values = node.found_values();
            for (key, value) in &values {
                let is_known = [before, after].iter().any(|it| it.values.get(key) == Some(value));
                if !is_known && value.batch < before.batches {
                    return Err(format!("{key:?} has {value:?}, which is of an earlier batch"));
                }
            }
            let stays = before.values.iter().filter(|(key, it)| after.values.get(*key) == Some(it));
            if let Some((key, _)) = stays.clone().find(|(key, it)| values.get(*key) != Some(it)) {
                return Err(format!("the value of {key:?} is lost"));
            }
            if let Some(key) = moved.iter().find(|key| !values.contains_key(**key)) {
                return Err(format!("the value of {key:?} is lost while it moves"));
            }
            let came = after.values.iter().filter(|(_, it)| it.batch >= before.batches);
            let mut batches = BTreeMap::<u64, [usize; 2]>::new();
            for (key, value) in came {
                let found = usize::from(values.get(key) == Some(value));
                batches.entry(value.batch).or_default()[found] += 1;
            }
            if let Some((batch, _)) = batches.iter().find(|(_, it)| !it.contains(&0)) {
                return Err(format!("a part of batch {batch} is found"));
            }
            if all_gone {
                let space: u64 = values.values().map(|it| it.len.next_multiple_of(align)).sum();
                let used = node.stats().used;
                return match used == space {
                    true => Ok(()),
                    false => Err(format!("{used} bytes are in use, and values have {space}")),
                };
            }
            let granting = node.granting(false);
            for had in before.granting.iter() {
                let Some(has) = after.granting.iter().find(|it| it.token == had.token) else {
                    continue;
                };
                if !has.lives {
                    continue;
                }
                // A session without grants may begin anew.
                let nothing = Granting::default();
                let found = granting.iter().find(|it| it.token == had.token).unwrap_or(&nothing);
                let pins = had.pins.intersection(&has.pins);
                let pins = pins.filter(|it| !found.pins.contains(it));
                let reservations = had.reservations.intersection(&has.reservations);
                let reservations = reservations.filter(|it| !found.reservations.contains(it));
                let lost = pins.chain(reservations).find(|(slot, _)| !changed.contains(slot));
                if let Some(lost) = lost {
                    return Err(format!("session {:x} has lost {lost:?}", had.token));
                }
            }
            Ok(())
        })?
    }
}

/// A result beside effects, the other way round.
trait Transposed<T, U> {
    fn transposed(self) -> Result<(T, U), String>;
}

impl<T, U> Transposed<T, U> for (Result<T, String>, U) {
    fn transposed(self) -> Result<(T, U), String> {
        self.0.map(|it| (it, self.1))
    }
}

/// Returns the addresses of the index and of the words.
fn addresses(memory: &NodeMemory) -> [usize; 2] {
    // The addresses are those of mapped memory that has no other owner.
    [memory.index_base(), memory.session_file.base()]
}
