//! *Direct I/O*: whether a file has it, and the alignments that it needs.
//!
//! Linux says since version 6.1 what a file needs (`STATX_DIOALIGN`): for memory usually 4 to 512
//! bytes, for offsets and lengths the drive's logical block of 512 or 4096. Before that, whole
//! blocks of 4096 bytes are right for nearly every file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::format::BLOCK;

/// A file that transfers only larger units than the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "its direct I/O needs memory at multiples of {memory} bytes and offsets at multiples of \
     {offset}, and a tier has blocks of {}: use another file system",
    BLOCK
)]
pub struct UnsupportedAlignment {
    /// Bytes of which the address of memory must be a multiple.
    pub memory: u64,
    /// Bytes of which offsets and lengths must be multiples.
    pub offset: u64,
}

/// The alignments of transfers, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alignment {
    /// Whether transfers bypass the page cache.
    pub(super) direct: bool,
    pub(super) memory: usize,
    /// Of lengths of reads.
    pub(super) read: usize,
}

impl Alignment {
    /// Transfers through the page cache.
    const BUFFERED: Alignment = Alignment { direct: false, memory: 1, read: 1 };
    /// What direct I/O accepts if nothing is known.
    const BLOCKS: Alignment = Alignment { direct: true, memory: BLOCK, read: BLOCK };

    /// Returns what a file needs that says so: multiples of `memory` and `offset`, or that it has
    /// no direct I/O with zeros.
    fn reported(memory: u32, offset: u32) -> Result<Alignment, UnsupportedAlignment> {
        if memory == 0 || offset == 0 {
            return Ok(Alignment::BUFFERED);
        }
        let fits = |align: u32| align as usize <= BLOCK && align.is_power_of_two();
        if !fits(memory) || !fits(offset) {
            let (memory, offset) = (memory.into(), offset.into());
            return Err(UnsupportedAlignment { memory, offset });
        }
        Ok(Alignment { direct: true, memory: memory as usize, read: offset as usize })
    }

    /// Returns what an open file needs that has been opened for direct I/O.
    fn of(file: &File) -> io::Result<Alignment> {
        let reported = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        match reported {
            Ok(reported) if reported.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                Alignment::reported(reported.stx_dio_mem_align, reported.stx_dio_offset_align)
                    .map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))
            }
            _ => Ok(Alignment::BLOCKS),
        }
    }
}

/// Opens a file with these flags, and for direct I/O if it has that.
///
/// # Errors
/// The system's error; [`io::ErrorKind::Unsupported`] with an [`UnsupportedAlignment`].
pub(super) fn open_direct(
    path: &Path,
    options: &mut OpenOptions,
    flags: OFlags,
) -> io::Result<(File, Alignment)> {
    let file = match options.custom_flags((flags | OFlags::DIRECT).bits() as i32).open(path) {
        // A file system without direct I/O says so when the file is opened.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            let file = options.custom_flags(flags.bits() as i32).open(path)?;
            return Ok((file, Alignment::BUFFERED));
        }
        opened => opened?,
    };
    let alignment = Alignment::of(&file)?;
    if !alignment.direct {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT)?;
    }
    Ok((file, alignment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_it_needs() {
        let reported = |memory, offset| Alignment::reported(memory, offset).unwrap();
        assert_eq!(reported(4, 512), Alignment { direct: true, memory: 4, read: 512 });
        assert_eq!(reported(4096, 4096), Alignment::BLOCKS);
        assert_eq!((reported(0, 0), reported(0, 512)), (Alignment::BUFFERED, Alignment::BUFFERED));
    }

    #[test]
    fn larger_units_than_the_block_are_an_error_that_names_them() {
        for (memory, offset) in [(512, 16_384), (65_536, 4096), (3, 512)] {
            let error = Alignment::reported(memory, offset).unwrap_err();
            assert_eq!((error.memory, error.offset), (memory.into(), offset.into()));
            let text = error.to_string();
            for number in [memory, offset, 4096] {
                assert!(text.contains(&number.to_string()), "{text}");
            }
        }
    }
}
