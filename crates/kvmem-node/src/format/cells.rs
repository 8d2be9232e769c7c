//! *Sessions and namespaces* in the index file.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{MAX_NAMESPACE_NAME, MAX_SESSIONS, announce, put};
use crate::crc;

/// The words of a bitmap with a bit for each session.
pub(crate) const WORDS_OF_BITMAP: usize = MAX_SESSIONS / 64;

/// The process of a session. A recovery asks the kernel whether it still has its lock of the
/// [session file](crate::session_file).
#[repr(C)]
pub(crate) struct SessionCell {
    /// A random number that only the client and the server know; 0: no session. Stored last.
    token: AtomicU64,
    /// The process, and its user above it.
    process: AtomicU64,
    /// The position of the lock.
    lock_at: AtomicU64,
    /// The namespace, and the access above it.
    namespace: AtomicU64,
    /// The inode number of the process among the descriptors of processes; 0: not known.
    process_id: AtomicU64,
    rest: [AtomicU64; 3],
}

/// The record in a [`SessionCell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub(crate) token: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Where the client's open session file has its lock.
    pub(crate) lock_at: u64,
    /// The inode number of the process, which no other one ever has; 0: not known.
    pub(crate) process_id: u64,
    pub(crate) namespace: u16,
    pub(crate) read_only: bool,
}

impl SessionCell {
    pub(crate) fn write(&self, record: &SessionRecord) {
        put(&self.process, u64::from(record.pid) | u64::from(record.uid) << 32);
        put(&self.lock_at, record.lock_at);
        put(&self.namespace, u64::from(record.namespace) | u64::from(record.read_only) << 32);
        put(&self.process_id, record.process_id);
        self.rest.iter().for_each(|cell| put(cell, 0));
        announce(&self.token, record.token);
    }

    pub(crate) fn clear(&self) {
        announce(&self.token, 0);
    }

    pub(crate) fn read(&self) -> Option<SessionRecord> {
        // Acquire: pairs with the Release of `announce` in `write`.
        let token = self.token.load(Ordering::Acquire);
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let (process, namespace) = (load(&self.process), load(&self.namespace));
        (token != 0).then(|| SessionRecord {
            token,
            pid: process as u32,
            uid: (process >> 32) as u32,
            lock_at: load(&self.lock_at),
            process_id: load(&self.process_id),
            namespace: namespace as u16,
            read_only: namespace >> 32 != 0,
        })
    }
}

/// The name of a namespace. It changes only while nothing belongs to the namespace.
#[repr(C)]
pub(crate) struct NamespaceCell {
    /// The length of the name plus 1, and the checksum of the name above it; 0: none. Stored last.
    head: AtomicU64,
    name: [AtomicU64; MAX_NAMESPACE_NAME / 8],
}

impl NamespaceCell {
    pub(crate) fn write(&self, name: &str) {
        let mut bytes = [0; MAX_NAMESPACE_NAME];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        for (cell, eight) in self.name.iter().zip(bytes.chunks_exact(8)) {
            put(cell, u64::from_le_bytes(eight.try_into().expect("eight bytes")));
        }
        let sum = crc::of(name.as_bytes());
        announce(&self.head, (name.len() as u64 + 1) | u64::from(sum) << 32);
    }

    /// Writes another name. The cell has the empty name in between, so it is whole at any instant.
    pub(crate) fn rename(&self, name: &str) {
        announce(&self.head, 1 | u64::from(crc::of(b"")) << 32);
        self.write(name);
    }

    /// Reads the name. The outer `None` says that the cell is damaged.
    pub(crate) fn read(&self) -> Option<Option<String>> {
        // Acquire: pairs with the Release of `announce` in `write`.
        let head = self.head.load(Ordering::Acquire);
        if head == 0 {
            return Some(None);
        }
        let len = (head as u32 as usize).checked_sub(1).filter(|len| *len <= MAX_NAMESPACE_NAME)?;
        let words = self.name.iter().map(|cell| cell.load(Ordering::Relaxed).to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(len);
        let whole = crc::of(&bytes) == (head >> 32) as u32;
        String::from_utf8(bytes).ok().filter(|_| whole).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let word = || AtomicU64::new(u64::MAX);
        let cell = SessionCell {
            token: AtomicU64::new(0),
            process: word(),
            lock_at: word(),
            namespace: word(),
            process_id: word(),
            rest: [word(), word(), word()],
        };
        assert_eq!(cell.read(), None);
        for read_only in [false, true] {
            let record = SessionRecord {
                token: 9,
                pid: 0x1234_5678,
                uid: 0x9ABC_DEF0,
                lock_at: 1 << 40,
                process_id: 1 << 50,
                namespace: 0xFEDC,
                read_only,
            };
            cell.write(&record);
            assert_eq!(cell.read(), Some(record));
        }
        assert!(
            cell.rest.iter().all(|it| it.load(Ordering::Relaxed) == 0),
            "later versions use it"
        );
        cell.clear();
        assert_eq!(cell.read(), None);
    }

    #[test]
    fn a_namespace_is_read_as_it_was_written_and_damage_is_found() {
        let cell = NamespaceCell {
            head: AtomicU64::new(0),
            name: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        };
        assert_eq!(cell.read(), Some(None));
        let longest = "n".repeat(MAX_NAMESPACE_NAME);
        for name in ["first", &longest, "", "second"] {
            cell.rename(name);
            assert_eq!(cell.read(), Some(Some(name.to_owned())));
        }
        let head = cell.head.load(Ordering::Relaxed);
        let too_long = MAX_NAMESPACE_NAME as u64 + 2;
        for damaged in [head ^ 1 << 32, head + 1, head - 1, head >> 32 << 32 | too_long] {
            cell.head.store(damaged, Ordering::Relaxed);
            assert_eq!(cell.read(), None, "{damaged:#x}");
        }
        cell.head.store(head, Ordering::Relaxed);
        cell.name[0].fetch_xor(1, Ordering::Relaxed);
        assert_eq!(cell.read(), None);
    }
}
