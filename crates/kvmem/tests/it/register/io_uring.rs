//! Fixed buffers, verified by work on them.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::io_uring::{opcode, types};
use kvmem::arena::{Errno, Ladder, PageSize, Populate, Region, RegionBuilder};
use kvmem::register::{Account, IoUring, Key, RegisterLimit, Registrar, RegistrarError, RingTable};

use super::fixed::{Worker, file, rings};

const MIB: usize = 1 << 20;

/// The limit on pinned memory may be 8 MiB for all rings of the user: these tests run in turn.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map(builder: RegionBuilder) -> Region {
    builder.populate(Populate::Auto).map().expect("a little memory")
}

fn base(bytes: usize) -> Region {
    map(Region::builder(bytes).ladder(Ladder::only(PageSize::Base)))
}

fn at(region: &Region, offset: usize) -> NonNull<u8> {
    assert!(offset <= region.len());
    // SAFETY: within the region, or at its end.
    unsafe { region.base().add(offset) }
}

fn register(
    ring: &IoUring,
    region: &Region,
    offset: usize,
    len: usize,
) -> Result<Key, RegistrarError> {
    assert!(offset + len <= region.len());
    // SAFETY: within the region, which every test drops after its ring.
    unsafe { ring.register(at(region, offset), len) }
}

/// Registers all chunks of a region, verifies each as a whole and at its last byte, and deregisters
/// them.
fn proved(worker: &mut Worker, ring: &IoUring, region: &Region, chunk: usize) {
    let free = ring.limits().max_keys;
    let starts: Vec<usize> = (0..region.len()).step_by(chunk).collect();
    let keys: Vec<(usize, Key)> = starts
        .iter()
        .map(|start| (*start, register(ring, region, *start, chunk).expect("a little memory")))
        .collect();
    assert_eq!(ring.limits().max_keys, free - keys.len() as u64);
    let slots: HashSet<u64> = keys.iter().map(|(_, key)| key.lkey).collect();
    assert_eq!(slots.len(), keys.len(), "each has its own slot");
    for (start, key) in &keys {
        assert_eq!(key.rkey, None);
        worker.prove(*key, at(region, *start), chunk);
        worker.prove(*key, at(region, start + chunk - 1), 1);
        // One byte beyond is not covered.
        worker.assert_unusable(*key, at(region, start + chunk - 1), 2);
    }
    // Each key is independent of the others.
    for (done, (start, key)) in keys.iter().enumerate() {
        ring.deregister(*key).expect("the key is live");
        worker.assert_unusable(*key, at(region, *start), chunk);
        if let Some((start, key)) = keys.get(done + 1) {
            worker.prove(*key, at(region, *start), chunk);
        }
    }
    assert_eq!(ring.limits().max_keys, free);
}

/// Runs `check` with a table of the registrar, and with a part of an existing table.
fn tables(check: impl Fn(&mut Worker, IoUring)) {
    for table in [RingTable::New(64), RingTable::Existing(8..40)] {
        let Some(mut worker) = Worker::new() else { return };
        if let RingTable::Existing(_) = table {
            worker.ring.submitter().register_buffers_sparse(64).expect("a table");
        }
        let ring = worker.adopt(table).expect("the ring accepts the table");
        check(&mut worker, ring);
    }
}

#[test]
fn base_pages_are_read_and_written_by_their_key() {
    let _turn = turn();
    let region = base(MIB);
    tables(|worker, ring| {
        proved(worker, &ring, &region, 128 << 10);
        proved(worker, &ring, &region, MIB);
    });
}

#[test]
fn hugepages_are_read_and_written_by_their_key() {
    let _turn = turn();
    // Without hugepages these are base pages.
    let region = map(Region::builder(4 * MIB).ladder(Ladder::new([PageSize::Thp, PageSize::Base])));
    println!("{} bytes on hugepages", region.receipt().bytes_on(PageSize::Thp));
    tables(|worker, ring| {
        proved(worker, &ring, &region, 2 * MIB);
        proved(worker, &ring, &region, 4 * MIB);
        // Several within one page.
        proved(worker, &ring, &region, 256 << 10);
    });
}

#[test]
fn shared_memory_is_read_and_written_by_its_key() {
    let _turn = turn();
    let region =
        map(Region::builder(MIB).ladder(PageSize::Base).backing(kvmem::arena::Backing::Shared));
    tables(|worker, ring| proved(worker, &ring, &region, 512 << 10));
}

#[test]
fn a_range_need_not_begin_or_end_with_a_page() {
    let _turn = turn();
    let region = base(64 << 10);
    tables(|worker, ring| {
        let key = register(&ring, &region, 100, 5000).expect("a little memory");
        worker.prove(key, at(&region, 100), 5000);
        worker.assert_unusable(key, at(&region, 99), 2);
        worker.assert_unusable(key, at(&region, 5099), 2);
        ring.deregister(key).expect("the key is live");
    });
}

#[test]
fn other_buffers_stay_whatever_is_registered_and_deregistered() {
    let _turn = turn();
    let region = base(64 * 4096);
    let Some(mut worker) = Worker::new() else { return };
    let ring = worker.adopt(RingTable::New(8)).expect("the ring accepts the table");
    let part = |number: usize| (number * 4096, 4096);
    let mut keys: Vec<Key> = (0..8)
        .map(|number| {
            register(&ring, &region, part(number).0, part(number).1).expect("a free slot")
        })
        .collect();
    // Holes are filled in any order, and buffers after them stay.
    for (round, hole) in [3, 0, 7, 6, 2, 5, 1, 4, 4, 0, 7].into_iter().enumerate() {
        ring.deregister(keys[hole]).expect("the key is live");
        let old = keys[hole];
        keys[hole] = register(&ring, &region, part(hole).0, part(hole).1).expect("a free slot");
        assert_eq!(keys[hole].lkey, old.lkey, "the only one that is free");
        assert_ne!(keys[hole].handle, old.handle);
        for (number, key) in keys.iter().enumerate() {
            worker.prove(*key, at(&region, part(number).0), part(number).1);
        }
        // The old key is invalid, though its slot is in use.
        let error = ring.deregister(old).expect_err("deregistered before");
        assert_eq!(error.errno, Errno::ENOENT, "round {round}: {error}");
    }
}

#[test]
fn foreign_slots_are_not_touched() {
    let _turn = turn();
    let region = base(64 * 4096);
    let Some(mut worker) = Worker::new() else { return };
    worker.ring.submitter().register_buffers_sparse(12).expect("a table");
    let fill = |slot: u32, offset: usize| {
        let vector = libc::iovec { iov_base: at(&region, offset).as_ptr().cast(), iov_len: 4096 };
        // SAFETY: the region outlives the ring.
        unsafe { worker.ring.submitter().register_buffers_update(slot, &[vector], None) }
            .expect("a slot");
    };
    for slot in 0..12 {
        fill(slot, slot as usize * 4096);
    }
    let theirs = |slot: u64| Key { handle: slot, lkey: slot, rkey: None };
    let ring = worker.adopt(RingTable::Existing(4..8)).expect("the table has these");
    for slot in 4..8 {
        worker.assert_unusable(theirs(slot), at(&region, slot as usize * 4096), 4096);
    }
    for _ in 0..2 {
        let keys: Vec<Key> = (0..4)
            .map(|number| {
                register(&ring, &region, (20 + number) * 4096, 4096).expect("a free slot")
            })
            .collect();
        assert!(keys.iter().all(|key| (4..8).contains(&key.lkey)), "{keys:?}");
        let error = register(&ring, &region, 0, 4096).expect_err("all slots in use");
        let exceeded = Some(RegisterLimit::Keys { limit: 0, need: 1 });
        assert_eq!((error.errno, &error.exceeded), (Errno::ENOSPC, &exceeded));
        assert!(error.to_string().contains("deregister keys"), "{error}");
        for slot in (0..4).chain(8..12) {
            worker.prove(theirs(slot), at(&region, slot as usize * 4096), 4096);
        }
        for key in keys {
            ring.deregister(key).expect("the key is live");
        }
    }
    // Dropping the registrar empties its own slots, and no others.
    let left = register(&ring, &region, 30 * 4096, 4096).expect("a free slot");
    worker.prove(left, at(&region, 30 * 4096), 4096);
    drop(ring);
    worker.assert_unusable(left, at(&region, 30 * 4096), 4096);
    worker.prove(theirs(11), at(&region, 11 * 4096), 4096);
}

#[test]
fn a_new_ring_has_as_many_slots_as_the_kernel_allows() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let ring = IoUring::new(3).expect("rings are allowed");
    assert_eq!(ring.name(), "io_uring:3");
    let limits = ring.limits();
    assert_eq!((limits.device.as_str(), limits.max_bytes), ("io_uring:3", 1 << 30));
    assert_eq!(limits.preferred_chunk_bytes, Some(256 << 20));
    assert!([1024, 16384].contains(&limits.max_keys), "{limits:?}");
    assert!(limits.memlock.is_none_or(|memlock| memlock.account == Account::Rings));
    let region = base(4096);
    // Each buffer is charged separately, so few could exceed the limit.
    let max = limits
        .memlock
        .map_or(limits.max_keys, |memlock| limits.max_keys.min(memlock.limit_bytes / 8192));
    let keys: Vec<Key> =
        (0..max).map(|_| register(&ring, &region, 0, 4096).expect("a free slot")).collect();
    assert_eq!(ring.limits().max_keys, limits.max_keys - max);
    if max == limits.max_keys {
        let error = register(&ring, &region, 0, 4096).expect_err("all slots in use");
        assert!(matches!(error.exceeded, Some(RegisterLimit::Keys { .. })), "{error}");
    }
    assert_eq!(keys.iter().map(|key| key.handle).collect::<HashSet<_>>().len() as u64, max);
    for key in &keys {
        ring.deregister(*key).expect("the key is live");
    }
    assert_eq!(ring.limits().max_keys, limits.max_keys);
}

#[test]
fn the_kernel_rejects_a_buffer_above_the_limit_too() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let len = (1 << 30) + 4096;
    let region = Region::builder(len).ladder(PageSize::Base).map().expect("addresses are plenty");
    let error = register(&ring, &region, 0, len).expect_err("more than 1 GiB");
    let exceeded = RegisterLimit::KeyBytes { limit_bytes: 1 << 30, need_bytes: len as u64 };
    assert_eq!(error.exceeded, Some(exceeded), "{error}");
    assert!(error.to_string().contains("smaller chunks"), "{error}");
    assert_eq!(
        region.residency(..).expect("the kernel reports residency").resident_bytes,
        0,
        "nothing was pinned"
    );
    assert_eq!(ring.limits().max_keys, IoUring::new(1).expect("as above").limits().max_keys);
}

#[test]
fn a_key_that_is_not_live_is_named() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let other = IoUring::new(1).expect("as above");
    let region = base(8192);
    let key = register(&ring, &region, 0, 4096).expect("a little memory");
    for foreign in [key, Key { handle: u64::MAX, ..key }, Key { handle: 5, ..key }] {
        let error = other.deregister(foreign).expect_err("never issued");
        assert_eq!(error.errno, Errno::ENOENT);
        assert!(error.to_string().contains(&format!("{:#x}", foreign.handle)), "{error}");
        assert!(error.to_string().contains("io_uring:1"), "{error}");
    }
    ring.deregister(key).expect("the key is live");
    assert_eq!(ring.deregister(key).expect_err("deregistered before").errno, Errno::ENOENT);
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let before = ring.limits().max_keys;
    let failure = |at: NonNull<u8>, len: usize| {
        // SAFETY: the call fails and pins nothing.
        let error = unsafe { ring.register(at, len) }.expect_err("cannot be pinned");
        assert!(error.exceeded.is_none(), "{error}");
        assert_eq!(ring.limits().max_keys, before);
        error
    };
    let mapped = |file: Option<&File>, access: i32| {
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: the kernel chooses the address.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, access, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        NonNull::new(at.cast::<u8>()).expect("an address")
    };
    let unmap = |at: NonNull<u8>| {
        // SAFETY: mapped by this test, and not used any more.
        assert_eq!(unsafe { libc::munmap(at.as_ptr().cast(), 8192) }, 0);
    };
    let hole = mapped(None, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(failure(hole, 0).errno, Errno::EFAULT);
    // SAFETY: the second page was mapped by this test, and is not used.
    assert_eq!(unsafe { libc::munmap(hole.as_ptr().add(4096).cast(), 4096) }, 0);
    assert_eq!(failure(hole, 8192).errno, Errno::EFAULT);
    unmap(hole);
    assert_eq!(failure(hole, 8192).errno, Errno::EFAULT);
    let constant = mapped(None, libc::PROT_READ);
    assert!(failure(constant, 8192).to_string().contains("reading and writing"));
    unmap(constant);
    // A file whose file system writes its pages to a disk.
    let file = file();
    file.set_len(8192).expect("space for a file");
    // SAFETY: a structure of plain numbers.
    let mut system = unsafe { std::mem::zeroed::<libc::statfs>() };
    // SAFETY: the output has the type that the call fills.
    assert_eq!(unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) }, 0);
    if system.f_type == libc::TMPFS_MAGIC {
        return println!("skipped in part: the folder of temporary files is memory");
    }
    let paper = mapped(Some(&file), libc::PROT_READ | libc::PROT_WRITE);
    let error = failure(paper, 8192);
    assert!([Errno::EFAULT, Errno::EOPNOTSUPP].contains(&error.errno), "{error}");
    assert!(error.to_string().contains("hugepages"), "{error}");
    unmap(paper);
}

#[test]
fn a_ring_that_does_not_fit_is_an_error() {
    let _turn = turn();
    let Some(worker) = Worker::new() else { return };
    let check = |table: RingTable, errno: Errno, word: &str| {
        let error = worker.adopt(table).expect_err("it does not fit");
        assert_eq!(error.errno, errno, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    check(RingTable::Existing(0..4), Errno::ENXIO, "RingTable::New");
    for none in [RingTable::New(0), RingTable::New(16385)] {
        check(none, Errno::EINVAL, "1 to 16384");
    }
    worker.ring.submitter().register_buffers_sparse(4).expect("a table");
    check(RingTable::New(4), Errno::EBUSY, "RingTable::Existing");
    #[allow(clippy::reversed_empty_ranges)]
    for none in [
        RingTable::Existing(2..5),
        RingTable::Existing(2..2),
        RingTable::Existing(3..1),
        RingTable::Existing(0..u32::MAX),
    ] {
        check(none, Errno::EINVAL, "all of these slots");
    }
    assert_eq!(worker.adopt(RingTable::Existing(0..4)).expect("it has them").limits().max_keys, 4);
    let error = IoUring::adopt("file", file(), RingTable::New(4)).expect_err("no ring");
    assert!(error.to_string().contains("is not a ring"), "{error}");
    // A ring for a single thread, used by another thread.
    let Ok(single) =
        ::io_uring::IoUring::<::io_uring::squeue::Entry>::builder().setup_single_issuer().build(8)
    else {
        return println!("skipped in part: the kernel has no such rings");
    };
    let ring =
        Arc::new(IoUring::adopt("single", single, RingTable::New(4)).expect("the same thread"));
    let region = base(4096);
    let there = Arc::clone(&ring);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| register(&there, &region, 0, 4096).expect_err("another thread"));
        let error = other.join().expect("no panic");
        assert!(error.to_string().contains("IORING_SETUP_SINGLE_ISSUER"), "{error}");
    });
    assert_eq!(ring.limits().max_keys, 4, "the slot is free again");
    let key = register(&ring, &region, 0, 4096).expect("the same thread");
    ring.deregister(key).expect("the key is live");
}

#[test]
fn work_in_progress_is_finished() {
    let _turn = turn();
    let region = base(4096);
    tables(|worker, ring| {
        let (reader, mut writer) = std::io::pipe().expect("two descriptors");
        let key = register(&ring, &region, 0, 4096).expect("a little memory");
        let at = region.base();
        let entry =
            opcode::ReadFixed::new(types::Fd(reader.as_raw_fd()), at.as_ptr(), 4, key.lkey as u16)
                .build();
        worker.submit(&entry);
        ring.deregister(key).expect("the key is live");
        std::io::Write::write_all(&mut writer, b"late").expect("a reader");
        assert_eq!(worker.done(), 4);
        // SAFETY: the work is done, and nothing else uses the region.
        assert_eq!(unsafe { std::slice::from_raw_parts(at.as_ptr(), 4) }, b"late");
        worker.assert_unusable(key, at, 4);
    });
}

#[test]
fn eight_threads_at_once_on_one_ring_and_on_eight() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let region = base(8 * 16 * 4096);
    let one = [IoUring::new(0).expect("rings are allowed")];
    let eight: Vec<IoUring> =
        (0..8).map(|index| IoUring::new(index).expect("rings are allowed")).collect();
    for rings in [&one[..], &eight[..]] {
        let free: Vec<u64> = rings.iter().map(|ring| ring.limits().max_keys).collect();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (ring, region) = (&rings[thread % rings.len()], &region);
                scope.spawn(move || {
                    for round in 0..40 {
                        let keys: Vec<Key> = (0..16)
                            .map(|page| {
                                register(ring, region, (thread * 16 + page) * 4096, 4096)
                                    .expect("room")
                            })
                            .collect();
                        // In different orders, which leaves holes.
                        for turn in 0..16 {
                            ring.deregister(keys[(turn * 5 + round) % 16])
                                .expect("the key is live");
                        }
                    }
                });
            }
        });
        let left: Vec<u64> = rings.iter().map(|ring| ring.limits().max_keys).collect();
        assert_eq!(left, free);
    }
    // Verifies the table, with the ring of a worker.
    let Some(mut worker) = Worker::new() else { return };
    let ring = worker.adopt(RingTable::New(48)).expect("the ring accepts the table");
    let kept: Mutex<Vec<(usize, Key)>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (ring, region, kept) = (&ring, &region, &kept);
            scope.spawn(move || {
                let mine = |page: usize| (thread * 16 + page) * 4096;
                for round in 0..100 {
                    let keys: Vec<Key> = (0..6)
                        .map(|page| register(ring, region, mine(page), 4096).expect("six each"))
                        .collect();
                    for (page, key) in keys.into_iter().enumerate() {
                        if round == 99 && page % 2 == 0 {
                            kept.lock().expect("no panic").push((mine(page), key));
                        } else {
                            ring.deregister(key).expect("the key is live");
                        }
                    }
                }
            });
        }
    });
    let kept = kept.into_inner().expect("no panic");
    assert_eq!(kept.len(), 24);
    for (offset, key) in kept {
        worker.prove(key, at(&region, offset), 4096);
    }
    assert!(format!("{ring:?}").contains("free_slots: 24"), "{ring:?}");
    assert!(ring.as_fd().as_raw_fd() >= 0);
}

#[test]
fn keys_are_deregistered_together_in_any_order() {
    let _turn = turn();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let region = Region::builder(1 << 20).ladder(PageSize::Base).map().expect("a little memory");
    let page = 64 << 10;
    let register = |number: usize| {
        // SAFETY: the region is mapped until the test ends, and no work is submitted.
        unsafe { ring.register(region.base().add(number * page), page) }.expect("a little memory")
    };
    let free = ring.limits().max_keys;
    let mut keys: Vec<Key> = (0..10).map(register).collect();
    // One of them is deregistered before; the rest form three runs.
    ring.deregister(keys[4]).expect("the key is live");
    keys.rotate_left(7);
    let answers = ring.deregister_all(&keys);
    let failed: Vec<usize> = (0..10).filter(|number| answers[*number].is_err()).collect();
    assert_eq!(failed, [7], "{answers:?}");
    assert_eq!(ring.limits().max_keys, free);
    assert!(ring.deregister_all(&keys).iter().all(Result::is_err), "no key is live any more");
    assert!(ring.deregister_all(&[]).is_empty());
}
