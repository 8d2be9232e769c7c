//! Batches of a file device, by both engines.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvmem_tier::device::{AlignedBuffer, Device, FileDevice, Read, Write};

use crate::files::temp_path;

const BLOCK: usize = 4096;

/// Runs `test` with a new device for each engine, of 1 MiB, with up to four transfers in flight.
fn with_each_engine(name: &str, test: impl Fn(&FileDevice)) {
    for rings in [true, false] {
        let file = temp_path(name);
        let device = FileDevice::open(&file, 1 << 20, 4).unwrap();
        test(&if rings { device } else { device.without_rings() });
    }
}

/// Returns blocks that contain their numbers.
fn numbered(blocks: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(blocks);
    for (number, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
        block.fill(number as u8 + 1);
    }
    buffer
}

/// Writes each block of `buffer` to its place in the device.
fn write(
    device: &FileDevice,
    buffer: &[u8],
    meanwhile: &mut dyn FnMut(usize),
) -> Vec<io::Result<()>> {
    let writes: Vec<Write<'_>> = buffer
        .chunks_exact(BLOCK)
        .enumerate()
        .map(|(number, block)| Write { at: (number * BLOCK) as u64, parts: [block, &[]] })
        .collect();
    device.write(&writes, meanwhile)
}

/// Reads each block of `buffer` from its place in the device, the last one first.
fn read(
    device: &FileDevice,
    buffer: &mut [u8],
    meanwhile: &mut dyn FnMut() -> bool,
    done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
) {
    let mut reads: Vec<Read<'_>> = buffer
        .chunks_exact_mut(BLOCK)
        .enumerate()
        .map(|(number, block)| Read { at: (number * BLOCK) as u64, parts: [block, &mut []] })
        .collect();
    reads.reverse();
    device.read_meanwhile(&mut reads, meanwhile, done);
}

/// A batch may be longer than the depth. Each transfer has its events once, and a read its bytes
/// then. The work beside reads is done to its end.
#[test]
fn each_transfer_of_a_batch_has_its_events() {
    with_each_engine("events", |device| {
        for blocks in [0, 1, 3, 4, 50] {
            let source = numbered(blocks);
            let mut worked = Vec::new();
            let written = write(device, &source, &mut |index| worked.push(index));
            assert!(written.len() == blocks && written.iter().all(Result::is_ok));
            assert_eq!(worked, (0..blocks).collect::<Vec<_>>());
            let (mut target, mut done) = (AlignedBuffer::new(blocks), vec![0; blocks]);
            let mut pieces = (0..20).map(|piece| piece < 19);
            let mut work = || pieces.next().expect("nothing is left");
            read(device, &mut target, &mut work, &mut |index, read, result| {
                result.unwrap();
                let number = (blocks - 1 - index) as u8 + 1;
                assert!(read.parts[0].iter().all(|&byte| byte == number), "{index}");
                done[index] += 1;
            });
            assert_eq!(done, vec![1; blocks]);
            assert!(*target == *source && pieces.len() == 0);
        }
    });
}

/// Transfers behind the end of the file fail, and the others do not.
#[test]
fn each_transfer_of_a_batch_has_its_own_result() {
    with_each_engine("results", |device| {
        let source = numbered(2);
        let mut target = AlignedBuffer::new(3);
        assert!(write(device, &source, &mut |_| {}).iter().all(Result::is_ok));
        let mut parts = target.chunks_exact_mut(BLOCK);
        let positions = [BLOCK as u64, 1 << 20, 0];
        let mut reads: Vec<Read<'_>> = positions
            .into_iter()
            .map(|at| Read { at, parts: [parts.next().unwrap(), &mut []] })
            .collect();
        let mut kinds = [None; 3];
        device.read(&mut reads, &mut |index, _, result| {
            kinds[index] = result.err().map(|error| error.kind());
        });
        assert_eq!(kinds, [None, Some(io::ErrorKind::UnexpectedEof), None]);
        assert!(target[0] == 2 && target[2 * BLOCK] == 1);
    });
}

/// A panic in the middle of a batch ends when no transfer uses the memory any more, and leaves the
/// device usable.
#[test]
fn a_panic_in_a_batch_leaves_the_device_usable() {
    with_each_engine("panic", |device| {
        let source = numbered(40);
        for at in [0, 20, 39] {
            let write = || write(device, &source, &mut |index| assert!(index != at, "on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(write)).is_err());
        }
        assert!(write(device, &source, &mut |_| {}).iter().all(Result::is_ok));
        let mut target = AlignedBuffer::new(40);
        for at in [0, 20, 39] {
            let done = &mut |index, _: &mut Read<'_>, _| assert!(index != at);
            let read_all = || read(device, &mut target, &mut || false, done);
            assert!(catch_unwind(AssertUnwindSafe(read_all)).is_err());
            let mut left = at;
            let mut work = || {
                left = left.checked_sub(1).expect("on purpose");
                true
            };
            let work_and_read = || read(device, &mut target, &mut work, &mut |_, _, _| {});
            assert!(catch_unwind(AssertUnwindSafe(work_and_read)).is_err());
            target.fill(0);
            assert!(target.iter().all(|&byte| byte == 0), "the kernel still writes to it");
        }
        read(device, &mut target, &mut || false, &mut |_, _, result| result.unwrap());
        assert!(*target == *source);
    });
}

/// A file is open as long as a transfer can be in flight, and not longer.
#[test]
fn a_device_keeps_a_file_open() {
    use rustix::fs::{FlockOperation, flock};
    let place = temp_path("kept-open");
    let lock = temp_path("kept-open-lock");
    std::fs::File::create(&lock).expect("a file can be made");
    let is_free = || {
        let file = std::fs::File::open(&lock).expect("it is there");
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    for rings in [true, false] {
        let device = FileDevice::open(&place, 1 << 20, 4).expect("a new file");
        let device = if rings { device } else { device.without_rings() };
        let held = std::fs::File::open(&lock).expect("it is there");
        flock(&held, FlockOperation::NonBlockingLockExclusive).expect("it is free");
        device.keep_open(held.into()).expect("the ring has no other file");
        assert!(!is_free(), "rings: {rings}");
        let mut block = AlignedBuffer::new(1);
        device.read_at(0, &mut block).expect("it has these bytes");
        drop(device);
        // The kernel tears a ring down in the background.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_free() {
            assert!(std::time::Instant::now() < deadline, "rings: {rings}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
