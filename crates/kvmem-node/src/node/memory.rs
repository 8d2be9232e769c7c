//! *Memory*: the three files of a node, mapped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvmem::arena::{Backing, PageSize, Populate, Region};
use rustix::fs::fstat;

use super::{NO_BOUNDARY, NodeOptions};
use crate::error::{BadIndex, NodeError};
use crate::format::{
    ENTRIES_AT, ENTRY_BYTES, EntryCell, Header, HeaderCell, MAX_NAMESPACES, MAX_SESSIONS,
    NAMESPACES_AT, NamespaceCell, SESSIONS_AT, SessionCell, file_len,
};
use crate::session_file::{self, SessionFile};
use crate::socket::fill_random;

/// The memory file, whose bytes are the values, the index file, which describes them, and the
/// session file, which shows which clients live.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    pub(crate) bytes: Arc<Region>,
    index: Region,
    pub(crate) session_file: SessionFile,
    /// An open index file of this server alone, with a lock: whatever may still write to the memory
    /// for this server, also in the kernel after its end, has it open.
    transfers: OwnedFd,
    pub(crate) header: Header,
}

/// The position of the lock of an index file that is open for transfers.
const TRANSFERS: u64 = 0;

/// Opens an index file once more, and locks it.
fn open_for_transfers(index: &Region) -> Result<OwnedFd, NodeError> {
    let opened = index.share_read_only()?.expect("the index file is shared");
    session_file::lock(&opened, TRANSFERS).map_err(NodeError::system("F_OFD_SETLK"))?;
    Ok(opened)
}

impl NodeMemory {
    /// Returns the number of entries that an index has for a length of memory.
    fn entries_for(memory_len: u64, options: &NodeOptions) -> Result<u32, NodeError> {
        let NodeOptions { align, max_blocks, .. } = *options;
        if !align.is_power_of_two() || align > memory_len {
            let limit = "an alignment is a power of two, at most the length of the memory";
            return Err(NodeError::Option { option: "align", value: align, limit });
        }
        NodeMemory::boundary_for(memory_len, options)?;
        let default = || (memory_len / 65_536).clamp(1024, (u32::MAX - 1).into()) as u32;
        let entries = max_blocks.unwrap_or_else(default);
        if entries == 0 || entries == u32::MAX {
            let limit = "a node has 1 to 4294967294 blocks";
            return Err(NodeError::Option { option: "max_blocks", value: entries.into(), limit });
        }
        Ok(entries)
    }

    /// Returns the boundary that no block crosses in memory of a length; 0: there is none.
    fn boundary_for(memory_len: u64, options: &NodeOptions) -> Result<u64, NodeError> {
        let NodeOptions { align, boundary, .. } = *options;
        if boundary != NO_BOUNDARY && (!boundary.is_power_of_two() || boundary < align) {
            let limit = "a boundary is a power of two, at least the alignment; 0: there is none";
            return Err(NodeError::Option { option: "boundary", value: boundary, limit });
        }
        Ok(if boundary < memory_len { boundary } else { NO_BOUNDARY })
    }

    /// Returns the length of the index for a length of memory, in bytes.
    pub(crate) fn index_len(memory_len: u64, options: &NodeOptions) -> Result<usize, NodeError> {
        Ok(file_len(NodeMemory::entries_for(memory_len, options)?))
    }

    /// Makes an index file for a memory file that nobody has used.
    pub(crate) fn create(bytes: Region, options: &NodeOptions) -> Result<NodeMemory, NodeError> {
        let index = Region::builder(NodeMemory::index_len(bytes.len() as u64, options)?)
            .backing(Backing::Shared)
            .ladder(PageSize::Base)
            .populate(Populate::None)
            .map()?;
        NodeMemory::with_index(bytes, index, SessionFile::create()?, options)
    }

    /// Writes the header of an index file, for a memory file that nobody has used.
    pub(crate) fn with_index(
        bytes: Region,
        index: Region,
        session_file: SessionFile,
        options: &NodeOptions,
    ) -> Result<NodeMemory, NodeError> {
        let memory_len = bytes.len() as u64;
        // The memory may be longer than requested, by a part of a page.
        let fits = ((index.len() - ENTRIES_AT) / ENTRY_BYTES) as u32;
        let entries = NodeMemory::entries_for(memory_len, options)?.min(fits);
        let (memory_id, _) = identity(&bytes)?;
        let mut random = [0; 24];
        fill_random(&mut random).map_err(NodeError::system("getrandom"))?;
        let (words, _) = random.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(words[at]);
        let (node_id, hash_key) = (word(0), [word(1), word(2)]);
        let boundary = NodeMemory::boundary_for(memory_len, options)?;
        let (align, session_file_id) = (options.align, session_file.id()?);
        let header = Header {
            entries,
            memory_len,
            memory_id,
            align,
            boundary,
            node_id,
            session_file_id,
            hash_key,
        };
        let (bytes, transfers) = (Arc::new(bytes), open_for_transfers(&index)?);
        let memory = NodeMemory { bytes, index, session_file, transfers, header };
        memory.header_cell().write(&header);
        Ok(memory)
    }

    /// Maps the three files of an earlier server: memory, index and sessions.
    pub(crate) fn attach([bytes, index, sessions]: [OwnedFd; 3]) -> Result<NodeMemory, NodeError> {
        NodeMemory::of_earlier(
            Region::attach(bytes, None)?,
            Region::attach(index, None)?,
            SessionFile::attach(sessions)?,
        )
    }

    fn of_earlier(
        bytes: Region,
        index: Region,
        session_file: SessionFile,
    ) -> Result<NodeMemory, NodeError> {
        let got = index.len() as u64;
        // An index of another version may be shorter than the tables of this one: its header says
        // so.
        if index.len() < SESSIONS_AT {
            return Err(BadIndex::Length { got, expected: ENTRIES_AT as u64 }.into());
        }
        let (got_id, got_len) = identity(&bytes)?;
        let placeholder = Header {
            entries: 0,
            memory_len: 0,
            memory_id: 0,
            align: 1,
            boundary: 0,
            node_id: 0,
            session_file_id: 0,
            hash_key: [0; 2],
        };
        let page = index.page_at(0).map_or(0, |page| page.bytes() as u64);
        let transfers = open_for_transfers(&index)?;
        let (bytes, header) = (Arc::new(bytes), placeholder);
        let mut memory = NodeMemory { bytes, index, session_file, transfers, header };
        let header = memory.header_cell().read()?;
        // The file ends at the end of a page.
        let expected = file_len(header.entries) as u64;
        if got < expected || got - expected >= page.max(1 << 21) {
            return Err(BadIndex::Length { got, expected }.into());
        }
        let Header { memory_len: expected_len, memory_id: expected_id, .. } = header;
        if (got_id, got_len) != (expected_id, expected_len) {
            return Err(BadIndex::OtherMemory { expected_id, expected_len, got_id, got_len }.into());
        }
        let (expected_id, got_id) = (header.session_file_id, memory.session_file.id()?);
        if got_id != expected_id {
            return Err(BadIndex::OtherSessionFile { expected_id, got_id }.into());
        }
        memory.header = header;
        Ok(memory)
    }

    /// Duplicates the descriptors of the memory file, the index file and the session file, for the
    /// process that retains them.
    pub(crate) fn descriptors(&self) -> Result<[OwnedFd; 3], NodeError> {
        let shared = |file: Option<OwnedFd>| file.expect("the files of a node are shared");
        let [bytes, index] = [self.bytes.share()?, self.index.share()?].map(shared);
        Ok([bytes, index, self.session_file.share()?])
    }

    /// Returns the open file that everything has open that may write to the memory for this
    /// server.
    pub(crate) fn transfers(&self) -> BorrowedFd<'_> {
        self.transfers.as_fd()
    }

    /// Returns whether transfers of earlier servers may still write to the memory. An unknown state
    /// is yes.
    pub(crate) fn has_earlier_transfers(&self) -> bool {
        session_file::is_locked_by_others(&self.transfers, TRANSFERS).unwrap_or(true)
    }

    pub(crate) fn header_cell(&self) -> &HeaderCell {
        // SAFETY: the file has at least the page of the header, as `create` and `of_earlier` see
        // to, and the header consists of atomic words. Only this process maps the file, and only
        // through such cells.
        unsafe { &*self.index.base().as_ptr().cast::<HeaderCell>() }
    }

    pub(crate) fn sessions(&self) -> &[SessionCell] {
        // SAFETY: as `header_cell`; the file has all tables, which `create` made so and `attach`
        // checked, and this one ends before that of the namespaces, as the format asserts.
        unsafe {
            let first = self.index.base().as_ptr().add(SESSIONS_AT).cast::<SessionCell>();
            std::slice::from_raw_parts(first, MAX_SESSIONS)
        }
    }

    pub(crate) fn namespaces(&self) -> &[NamespaceCell] {
        // SAFETY: as `header_cell`; the table ends before the entries, as the format asserts.
        unsafe {
            let first = self.index.base().as_ptr().add(NAMESPACES_AT).cast::<NamespaceCell>();
            std::slice::from_raw_parts(first, MAX_NAMESPACES)
        }
    }

    pub(crate) fn entries(&self) -> &[EntryCell] {
        // SAFETY: as `header_cell`; the file has as many entries as the header says, which `create`
        // made so and `attach` checked. The mapping begins at a page and `ENTRIES_AT` is a multiple
        // of 64, so the cells are aligned.
        unsafe {
            let first = self.index.base().as_ptr().add(ENTRIES_AT).cast::<EntryCell>();
            std::slice::from_raw_parts(first, self.header.entries as usize)
        }
    }

    /// Returns the address of the first word of the index file.
    #[cfg(test)]
    pub(crate) fn index_base(&self) -> usize {
        self.index.base().as_ptr().addr()
    }

    /// Copies the index file and the words of sessions, over the same memory.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scratch(&self) -> NodeMemory {
        let builder = Region::builder(self.index.len()).backing(Backing::Shared);
        let index = builder.ladder(PageSize::Base).map().expect("memory can be mapped");
        let bytes = self.index_bytes();
        // SAFETY: nothing else uses the new region, which is as long.
        unsafe { index.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let session_file = SessionFile::create().expect("memory can be mapped");
        session_file.copy_from(&self.session_file);
        let transfers = open_for_transfers(&index).expect("there are descriptors");
        let (bytes, header) = (Arc::clone(&self.bytes), self.header);
        NodeMemory { bytes, index, session_file, transfers, header }
    }

    /// Returns a copy of the index file.
    #[cfg(test)]
    pub(crate) fn index_bytes(&self) -> Vec<u8> {
        // SAFETY: as `header_cell`; the test that calls this makes no stores meanwhile.
        unsafe { self.index.bytes() }.to_vec()
    }
}

/// The cells consist of atomic words of eight bytes.
const _: () = assert!(align_of::<AtomicU64>() == 8);

/// Returns the inode number and the length of a memory file.
fn identity(bytes: &Region) -> Result<(u64, u64), NodeError> {
    let Some(fd) = bytes.fd() else {
        let limit = "the memory of a node is shared memory";
        return Err(NodeError::Option { option: "backing", value: 0, limit });
    };
    let stat = fstat(fd).map_err(NodeError::system("fstat of the memory file"))?;
    Ok((stat.st_ino, bytes.len() as u64))
}
