//! Operations on slabs as bytes, for fuzzing.
//!
//! Any byte string is a test, and numbers are little-endian, as in the
//! [codec of offset spaces](crate::codec).

use super::op::{How, SEATS, SlabConfig, SlabOp, Who};
use crate::codec::Reader;

/// Decodes a test: the settings of the first allocator, and the operations.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(SlabConfig, Vec<SlabOp>)> {
    let mut reader = Reader::new(bytes);
    let config = reader.slab_config()?;
    Some((config, std::iter::from_fn(|| reader.slab_op()).collect()))
}

impl Reader<'_> {
    fn seat(&mut self) -> Option<u8> {
        self.u8().map(|byte| byte % SEATS)
    }

    fn who(&mut self) -> Option<Who> {
        let byte = self.u8()? % (SEATS + 1);
        Some(if byte < SEATS { Who::Seat(byte) } else { Who::Outsider })
    }

    fn size(&mut self) -> Option<usize> {
        Some(match self.u8()? {
            0..128 => self.u8()?.into(),
            128..224 => usize::from(self.u16()?) % 8193,
            224..254 => self.u16()?.into(),
            254..=255 => usize::MAX,
        })
    }

    fn slab_config(&mut self) -> Option<SlabConfig> {
        let flags = self.u8()?;
        let limit = if flags & 4 == 0 { SlabConfig::PLAIN.limit } else { self.u16()? % 8193 };
        let max_cached_bytes =
            if flags & 8 == 0 { None } else { Some(self.take().map(u32::from_le_bytes)?) };
        Some(SlabConfig {
            always_malloc: flags & 1 != 0,
            debug_blocks: flags & 2 != 0,
            limit,
            max_cached_bytes,
        })
    }

    fn slab_op(&mut self) -> Option<SlabOp> {
        Some(match self.u8()? {
            0..64 => {
                const HOWS: [How; 3] = [How::Plain, How::Zeroed, How::Copy];
                let (seat, size) = (self.seat()?, self.size()?);
                SlabOp::Alloc { seat, size, how: HOWS[usize::from(self.u8()? % 3)] }
            }
            64..96 => {
                SlabOp::Batch { seat: self.seat()?, size: self.size()?, n: self.u16()? % 2048 }
            }
            96..136 => SlabOp::Free { seat: self.seat()?, pick: self.u16()? },
            136..176 => SlabOp::FreeBatch { seat: self.seat()?, pick: self.u16()?, n: self.u8()? },
            176..200 => SlabOp::FreeChain {
                seat: self.seat()?,
                pick: self.u16()?,
                n: self.u8()?,
                link: self.u16()?,
            },
            200..216 => SlabOp::Trim(self.who()?),
            216..232 => SlabOp::Tick { who: self.who()?, seconds: self.u8()? },
            232..248 => SlabOp::End(self.seat()?),
            248..252 => SlabOp::Look,
            252..=255 => SlabOp::Replace(self.slab_config()?),
        })
    }
}
