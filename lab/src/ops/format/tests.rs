//! Files of calls that are as they should be, and all others.

use std::sync::Arc;

use super::super::recorder::{Recorder, Ticket};
use super::*;

fn header() -> Header {
    Header { allocator: "kvmem".to_owned(), threads: 2, capacity: 1 << 40 }
}

/// A small recording, and its bytes.
fn recorded() -> (Recording, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls");
    let recorder = Arc::new(Recorder::create(&path).unwrap());
    recorder.begin(&header());
    let made = |size, offset: u64| -> Option<Ticket> {
        recorder.allocate(size, || Ok::<u64, ()>(offset), |made| *made).1
    };
    let first = made(4096, 0);
    let second = made(1 << 39, 1 << 39);
    assert!(recorder.allocate(1 << 40, || Err::<u64, ()>(()), |made| *made).1.is_none());
    drop(first);
    let third = made(100, 4096);
    drop(second);
    assert_eq!(recorder.finish().unwrap(), 6);
    drop(third);
    let bytes = std::fs::read(&path).unwrap();
    let recording = Recording::read(&path).unwrap();
    (recording, bytes)
}

fn fault(bytes: &[u8]) -> OpsError {
    Recording::decode(bytes, Path::new("f")).unwrap_err()
}

#[test]
fn calls_come_back_as_they_were_made() {
    let (recording, _) = recorded();
    assert_eq!(recording.header, header());
    assert_eq!(
        recording.calls,
        [
            Call::Served { size: 4096, place: 0 },
            Call::Served { size: 1 << 39, place: 1 },
            Call::Failed { size: 1 << 40 },
            Call::Freed { place: 0 },
            Call::Served { size: 100, place: 0 },
            Call::Freed { place: 1 },
        ]
    );
    assert_eq!(recording.offsets, [0, 1 << 39, 4096]);
    assert_eq!(recording.places, 2);
}

#[test]
fn a_file_cut_short_is_told_wherever_it_ends() {
    let (_, bytes) = recorded();
    for len in 1..bytes.len() {
        let error = fault(&bytes[..len]);
        assert!(
            matches!(error, OpsError::Truncated { at, .. } if at == len as u64),
            "{len}: {error}"
        );
    }
    assert!(matches!(fault(&[]), OpsError::Magic { .. }));
}

#[test]
fn one_wrong_bit_anywhere_is_found() {
    let (_, bytes) = recorded();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let error = fault(&bytes);
            match at {
                0..8 => assert!(matches!(error, OpsError::Magic { .. }), "{at}: {error}"),
                8..10 => assert!(matches!(error, OpsError::Version { .. }), "{at}: {error}"),
                _ => assert!(
                    matches!(error, OpsError::Malformed { .. } | OpsError::Truncated { .. }),
                    "{at}: {error}"
                ),
            }
        }
    }
}

#[test]
fn calls_that_cannot_be_are_told_with_their_numbers() {
    let with = |calls: &[u8]| {
        let mut bytes = header().encode();
        bytes.extend(calls);
        fault(&bytes).to_string()
    };
    for (calls, expected) in [
        (&[SERVED, 0, 0][..], "call 1: 0 bytes of a space of 1099511627776"),
        (&[FAILED, 0], "call 1: 0 bytes"),
        (&[SERVED, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "call 1: 1 bytes from"),
        (&[FREED, 0], "call 1: the 0-th last of 0 ranges is freed"),
        (&[SERVED, 1, 0, FREED, 0, FREED, 0], "call 3: the 0-th last of 1 ranges"),
        (&[SERVED, 1, 0, FREED, 7], "call 2: the 7-th last of 1 ranges"),
        (&[9], "call 1: there is no kind 9"),
        (&[END, 3], "3 calls are announced, 0 are there"),
        (&[FAILED, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "a number above"),
    ] {
        let message = with(calls);
        assert!(message.contains(expected), "{calls:?}: {message}");
        assert!(message.starts_with("f: byte "), "{message}");
    }
    let empty = Header { capacity: 0, ..header() }.encode();
    assert!(fault(&empty).to_string().contains("a space of 0 bytes"));
}
