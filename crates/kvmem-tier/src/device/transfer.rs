//! *Transfer*: memory lent to the kernel for one read or write.

use super::{Read, Write};

/// One read or write, in up to two parts.
pub(super) struct Transfer {
    /// Where it begins in the file.
    pub(super) at: u64,
    parts: [libc::iovec; 2],
    pub(super) write: bool,
    /// Bytes that the kernel has now.
    pub(super) in_flight: usize,
}

// SAFETY: a transfer is a loan of memory; which thread makes the system call does not matter.
unsafe impl Send for Transfer {}

/// The part of a transfer that one request to the kernel has.
pub(super) enum TransferPiece<'a> {
    /// Memory in one part.
    Bytes(*mut u8, usize),
    /// All parts that are left.
    Parts(&'a [libc::iovec]),
}

impl TransferPiece<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            TransferPiece::Bytes(_, len) => *len,
            TransferPiece::Parts(parts) => parts.iter().map(|part| part.iov_len).sum(),
        }
    }
}

impl Transfer {
    pub(super) fn write(write: &Write<'_>) -> Transfer {
        let part = |part: &[u8]| libc::iovec {
            // The kernel only reads it.
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        Transfer { at: write.at, parts: write.parts.map(part), write: true, in_flight: 0 }
    }

    pub(super) fn read(read: &mut Read<'_>) -> Transfer {
        let [first, second] = &mut read.parts;
        let part = |part: &mut [u8]| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        Transfer { at: read.at, parts: [part(first), part(second)], write: false, in_flight: 0 }
    }

    /// Returns the bytes that are left.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.iov_len).sum()
    }

    /// Returns the parts that are left; none of them is empty.
    pub(super) fn parts(&self) -> &[libc::iovec] {
        let [first, second] = self.parts.each_ref().map(|part| part.iov_len > 0);
        &self.parts[usize::from(!first)..1 + usize::from(second || !first)]
    }

    /// Returns the first bytes that are left, at most `max` of the first part. There are some.
    pub(super) fn piece(&self, max: usize) -> TransferPiece<'_> {
        match self.parts() {
            parts @ [first, ..] if first.iov_len <= max && parts.len() > 1 => {
                TransferPiece::Parts(parts)
            }
            [first, ..] => TransferPiece::Bytes(first.iov_base.cast(), first.iov_len.min(max)),
            [] => TransferPiece::Parts(&[]),
        }
    }

    /// Leaves out the first `done` bytes, at most all.
    pub(super) fn advance(&mut self, done: usize) {
        self.at += done as u64;
        let mut left = done;
        for part in &mut self.parts {
            let skipped = left.min(part.iov_len);
            part.iov_base = part.iov_base.cast::<u8>().wrapping_add(skipped).cast();
            part.iov_len -= skipped;
            left -= skipped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::priority::Share;

    #[test]
    fn a_transfer_goes_on_where_it_stopped() {
        let bytes = [7; 100];
        let write = Write { at: 4096, parts: [&bytes[..60], &bytes[60..]] };
        let mut transfer = Transfer::write(&write);
        let lengths = |transfer: &Transfer| -> Vec<usize> {
            transfer.parts().iter().map(|part| part.iov_len).collect()
        };
        assert_eq!((lengths(&transfer), transfer.len()), (vec![60, 40], 100));
        transfer.advance(59);
        assert_eq!((lengths(&transfer), transfer.at), (vec![1, 40], 4155));
        transfer.advance(1);
        assert_eq!(lengths(&transfer), [40]);
        assert_eq!(transfer.parts()[0].iov_base, bytes[60..].as_ptr().cast_mut().cast());
        transfer.advance(40);
        assert_eq!((transfer.len(), transfer.at), (0, 4196));
        let one = Transfer::write(&Write { at: 0, parts: [&bytes, &[]] });
        assert_eq!(lengths(&one), [100]);
    }

    /// The length of a request has 32 bits, and that of a value has more.
    #[test]
    fn a_piece_is_no_longer_than_a_request_can_be() {
        let part = |iov_len| libc::iovec { iov_base: std::ptr::null_mut(), iov_len };
        for (first, second) in [(4 << 30, 0), (9 << 30, 4096), (0, 8 << 30), (4096, 4096)] {
            let parts = [part(first), part(second)];
            let transfer = Transfer { at: 0, parts, write: false, in_flight: 0 };
            let len = transfer.piece(Share::READS.piece).len();
            assert!(len > 0 && u32::try_from(len).is_ok(), "{first} and {second}: {len}");
        }
    }
}
