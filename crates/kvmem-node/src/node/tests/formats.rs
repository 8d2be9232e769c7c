//! Index files that this version and those before it have written, and what later ones may write.
//!
//! `tests/data/README.md` says by which programs the fixtures were written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvmem_testkit::fixture::{fixture, from_text};

use crate::crc;
use crate::error::{BadIndex, NodeError};
use crate::format::{ENTRIES_AT, ENTRY_BYTES, NAMESPACES_AT, SESSIONS_AT, VERSION};
use crate::node::tests::{BYTES, begin, item_of, node, options, session_of, shared};
use crate::node::{CommitItem, NewSession, Node, NodeMemory, RecoveryReport};
use crate::session_file;

/// Memory file, index file and session file.
type Files = [Vec<u8>; 3];

const NAMES: [&str; 3] = ["memory", "index", "sessions"];

/// The inode numbers that the fixtures name.
const MEMORY_ID: u64 = 1;
const SESSION_FILE_ID: u64 = 2;

/// Processes of the sessions: one writes, and the other one only reads.
const WRITER: u32 = 100;
const READER: u32 = 200;

fn path(version: u32, name: &str) -> PathBuf {
    let name = format!("tests/data/node-{name}-v{version}.txt");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns a value that is mostly zeros, which a fixture does not have.
fn value(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for at in (0..len).step_by(997) {
        bytes[at] = seed.wrapping_add((at / 997) as u8);
    }
    bytes
}

/// The values that can be found, by key.
fn values() -> BTreeMap<&'static [u8], Vec<u8>> {
    [(&b"first"[..], value(5000, 0x10)), (b"second", value(300, 0x20)), (b"pinned", value(1, 1))]
        .into_iter()
        .collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn set_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Names other files in the header of an index.
fn set_ids(index: &mut [u8], memory: u64, sessions: u64) {
    set_word(index, 32, memory);
    set_word(index, 104, sessions);
    let covered: Vec<u64> = (0..7).chain(12..16).map(|at| word(index, at * 8)).collect();
    set_word(index, 56, crc::of_words(&covered).into());
}

/// Returns what the files of a server of this version have that was killed.
fn written() -> Files {
    let mut node = node();
    let writer = begin(&mut node, WRITER);
    let read_only = NewSession { read_only: true, ..session_of(READER, 0) };
    let (reader, _) = node.begin_reading(read_only, "model").expect("there are few");
    let put = |node: &mut Node, key: &'static [u8], parent, priority, value: &[u8]| {
        let granted =
            node.reserve(writer, &[value.len() as u64]).expect("there is space").remove(0);
        // SAFETY: the block is reserved by this test, and nothing else uses its bytes.
        unsafe {
            let to = node.memory.bytes.base().as_ptr().add(granted.offset as usize);
            to.copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
        let checksum = Some(crc::of(value));
        let item = CommitItem { key, parent, checksum, priority, ..item_of(granted.handle) };
        node.commit(writer, &[item], 1).expect("it is reserved");
    };
    let values = values();
    put(&mut node, b"first", None, 0, &values[&b"first"[..]]);
    put(&mut node, b"second", Some(b"first"), 3, &values[&b"second"[..]]);
    put(&mut node, b"pinned", None, 1, &values[&b"pinned"[..]]);
    put(&mut node, b"detached", None, 1, &[1]);
    put(&mut node, b"removed", None, 1, &[2]);
    let pinned = node.acquire(reader, &[b"pinned", b"detached"], false, 2).expect("no limit");
    assert!(pinned.iter().all(Option::is_some));
    node.remove(writer, &[b"detached", b"removed"]).expect("it may write");
    node.reserve(writer, &[600]).expect("there is space");
    let mut index = node.memory.index_bytes();
    set_ids(&mut index, MEMORY_ID, SESSION_FILE_ID);
    // SAFETY: no thread stores to the memory meanwhile.
    let memory = unsafe { node.memory.bytes.bytes() }.to_vec();
    let words = [node.memory.session_file.pin_word(0), node.memory.session_file.pin_word(1)];
    assert!(words.iter().all(|word| *word != 0));
    let file = node.memory.session_file.share().expect("there are descriptors");
    let mut sessions = vec![0; session_file::FILE_BYTES];
    assert_eq!(rustix::io::pread(file, &mut sessions[..], 0), Ok(session_file::FILE_BYTES));
    [memory, index, sessions]
}

/// Returns the fixture of this version.
fn current() -> Files {
    let mut missing: Option<Files> = None;
    std::array::from_fn(|at| {
        fixture(&path(VERSION, NAMES[at]), || missing.get_or_insert_with(written)[at].clone())
    })
}

fn file_of(bytes: &[u8]) -> kvmem::arena::Region {
    let region = shared(bytes.len());
    // SAFETY: the region is as long, and nothing else uses it.
    unsafe { region.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    region
}

/// Starts the next server on copies of the files, after `change` has changed the index. The clients
/// live or do not.
fn start(
    files: &Files,
    is_alive: bool,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<(Node, RecoveryReport), NodeError> {
    let [memory, sessions] = [file_of(&files[0]), file_of(&files[2])];
    let id = |region: &kvmem::arena::Region| {
        rustix::fs::fstat(region.fd().expect("it is shared")).expect("a file").st_ino
    };
    let mut index = files[1].clone();
    set_ids(&mut index, id(&memory), id(&sessions));
    change(&mut index);
    let index = file_of(&index);
    let share = |it: &kvmem::arena::Region| it.share().expect("descriptors").expect("it is shared");
    let attached = NodeMemory::attach([&memory, &index, &sessions].map(share), 0);
    Node::recover_memory(attached?, options(), |_, _| is_alive)
}

fn bad_index(outcome: Result<(Node, RecoveryReport), NodeError>) -> BadIndex {
    match outcome {
        Err(NodeError::BadIndex(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was recovered"),
    }
}

/// Returns the values of a node, which are some of those that were written: never other bytes.
fn found(node: &mut Node) -> usize {
    node.check().expect("the invariants hold");
    let session = begin(node, 300);
    let (expected, mut found) = (values(), 0);
    for (key, value) in &expected {
        let granted = node.acquire(session, &[key], false, 3).expect("no limit").remove(0);
        let Some(granted) = granted else { continue };
        assert_eq!(granted.checksum, Some(crc::of(value)), "{key:?}");
        // SAFETY: the block is pinned, and no thread stores to it.
        let bytes = unsafe {
            let at = node.memory.bytes.base().as_ptr().add(granted.offset as usize);
            std::slice::from_raw_parts(at, granted.len as usize)
        };
        assert!(bytes == value, "wrong bytes under {key:?}");
        found += 1;
    }
    let listed = node.list(None, 0, u32::MAX, 3).0;
    for value in listed {
        assert!(expected.contains_key(&*value.key), "{value:?}");
    }
    found
}

#[test]
fn the_files_of_this_version_have_what_was_written() {
    let files = current();
    let (mut node, report) = start(&files, true, |_| {}).expect("it is whole");
    assert_eq!((report.values, report.damaged, report.orphaned_sessions), (3, 0, 2));
    let stats = node.stats();
    assert_eq!((stats.reservations, stats.reserved_bytes), (1, 4096));
    let pins: Vec<(u32, u8, u32)> = values()
        .keys()
        .map(|key| {
            let all = node.list(None, 0, u32::MAX, 3).0;
            let value = all.into_iter().find(|value| value.key == *key).expect("it is listed");
            assert_eq!(value.namespace, "model");
            (value.pins, value.priority, value.len as u32)
        })
        .collect();
    assert_eq!(pins, [(0, 0, 5000), (1, 1, 1), (0, 3, 300)]);
    for (pid, read_only) in [(WRITER, false), (READER, true)] {
        let sessions = node.sessions_of(pid);
        assert_eq!(sessions.len(), 1);
        assert_eq!(node.is_read_only(sessions[0]), read_only);
        assert_eq!(node.namespace_name(sessions[0]), "model");
    }
    assert_eq!(found(&mut node), 3);
    let (mut node, report) = start(&files, false, |_| {}).expect("it is whole");
    assert_eq!((report.values, report.freed_reservations, report.ended_sessions), (3, 1, 2));
    assert_eq!(found(&mut node), 3);
}

/// A change of what is written, under the same number, would reach users whose server reads
/// something else under it.
#[test]
fn this_version_is_written_byte_for_byte() {
    let without_random = |[memory, mut index, mut sessions]: Files| {
        // Checksum, number of the memory, and key of the hashes.
        for at in [48, 56, 112, 120] {
            set_word(&mut index, at, 0);
        }
        for session in index[SESSIONS_AT..NAMESPACES_AT].as_chunks_mut::<64>().0 {
            // Token and position.
            for at in [0, 16] {
                assert_eq!(word(session, at) == 0, session[8] == 0, "a session has both");
                set_word(session, at, 0);
            }
        }
        for entry in index[ENTRIES_AT..].as_chunks_mut::<ENTRY_BYTES>().0 {
            if word(entry, 184) != 0 {
                // The hash of the parent, and the checksum over it.
                set_word(entry, 184, 1);
                set_word(entry, 56, 0);
            }
        }
        for word in sessions.as_chunks_mut::<8>().0 {
            *word = u64::from(*word != [0; 8]).to_le_bytes();
        }
        [memory, index, sessions]
    };
    let (before, now) = (without_random(current()), without_random(written()));
    for (at, name) in NAMES.iter().enumerate() {
        let differs = before[at].iter().zip(&now[at]).position(|(before, now)| before != now);
        assert_eq!(differs, None, "{name}: raise the version of the format");
        assert_eq!(before[at].len(), now[at].len(), "{name}");
    }
    assert_eq!(before[0].len(), BYTES);
}

/// A server reads the versions that it knows, and leaves all others as they are.
#[test]
fn an_index_of_another_version_says_so() {
    for version in 1..VERSION {
        let text = std::fs::read_to_string(path(version, "index"));
        let old = from_text(&text.expect("each version has a fixture")).expect("a fixture");
        let error = bad_index(start(&current(), true, |index| index.clone_from(&old)));
        assert_eq!(error, BadIndex::Version { version, known: VERSION });
        assert!(error.to_string().contains("use the older kvmem that made it"), "{error}");
    }
    for (version, remedy) in
        [(VERSION + 1, "newer kvmem"), (u32::MAX, "newer kvmem"), (0, "older kvmem")]
    {
        // Also one whose tables are shorter.
        for len in [None, Some(4096)] {
            let error = bad_index(start(&current(), true, |index| {
                index[8..12].copy_from_slice(&version.to_le_bytes());
                index.truncate(len.unwrap_or(index.len()));
            }));
            assert_eq!(error, BadIndex::Version { version, known: VERSION });
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}

/// A changed byte is an error, or the entry that it damages is a miss.
#[test]
fn a_changed_byte_of_the_index_is_an_error_or_a_miss() {
    let files = current();
    // The header, both sessions, the namespace, and the entries of the values.
    let parts = [
        0..128,
        SESSIONS_AT..SESSIONS_AT + 128,
        NAMESPACES_AT..NAMESPACES_AT + 64,
        ENTRIES_AT..ENTRIES_AT + 3 * ENTRY_BYTES,
    ];
    let is_long = std::env::var_os("KVMEM_TEST_ROUNDS").is_some();
    let (mut failed, mut missed, mut whole) = (0, 0, 0);
    for at in parts.into_iter().flatten() {
        let all = is_long || at < 128;
        for bits in [1 << (at % 8), 0xFF].into_iter().take(1 + usize::from(all)) {
            let started = start(&files, true, |index| index[at] ^= bits);
            match started.map(|(mut node, _)| found(&mut node)) {
                Ok(3) => whole += 1,
                Ok(_) => missed += 1,
                Err(NodeError::BadIndex(_)) => failed += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
    // The header and the name of the namespace; the entries; what is of sessions and of use.
    assert!(failed > 2 * 96, "{failed} {missed} {whole}");
    assert!(missed > 3 * 64 && whole > 128, "{failed} {missed} {whole}");
}
