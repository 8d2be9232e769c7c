//! The worker against a plain model of it, on both stores; below one of them an allocator plain
//! enough to be trusted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use kvmem::cache::Eviction;
use kvmem_bench::contender::{Contender, ContenderId, CreateError, RangeHandle, Space};

use super::super::backing;
use super::super::placed::Placed;
use super::super::pooled::Pooled;
use super::*;
use kvmem_trace::mooncake::BLOCK_TOKENS;

/// The objects of a block: a page together.
const OBJECTS: [u64; 2] = [2867, 1229];
const BLOCK: u64 = 4096;

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

impl RangeHandle for Fitted {
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

impl Contender for FirstFit {
    const ID: ContenderId = ContenderId::BestFit;
    type Handle = Fitted;

    fn create(space: Space) -> Result<Self, CreateError> {
        Ok(FirstFit { capacity: space.capacity, live: Rc::default() })
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
struct Spot(u64, u64);

impl RangeHandle for Spot {
    fn offset(&self) -> u64 {
        self.0
    }

    fn size(&self) -> u64 {
        self.1
    }
}

impl Contender for Broken {
    const ID: ContenderId = ContenderId::BestFit;
    type Handle = Spot;

    fn create(_: Space) -> Result<Self, CreateError> {
        Ok(Broken(Cell::new(0)))
    }

    fn allocate(&self, size: u64) -> Option<Spot> {
        self.0.set(self.0.get() + 1);
        Some(Spot(self.0.get() % 2 * size, size))
    }
}

fn layout() -> BlockLayout {
    BlockLayout::of_objects(&OBJECTS, BLOCK_TOKENS, BLOCK_TOKENS).unwrap()
}

/// A place for `blocks` blocks, in a pool.
fn pooled(blocks: u64) -> Pooled {
    let pool = backing::pool(blocks * BLOCK, false, false).unwrap();
    assert_eq!(pool.capacity(), blocks * BLOCK);
    Pooled::new(&pool, true, Eviction::Lru, 1, None, None)
}

/// The same on an allocator of `bytes`, with memory.
fn placed<C: Contender>(bytes: u64) -> Placed<C> {
    let space = C::create(Space { capacity: bytes, max_live: 1000 }).unwrap();
    let memory = backing::pool(bytes, true, false).unwrap().allocate(bytes as usize).unwrap();
    Placed::new(space, Some(memory), Eviction::Lru, true, None).unwrap()
}

/// Something to be done with either store.
trait OnStore {
    fn run<S: Store>(&self, store: &S);
}

/// Runs it with both stores, each with space for this many blocks.
fn on_both(blocks: u64, test: impl OnStore) {
    test.run(&pooled(blocks));
    test.run(&placed::<FirstFit>(blocks * BLOCK));
}

fn request(hash_ids: &[u64]) -> Request {
    let input_length = hash_ids.len() as u64 * BLOCK_TOKENS;
    Request {
        timestamp: 0.0,
        input_length,
        output_length: 1,
        block_tokens: BLOCK_TOKENS,
        hash_ids: hash_ids.to_vec(),
    }
}

fn holds<S: Store>(store: &S, block: u64) -> bool {
    (0..2).all(|number| store.holds(ObjectId { block, number }))
}

/// Which of the blocks up to 9 are held.
fn held<S: Store>(store: &S) -> Vec<u64> {
    (0..10).filter(|&block| holds(store, block)).collect()
}

#[test]
fn hits_end_where_the_prefix_ends() {
    struct Test;
    impl OnStore for Test {
        fn run<S: Store>(&self, store: &S) {
            let (layout, payloads) = (layout(), Payloads::new(layout().objects()));
            let mut worker = Worker::new(store, &layout, Some(&payloads));
            worker.serve(&request(&[1, 2, 3])).unwrap();
            assert_eq!(worker.counters().hits, 0);
            worker.serve(&request(&[1, 2, 4])).unwrap();
            assert_eq!(worker.counters().hits, 2);
            // 3 is held, but not behind 9.
            worker.serve(&request(&[9, 3])).unwrap();
            let counters = *worker.counters();
            assert_eq!((counters.hits, counters.hits_behind_gap, counters.insertions), (2, 1, 5));
            assert_eq!((counters.blocks, store.objects(), store.bytes()), (8, 10, 5 * BLOCK));
            assert_eq!(counters.written_bytes, 5 * BLOCK);
            assert_eq!(counters.verified_bytes, 3 * BLOCK);
        }
    }
    on_both(8, Test);
}

#[test]
fn a_partial_last_block_counts_only_its_tokens() {
    let (store, layout) = (pooled(8), layout());
    let mut worker = Worker::new(&store, &layout, None);
    let mut short = request(&[1, 2]);
    short.input_length = BLOCK_TOKENS + 88;
    worker.serve(&short).unwrap();
    worker.serve(&short).unwrap();
    assert_eq!(worker.counters().hit_tokens, 600);
    assert_eq!(worker.counters().tokens, 1200);
}

#[test]
fn the_least_recently_used_block_goes_and_the_end_of_a_prefix_before_its_start() {
    struct Test;
    impl OnStore for Test {
        fn run<S: Store>(&self, store: &S) {
            let layout = layout();
            let mut worker = Worker::new(store, &layout, None);
            worker.serve(&request(&[1, 2])).unwrap();
            worker.serve(&request(&[3, 4])).unwrap();
            assert_eq!(held(store), [1, 2, 3, 4]);
            worker.serve(&request(&[5])).unwrap();
            assert_eq!(held(store), [1, 3, 4, 5]);
            worker.serve(&request(&[1, 6])).unwrap();
            assert_eq!(held(store), [1, 3, 5, 6]);
            assert_eq!((store.evictions(), worker.counters().hits), (4, 1));
        }
    }
    on_both(4, Test);
}

#[test]
fn a_request_larger_than_the_pool_keeps_its_first_blocks() {
    struct Test;
    impl OnStore for Test {
        fn run<S: Store>(&self, store: &S) {
            let layout = layout();
            let mut worker = Worker::new(store, &layout, None);
            worker.serve(&request(&[8, 9])).unwrap();
            worker.serve(&request(&[1, 2, 3, 4, 5])).unwrap();
            assert_eq!(held(store), [1, 2, 3]);
            let counters = *worker.counters();
            assert_eq!((counters.not_cached, store.evictions(), counters.insertions), (2, 4, 5));
            assert_eq!(
                (store.objects(), store.bytes()),
                (6, 3 * BLOCK),
                "nothing is left of the fourth"
            );
            worker.serve(&request(&[1, 2, 3, 4, 5])).unwrap();
            assert_eq!((worker.counters().hits, worker.counters().not_cached), (3, 4));
        }
    }
    on_both(3, Test);
}

#[test]
fn an_id_named_twice_is_held_once() {
    let (store, layout) = (pooled(4), layout());
    let mut worker = Worker::new(&store, &layout, None);
    worker.serve(&request(&[1, 1, 2])).unwrap();
    assert_eq!((store.objects(), worker.counters().hits_behind_gap), (4, 1));
    worker.serve(&request(&[1, 1, 2])).unwrap();
    assert_eq!(worker.counters().hits, 3);
}

#[test]
fn a_block_that_does_not_fit_the_empty_pool_is_an_error() {
    struct Test;
    impl OnStore for Test {
        fn run<S: Store>(&self, store: &S) {
            let layout =
                BlockLayout::of_objects(&[2867, 1230], BLOCK_TOKENS, BLOCK_TOKENS).unwrap();
            let mut worker = Worker::new(store, &layout, None);
            let too_small = StoreError::PoolTooSmall { objects: 2, bytes: 4097 };
            assert_eq!(worker.serve(&request(&[1])), Err(too_small));
            assert_eq!(store.bytes(), 0, "what was taken for the block is given back");
        }
    }
    on_both(1, Test);
}

#[test]
fn an_allocator_that_hands_out_a_place_twice_is_found_out() {
    let layout = BlockLayout::of_objects(&[64], BLOCK_TOKENS, BLOCK_TOKENS).unwrap();
    let payloads = Payloads::new(layout.objects());
    let store = placed::<Broken>(128);
    let mut worker = Worker::new(&store, &layout, Some(&payloads));
    worker.serve(&request(&[1, 2])).unwrap();
    worker.serve(&request(&[1, 2])).unwrap();
    assert_eq!(worker.counters().verified_bytes, 128);
    worker.serve(&request(&[3])).unwrap();
    let of_one =
        |error| matches!(error, StoreError::Mismatch { object: ObjectId { block: 1, .. }, .. });
    assert!(of_one(worker.serve(&request(&[1])).unwrap_err()));
    assert!(of_one(verify_all(&store, &layout, Some(&payloads), &HashSet::from([1])).unwrap_err()));

    let outside = placed::<Broken>(127);
    let mut worker = Worker::new(&outside, &layout, Some(&payloads));
    assert!(matches!(worker.serve(&request(&[1])), Err(StoreError::OutsidePool(_))));
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
        let mut order: Vec<u64> =
            self.held.iter().copied().filter(|id| !kept.contains(id)).collect();
        let surplus = (order.len() + kept.len()).saturating_sub(blocks);
        self.evictions += surplus as u64;
        order.drain(..surplus);
        order.extend(kept.iter().rev());
        self.held = order;
    }
}

#[test]
fn random_prefix_trees_follow_the_model_and_leave_no_gap() {
    struct Test(u64);
    impl OnStore for Test {
        fn run<S: Store>(&self, store: &S) {
            // A linear congruential generator is all the chance this needs.
            let mut state = 88_172_645_463_325_252u64;
            let mut random = move |below: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (layout, payloads) = (layout(), Payloads::new(layout().objects()));
            let mut worker = Worker::new(store, &layout, Some(&payloads));
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
                let mut ids: Vec<u64> =
                    std::iter::successors(leaf, |&id| parents[id as usize]).collect();
                ids.reverse();
                worker.serve(&request(&ids)).unwrap();
                model.serve(&ids, self.0 as usize);

                assert_eq!(worker.counters().hits, model.hits);
                assert_eq!(store.evictions(), 2 * model.evictions);
                assert_eq!(worker.counters().hits_behind_gap, 0);
                assert!(
                    model.held.iter().all(|&id| holds(store, id)),
                    "all that should be held is"
                );
                assert_eq!(store.objects(), 2 * model.held.len() as u64, "and nothing else");
                assert_eq!(store.bytes(), BLOCK * model.held.len() as u64);
            }
            let inserted = worker.finish().1.into_iter().collect();
            let holding = verify_all(store, &layout, Some(&payloads), &inserted).unwrap();
            let whole_blocks = model.held.len() as u64;
            assert_eq!(holding, Holding { whole_blocks, bytes: whole_blocks * BLOCK });
        }
    }
    for blocks in [1, 2, 5, 17] {
        on_both(blocks, Test(blocks));
    }
}
