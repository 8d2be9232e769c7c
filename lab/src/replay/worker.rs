//! *Worker*: serves requests from a store, as one thread of a server would.
//!
//! A block is held under its hash id, which stands for the block *and everything before it*, object
//! by object. A request looks its ids up in order. Blocks are *hits* while all objects of each
//! block are held: their KV cache need not be computed again. From the first incomplete block on,
//! the rest are *misses*: the engine computes them, and their missing objects are inserted.
//!
//! When an object does not fit, the store evicts others until it does. Two rules keep the held
//! blocks useful:
//!
//! - A request uses its blocks *in reverse order*: it inserts the last block first, and after all
//!   insertions uses its hits from the last to the first. Under LRU a block is therefore never
//!   older than one that follows it in a prefix. It is evicted after it, and no block is held that
//!   no request can reach; only the last block of a prefix may be evicted in part. An inserted
//!   block is not used a second time for that, so a policy that counts second uses is not misled.
//! - A request pins its own blocks. If its prompt alone exceeds the pool, its first blocks are kept
//!   and the rest is not cached.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use kvmem::cache::{Pinned, Reservation};

use super::key::Key;
use super::moves::Moves;
use super::store::{Store, StoreError};
use kvmem_cli::workload::latency::timed;
use kvmem_cli::workload::model::BlockLayout;
use kvmem_cli::workload::object::ObjectId;
use kvmem_cli::workload::payload::{Damage, Payloads};
use kvmem_trace::Request;

/// Counts since the worker began.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counters {
    /// Requests served.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks found together with their prefix.
    pub hits: u64,
    /// Requested prompt tokens.
    pub tokens: u64,
    /// Prompt tokens within hit blocks.
    pub hit_tokens: u64,
    /// Blocks that were held without the prefix before them.
    pub hits_behind_gap: u64,
    /// Blocks inserted, in whole or in part.
    pub insertions: u64,
    /// Blocks that were not cached, because all blocks held belonged to requests being served.
    pub not_cached: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes that were copied out on a hit, and whose checksum was compared.
    pub verified_bytes: u64,
    /// Time of requests, if objects are filled: look-ups, reserving, copying in and out.
    pub moving: Duration,
    /// Time of checksums, which `moving` does not include.
    pub checking: Duration,
    /// Time of fetches from a tier below, which `moving` does not include.
    pub fetching: Duration,
    /// Blocks found in memory, before a tier was asked.
    pub memory_hits: u64,
    /// Requests after which utilization was sampled: all since the first failed call.
    pub full_samples: u64,
    /// Sum of those samples, in bytes held.
    pub full_sum_bytes: f64,
    /// The least of those samples, in bytes held.
    pub full_min_bytes: u64,
}

impl Counters {
    /// Adds the counts of another worker.
    pub fn add(&mut self, other: &Counters) {
        self.full_min_bytes = match (self.full_samples, other.full_samples) {
            (_, 0) => self.full_min_bytes,
            (0, _) => other.full_min_bytes,
            _ => self.full_min_bytes.min(other.full_min_bytes),
        };
        self.requests += other.requests;
        self.blocks += other.blocks;
        self.hits += other.hits;
        self.tokens += other.tokens;
        self.hit_tokens += other.hit_tokens;
        self.hits_behind_gap += other.hits_behind_gap;
        self.insertions += other.insertions;
        self.not_cached += other.not_cached;
        self.written_bytes += other.written_bytes;
        self.verified_bytes += other.verified_bytes;
        self.moving += other.moving;
        self.checking += other.checking;
        self.fetching += other.fetching;
        self.memory_hits += other.memory_hits;
        self.full_samples += other.full_samples;
        self.full_sum_bytes += other.full_sum_bytes;
    }

    /// Records the utilization after a request.
    fn full_sample(&mut self, bytes: u64) {
        self.full_min_bytes =
            if self.full_samples == 0 { bytes } else { self.full_min_bytes.min(bytes) };
        self.full_samples += 1;
        self.full_sum_bytes += bytes as f64;
    }
}

/// One of the threads that serve requests.
pub struct Worker<'a> {
    store: &'a Store,
    layout: &'a BlockLayout,
    /// The payloads of objects, if they are filled.
    payloads: Option<&'a Payloads>,
    counters: Counters,
    /// Blocks that this worker has inserted, once for each insertion.
    inserted: Vec<u64>,
    moves: Moves,
    /// The objects that the request has pinned so far.
    pins: Vec<Pinned<Key>>,
    /// What a tier below has for the request.
    fetched: Vec<Pinned<Key>>,
    /// The space reserved for the request's new objects.
    rooms: Vec<(ObjectId, Reservation<Key>)>,
    /// The blocks of those objects.
    taken: HashSet<u64>,
    /// A block, copied out.
    out: Vec<u8>,
    /// Objects that are looked up next.
    next: Vec<ObjectId>,
}

impl<'a> Worker<'a> {
    /// Makes a worker.
    pub fn new(store: &'a Store, layout: &'a BlockLayout, payloads: Option<&'a Payloads>) -> Self {
        Worker {
            store,
            layout,
            payloads,
            counters: Counters::default(),
            inserted: Vec::new(),
            moves: Moves::new(),
            pins: Vec::new(),
            fetched: Vec::new(),
            rooms: Vec::new(),
            taken: HashSet::new(),
            out: payloads.map(Payloads::block).unwrap_or_default(),
            next: Vec::new(),
        }
    }

    /// Returns the counts so far.
    #[cfg(test)]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Samples the utilization of the pool.
    pub fn sample(&mut self) {
        self.counters.full_sample(self.store.cache.bytes());
    }

    /// Returns the counts, the inserted blocks (some more than once), and the last moves.
    pub fn finish(self) -> (Counters, Vec<u64>, Moves) {
        (self.counters, self.inserted, self.moves)
    }

    /// Serves one request: counts its hits, inserts its misses.
    pub fn serve(&mut self, request: &Request) -> Result<(), StoreError> {
        let before = self.counters.checking + self.counters.fetching;
        let start = Instant::now();
        let served = self.walk(request);
        self.pins.clear();
        self.fetched.clear();
        self.rooms.clear();
        self.taken.clear();
        if self.payloads.is_some() {
            self.counters.moving += start
                .elapsed()
                .saturating_sub(self.counters.checking + self.counters.fetching - before);
        }
        served
    }

    fn walk(&mut self, request: &Request) -> Result<(), StoreError> {
        self.counters.requests += 1;
        let ids = &request.hash_ids;
        self.next.clear();
        self.next.extend(ids.iter().map(|&block| ObjectId { block, number: 0 }));
        self.store.cache.prefetch(&self.next);
        // The first object of a block is evicted first.
        let objects = self.layout.objects().len() as u32;
        let held = |&&block: &&u64| self.store.holds(ObjectId { block, number: 0 });
        let in_memory = ids.iter().take_while(held).count();
        // The last of them may lack objects.
        let whole = in_memory.saturating_sub(1);
        let fetch = || self.store.fetch(ids, whole, objects, &mut self.fetched);
        self.counters.fetching += timed(fetch).1;
        let likely = ids.iter().take_while(held).count();
        let mut hits = likely;
        for at in (0..likely).rev() {
            self.prefetch(at.checked_sub(1).map(|before| ids[before]));
            if !self.find(ids[at])? {
                hits = at;
                self.pins.clear();
            }
        }
        let mut cached = hits;
        self.prefetch(ids.get(hits).copied());
        for (depth, &id) in (0..).zip(ids).skip(hits) {
            self.prefetch(ids.get(depth as usize + 1).copied());
            if self.taken.contains(&id) || (cached > hits && self.find(id)?) {
                self.counters.hits_behind_gap += 1;
            } else if !self.reserve(id, depth)? {
                break;
            }
            cached += 1;
        }
        if !self.rooms.is_empty() {
            self.put();
            for (at, &block) in ids[..hits].iter().enumerate().rev() {
                self.prefetch(at.checked_sub(1).map(|before| ids[before]));
                for number in 0..self.layout.objects().len() as u32 {
                    drop(self.store.get(ObjectId { block, number }));
                }
            }
        }

        let counters = &mut self.counters;
        counters.blocks += ids.len() as u64;
        counters.hits += hits as u64;
        counters.memory_hits += in_memory.min(hits) as u64;
        counters.not_cached += (ids.len() - cached) as u64;
        counters.tokens += request.input_length;
        counters.hit_tokens += (hits as u64 * self.layout.block_tokens()).min(request.input_length);
        Ok(())
    }

    /// Starts to fetch what look-ups of a block's objects read, if there is a block.
    fn prefetch(&mut self, block: Option<u64>) {
        if let Some(block) = block {
            let numbers = 0..self.layout.objects().len() as u32;
            self.next.clear();
            self.next.extend(numbers.map(|number| ObjectId { block, number }));
            self.store.cache.prefetch(&self.next);
        }
    }

    /// Pins a block, copies it out and verifies the copy; false if an object of it is missing.
    fn find(&mut self, block: u64) -> Result<bool, StoreError> {
        let before = self.pins.len();
        for number in 0..self.layout.objects().len() as u32 {
            match self.store.get(ObjectId { block, number }) {
                Some(pin) => self.pins.push(pin),
                None => {
                    self.pins.truncate(before);
                    return Ok(false);
                }
            }
        }
        if let Some(payloads) = self.payloads {
            let ids = || (0..).map(|number| ObjectId { block, number });
            for (id, pin) in ids().zip(&self.pins[before..]) {
                let out = &mut self.out[payloads.within(id)];
                out.copy_from_slice(pin.bytes());
                self.moves.read(pin.block().offset(), id);
            }
            let whole = |id| {
                payloads
                    .verify(id, &self.out[payloads.within(id)])
                    .map_err(|damage| damaged(id, damage))
            };
            let (whole, took) =
                timed(|| ids().take(self.layout.objects().len()).try_for_each(whole));
            self.counters.checking += took;
            whole?;
            self.counters.verified_bytes += self.layout.bytes();
        }
        Ok(true)
    }

    /// Makes room for what is not held of a block; false, and no room is taken, if that would evict
    /// what is in use.
    fn reserve(&mut self, block: u64, depth: u32) -> Result<bool, StoreError> {
        let before = (self.pins.len(), self.rooms.len());
        for (number, &size) in (0..).zip(self.layout.objects()) {
            let id = ObjectId { block, number };
            if let Some(pin) = self.store.get(id) {
                self.pins.push(pin);
            } else if let Some(room) = self.store.reserve(id, size, depth)? {
                self.rooms.push((id, room));
            } else {
                let own = (self.rooms.len() + self.pins.len()) as u64;
                if before == (0, 0) && self.store.cache.len() <= own {
                    let (objects, bytes) = (self.layout.objects().len(), self.layout.bytes());
                    return Err(StoreError::PoolTooSmall { objects, bytes });
                }
                self.pins.truncate(before.0);
                self.rooms.truncate(before.1);
                return Ok(false);
            }
        }
        self.taken.insert(block);
        Ok(true)
    }

    /// Fills and commits all reservations, the last block first, the objects of each in order.
    fn put(&mut self) {
        while let Some(&(ObjectId { block, .. }, _)) = self.rooms.last() {
            let first = self
                .rooms
                .iter()
                .rposition(|(id, _)| id.block != block)
                .map_or(0, |other| other + 1);
            self.prefetch(Some(block));
            for (id, mut room) in self.rooms.drain(first..) {
                if let Some(payloads) = self.payloads {
                    payloads.write(id, room.bytes_mut());
                    self.counters.written_bytes += self.layout.objects()[id.number as usize];
                }
                let pin = room.commit();
                if self.payloads.is_some() {
                    self.moves.write(pin.block().offset(), id);
                }
            }
        }
        self.counters.insertions += self.taken.len() as u64;
        self.inserted.extend(self.taken.drain());
    }
}

/// The part of some blocks that is held.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Blocks of which all objects are held.
    pub whole_blocks: u64,
    /// Bytes of all objects.
    pub bytes: u64,
}

/// Compares the checksums of all held objects of `blocks`.
pub fn verify_all(
    store: &Store,
    layout: &BlockLayout,
    payloads: Option<&Payloads>,
    blocks: &HashSet<u64>,
) -> Result<Holding, StoreError> {
    let mut holding = Holding::default();
    for &block in blocks {
        let mut objects = 0;
        for (number, size) in (0..).zip(layout.objects()) {
            let id = ObjectId { block, number };
            match payloads {
                None if store.holds(id) => {}
                None => continue,
                Some(payloads) => match store.get(id) {
                    Some(pin) => {
                        let whole = payloads.verify(id, pin.bytes());
                        whole.map_err(|damage| damaged(id, damage))?;
                    }
                    None => continue,
                },
            }
            objects += 1;
            holding.bytes += size;
        }
        holding.whole_blocks += u64::from(objects == layout.objects().len());
    }
    Ok(holding)
}

fn damaged(object: ObjectId, Damage { written, found }: Damage) -> StoreError {
    StoreError::Mismatch { object, written, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::store;
    use kvmem::cache::Eviction;
    use kvmem_trace::mooncake::BLOCK_TOKENS;

    /// The objects of a block: a page together.
    const OBJECTS: [u64; 2] = [2867, 1229];
    const BLOCK: u64 = 4096;

    fn request(hash_ids: &[u64]) -> Request {
        let input_length = hash_ids.len() as u64 * BLOCK_TOKENS;
        let (timestamp, output_length, block_tokens) = (0.0, 1, BLOCK_TOKENS);
        let hash_ids = hash_ids.to_vec();
        Request { timestamp, input_length, output_length, block_tokens, hash_ids }
    }

    #[test]
    fn a_request_larger_than_the_pool_keeps_its_first_blocks_and_damage_is_found() {
        let layout = BlockLayout::of_objects(&OBJECTS, BLOCK_TOKENS, BLOCK_TOKENS).unwrap();
        let payloads = Payloads::new(layout.objects());
        let pool = store::pool(3 * BLOCK, false).unwrap();
        let store = Store::new(&pool, Eviction::Lru, 1, None);
        let mut worker = Worker::new(&store, &layout, Some(&payloads));
        worker.serve(&request(&[1, 2, 3, 4, 5])).unwrap();
        assert_eq!((worker.counters().not_cached, store.cache.len()), (2, 6));
        worker.serve(&request(&[1, 2, 9])).unwrap();
        assert_eq!((worker.counters().hits, worker.counters().verified_bytes), (2, 2 * BLOCK));
        // Other bytes than those of the object: as if two objects shared a place.
        let id = ObjectId { block: 7, number: 0 };
        let mut room = store.reserve(id, OBJECTS[0], 0).unwrap().unwrap();
        payloads.write(ObjectId { block: 8, number: 0 }, room.bytes_mut());
        drop(room.commit());
        let mut room = store.reserve(ObjectId { number: 1, ..id }, OBJECTS[1], 0).unwrap().unwrap();
        room.bytes_mut().fill(1);
        drop(room.commit());
        let error = worker.serve(&request(&[7])).unwrap_err();
        assert!(matches!(error, StoreError::Mismatch { object, .. } if object == id), "{error}");
    }
}
