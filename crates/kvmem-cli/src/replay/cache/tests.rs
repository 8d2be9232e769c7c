//! The cache against a plain model of it, on an allocator plain enough to be trusted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use kvmem_bench::contender::{ContenderId, CreateError, Space};

use super::*;

/// First fit over a map of what is live, from offset to size.
struct FirstFit {
    capacity: u64,
    live: Rc<RefCell<BTreeMap<u64, u64>>>,
}

/// A range of [`FirstFit`].
struct Fitted {
    offset: u64,
    size: u64,
    live: Rc<RefCell<BTreeMap<u64, u64>>>,
}

impl Held for Fitted {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for Fitted {
    fn drop(&mut self) {
        assert_eq!(self.live.borrow_mut().remove(&self.offset), Some(self.size), "not live");
    }
}

impl FirstFit {
    fn new(capacity: u64) -> Self {
        FirstFit { capacity, live: Rc::default() }
    }
}

impl Contender for FirstFit {
    const ID: ContenderId = ContenderId::Null;
    type Handle = Fitted;

    fn create(space: Space) -> Result<Self, CreateError> {
        Ok(FirstFit::new(space.capacity))
    }

    fn allocate(&self, size: u64) -> Option<Fitted> {
        let mut live = self.live.borrow_mut();
        let mut start = 0;
        for (&offset, &len) in &*live {
            if offset - start >= size {
                break;
            }
            start = offset + len;
        }
        (self.capacity - start >= size).then(|| {
            live.insert(start, size);
            Fitted { offset: start, size, live: Rc::clone(&self.live) }
        })
    }
}

/// Hands out the same two places over and over.
struct Broken(Cell<u64>);

/// A range of [`Broken`]: its offset and its size.
struct Place(u64, u64);

impl Held for Place {
    fn offset(&self) -> u64 {
        self.0
    }

    fn size(&self) -> u64 {
        self.1
    }
}

impl Contender for Broken {
    const ID: ContenderId = ContenderId::Null;
    type Handle = Place;

    fn create(_: Space) -> Result<Self, CreateError> {
        Ok(Broken(Cell::new(0)))
    }

    fn allocate(&self, size: u64) -> Option<Place> {
        self.0.set(self.0.get() + 1);
        Some(Place(self.0.get() % 2 * size, size))
    }
}

/// A pool of `blocks` blocks of two objects, 10 bytes a block.
fn cache(blocks: u64) -> PrefixCache<FirstFit> {
    let layout = BlockLayout::of_objects(&[7, 3], BLOCK_TOKENS).unwrap();
    PrefixCache::new(FirstFit::new(10 * blocks), layout, Some(Backing::new(10 * blocks).unwrap()))
}

fn request(hash_ids: &[u64]) -> Request {
    let input_length = hash_ids.len() as u64 * BLOCK_TOKENS;
    Request { timestamp: 0.0, input_length, output_length: 1, hash_ids: hash_ids.to_vec() }
}

fn held(cache: &PrefixCache<FirstFit>) -> Vec<u64> {
    cache.held.keys().copied().collect()
}

#[test]
fn hits_end_where_the_prefix_ends() {
    let mut cache = cache(8);
    cache.serve(&request(&[1, 2, 3])).unwrap();
    assert_eq!(cache.counters().hits, 0);
    cache.serve(&request(&[1, 2, 4])).unwrap();
    assert_eq!(cache.counters().hits, 2);
    // 3 is held, but not behind 9.
    cache.serve(&request(&[9, 3])).unwrap();
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.hits_behind_gap, counters.insertions), (2, 1, 5));
    assert_eq!((counters.blocks, counters.allocations, cache.held_blocks()), (8, 10, 5));
}

#[test]
fn a_partial_last_block_counts_only_its_tokens() {
    let mut cache = cache(8);
    let mut short = request(&[1, 2]);
    short.input_length = BLOCK_TOKENS + 88;
    cache.serve(&short).unwrap();
    cache.serve(&short).unwrap();
    assert_eq!(cache.counters().hit_tokens, 600);
    assert_eq!(cache.counters().tokens, 1200);
}

#[test]
fn the_least_recently_used_block_goes_and_the_end_of_a_prefix_before_its_start() {
    let mut cache = cache(4);
    cache.serve(&request(&[1, 2])).unwrap();
    cache.serve(&request(&[3, 4])).unwrap();
    assert_eq!(held(&cache), [2, 1, 4, 3]);
    cache.serve(&request(&[5])).unwrap();
    assert_eq!(held(&cache), [1, 4, 3, 5]);
    cache.serve(&request(&[1, 6])).unwrap();
    assert_eq!(held(&cache), [3, 5, 6, 1]);
    assert_eq!((cache.counters().evictions, cache.counters().hits), (2, 1));
}

#[test]
fn a_request_larger_than_the_pool_keeps_its_first_blocks() {
    let mut cache = cache(3);
    cache.serve(&request(&[8, 9])).unwrap();
    cache.serve(&request(&[1, 2, 3, 4, 5])).unwrap();
    assert_eq!(held(&cache), [3, 2, 1]);
    let counters = cache.counters();
    assert_eq!((counters.not_cached, counters.evictions, counters.insertions), (2, 2, 5));
    cache.serve(&request(&[1, 2, 3, 4, 5])).unwrap();
    assert_eq!((cache.counters().hits, cache.counters().not_cached), (3, 4));
}

#[test]
fn an_id_named_twice_is_held_once() {
    let mut cache = cache(4);
    cache.serve(&request(&[1, 1, 2])).unwrap();
    assert_eq!((cache.held_blocks(), cache.counters().hits_behind_gap), (2, 1));
    cache.serve(&request(&[1, 1, 2])).unwrap();
    assert_eq!(cache.counters().hits, 3);
}

#[test]
fn a_block_that_does_not_fit_the_empty_pool_is_an_error() {
    let layout = BlockLayout::of_objects(&[7, 3], BLOCK_TOKENS).unwrap();
    let mut cache = PrefixCache::new(FirstFit::new(9), layout, None);
    assert_eq!(cache.serve(&request(&[1])), Err(CacheError::PoolTooSmall { objects: 2, bytes: 10 }));
    assert!(cache.space.live.borrow().is_empty(), "what was taken for the block is given back");
}

#[test]
fn utilization_is_sampled_only_once_the_pool_is_full() {
    let layout = BlockLayout::of_objects(&[10], BLOCK_TOKENS).unwrap();
    let mut cache = PrefixCache::new(FirstFit::new(25), layout, None);
    cache.serve(&request(&[1, 2])).unwrap();
    assert_eq!(cache.counters().full_samples, 0);
    for id in 3..6 {
        cache.serve(&request(&[id])).unwrap();
    }
    let counters = cache.counters();
    assert_eq!((counters.full_samples, counters.full_sum_bytes, counters.full_min_bytes), (3, 60.0, 20));
}

#[test]
fn an_allocator_that_hands_out_a_place_twice_is_found_out() {
    let layout = BlockLayout::of_objects(&[64], BLOCK_TOKENS).unwrap();
    let mut cache = PrefixCache::new(Broken(Cell::new(0)), layout.clone(), Some(Backing::new(128).unwrap()));
    cache.serve(&request(&[1, 2])).unwrap();
    cache.serve(&request(&[1, 2])).unwrap();
    assert_eq!(cache.counters().verified_bytes, 128);
    cache.serve(&request(&[3])).unwrap();
    assert!(matches!(cache.serve(&request(&[1])), Err(CacheError::Mismatch { id: 1, .. })));
    assert!(matches!(cache.verify_all(), Err(CacheError::Mismatch { id: 1, .. })));

    let mut outside = PrefixCache::new(Broken(Cell::new(0)), layout, Some(Backing::new(127).unwrap()));
    assert!(matches!(outside.serve(&request(&[1])), Err(CacheError::OutsidePool(_))));
}

/// The same rules over a plain list, without memory or allocator: a pool of `blocks` equal places.
#[derive(Default)]
struct Model {
    /// Least recently used first.
    held: Vec<u64>,
    hits: u64,
    evictions: u64,
}

impl Model {
    fn serve(&mut self, ids: &[u64], blocks: usize) {
        let hits = ids.iter().take_while(|id| self.held.contains(id)).count();
        self.hits += hits as u64;
        let kept = &ids[..ids.len().min(blocks)];
        let mut order: Vec<u64> = self.held.iter().copied().filter(|id| !kept.contains(id)).collect();
        let surplus = (order.len() + kept.len()).saturating_sub(blocks);
        self.evictions += surplus as u64;
        order.drain(..surplus);
        order.extend(kept.iter().rev());
        self.held = order;
    }
}

#[test]
fn random_prefix_trees_follow_the_model_and_leave_no_gap() {
    // A linear congruential generator is all the chance this needs.
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for blocks in [1, 2, 5, 17] {
        let mut cache = cache(blocks);
        let mut model = Model::default();
        // Every id has one parent, as in a real trace: equal ids mean equal prefixes.
        let mut parents: Vec<Option<u64>> = Vec::new();
        for _ in 0..600 {
            let mut leaf = None;
            if !parents.is_empty() && random(4) > 0 {
                leaf = Some(random(parents.len() as u64));
            }
            for _ in 0..random(4) {
                parents.push(leaf);
                leaf = Some(parents.len() as u64 - 1);
            }
            let mut ids: Vec<u64> = std::iter::successors(leaf, |&id| parents[id as usize]).collect();
            ids.reverse();
            cache.serve(&request(&ids)).unwrap();
            model.serve(&ids, blocks as usize);

            assert_eq!(held(&cache), model.held);
            assert_eq!(cache.counters().hits, model.hits);
            assert_eq!(cache.counters().evictions, model.evictions);
            assert_eq!(cache.counters().hits_behind_gap, 0);
            let reachable: HashSet<u64> = model.held.iter().copied().collect();
            assert!(
                model.held.iter().all(|&id| parents[id as usize].is_none_or(|up| reachable.contains(&up)))
            );
            assert_eq!(cache.space.live.borrow().len() as u64, 2 * cache.held_blocks());
            cache.verify_all().unwrap();
        }
        let counters = cache.counters();
        assert_eq!(counters.allocations - counters.frees, 2 * cache.held_blocks());
    }
}
