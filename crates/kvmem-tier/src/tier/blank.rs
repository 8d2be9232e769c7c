//! *Blank*: a device on which nothing can be lost, although it was not made just now.
//!
//! A process that is killed while it makes a tier leaves a file of full length without a
//! superblock. Its blocks are zeros, except for the empty checkpoint that is written before the
//! superblocks. The next process makes the tier then. Every byte counts, not only those that a tier
//! would read: zeros at the begin of a disk image do not make it blank.
//!
//! The file system knows which parts of a file were never written, so no more is read than was. Of
//! a block device everything is read, once: a new drive of 1 TiB takes minutes, which `format`
//! spares. The first byte that is not zero ends it.

use crate::device::{AlignedBuffer, Device};
use crate::format::{BLOCK, is_empty_checkpoint};

/// Blocks that are read at once.
const AT_ONCE: u64 = 256;

/// Returns whether all whole blocks of a device are zeros or empty checkpoints. A device that fails
/// to say so is not.
pub(super) fn is_blank(device: &impl Device) -> bool {
    let block = BLOCK as u64;
    let blocks = device.len() / block;
    // A shorter file has no place for superblocks: it is something else.
    if blocks < 2 {
        return false;
    }
    let mut buffer = AlignedBuffer::new(AT_ONCE as usize);
    let mut next = 0;
    while next < blocks {
        let data = match device.next_data(next * block) {
            Ok(Some(data)) => data,
            Ok(None) => return true,
            Err(_) => return false,
        };
        next = data.start / block;
        let end = data.end.div_ceil(block).min(blocks);
        while next < end {
            let count = AT_ONCE.min(end - next);
            let bytes = &mut buffer[..count as usize * BLOCK];
            let read = device.read_at(next * block, bytes);
            let blank =
                |block: &[u8]| block.iter().all(|&byte| byte == 0) || is_empty_checkpoint(block);
            if read.is_err() || !bytes.chunks_exact(BLOCK).all(blank) {
                return false;
            }
            next += count;
        }
    }
    true
}
