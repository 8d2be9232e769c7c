//! Random sequences of all calls that hand out, change or free bytes. Each holder of bytes fills
//! them; the oracle is that no later holder finds such a byte.

use std::ops::Range;

use kvmem::cache::KvCache;
use kvmem::cache::{Pinned, Reservation};
use kvmem::offset::RawHandle;
use kvmem::pool::{Block, InitOn, Pool};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{View, builder, first_other, free_ranges};
use crate::random::cases;

const BYTES: usize = 256 << 10;
const PART: u64 = 64 << 10;
const KEYS: u64 = 12;
/// The byte that holders write.
const SECRET: u8 = 0x5e;
/// The byte that a device or another process writes to free memory.
const STRAY: u8 = 0xd1;

/// A step. Indices into lists are taken modulo their lengths.
#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Aligned(usize, u32),
    Batch(usize, usize),
    Scattered(usize, usize),
    Free(usize),
    FreeBatch(usize),
    FreeRange(usize, usize, usize),
    Shrink(usize, usize),
    Extend(usize, usize),
    MakeRaw(usize),
    AllocateRaw(usize),
    AdoptRaw(usize),
    FreeRaw(usize),
    ShrinkRaw(usize, u64),
    ExtendRaw(usize, u64),
    Quarantine(usize),
    Insert(u64, usize),
    Reserve(u64, usize),
    Commit(usize),
    Abort(usize),
    Get(u64),
    Unpin(usize),
    Remove(u64),
    EvictTo(u64),
    Trim,
    Resize(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Few sizes repeat, so some become hot; others are all different.
    let len = || prop_oneof![Just(1000usize), Just(4096), 1..9_000usize, 40_000..70_000usize];
    let at = any::<usize>;
    let key = || 0..KEYS;
    let blocks = prop_oneof![
        8 => len().prop_map(Step::Allocate),
        2 => (len(), 0..15u32).prop_map(|(len, log)| Step::Aligned(len, log)),
        2 => (1..5_000usize, 1..6usize).prop_map(|(len, n)| Step::Batch(len, n)),
        2 => (1..40_000usize, 1..5usize).prop_map(|(len, n)| Step::Scattered(len, n)),
        6 => at().prop_map(Step::Free),
        1 => (0..6usize).prop_map(Step::FreeBatch),
        3 => (at(), 0..6_000usize, 0..6_000usize).prop_map(|(at, a, b)| Step::FreeRange(at, a, b)),
        3 => (at(), 0..6_000usize).prop_map(|(at, len)| Step::Shrink(at, len)),
        3 => (at(), 0..9_000usize).prop_map(|(at, len)| Step::Extend(at, len)),
    ];
    let raws = prop_oneof![
        3 => len().prop_map(Step::AllocateRaw),
        1 => at().prop_map(Step::MakeRaw),
        1 => at().prop_map(Step::AdoptRaw),
        2 => at().prop_map(Step::FreeRaw),
        1 => (at(), 0..6_000u64).prop_map(|(at, len)| Step::ShrinkRaw(at, len)),
        1 => (at(), 0..9_000u64).prop_map(|(at, len)| Step::ExtendRaw(at, len)),
    ];
    let values = prop_oneof![
        6 => (key(), len()).prop_map(|(key, len)| Step::Insert(key, len)),
        3 => (key(), len()).prop_map(|(key, len)| Step::Reserve(key, len)),
        2 => at().prop_map(Step::Commit),
        1 => at().prop_map(Step::Abort),
        2 => key().prop_map(Step::Get),
        2 => at().prop_map(Step::Unpin),
        2 => key().prop_map(Step::Remove),
        1 => (0..BYTES as u64).prop_map(Step::EvictTo),
    ];
    let whole = prop_oneof![
        1 => at().prop_map(Step::Quarantine),
        3 => Just(Step::Trim),
        3 => (0..=BYTES as u64).prop_map(Step::Resize),
    ];
    prop_oneof![8 => blocks, 4 => raws, 6 => values, 1 => whole]
}

/// The holders of a pool's bytes.
struct Holders {
    init_on: InitOn,
    view: View,
    pool: Pool,
    cache: KvCache<u64>,
    blocks: Vec<Block>,
    raws: Vec<RawHandle>,
    rooms: Vec<Reservation<u64>>,
    pins: Vec<Pinned<u64>>,
}

fn at<T>(list: &[T], at: usize) -> Option<usize> {
    (!list.is_empty()).then(|| at % list.len())
}

impl Holders {
    fn new(init_on: InitOn) -> Holders {
        let pool = builder(BYTES, init_on).boundary(PART).max_size(BYTES).hot_sizes([4096]);
        let pool = pool.build().expect("little memory");
        let cache = KvCache::<u64>::builder(&pool).shards(2).build().expect("sensible settings");
        let view = View::of(&pool);
        let (blocks, raws, rooms, pins) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Holders { init_on, view, pool, cache, blocks, raws, rooms, pins }
    }

    /// Reads a range that its holder has just got, and fills it.
    fn got(&self, range: Range<u64>, by: &str) -> Result<(), String> {
        if let Some(at) = self.view.first_kept(range.clone()) {
            let byte = self.view.bytes(at..at + 1)[0];
            return Err(format!("{by}: {range:?} holds {byte:#x} at {at}"));
        }
        self.view.fill(range, SECRET);
        Ok(())
    }

    fn add(&mut self, block: Block, by: &str) -> Result<(), String> {
        self.got(block.range(), by)?;
        self.blocks.push(block);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Allocate(len) => {
                self.pool.allocate(len).map_or(Ok(()), |block| self.add(block, "allocate"))
            }
            Step::Aligned(len, log) => match self.pool.allocate_aligned(len, 1 << log) {
                Ok(block) => self.add(block, "allocate_aligned"),
                Err(_) => Ok(()),
            },
            Step::Batch(len, n) => {
                let blocks = self.pool.allocate_batch(len, n).unwrap_or_default();
                blocks.into_iter().try_for_each(|block| self.add(block, "allocate_batch"))
            }
            Step::Scattered(len, n) => {
                let blocks = self.pool.allocate_scattered(len, n).unwrap_or_default();
                blocks.into_iter().try_for_each(|block| self.add(block, "allocate_scattered"))
            }
            Step::AllocateRaw(len) => match self.pool.allocate_raw(len) {
                Ok(raw) => {
                    self.raws.push(raw.handle);
                    self.got(raw.offset..raw.offset + raw.size, "allocate_raw")
                }
                Err(_) => Ok(()),
            },
            Step::Extend(..) | Step::ExtendRaw(..) => self.extend(step),
            Step::Insert(..) | Step::Reserve(..) => self.write_value(step),
            _ => {
                self.free(step);
                Ok(())
            }
        }
    }

    fn extend(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Extend(index, more) => {
                let Some(index) = at(&self.blocks, index) else { return Ok(()) };
                let old = self.blocks[index].range();
                let _ = self.blocks[index].extend((old.end - old.start) as usize + more);
                self.got(old.end..self.blocks[index].range().end, "extend")
            }
            Step::ExtendRaw(index, more) => {
                let Some(index) = at(&self.raws, index) else { return Ok(()) };
                let handle = self.raws[index];
                let old = self.pool.resolve_raw(handle).expect("it is live");
                let _ = self.pool.extend_raw(handle, (old.end - old.start + more) as usize);
                let new = self.pool.resolve_raw(handle).expect("it is live");
                self.got(old.end..new.end, "extend_raw")
            }
            _ => unreachable!("{step:?}"),
        }
    }

    fn write_value(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Insert(key, len) => {
                let mut kept = Ok(());
                let _ = self.cache.insert_filled(key, len, |bytes| {
                    if bytes.iter().any(|byte| *byte != 0) {
                        kept = Err(format!("insert_with of {len} bytes finds others' bytes"));
                    }
                    bytes.fill(SECRET);
                });
                kept
            }
            Step::Reserve(key, len) => match self.cache.reserve(key, len) {
                Ok(room) => {
                    self.got(room.block().range(), "reserve")?;
                    self.rooms.push(room);
                    Ok(())
                }
                Err(_) => Ok(()),
            },
            _ => unreachable!("{step:?}"),
        }
    }

    fn free(&mut self, step: &Step) {
        match *step {
            Step::Free(index) => {
                at(&self.blocks, index).map(|index| self.blocks.swap_remove(index));
            }
            Step::FreeBatch(n) => {
                let rest = self.blocks.len().saturating_sub(n);
                self.pool.free_batch(self.blocks.drain(rest..));
            }
            Step::FreeRange(index, start, len) => {
                if let Some(index) = at(&self.blocks, index) {
                    let block = self.blocks.swap_remove(index);
                    match block.free_range(start..start + len) {
                        Ok((left, right)) => self.blocks.extend(left.into_iter().chain(right)),
                        Err((whole, _)) => self.blocks.push(whole),
                    }
                }
            }
            Step::Shrink(index, len) => {
                if let Some(index) = at(&self.blocks, index) {
                    let _ = self.blocks[index].shrink(len);
                }
            }
            Step::MakeRaw(index) => {
                if let Some(index) = at(&self.blocks, index) {
                    let block = self.blocks.swap_remove(index);
                    self.raws.push(self.pool.make_raw(block).expect("its own").handle);
                }
            }
            Step::AdoptRaw(index) => {
                if let Some(index) = at(&self.raws, index) {
                    let handle = self.raws.swap_remove(index);
                    self.blocks.push(self.pool.adopt_raw(handle).expect("it is live"));
                }
            }
            Step::FreeRaw(index) => {
                if let Some(index) = at(&self.raws, index) {
                    self.pool.free_raw(self.raws.swap_remove(index)).expect("it is live");
                }
            }
            Step::ShrinkRaw(index, len) => {
                if let Some(index) = at(&self.raws, index) {
                    let _ = self.pool.shrink_raw(self.raws[index], len as usize);
                }
            }
            Step::Quarantine(index) => {
                if let Some(index) = at(&self.blocks, index) {
                    self.pool.quarantine_block(self.blocks.swap_remove(index), "a test");
                }
            }
            Step::Commit(index) => {
                if let Some(index) = at(&self.rooms, index) {
                    drop(self.rooms.swap_remove(index).commit());
                }
            }
            Step::Abort(index) => {
                at(&self.rooms, index).map(|index| self.rooms.swap_remove(index));
            }
            Step::Get(key) => self.pins.extend(self.cache.get(&key)),
            Step::Unpin(index) => {
                at(&self.pins, index).map(|index| self.pins.swap_remove(index));
            }
            Step::Remove(key) => drop(self.cache.remove(&key)),
            Step::EvictTo(bytes) => drop(self.cache.evict_to(bytes)),
            Step::Trim => self.pool.trim(),
            Step::Resize(bytes) => {
                let _ = if bytes < self.pool.capacity() {
                    self.pool.shrink_to(bytes).map(drop)
                } else {
                    self.pool.grow_to(bytes)
                };
            }
            _ => unreachable!("{step:?}"),
        }
    }

    /// Checks that the bytes of holders are theirs still, and that free bytes are zero if they are
    /// meant to be. With [`InitOn::Alloc`], writes to free bytes as a late device would.
    fn check(&self) -> Result<(), String> {
        let blocks = self.blocks.iter().map(Block::range);
        let raws = self.raws.iter().map(|raw| self.pool.resolve_raw(*raw).expect("it is live"));
        let pins = self.pins.iter().map(|pinned| pinned.block().range());
        for held in blocks.chain(raws).chain(pins) {
            if let Some(at) = first_other(self.view.bytes(held.clone()), SECRET) {
                return Err(format!("{held:?} is in use and was changed at {at}"));
            }
        }
        for free in free_ranges(&self.pool) {
            match self.init_on {
                InitOn::Free => {
                    if let Some(at) = self.view.first_kept(free) {
                        return Err(format!("the byte at {at} is free and not zero"));
                    }
                }
                InitOn::Alloc => self.view.fill(free, STRAY),
                _ => (),
            }
        }
        Ok(())
    }
}

/// Runs a sequence; returns what a holder of bytes should not have seen.
fn run(init_on: InitOn, steps: &[Step]) -> Result<(), String> {
    let mut holders = Holders::new(init_on);
    for (number, step) in steps.iter().enumerate() {
        let done = holders.step(step).and_then(|()| holders.check());
        done.map_err(|error| format!("step {number}, {step:?}: {error}"))?;
    }
    holders.pool.check().map_err(|error| error.to_string())?;
    // Blocks in quarantine are never touched again.
    let quarantined: Vec<_> =
        holders.pool.report().quarantined.into_iter().map(|bad| bad.range).collect();
    let Holders { view, pool, cache, blocks, rooms, pins, .. } = holders;
    let capacity = pool.capacity();
    drop((pool, cache, blocks, rooms, pins));
    if init_on == InitOn::Free {
        quarantined.into_iter().for_each(|bad| view.fill(bad, 0));
        // Raw blocks ended with the pool.
        if let Some(at) = view.first_kept(0..capacity) {
            return Err(format!("the pool is gone, and the byte at {at} is not zero"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn nobody_sees_the_bytes_of_an_earlier_holder(
        init_on in prop_oneof![Just(InitOn::Alloc), Just(InitOn::Free)],
        steps in vec(step(), 1..160),
    ) {
        run(init_on, &steps).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn without_the_option_the_oracle_finds_such_bytes() {
    let mut runner = TestRunner::deterministic();
    let mut kinds = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let steps = vec(step(), 160).new_tree(&mut runner).expect("a sequence").current();
        if let Err(error) = run(InitOn::Never, &steps) {
            let by = error.split(": ").nth(1).unwrap_or_default();
            kinds.insert(by.split(" of ").next().unwrap_or_default().to_owned());
        }
    }
    // Each way to get bytes is one in which the earlier holder's are seen.
    let expected = [
        "allocate",
        "allocate_aligned",
        "allocate_batch",
        "allocate_raw",
        "allocate_scattered",
        "extend",
        "insert_with",
        "reserve",
    ];
    let missed: Vec<_> = expected.iter().filter(|by| !kinds.contains(**by)).collect();
    assert!(missed.is_empty(), "{missed:?} of {kinds:?}");
}
