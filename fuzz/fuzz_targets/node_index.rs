//! Index of a node: a file whose words are changed, with checksums that are right again. Recovering
//! it is an error or not, the invariants hold, and what is found is free of overlaps.
#![cfg_attr(fuzzing, no_main)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use kvmem_fuzz::node::{BLOCKS, Running, connect, options, shared, value};
use kvmem_node::format::ENTRY_BYTES;
use kvmem_node::{Node, NodeError};

const KEYS: u8 = 12;
/// Where the entries begin.
const ENTRIES_AT: usize = 64 << 10;
/// Bytes of a change: what is changed, an entry or a place, a place in it, and a value.
const CHANGE: usize = 5;

/// The files of a node whose server was killed.
struct Original {
    memory: OwnedFd,
    sessions: OwnedFd,
    index: Vec<u8>,
}

fn original() -> Result<&'static Original> {
    static ORIGINAL: OnceLock<Original> = OnceLock::new();
    if let Some(made) = ORIGINAL.get() {
        return Ok(made);
    }
    let (server, [memory, index, sessions]) = Running::start(|server| Ok(server.descriptors()?))?;
    let client = connect(&server.socket())?;
    for key in 0..KEYS {
        client.insert([key], &value(key))?;
    }
    client.remove(&[[2], [5]])?;
    let pins = client.acquire(&[[1], [4]])?;
    // A detached entry, and two reservations.
    client.insert([4], &value(4))?;
    let reservations = client.reserve(&[100, 9000])?;
    let file = std::fs::File::from(index);
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    drop((pins, reservations, client));
    server.stop()?;
    Ok(ORIGINAL.get_or_init(|| Original { memory, sessions, index: bytes }))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the checksum of words.
fn sum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    crc32c::crc32c(&bytes).into()
}

/// Puts the right checksums into an entry.
fn seal_entry(entry: &mut [u8]) {
    let (first, offset, len) = (word(entry, 0), word(entry, 8), word(entry, 16));
    let (key_len, generation) = (first >> 8 & 0xFF, first >> 32);
    entry[24..32].copy_from_slice(&sum(&[generation, offset, len]).to_le_bytes());
    let mut words = vec![key_len << 32 | generation, offset, len];
    words.extend([32, 40, 48].map(|at| word(entry, at)));
    words.extend((0..8).map(|at| word(entry, 64 + 8 * at)));
    entry[56..64].copy_from_slice(&sum(&words).to_le_bytes());
}

/// Puts the right checksums into the header.
fn seal_header(index: &mut [u8]) {
    // The words before the checksum, the boundary and the session file.
    let words: Vec<u64> = (0..7).chain([12, 13]).map(|at| word(index, 8 * at)).collect();
    index[56..64].copy_from_slice(&sum(&words).to_le_bytes());
    let used: [u8; 4] = index[80..84].try_into().expect("four bytes");
    index[84..88].copy_from_slice(&crc32c::crc32c(&used).to_le_bytes());
}

fn target(bytes: &[u8]) -> Result<()> {
    let original = original()?;
    let mut index = original.index.clone();
    for change in bytes.chunks_exact(CHANGE) {
        let [what, number, at, low, high] = change else { continue };
        let value = u64::from(*low) | u64::from(*high) << 8;
        let (place, mask) = match what % 8 {
            // A word of an entry, whole, or its high half.
            0..5 => {
                let entry = ENTRIES_AT + usize::from(*number) % BLOCKS as usize * ENTRY_BYTES;
                (entry + usize::from(*at) % (ENTRY_BYTES / 8) * 8, what % 8)
            }
            // A word of the header, of the sessions, or of the namespaces.
            5 => (usize::from(*at) % 14 * 8, 0),
            6 => (4096 + usize::from(*number) % 4 * 64 + usize::from(*at) % 8 * 8, 0),
            _ => ((24 << 10) + usize::from(*number) % 4 * 64 + usize::from(*at) % 8 * 8, 0),
        };
        let before = word(&index, place);
        let after = match mask {
            0 => value,
            1 => before ^ value,
            2 => before.wrapping_add(value),
            3 => before ^ value << 32,
            _ => u64::MAX - value,
        };
        index[place..place + 8].copy_from_slice(&after.to_le_bytes());
        if matches!(what % 8, 0..5) && what & 8 == 0 {
            let entry = ENTRIES_AT + (place - ENTRIES_AT) / ENTRY_BYTES * ENTRY_BYTES;
            seal_entry(&mut index[entry..entry + ENTRY_BYTES]);
        }
    }
    if bytes.first().is_none_or(|first| first & 16 == 0) {
        seal_header(&mut index);
    }
    let copy = shared(index.len())?;
    let file = std::fs::File::from(copy.share()?.context("it is shared")?);
    file.write_all_at(&index, 0)?;
    let memory = original.memory.as_fd().try_clone_to_owned()?;
    let sessions = original.sessions.as_fd().try_clone_to_owned()?;
    match Node::recover([memory, file.into(), sessions], options()) {
        Ok((node, _)) => node.check().map_err(anyhow::Error::msg),
        Err(NodeError::BadIndex(_)) => Ok(()),
        // The space of the memory may be one that no allocator has.
        Err(error) => bail!("{error}"),
    }
}

/// Returns changes of each kind.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let each = |what: u8, number: u8, value: u8| -> Vec<u8> {
        (0..24).flat_map(|at| [what, number, at, value, 0]).collect()
    };
    let named = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
    vec![
        named("whole", &[]),
        named("words", &[0, 1, 0, 3, 1]),
        named("entry", &each(1, 1, 1)),
        named("sums", &each(9, 3, 1)),
        named("users", &each(2, 6, 1)),
        named("header", &[21, 0, 10, 1, 0]),
        named("batch", &[5, 0, 8, 4, 0, 0, 2, 5, 4, 0, 1, 2, 0, 1, 0]),
        named("session", &each(6, 0, 1)),
        named("namespace", &each(7, 0, 1)),
        named("overlap", &[0, 0, 1, 0, 0x10, 0, 1, 1, 0, 0x10]),
        named("far", &[4, 3, 1, 0, 0, 4, 4, 2, 0, 0]),
    ]
}

kvmem_fuzz::run!(target, corpus);
