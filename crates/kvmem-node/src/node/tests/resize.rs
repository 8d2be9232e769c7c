//! The memory of a node becomes smaller and larger.

use kvmem::arena::PageSize;

use super::*;
use crate::error::CallError;

const PAGE: u64 = 4096;

fn options() -> NodeOptions {
    NodeOptions { max_blocks: Some(100), ..super::options() }
}

fn node() -> Node {
    Node::create(shared(BYTES), options()).expect("the options are possible")
}

/// Returns a recovery of the files of a node, with the size and the length of the memory file.
fn restarted(node: &Node, size: u64, max_size: u64) -> Node {
    let files = node.memory.descriptors().expect("there are descriptors");
    let memory = NodeMemory::attach(files, max_size).expect("it is whole");
    let options = NodeOptions { size, max_size, ..options() };
    Node::recover_memory(memory, options, |_, _| false).expect("it is whole").0
}

/// Stores a value of one page whose bytes are those of its key.
fn store(node: &mut Node, session: SessionIndex, key: u8) {
    let granted = node.reserve(session, &[PAGE]).expect("there is space").remove(0);
    // SAFETY: the block is reserved, and no other thread has the memory.
    unsafe {
        let at = node.memory.bytes.base().as_ptr().add(granted.offset as usize);
        at.write_bytes(key, PAGE as usize);
    }
    node.commit(session, &[CommitItem { key: &[key], ..item_of(granted.handle) }], 1).expect("its");
}

/// Checks the bytes of all values, and returns their keys.
fn keys(node: &Node) -> Vec<u8> {
    node.check().expect("the invariants hold");
    let mut keys = Vec::new();
    for slot in node.committed_slots() {
        let key = node.entry(slot).key()[0];
        let first = ends_of(node, slot)[0];
        // SAFETY: the value is committed, and no other thread has the memory.
        let bytes = unsafe { std::slice::from_raw_parts(first, PAGE as usize) };
        assert!(bytes.iter().all(|byte| *byte == key), "{key}");
        assert!(node.entry(slot).extent().end <= node.size(), "{key}");
        keys.push(key);
    }
    keys.sort_unstable();
    keys
}

/// A client learns whether pages that it has registered may be given back.
#[test]
fn memory_is_elastic_from_its_first_change_on() {
    let all = BYTES as u64;
    let mut node = node();
    assert_eq!((node.size_limits(), node.min_size()), ((PAGE, all), u64::MAX));
    assert!(!node.is_elastic());
    let session = begin(&mut node, 100);
    (0..60).for_each(|key| store(&mut node, session, key));
    for (wanted, pressure) in [(all, 0), (all / 2, 1), (all / 4, 2), (all, 2)] {
        node.resize_for_others(wanted);
        assert_eq!((node.wanted_size(), node.counters.pressure), (wanted, pressure));
        assert_eq!(node.is_elastic(), pressure > 0, "before it has the size");
        assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
        assert_eq!((node.size(), node.is_elastic()), (wanted, pressure > 0));
    }
    for (min_size, is_elastic) in [(all, false), (all - PAGE, true)] {
        let node = Node::create(shared(BYTES), NodeOptions { min_size, ..options() });
        assert_eq!(node.expect("the options are possible").is_elastic(), is_elastic);
    }
}

#[test]
fn a_smaller_memory_keeps_what_was_used_last_and_gives_its_pages_back() {
    let mut node = node();
    let session = begin(&mut node, 100);
    let before = node.memory.resident_bytes();
    (0..40).for_each(|key| store(&mut node, session, key));
    // Used again, from the last one on.
    (0..40).rev().step_by(4).for_each(|key| assert_eq!(node.touch(session, &[&[key]], 2), 1));
    assert_eq!(node.memory.resident_bytes() - before, 40 * PAGE);

    node.resize(16 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    let stats = node.stats();
    assert_eq!((stats.capacity, stats.wanted_capacity), (16 * PAGE, 16 * PAGE));
    assert_eq!(stats.max_capacity, BYTES as u64);
    assert!(node.memory.resident_bytes() - before <= 16 * PAGE);
    assert!(stats.given_back_bytes_total >= 24 * PAGE, "{stats:?}");
    let mut expected: Vec<u8> = (0..40).rev().step_by(4).collect();
    let others: Vec<u8> = (0..40).rev().filter(|key| !expected.contains(key)).take(6).collect();
    expected.extend(others);
    expected.sort_unstable();
    assert_eq!(keys(&node), expected);
    let error = node.reserve(session, &[17 * PAGE]).expect_err("it is longer than the memory");
    assert!(matches!(error, CallError::BadLength { .. } | CallError::OutOfSpace { .. }), "{error}");

    node.resize(u64::MAX);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!((node.stats().capacity, keys(&node)), (BYTES as u64, expected));
    (50..90).for_each(|key| store(&mut node, session, key));
    assert_eq!(keys(&node).len(), 56);
}

#[test]
fn what_is_in_use_stays_until_it_is_released() {
    let mut node = node();
    let session = begin(&mut node, 100);
    (0..64).for_each(|key| store(&mut node, session, key));
    let last = node.committed_slots().max_by_key(|slot| node.entry(*slot).extent().start);
    let key = node.entry(last.expect("there are values")).key()[0];
    let pinned = node.acquire(session, &[&[key]], false, 2).expect("no limit").remove(0);
    let pinned = pinned.expect("it is there");
    assert_eq!(pinned.offset, BYTES as u64 - PAGE);

    node.resize(8 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
    let resized = node.resized();
    assert_eq!((resized.size, resized.wanted), (9 * PAGE, 8 * PAGE));
    assert_eq!((resized.held_bytes, resized.registered_clients), (PAGE, 0));
    node.check().expect("the invariants hold");
    // What is between is nobody's.
    let free = node.reserve(session, &[PAGE; 7]).expect("others are evicted");
    assert!(free.iter().all(|it| it.offset < 8 * PAGE));
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);

    let handles: Vec<BlockHandle> = free.iter().map(|it| it.handle).collect();
    node.release(session, &handles).expect("its own");
    node.release(session, &[pinned.handle]).expect("its own");
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!((node.resized().size, node.resized().held_bytes), (8 * PAGE, 0));
    assert!(keys(&node).contains(&key), "it was used last, and moves");
}

/// Nothing is closed where all behind the smaller end is in use. What becomes free there later is
/// not closed, either, when the memory is to have its whole size again.
#[test]
fn a_size_that_closed_nothing_is_left_for_a_larger_one() {
    let mut node = node();
    let session = begin(&mut node, 100);
    let all = node.reserve(session, &[PAGE; 64]).expect("there is space");
    node.resize(60 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
    node.resize(u64::MAX);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    let handles: Vec<BlockHandle> = all.iter().map(|it| it.handle).collect();
    node.release(session, &handles).expect("its own");
    assert_eq!(node.size(), BYTES as u64);
}

#[test]
fn a_size_that_was_not_reached_is_left_for_a_larger_one() {
    let mut node = node();
    let session = begin(&mut node, 100);
    (0..64).for_each(|key| store(&mut node, session, key));
    let all: Vec<[u8; 1]> = (30..40).map(|key| [key]).collect();
    let all: Vec<&[u8]> = all.iter().map(<[u8; 1]>::as_slice).collect();
    node.acquire(session, &all, false, 2).expect("no limit");
    node.resize(4 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
    assert_eq!(node.stats().used, 10 * PAGE);
    node.resize(48 * PAGE);
    resize_to_the_end(&mut node, usize::MAX);
    node.check().expect("the invariants hold");
    node.resize(u64::MAX);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!(node.stats().capacity, BYTES as u64);
    assert_eq!(keys(&node).len(), 10);
}

#[test]
fn memory_that_a_device_may_have_is_not_given_back() {
    let mut node = node();
    let session = begin(&mut node, 100);
    (0..64).for_each(|key| store(&mut node, session, key));
    node.set_registers(session, true);
    node.resize(8 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
    let resized = node.resized();
    assert_eq!((resized.size, resized.registered_clients), (BYTES as u64, 1));
    assert_eq!(keys(&node).len(), 64, "nothing is evicted in vain");
    node.end_session(session);
    node.release_ended(usize::MAX);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!(keys(&node).len(), 8);
}

#[test]
fn a_restart_with_another_size_keeps_what_fits() {
    let mut node = node();
    let session = begin(&mut node, 100);
    (0..64).for_each(|key| store(&mut node, session, key));
    let mut smaller = restarted(&node, 20 * PAGE, 0);
    assert_eq!(smaller.stats().capacity, BYTES as u64, "values lie behind the end");
    assert_eq!(resize_to_the_end(&mut smaller, usize::MAX), ResizeStep::Done);
    assert_eq!(keys(&smaller), (44..64).collect::<Vec<u8>>());
    drop(node);

    // The pages behind the end are missing, so the space grows as they come.
    let mut larger = restarted(&smaller, 40 * PAGE, 0);
    assert_eq!(larger.stats().capacity, 20 * PAGE);
    assert_eq!(resize_to_the_end(&mut larger, usize::MAX), ResizeStep::Done);
    assert_eq!(larger.stats().capacity, 40 * PAGE);
    assert_eq!(keys(&larger), (44..64).collect::<Vec<u8>>());
}

#[test]
fn a_file_becomes_longer_unless_it_is_sealed() {
    let mut sealed = node();
    let session = begin(&mut sealed, 100);
    store(&mut sealed, session, 1);
    let same = restarted(&sealed, 2 * BYTES as u64, 2 * BYTES as u64);
    assert_eq!((same.stats().max_capacity, keys(&same)), (BYTES as u64, vec![1]));

    let region = Region::builder(BYTES).backing(Backing::Shared).ladder(PageSize::Base);
    let region = region.growable(true).map().expect("memory can be mapped");
    let mut short = Node::create(region, options()).expect("the options are possible");
    let session = begin(&mut short, 100);
    store(&mut short, session, 1);
    let mut long = restarted(&short, 2 * BYTES as u64, 2 * BYTES as u64);
    assert_eq!(resize_to_the_end(&mut long, usize::MAX), ResizeStep::Done);
    assert_eq!((long.stats().capacity, keys(&long)), (2 * BYTES as u64, vec![1]));
    let session = begin(&mut long, 101);
    (2..48).for_each(|key| store(&mut long, session, key));
    // The header of the index names the shorter file, and blocks lie behind that.
    let again = restarted(&long, u64::MAX, 0);
    assert_eq!(keys(&again).len(), 47);
}

#[test]
fn a_value_keeps_its_chain_its_place_and_its_time_when_it_moves() {
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let options = NodeOptions { eviction, ..options() };
        let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
        let session = begin(&mut node, 100);
        (100..140).for_each(|key| store(&mut node, session, key));
        for key in 0..4_u8 {
            let granted = node.reserve(session, &[PAGE]).expect("there is space").remove(0);
            let before = [key.wrapping_sub(1)];
            let (key, parent) = ([key], (key > 0).then_some(&before[..]));
            let item = CommitItem { key: &key, parent, ..item_of(granted.handle) };
            let item = CommitItem { priority: 1, ttl_ms: 1000, ..item };
            node.commit(session, &[item], 1).expect("its own");
        }
        node.resize(6 * PAGE);
        assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
        node.check().expect("the invariants hold");
        let left = found(&node);
        assert!((0..4).all(|key| left.contains_key(&vec![key])), "{left:?}");
        assert_eq!(node.stats().dead_bytes, 0);
        for end in (0..4_u8).rev() {
            // The two others first, and the end of the chain before its start.
            while found(&node).contains_key(&vec![end]) {
                assert!((0..end).all(|key| found(&node).contains_key(&vec![key])));
                node.evict_bytes(None, 1);
            }
        }
    }
}
