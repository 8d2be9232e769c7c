//! *Named files*: memory that has a name in a file system, and outlives every process.
//!
//! A tmpfs or a hugetlbfs provides the pages. Their files have no seals, so nothing keeps a process
//! that may write to the file from making it shorter, and a touch beyond its new end kills every
//! process that maps it. Only processes that trust each other share such a file.

use std::fs::File;

use super::memfd::check_limit;
use crate::arena::error::call_failed;
use crate::arena::{ArenaError, Call, Limit, PageSize};
use crate::sys::{self, FileSystem};

/// An empty file for the memory of a region.
pub(super) struct NamedFile<'a> {
    file: &'a File,
    system: FileSystem,
}

impl<'a> NamedFile<'a> {
    /// Checks that the file is empty, and that its file system is memory.
    pub(super) fn new(file: &'a File) -> Result<NamedFile<'a>, ArenaError> {
        let failed = |call| move |errno| call_failed(call, 0, errno);
        let system = sys::file_system(file).map_err(failed(Call::FileSystem))?;
        if !system.memory {
            return Err(ArenaError::NotMemory);
        }
        match sys::file_size(file).map_err(failed(Call::FileSize))? {
            0 => Ok(NamedFile { file, system }),
            found => Err(ArenaError::WrongSize { found, expected: 0 }),
        }
    }

    /// Returns whether the file system has pages of this kind.
    pub(super) fn has(&self, page: PageSize) -> bool {
        match self.system.huge {
            true => page.is_pooled() && page.bytes() as u64 == self.system.block,
            false => !page.is_pooled(),
        }
    }

    /// Makes the file `len` bytes long. Returns its descriptor once more.
    pub(super) fn of_len(&self, len: usize) -> Result<File, ArenaError> {
        check_limit(len)?;
        if let Some((total, free)) = self.system.space.filter(|(_, free)| *free < len as u64) {
            let limit = Limit::FileSystem { total, free };
            return Err(ArenaError::NoHeadroom { need: len as u64, limit });
        }
        let failed = |call| move |errno| call_failed(call, len, errno);
        sys::truncate(self.file, len).map_err(failed(Call::Truncate))?;
        self.file.try_clone().map_err(|error| failed(Call::Duplicate)(sys::Errno::of(&error)))
    }
}
