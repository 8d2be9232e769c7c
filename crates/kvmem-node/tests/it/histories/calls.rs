//! *Calls*: one random call of one client, and what the model says to it.

use std::time::Duration;

use kvmem::tier::Priority;
use kvmem_node::{
    CallError, ClientError, EventKind, NewValue, NodeReservation, ParentKey, PinBatch, Quota,
    ValueOptions,
};

use super::client::{Held, has_bytes_of, write_bytes_of};
use super::model::Id;
use super::world::World;

/// Keys of a namespace.
const KEYS: u64 = 18;

/// Returns a key, of a length that depends on its number.
fn key(number: u64) -> Vec<u8> {
    let mut key = format!("key-{number}").into_bytes();
    key.resize(key.len().max(number as usize * 64 / KEYS as usize), b'.');
    key
}

/// A failed call changes nothing at the server but what the model knows.
fn error_of<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> Result<T, CallError> {
    outcome.map_err(|error| match error {
        ClientError::Call(error) => error,
        other => panic!("{other}"),
    })
}

impl World {
    /// Makes one call.
    pub(super) fn any_call(&mut self) {
        let client = self.random.below(self.clients.len() as u64) as usize;
        match self.random.below(100) {
            0..25 => self.acquire(client),
            25..35 => self.release(client),
            35..55 => self.reserve(client),
            55..75 => self.commit(client),
            75..78 => self.abandon(client),
            78..82 => self.remove(client),
            82..86 => self.touch(client),
            86..90 => self.lookup(client),
            90 => self.evict(),
            96 => self.resize(),
            91 if self.random.once_in(4) => self.clear(),
            92..96 => {
                self.call = format!("client {client} is replaced");
                self.replace_client(client);
            }
            _ if self.random.once_in(2) => self.restart(),
            _ => {}
        }
    }

    /// Returns some keys, often neighbours as those of a prefix are, and rarely one that is not
    /// possible.
    fn keys(&mut self) -> Vec<Vec<u8>> {
        let first = self.random.below(KEYS);
        let mut keys: Vec<Vec<u8>> = match self.random.once_in(3) {
            true => {
                let count = 1 + self.random.below(4);
                (0..count).map(|_| key(self.random.below(KEYS))).collect()
            }
            false => (first..=first + self.random.below(6)).map(|it| key(it % KEYS)).collect(),
        };
        if self.random.once_in(50) {
            keys.push(vec![b'x'; 65 * self.random.below(2) as usize]);
        }
        keys
    }

    fn lookup(&mut self, client: usize) {
        let keys = self.keys();
        self.call = format!("client {client} looks up {} keys", keys.len());
        let namespace = self.model.sessions[&self.clients[client].session].namespace;
        let found = self.clients[client].client.lookup(&keys).expect("a call");
        let has = |key: &&Vec<u8>| self.model.visible(namespace, key).is_some();
        assert_eq!(found, keys.iter().take_while(has).count());
    }

    fn acquire(&mut self, number: usize) {
        let keys = self.keys();
        let client = &mut self.clients[number];
        let (mut prefix_only, session) = (self.random.once_in(2), client.session);
        let earlier = client.held.pop_if(|_| !prefix_only && self.random.once_in(2));
        self.call = format!("client {number} acquires {} keys, {}", keys.len(), earlier.is_some());
        let released = earlier.as_ref().map_or(Vec::new(), Held::pinned);
        let outcome = match earlier {
            Some(earlier) => {
                prefix_only = false;
                earlier.check();
                client.client.exchange(earlier.pins, &keys)
            }
            None if prefix_only => client.client.acquire_prefix(&keys),
            None => client.client.acquire(&keys),
        };
        self.events().end(&mut self.model);
        self.model.release(session, &released);
        let expected = self.model.acquire(session, &keys, prefix_only);
        match (error_of(outcome), expected) {
            (Ok(pins), Ok(ids)) => {
                self.done.pinned += pins.hits() as u64;
                let held = Held { pins, ids };
                for (found, id) in held.pins.values().zip(&held.ids) {
                    let place = found.map(|it| (it.offset(), it.bytes().len() as u64));
                    let block = id.map(|id| &self.model.blocks[&id]);
                    assert_eq!(place, block.map(|it| (it.offset, it.len)));
                }
                held.check();
                self.clients[number].held.push(held);
            }
            (Err(error), Err(expected)) => {
                assert_eq!(error, expected);
                self.done.quotas += u64::from(matches!(error, CallError::Quota { .. }));
            }
            (got, expected) => panic!("{got:?} is not {expected:?}"),
        }
    }

    /// Ends pins: of one batch, of a part of one, or of all at once.
    fn release(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let session = client.session;
        let mut ids = Vec::new();
        match self.random.below(4) {
            0 => {
                self.call = format!("client {number} releases all");
                client.held.iter().for_each(Held::check);
                ids = client.held.iter().flat_map(Held::pinned).collect();
                PinBatch::release_all(client.held.drain(..).map(|held| held.pins));
            }
            1 => {
                let Some(held) = client.held.pop() else { return };
                self.call = format!("client {number} divides a batch");
                for (part, id) in held.pins.split().into_iter().zip(held.ids) {
                    assert_eq!(part.is_some(), id.is_some());
                    if let Some(pins) = part {
                        client.held.push(Held { pins, ids: vec![id] });
                    }
                }
            }
            _ => {
                let count = client.held.len() as u64;
                if count == 0 {
                    return;
                }
                self.call = format!("client {number} releases a batch");
                let held = client.held.swap_remove(self.random.below(count) as usize);
                held.check();
                ids = held.pinned();
            }
        }
        // The release has no answer: the server has done it before it answers the next call.
        self.clients[number].client.keep_alive().expect("a call");
        self.events().end(&mut self.model);
        self.model.release(session, &ids);
    }

    fn reserve(&mut self, number: usize) {
        let count = 1 + self.random.below(4);
        let longest = [2000, 12_000, 60_000, 300_000][self.random.log_below(4) as usize];
        let sizes: Vec<u64> = (0..count).map(|_| 1 + self.random.below(longest)).collect();
        self.call = format!("client {number} reserves {sizes:?}");
        let session = self.clients[number].session;
        let outcome = error_of(self.clients[number].client.reserve(&sizes));
        let mut events = self.events();
        if let Err(expected) = self.model.check_reserve(session, &sizes) {
            assert_eq!(outcome.expect_err("it must fail"), expected);
            self.done.quotas += u64::from(matches!(expected, CallError::Quota { .. }));
            return events.end(&mut self.model);
        }
        match outcome {
            Ok(blocks) => {
                let made: Vec<(u64, u64)> =
                    blocks.iter().map(|block| (block.offset(), block.len() as u64)).collect();
                assert_eq!(made.iter().map(|(_, len)| *len).collect::<Vec<u64>>(), sizes);
                let ids = self.model.reserve(session, &made, &mut events);
                let mut written: Vec<(NodeReservation, Id)> = blocks.into_iter().zip(ids).collect();
                written.iter_mut().for_each(|(block, id)| {
                    write_bytes_of(*id, block.bytes_mut().expect("it is reserved"))
                });
                self.clients[number].writing.push(written);
            }
            Err(error) => {
                let explained = self.model.fail_to_reserve(session, &sizes, &error, &mut events);
                assert!(explained, "{error:?} has no explanation: {events:?}");
                match error {
                    CallError::OutOfSpace { free, largest, .. } if sizes.len() == 1 => {
                        let space = &self.model.space;
                        assert_eq!((free, largest), (space.free_bytes(), space.largest_free()));
                        self.done.out_of_space += 1;
                        let fits = space.fits(sizes[0], self.model.options.align);
                        let most = self.model.options.max_blocks.expect("it is set") as usize;
                        assert!(!fits || self.model.blocks.len() == most, "there was space");
                    }
                    CallError::Quota { what: Quota::NamespaceBytes, .. } => self.done.quotas += 1,
                    _ => {}
                }
            }
        }
        events.end(&mut self.model);
    }

    fn commit(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let Some(batch) = client.writing.pop() else { return };
        let session = client.session;
        let mut short_lived = Vec::new();
        let mut items = Vec::new();
        let mut values = Vec::new();
        let first = self.random.below(KEYS);
        for (at, (reservation, id)) in (0..).zip(batch) {
            assert!(has_bytes_of(id, reservation.bytes()), "reserved bytes have changed");
            let of = match self.random.below(60) {
                0 => self.random.below(KEYS),
                _ => (first + at) % KEYS,
            };
            let key = if self.random.once_in(60) { vec![b'x'; 65] } else { key(of) };
            // Trees of chains: the parent has a lower number, so there are no cycles.
            let parent = match self.random.below(8) {
                0 | 1 => None,
                2 => of.checked_sub(1 + self.random.below(4)),
                _ => of.checked_sub(1),
            };
            let parent = parent.map(self::key);
            self.model.blocks.get_mut(&id).expect("it is a block").parent.clone_from(&parent);
            let parent = parent.map(|key| ParentKey::new(key).expect("it is short"));
            let priority = Priority::nearest(self.random.log_below(4) as i8);
            let ttl = match self.random.below(16) {
                0 => Some(Duration::from_millis(1)),
                1 => Some(Duration::from_secs(3600)),
                _ => None,
            };
            if ttl == Some(Duration::from_millis(1)) {
                short_lived.push(id);
            }
            items.push((key.clone(), id, usize::from(priority.get())));
            values.push(NewValue {
                key,
                reservation,
                options: ValueOptions { parent, priority, ttl, ..ValueOptions::default() },
            });
        }
        self.call = format!("client {number} commits {} values", items.len());
        let expected = expected_of(&items);
        let outcome = client.client.commit(values);
        if let Some(expected) = expected {
            let failed = outcome.expect_err("it must fail");
            assert_eq!(error_of::<()>(Err(failed.error)), Err(expected));
            assert_eq!(failed.values.len(), items.len());
            for (value, (_, id, _)) in failed.values.into_iter().zip(&items) {
                drop(value);
                self.model.release(session, &[*id]);
            }
            self.clients[number].client.keep_alive().expect("a call");
            return self.events().end(&mut self.model);
        }
        outcome.expect("the blocks are reserved");
        self.done.committed += items.len() as u64;
        if !short_lived.is_empty() {
            std::thread::sleep(Duration::from_millis(3));
        }
        let mut events = self.events();
        self.model.commit(session, &items, &mut events);
        for id in short_lived {
            self.model.blocks.get_mut(&id).expect("it is a block").expired = true;
            self.done.expired += 1;
        }
        events.end(&mut self.model);
    }

    /// Drops reservations.
    fn abandon(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let Some(batch) = client.writing.pop() else { return };
        self.call = format!("client {number} drops {} reservations", batch.len());
        for (block, id) in batch {
            drop(block);
            self.model.release(client.session, &[id]);
            self.done.abandoned += 1;
        }
        client.client.keep_alive().expect("a call");
    }

    fn remove(&mut self, number: usize) {
        let mut keys = self.keys();
        keys.truncate(3);
        self.call = format!("client {number} removes {} keys", keys.len());
        let session = self.clients[number].session;
        let outcome = error_of(self.clients[number].client.remove(&keys));
        let mut events = self.events();
        if self.model.sessions[&session].read_only {
            assert_eq!(outcome, Err(CallError::ReadOnly));
            return events.end(&mut self.model);
        }
        let (namespace, mut removed) = (self.model.sessions[&session].namespace, 0);
        for key in &keys {
            events.take_expired(&mut self.model);
            if let Some(id) = self.model.find(namespace, key) {
                events.expect(EventKind::Removed, namespace, key);
                self.model.withdraw(id, EventKind::Removed);
                removed += 1;
            }
        }
        assert_eq!(outcome, Ok(removed));
        events.end(&mut self.model);
    }

    fn touch(&mut self, number: usize) {
        let keys = self.keys();
        self.call = format!("client {number} touches {} keys", keys.len());
        let touched = self.clients[number].client.touch(&keys).expect("a call");
        self.events().end(&mut self.model);
        assert_eq!(touched, self.model.touch(self.clients[number].session, &keys));
    }

    /// An operator evicts values.
    fn evict(&mut self) {
        let namespace = (!self.random.once_in(2)).then(|| self.random.below(3) as usize);
        let name = namespace.map(|number| self.model.namespaces[number].name);
        let bytes = self.random.below(60_000);
        self.call = format!("an operator evicts {bytes} bytes of {name:?}");
        let evicted = self.observer.as_operator().evict(name, bytes).expect("an operator");
        let mut events = self.events();
        let (sure, possible) = self.model.evict(namespace, bytes, &mut events);
        assert!((sure..=possible).contains(&evicted), "{evicted} bytes, not {sure}..={possible}");
        events.end(&mut self.model);
    }

    /// An operator changes the size. If blocks are in the way, the memory gets all of its file.
    fn resize(&mut self) {
        let mut size = (16 + 4 * self.random.below(self.len / 4096)).min(self.len / 1024) << 10;
        self.call = format!("the memory gets {size} bytes");
        let resized = self.observer.as_operator().resize(size).expect("an operator");
        if resized.size != size {
            assert!(resized.held_bytes > 0, "{resized:?}");
            size = self.len;
            let resized = self.observer.as_operator().resize(size).expect("an operator");
            assert_eq!((resized.size, resized.held_bytes), (size, 0));
        }
        self.options.size = size;
        let offsets = self.offsets();
        let mut events = self.events();
        self.done.moved += self.model.resize(size, &offsets, &mut events);
        events.end(&mut self.model);
    }

    /// An operator removes all values of a namespace.
    fn clear(&mut self) {
        let namespace = self.random.below(3) as usize;
        let name = self.model.namespaces[namespace].name;
        self.call = format!("an operator clears {name:?}");
        let cleared = self.observer.as_operator().clear(Some(name)).expect("an operator");
        let found = self.events().removed_in(&mut self.model, namespace);
        assert_eq!(cleared, found);
        let left =
            self.model.committed().filter(|(_, id)| self.model.blocks[id].namespace == namespace);
        assert_eq!(left.count(), 0);
    }
}

/// Returns the error that a commit must give, if any.
fn expected_of(items: &[(Vec<u8>, Id, usize)]) -> Option<CallError> {
    for (index, (key, _, _)) in items.iter().enumerate() {
        if key.len() > 64 {
            return Some(CallError::BadKey { len: key.len(), limit: 64 });
        }
        if items[..index].iter().any(|(other, _, _)| other == key) {
            return Some(CallError::Twice { index });
        }
    }
    None
}
