//! *Memory*: the three files of a node, mapped.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvmem::arena::{Backing, PageSize, Populate, Region};
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

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

fn header_cell(index: &Region) -> &HeaderCell {
    // SAFETY: the file has at least the page of the header, as `create` and `attach` see to, and
    // the header consists of atomic words. Only this process maps the file, and only through such
    // cells.
    unsafe { &*index.base().as_ptr().cast::<HeaderCell>() }
}

/// Returns the entries of an index file with this header, whose length was checked.
fn entries<'a>(index: &'a Region, header: &Header) -> &'a [EntryCell] {
    // SAFETY: as `header_cell`; the file has as many entries as the header says, which `create`
    // made so and `attach` checked. The mapping begins at a page and `ENTRIES_AT` is a multiple of
    // 64, so the cells are aligned.
    unsafe {
        let first = index.base().as_ptr().add(ENTRIES_AT).cast::<EntryCell>();
        std::slice::from_raw_parts(first, header.entries as usize)
    }
}

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

    /// Maps the three files of an earlier server: memory, index and sessions. The memory file
    /// becomes `max_size` bytes long if it is shorter and not sealed against it.
    pub(crate) fn attach(
        [file, index, sessions]: [OwnedFd; 3],
        max_size: u64,
    ) -> Result<NodeMemory, NodeError> {
        // A file of another kind is an error of its header.
        let found = fstat(&index).map_err(NodeError::system("fstat of the index file"))?;
        let index = Region::attach_front(index, found.st_size as usize)?;
        let got = index.len() as u64;
        // An index of another version may be shorter than the tables of this one: its header says
        // so.
        if index.len() < SESSIONS_AT {
            return Err(BadIndex::Length { got, expected: ENTRIES_AT as u64 }.into());
        }
        let mut header = header_cell(&index).read()?;
        let session_file = SessionFile::attach(sessions)?;
        // The file ends at the end of a page.
        let expected = file_len(header.entries) as u64;
        let page = index.page_at(0).map_or(0, |page| page.bytes() as u64);
        if got < expected || got - expected >= page.max(1 << 21) {
            return Err(BadIndex::Length { got, expected }.into());
        }
        let stat = fstat(&file).map_err(NodeError::system("fstat of the memory file"))?;
        let (got_id, got_len) = (stat.st_ino, stat.st_size as u64);
        let Header { memory_len: expected_len, memory_id: expected_id, .. } = header;
        // A server may have made it longer since the header was written.
        if got_id != expected_id || got_len < expected_len {
            return Err(BadIndex::OtherMemory { expected_id, expected_len, got_id, got_len }.into());
        }
        let (expected_id, got_id) = (header.session_file_id, session_file.id()?);
        if got_id != expected_id {
            return Err(BadIndex::OtherSessionFile { expected_id, got_id }.into());
        }
        let page = stat.st_blksize.max(1) as u64;
        let max_size = max_size.checked_next_multiple_of(page).unwrap_or(0);
        if got_len < max_size && ftruncate(&file, max_size).is_ok() {
            header.memory_len = max_size;
        } else {
            // A client can make the file longer, too: what no server has used is not mapped.
            let whole = entries(&index, &header).iter().filter_map(EntryCell::whole_extent);
            let end = whole.map(|it| it.end).chain([expected_len, max_size]).max();
            let end = end.unwrap_or(0).checked_next_multiple_of(page).unwrap_or(u64::MAX);
            header.memory_len = end.min(got_len);
        }
        let bytes = Arc::new(Region::attach_front(file, header.memory_len as usize)?);
        let transfers = open_for_transfers(&index)?;
        Ok(NodeMemory { bytes, index, session_file, transfers, header })
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

    /// Returns the bytes of a page of the memory file.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.bytes.page_at(0).map_or(4096, |page| page.bytes() as u64)
    }

    /// Returns the bytes of the memory file that have pages.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let file = self.bytes.fd().expect("the memory of a node is shared");
        fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Copies the bytes of a block to `to`, where no other block is.
    pub(crate) fn copy(&self, from: Range<u64>, to: u64) {
        let (len, base) = (from.end - from.start, self.bytes.base().as_ptr());
        let all = self.bytes.len() as u64;
        let is_apart = to >= from.end || to.saturating_add(len) <= from.start;
        assert!(from.end <= all && to.saturating_add(len) <= all && is_apart, "the node said so");
        #[cfg(all(test, not(loom)))]
        // SAFETY: the range lies in the region, as was just checked.
        unsafe {
            crate::test_stores::note_bytes(base.add(to as usize), len as usize);
        }
        // SAFETY: both ranges lie in the region and do not overlap, as was just checked. The bytes
        // are copied as raw memory, to which no reference exists: a client may write to them all
        // the same.
        unsafe {
            let (from, to) = (base.add(from.start as usize), base.add(to as usize));
            std::ptr::copy_nonoverlapping(from, to, len as usize);
        }
    }

    /// Makes the pages of a range resident, the first and the last one, too. Returns whether the
    /// kernel had memory for them.
    pub(crate) fn make_resident(&self, range: Range<u64>) -> bool {
        let whole = range.start / self.page_bytes() * self.page_bytes()..range.end;
        match self.advise(whole, Advice::LinuxPopulateWrite) {
            // An older kernel makes them when they are touched.
            Ok(()) | Err(Errno::INVAL) => true,
            Err(_) => false,
        }
    }

    /// Gives the whole pages of a range back to the kernel, for all processes.
    pub(crate) fn give_back(&self, range: Range<u64>) {
        let page = self.page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start >= end {
            return;
        }
        #[cfg(all(test, not(loom)))]
        // SAFETY: the range lies in the region, as the kernel checks again.
        unsafe {
            let first = self.bytes.base().as_ptr().add(start as usize);
            crate::test_stores::note_bytes(first, (end - start) as usize);
        }
        let file = self.bytes.fd().expect("the memory of a node is shared");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // If it fails, the pages stay.
        let _ = fallocate(file, flags, start, end - start);
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), Errno> {
        assert!(range.start <= range.end && range.end <= self.bytes.len() as u64);
        // SAFETY: the range lies in the region, as was just checked, and the advice changes no
        // bytes.
        unsafe {
            let first = self.bytes.base().as_ptr().add(range.start as usize);
            madvise(first.cast(), (range.end - range.start) as usize, advice)
        }
    }

    pub(crate) fn header_cell(&self) -> &HeaderCell {
        header_cell(&self.index)
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
        entries(&self.index, &self.header)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_not_possible_are_errors() {
        let len = 1 << 20;
        let align = |align| NodeOptions { align, ..NodeOptions::default() };
        let boundary = |boundary| NodeOptions { boundary, ..NodeOptions::default() };
        let blocks = |max| NodeOptions { max_blocks: Some(max), ..NodeOptions::default() };
        let entries = |options: &NodeOptions| {
            NodeMemory::entries_for(len, options).map_err(|error| match error {
                NodeError::Option { option, value, .. } => (option, value),
                other => panic!("{other}"),
            })
        };
        for (options, expected) in [
            (align(len), Ok(1024)),
            (align(len * 2), Err(("align", len * 2))),
            (align(4096 * 3), Err(("align", 4096 * 3))),
            (boundary(NO_BOUNDARY), Ok(1024)),
            (boundary(4096), Ok(1024)),
            (boundary(2048), Err(("boundary", 2048))),
            (boundary(4096 * 3), Err(("boundary", 4096 * 3))),
            (blocks(0), Err(("max_blocks", 0))),
            (blocks(1), Ok(1)),
            (blocks(u32::MAX - 1), Ok(u32::MAX - 1)),
            (blocks(u32::MAX), Err(("max_blocks", u32::MAX.into()))),
        ] {
            assert_eq!(entries(&options), expected, "{options:?}");
        }
        for (len, entries) in [(64 << 20, 1024), (1 << 30, 16_384), (1 << 60, u32::MAX - 1)] {
            assert_eq!(NodeMemory::entries_for(len, &NodeOptions::default()).ok(), Some(entries));
        }
        for (requested, found) in [(len / 2, len / 2), (len, NO_BOUNDARY), (len * 2, NO_BOUNDARY)] {
            assert_eq!(NodeMemory::boundary_for(len, &boundary(requested)).ok(), Some(found));
        }
    }
}
