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

/// A child moves to another entry, its parent to the entry that it left, and then the parent gets
/// the place of its child in the order of use: a record of that place is there already.
#[test]
fn a_parent_that_moves_to_the_entry_of_its_child_has_one_record() {
    let mut node = node();
    let session = begin(&mut node, 1);
    insert(&mut node, session, b"front", BYTES as u64 / 2);
    insert(&mut node, session, b"before", PAGE);
    insert(&mut node, session, b"parent", PAGE);
    let slot = |node: &Node, key: &[u8]| node.find(0, key).expect("it has a value");
    let [first, second] = [b"before", b"parent"].map(|key| slot(&node, key));
    assert_eq!(node.remove(session, &[b"before"]), Ok(1));
    let handle = node.reserve(session, &[PAGE]).expect("there is space")[0].handle;
    let child = CommitItem { key: b"child", parent: Some(b"parent"), ..item_of(handle) };
    node.commit(session, &[child], 1).expect("its own");
    assert_eq!((slot(&node, b"child"), slot(&node, b"parent")), (first, second));
    assert_eq!(node.remove(session, &[b"front"]), Ok(1));
    node.resize(BYTES as u64 / 2);
    assert_eq!(resize_to_the_end(&mut node, 1000), ResizeStep::Done);
    assert_eq!(slot(&node, b"parent"), first);
    assert_eq!(node.remove(session, &[b"child"]), Ok(1));
    node.check().expect("the invariants hold");
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

/// Returns where the values are: key to offset.
fn offsets(node: &Node) -> BTreeMap<u8, u64> {
    let of = |slot: u32| (node.entry(slot).key()[0], node.entry(slot).extent().start);
    node.committed_slots().map(of).collect()
}

/// Returns a node of `count` values of 256 KiB, without room for another one. The bytes of each
/// are those of its key.
fn full_node(count: u8) -> (Node, SessionIndex) {
    let bytes = u64::from(count) * VALUE;
    let mut node = Node::create(shared(bytes as usize), options()).expect("they are possible");
    let session = begin(&mut node, 100);
    for key in 0..count {
        let granted = node.reserve(session, &[VALUE]).expect("there is space").remove(0);
        // SAFETY: the block is reserved, and no other thread has the memory.
        unsafe {
            let at = node.memory.bytes.base().as_ptr().add(granted.offset as usize);
            at.write_bytes(key, VALUE as usize);
        }
        let item = CommitItem { key: &[key], ..item_of(granted.handle) };
        node.commit(session, &[item], 1).expect("its own");
    }
    (node, session)
}

const VALUE: u64 = 256 << 10;

/// Checks a byte of each page of the values of a [`full_node`], and returns where they are.
fn checked_offsets(node: &Node) -> BTreeMap<u8, u64> {
    node.check().expect("the invariants hold");
    let offsets = offsets(node);
    for (key, offset) in &offsets {
        let first = node.memory.bytes.base().as_ptr().wrapping_add(*offset as usize);
        let pages = (0..VALUE).step_by(PAGE as usize).map(|at| first.wrapping_add(at as usize));
        // SAFETY: the value is committed, and no other thread has the memory.
        pages.for_each(|page| assert_eq!(unsafe { page.read() }, *key, "{offset:x}"));
    }
    offsets
}

/// However long the memory takes, calls wait for one piece of the work at most.
#[test]
fn a_step_without_time_does_one_piece() {
    let (mut node, _) = full_node(64);
    let bytes = 64 * VALUE;
    for (size, piece) in [(bytes / 4, 2 << 20), (bytes, 64 << 10)] {
        node.resize(size);
        let (mut last, mut made, mut all_changed) = (ResizeStep::More, 0, 0);
        while last == ResizeStep::More {
            let (values, resident) = (offsets(&node), node.memory.resident_bytes());
            last = node.resize_some(Slice::of(Duration::ZERO));
            let now = offsets(&node);
            let changed = values.iter().filter(|(key, offset)| now.get(key) != Some(offset));
            let changed = changed.count();
            assert!(changed <= 1, "{values:?} {now:?}");
            all_changed += changed;
            assert!(node.memory.resident_bytes().abs_diff(resident) <= piece);
            made += 1;
        }
        if size < bytes {
            // 48 values were evicted, each in a step, and the others moved, in four steps each.
            assert!(
                all_changed > 48 && made >= 48 + 4 * (all_changed - 48),
                "{all_changed} {made}"
            );
        }
        assert_eq!((last, node.memory.resident_bytes()), (ResizeStep::Done, size));
        assert_eq!(checked_offsets(&node).len(), 16);
    }
}

#[test]
fn a_value_that_is_used_or_removed_while_it_moves_stays_or_goes() {
    for step in (8..60).step_by(2) {
        for what in ["used", "removed", "another size"] {
            let (mut node, session) = full_node(16);
            node.resize(8 * VALUE);
            (0..step).for_each(|_| _ = node.resize_some(Slice::of(Duration::ZERO)));
            let keys: Vec<[u8; 1]> = offsets(&node).into_keys().map(|key| [key]).collect();
            let keys: Vec<&[u8]> = keys.iter().map(<[u8; 1]>::as_slice).collect();
            let mut pins = Vec::new();
            match what {
                "used" => pins = node.acquire(session, &keys, false, 2).expect("no limit"),
                "removed" => drop(node.remove(session, &keys[keys.len() / 2..])),
                _ => node.resize(12 * VALUE),
            }
            checked_offsets(&node);
            resize_to_the_end(&mut node, 10);
            let pins: Vec<_> = pins.into_iter().flatten().map(|it| it.handle).collect();
            node.release(session, &pins).expect("its own");
            node.resize(8 * VALUE);
            assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done, "{what}");
            let values = checked_offsets(&node).len();
            assert!(values == 8 || what == "removed", "{step} {what}: {values}");
            assert!(node.memory.resident_bytes() <= 8 * VALUE);
        }
    }
}

/// Whenever a block becomes free, or another size is requested, no page behind the end is left.
#[test]
fn what_becomes_free_while_the_memory_becomes_smaller_goes_back_too() {
    for (interrupted, is_removed) in (50..70).flat_map(|steps| [(steps, true), (steps, false)]) {
        let mut node = node();
        let session = begin(&mut node, 100);
        (0..64).for_each(|key| store(&mut node, session, key));
        // All but one of the values that were used last are in front.
        for (key, offset) in offsets(&node) {
            if offset < 7 * PAGE || offset == 40 * PAGE {
                assert_eq!(node.touch(session, &[&[key]], 2), 1);
            }
        }
        let middle = offsets(&node).into_iter().find(|it| it.1 == 40 * PAGE);
        let key = [middle.expect("there is a value").0];
        let mut pins = Vec::new();
        if is_removed {
            let pin = node.acquire(session, &[&key], false, 2).expect("no limit").remove(0);
            pins.push(pin.expect("it is there").handle);
            node.remove(session, &[&key]).expect("it may");
        }
        node.resize(8 * PAGE);
        (0..interrupted).for_each(|_| _ = node.resize_some(Slice::of(Duration::ZERO)));
        if !is_removed {
            node.resize(6 * PAGE);
        }
        node.release(session, &pins).expect("its own");
        assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
        assert_eq!(node.size(), if is_removed { 8 * PAGE } else { 6 * PAGE }, "{interrupted}");
        assert!(node.memory.resident_bytes() <= node.size(), "{interrupted} {is_removed}");
        assert!(!keys(&node).is_empty());
    }
}

#[test]
fn pages_that_a_range_has_parts_of_become_resident() {
    let node = node();
    assert!(node.memory.make_resident(PAGE + 100..2 * PAGE + 100));
    assert_eq!(node.memory.resident_bytes(), 2 * PAGE);
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

/// A node with a long memory, of which only the front is used.
fn large(bytes: usize, options: NodeOptions) -> (Node, SessionIndex) {
    let mut node = Node::create(shared(bytes), options).expect("the options are possible");
    let session = begin(&mut node, 100);
    (node, session)
}

/// Returns the sizes after each step, until there is another result than more.
fn steps_of(node: &mut Node, size: impl Fn(&Node) -> u64) -> (Vec<u64>, ResizeStep) {
    let mut sizes = Vec::new();
    for _ in 0..1000 {
        let step = node.resize_some(Slice::endless());
        node.check().expect("the invariants hold");
        sizes.push(size(node));
        if step != ResizeStep::More {
            return (sizes, step);
        }
    }
    panic!("it does not end: {sizes:?}");
}

const STEP: u64 = 512 << 10;

/// A call must not wait until all pages are there.
#[test]
fn memory_grows_by_half_a_megabyte_at_a_time() {
    let options = NodeOptions { size: PAGE, ..options() };
    let (mut node, session) = large(2 << 20, options);
    assert_eq!(node.size(), PAGE);
    node.resize(2 << 20);
    let before = node.memory.resident_bytes();
    let (sizes, last) = steps_of(&mut node, Node::size);
    let end = 2 << 20;
    let expected = [1, 2, 3].map(|step| PAGE + step * STEP).into_iter().chain([end, end]);
    assert_eq!((sizes, last), (expected.collect(), ResizeStep::Done));
    assert_eq!(node.memory.resident_bytes() - before, end - PAGE);
    node.reserve(session, &[end]).expect("all of it is free");
}

/// The ranges that a smaller size has closed are opened from the front on, half a megabyte at a
/// time, up to the new end.
#[test]
fn closed_memory_is_opened_in_steps() {
    for wanted in [3 << 20, 4 << 20] {
        let (mut node, session) = large(4 << 20, options());
        let all = node.reserve(session, &[(4 << 20) - PAGE, PAGE]).expect("there is space");
        let (front, last) = (all[0].handle, all[1].handle);
        node.release(session, &[front]).expect("its own");
        node.resize(1 << 20);
        assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
        assert_eq!(node.size(), (1 << 20) + PAGE, "the last page is in use");
        node.resize(wanted);
        let (sizes, step) = steps_of(&mut node, Node::size);
        let opened = (wanted - (1 << 20) - if wanted < 4 << 20 { 0 } else { PAGE }) / STEP;
        let mut expected: Vec<u64> = (1..=opened).map(|it| (1 << 20) + PAGE + it * STEP).collect();
        let is_all = wanted == 4 << 20;
        if is_all {
            expected.extend([wanted; 2]);
            assert_eq!((sizes, step), (expected, ResizeStep::Done));
            node.reserve(session, &[(4 << 20) - PAGE]).expect("it is free");
        } else {
            assert_eq!(sizes[..expected.len()], expected, "{sizes:?}");
            assert_eq!((step, node.size()), (ResizeStep::Stuck, wanted + PAGE));
            assert!(node.reserve(session, &[wanted + PAGE]).is_err(), "the rest is closed");
            node.release(session, &[last]).expect("its own");
            assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
            assert_eq!(node.size(), wanted);
        }
    }
}

/// Memory becomes smaller by 16 MiB at a time, from its end on.
#[test]
fn memory_shrinks_in_chunks_of_16_megabytes() {
    const MIB: u64 = 1 << 20;
    for boundary in [1 << 30, 8 * MIB] {
        let (mut node, _) = large(40 << 20, NodeOptions { boundary, ..options() });
        node.resize(4 * MIB);
        let (sizes, last) = steps_of(&mut node, |node| node.space.capacity() / MIB);
        assert_eq!((sizes, last), (vec![40, 24, 24, 8, 8, 4], ResizeStep::Done));
        assert_eq!(node.resized().held_bytes, 0);
    }
}

/// A chunk has at most 512 ranges, and begins at a page.
#[test]
fn a_chunk_of_many_ranges_is_shorter() {
    let options = NodeOptions { max_blocks: Some(4096), align: 64, ..options() };
    let (mut node, session) = large(BYTES, options);
    node.reserve(session, &[64; 4096]).expect("there is space");
    node.resize(PAGE);
    assert_eq!(node.resize_some(Slice::endless()), ResizeStep::More);
    // The 513th range from the end begins here.
    let many = BYTES as u64 - 513 * 64;
    assert_eq!(node.resizing.closed_from, many / PAGE * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Stuck);
    assert_eq!(node.resizing.closed_from, PAGE);
}

/// A step copies four megabytes, and one value more at most.
#[test]
fn a_step_moves_some_values() {
    const MIB: u64 = 1 << 20;
    let (mut node, session) = large(24 << 20, options());
    for key in 0..24 {
        insert(&mut node, session, &[key], MIB);
    }
    let in_front = |node: &Node| {
        let slots = node.committed_slots();
        let keys: Vec<u8> = slots
            .filter(|slot| node.entry(*slot).extent().end <= 12 * MIB)
            .map(|slot| node.entry(slot).key()[0])
            .collect();
        keys
    };
    let removed = in_front(&node);
    assert_eq!(removed.len(), 12);
    let keys: Vec<[u8; 1]> = removed[1..].iter().map(|key| [*key]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 1]>::as_slice).collect();
    assert_eq!(node.remove(session, &keys), Ok(11));
    let first = node.find(0, &removed[..1]).expect("it stays");
    let extent = node.entry(first).extent();
    node.resize(13 * MIB);
    let (moved, last) = steps_of(&mut node, |node| in_front(node).len() as u64);
    // One value lies at the end of the new memory: it stays there, as does the one in front.
    assert_eq!((moved, last), (vec![1, 5, 9, 12], ResizeStep::Done));
    assert_eq!(node.entry(node.find(0, &removed[..1]).expect("it stays")).extent(), extent);
    assert_eq!((node.len(), node.stats().evicted_total), (13, 0));
}

/// A value that finds no place in front has others evicted until there is one.
#[test]
fn values_are_evicted_until_one_that_moves_has_a_place() {
    let (mut node, session) = large(BYTES, options());
    for key in 0..62 {
        insert(&mut node, session, &[key], PAGE);
    }
    insert(&mut node, session, b"long", 2 * PAGE);
    let long = |node: &Node| node.entry(node.find(0, b"long").expect("it stays")).extent();
    assert_eq!(long(&node).start, 62 * PAGE);
    // Each second page is free.
    for key in (0..62).step_by(2) {
        assert_eq!(node.remove(session, &[&[key]]), Ok(1));
    }
    node.resize(62 * PAGE);
    node.evictions_left = 0;
    let mut steps = (0..10).map(|_| node.resize_some(Slice::endless()));
    assert!(steps.all(|it| it == ResizeStep::More));
    assert_eq!((long(&node).start, node.stats().evicted_total), (62 * PAGE, 0));
    node.evictions_left = u32::MAX;
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!(node.stats().evicted_total, 1, "one more page makes three in a row");
    assert!(long(&node).end <= 62 * PAGE);
    // All others are in use: it goes itself.
    let (mut node, session) = large(BYTES, options());
    let held = node.reserve(session, &[PAGE; 62]).expect("there is space");
    insert(&mut node, session, b"long", 2 * PAGE);
    let handles: Vec<BlockHandle> = held.iter().step_by(2).map(|it| it.handle).collect();
    node.release(session, &handles).expect("its own");
    node.resize(62 * PAGE);
    assert_eq!(resize_to_the_end(&mut node, usize::MAX), ResizeStep::Done);
    assert_eq!((node.len(), node.stats().evicted_total), (0, 1));
}
