//! *Memory file with a name*: the memory of a node in a file system that is memory.
//!
//! Descriptors end with the last process that has them. A file on a tmpfs or a hugetlbfs outlives
//! all processes, and needs none that keeps it. A node has four names there:
//!
//! | name | what it is |
//! |---|---|
//! | `PATH` | the memory file: values. Clients get descriptors of it |
//! | `PATH.index` | the index file, which only the server opens |
//! | `PATH.sessions` | the [session file](crate::session_file). Clients get it for reading only |
//! | `PATH.lock` | an empty file. The server that uses the others holds its lock |
//!
//! The lock is not one of the memory file, because clients could hold that, too. The kernel ends it
//! after it has unmapped the memory of a server that was killed.
//!
//! The files are made without a name, filled, and named at the end, the memory last. A server that
//! is killed while it populates therefore leaves nothing, and `PATH` is there only if it is
//! complete. No name is ever given to another file: names that exist stay, unless
//! the operator [sets them aside](MemoryFile::set_aside) or [removes](MemoryFile::remove) them.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvmem::arena::{PageSize, Region, RegionBuilder};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, fstatfs,
    linkat, open, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{Node, NodeMemory, NodeOptions, RecoveryReport};
use crate::error::{MemoryFileError, NodeError};
use crate::session_file::SessionFile;

/// How long a server waits for its predecessor, which is ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// The types of file systems that are memory.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// The memory of a node under a name. While the value lives, no other server uses it.
#[derive(Debug)]
pub struct MemoryFile {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    _lock: OwnedFd,
    /// The pages that the file system has.
    pages: Vec<PageSize>,
}

impl MemoryFile {
    /// Locks the memory at `path`, which need not exist. Its folder is on a tmpfs or a hugetlbfs.
    /// Waits up to 2 s for a server that is ending.
    ///
    /// # Errors
    /// [`MemoryFileError`]. No file was changed.
    pub fn open(path: &Path) -> Result<MemoryFile, MemoryFileError> {
        let failed = |call| move |errno| MemoryFileError::of(path, call)(errno);
        let name = path.file_name().ok_or_else(|| failed("open")(Errno::ISDIR))?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
        let folder = folder.map_err(failed("open of the folder of"))?;
        let pages = pages_of(path, &folder)?;
        let file = MemoryFile {
            path: path.to_owned(),
            _lock: lock(path, &folder, &suffixed(&name, ".lock"))?,
            folder,
            name,
            pages,
        };
        Ok(file)
    }

    /// Returns the path of the memory file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kinds of pages that the file system has.
    #[must_use]
    pub fn pages(&self) -> &[PageSize] {
        &self.pages
    }

    /// Returns whether there is a memory file, of this node or of anything else.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.exists(&self.name)
    }

    fn exists(&self, name: &OsString) -> bool {
        statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn index_name(&self) -> OsString {
        suffixed(&self.name, ".index")
    }

    fn sessions_name(&self) -> OsString {
        suffixed(&self.name, ".sessions")
    }

    /// Returns the names of the three files.
    fn names(&self) -> [OsString; 3] {
        [self.name.clone(), self.index_name(), self.sessions_name()]
    }

    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> MemoryFileError {
        MemoryFileError::of(&self.path, call)
    }

    /// Renames the memory file and those beside it to the first of `PATH.aside-1`, `PATH.aside-2`,
    /// … that is free, where another server can open them. Returns the new path; `None`: there was
    /// nothing to rename.
    ///
    /// # Errors
    /// [`MemoryFileError::Call`].
    pub fn set_aside(&self) -> Result<Option<PathBuf>, MemoryFileError> {
        let names = self.names();
        let there: Vec<usize> = (0..3).filter(|at| self.exists(&names[*at])).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let aside_of = |number: u32| {
            let name = suffixed(&self.name, &format!(".aside-{number}"));
            [name.clone(), suffixed(&name, ".index"), suffixed(&name, ".sessions")]
        };
        let is_free = |aside: &[OsString; 3]| !aside.iter().any(|name| self.exists(name));
        let aside = (1..).map(aside_of).find(is_free).expect("a folder has few files");
        for at in there {
            let (from, to) = (&names[at], &aside[at]);
            renameat_with(&self.folder, from, &self.folder, to, RenameFlags::NOREPLACE)
                .map_err(self.failed("renameat2"))?;
        }
        let [name, ..] = aside;
        Ok(Some(self.path.with_file_name(name)))
    }

    /// Removes the memory file and those beside it. The memory is free when no client maps it any
    /// more.
    ///
    /// # Errors
    /// [`MemoryFileError::Call`].
    pub fn remove(&self) -> Result<(), MemoryFileError> {
        for name in self.names() {
            match unlinkat(&self.folder, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.failed("unlink")(errno)),
            }
        }
        Ok(())
    }

    /// Makes a file without a name in the folder.
    fn unnamed(&self) -> Result<File, MemoryFileError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.folder, ".", flags, Mode::RUSR | Mode::WUSR);
        file.map(File::from).map_err(self.failed("open(O_TMPFILE) in the folder of"))
    }

    /// Gives a file of the folder its name, which nothing has.
    fn give_name(&self, file: impl AsFd, name: &OsString) -> Result<(), MemoryFileError> {
        let open_file = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        linkat(CWD, open_file, &self.folder, name, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
            match errno {
                Errno::EXIST => self.foreign("it was there before"),
                errno => self.failed("linkat")(errno),
            }
        })
    }

    fn foreign(&self, what: &'static str) -> MemoryFileError {
        MemoryFileError::Foreign { path: self.path.clone(), what }
    }

    /// Opens a file that is there.
    fn open_existing(
        &self,
        name: &OsString,
        absent: &'static str,
    ) -> Result<OwnedFd, MemoryFileError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            openat(&self.folder, name, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOENT => self.foreign(absent),
                Errno::LOOP => self.foreign("it is a symbolic link"),
                errno => self.failed("open")(errno),
            })?;
        check_owner(&self.path, &file)?;
        Ok(file)
    }
}

impl Node {
    /// Makes a node in a memory file that does not exist yet. `memory` says how much, on which NUMA
    /// nodes, and how it is populated. All pages of the index are populated, too: 192 bytes for
    /// each of [`max_blocks`](NodeOptions::max_blocks).
    ///
    /// # Errors
    /// [`NodeError::MemoryFile`], also if there is a file. [`NodeError::Memory`], before the memory
    /// is populated, if the file system has too little space. [`NodeError::Option`] and
    /// [`NodeError::System`]. Nothing is left of the files.
    pub fn create_in(
        file: MemoryFile,
        memory: RegionBuilder,
        options: NodeOptions,
    ) -> Result<Node, NodeError> {
        if file.names().iter().any(|name| file.exists(name)) {
            return Err(file.foreign("it was there before").into());
        }
        // The index comes first: its length says how much is left for the memory.
        let index_bytes = NodeMemory::index_len(memory.requested_bytes() as u64, &options)?;
        let index = Region::builder(index_bytes)
            .ladder(index_pages(&file.pages))
            .named_file(file.unnamed()?)
            .map()?;
        let sessions = SessionFile::create_named(file.unnamed()?, index_pages(&file.pages))?;
        let memory = memory.named_file(file.unnamed()?).map()?;
        let memory = NodeMemory::with_index(memory, index, sessions, &options)?;
        let files = memory.descriptors()?;
        let names = file.names();
        for at in (0..files.len()).rev() {
            file.give_name(&files[at], &names[at]).inspect_err(|_| {
                for name in &names[at + 1..] {
                    let _ = unlinkat(&file.folder, name, AtFlags::empty());
                }
            })?;
        }
        Node::over(memory.named_by(file), options)
    }

    /// Makes the state that an earlier server left in a memory file, as
    /// [`recover`](Self::recover) does. `bytes` is the size that the caller expects; the file
    /// has whole pages.
    ///
    /// # Errors
    /// [`NodeError::MemoryFile`]: there is something else, or the memory has another size.
    /// [`NodeError::BadIndex`]: the files cannot be used. No file was changed.
    pub fn recover_in(
        file: MemoryFile,
        bytes: u64,
        options: NodeOptions,
    ) -> Result<(Node, RecoveryReport), NodeError> {
        let memory = file.open_existing(&file.name, "it is not there")?;
        let index = file.open_existing(&file.index_name(), "it has no index beside it")?;
        let sessions = file.open_existing(
            &file.sessions_name(),
            "it has no session file beside it, so its clients may live",
        )?;
        let memory = NodeMemory::attach_named([memory, index, sessions])?;
        let found = memory.header.memory_len;
        let rounded = |page: &PageSize| bytes.checked_next_multiple_of(page.bytes() as u64);
        if !file.pages.iter().any(|page| rounded(page) == Some(found)) {
            let path = file.path;
            return Err(MemoryFileError::Size { path, found, requested: bytes }.into());
        }
        Node::recover_memory(memory.named_by(file), options, super::recover::may_live)
    }
}

fn suffixed(name: &OsString, suffix: &str) -> OsString {
    let mut name = name.clone();
    name.push(suffix);
    name
}

/// Returns the kinds of pages of an index: on a tmpfs, those of the machine.
fn index_pages(pages: &[PageSize]) -> PageSize {
    if pages.contains(&PageSize::Base) { PageSize::Base } else { pages[0] }
}

/// Returns the kinds of pages of the file system of a folder.
fn pages_of(path: &Path, folder: &OwnedFd) -> Result<Vec<PageSize>, MemoryFileError> {
    let system = fstatfs(folder).map_err(MemoryFileError::of(path, "fstatfs of the folder of"))?;
    // 32 bits, in a signed word of eight bytes on most machines.
    let kind = u64::from(system.f_type as u32);
    match (kind, system.f_bsize as u64) {
        (TMPFS, _) => Ok(vec![PageSize::Thp, PageSize::Base]),
        (HUGETLBFS, 0x20_0000) => Ok(vec![PageSize::Huge2M]),
        (HUGETLBFS, 0x4000_0000) => Ok(vec![PageSize::Huge1G]),
        (kind, _) => Err(MemoryFileError::NotMemory { path: path.to_owned(), kind }),
    }
}

/// Checks that a file is a regular one of this user.
fn check_owner(path: &Path, file: &OwnedFd) -> Result<(), MemoryFileError> {
    let found = fstat(file).map_err(MemoryFileError::of(path, "fstat"))?;
    let own = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        let (path, what) = (path.to_owned(), "it is no regular file");
        return Err(MemoryFileError::Foreign { path, what });
    }
    if found.st_uid != own {
        return Err(MemoryFileError::Owner { path: path.to_owned(), uid: found.st_uid, own });
    }
    Ok(())
}

/// Makes or opens the lock file, and locks it.
fn lock(path: &Path, folder: &OwnedFd, name: &OsString) -> Result<OwnedFd, MemoryFileError> {
    let failed = |call| MemoryFileError::of(path, call);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
    let lock = lock.map_err(failed("open of the lock of"))?;
    check_owner(path, &lock)?;
    let started = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(MemoryFileError::InUse { path: path.to_owned() });
            }
            Err(errno) => return Err(failed("flock of the lock of")(errno)),
        }
    }
}
