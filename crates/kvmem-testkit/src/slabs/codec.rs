//! Operations on slabs as bytes, for fuzzing.
//!
//! Any byte string is a test, and numbers are little-endian, as in the
//! [codec of offset spaces](crate::codec).

use super::op::{How, SEATS, SlabConfig, SlabOp, Who};

/// Decodes a test: the settings of the first allocator, and the operations.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(SlabConfig, Vec<SlabOp>)> {
    let mut reader = SlabReader { rest: bytes };
    let config = reader.config()?;
    Some((config, std::iter::from_fn(|| reader.op()).collect()))
}

/// Encodes a test for [`decode`].
#[must_use]
pub fn encode(config: &SlabConfig, ops: &[SlabOp]) -> Vec<u8> {
    let mut writer = SlabWriter { bytes: Vec::new() };
    writer.config(config);
    ops.iter().for_each(|op| writer.op(op));
    writer.bytes
}

struct SlabReader<'a> {
    rest: &'a [u8],
}

impl SlabReader<'_> {
    fn u8(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.u8()?, self.u8()?]))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from(self.u16()?) | u32::from(self.u16()?) << 16)
    }

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

    fn config(&mut self) -> Option<SlabConfig> {
        let flags = self.u8()?;
        let limit = if flags & 4 == 0 { SlabConfig::PLAIN.limit } else { self.u16()? % 8193 };
        let max_cached_bytes = if flags & 8 == 0 { None } else { Some(self.u32()?) };
        Some(SlabConfig {
            always_malloc: flags & 1 != 0,
            debug_blocks: flags & 2 != 0,
            limit,
            max_cached_bytes,
        })
    }

    fn op(&mut self) -> Option<SlabOp> {
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
            252..=255 => SlabOp::Replace(self.config()?),
        })
    }
}

/// The inverse of [`SlabReader`].
struct SlabWriter {
    bytes: Vec<u8>,
}

impl SlabWriter {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes.extend(bytes);
    }

    fn u16(&mut self, number: u16) {
        self.put(number.to_le_bytes());
    }

    fn who(&mut self, who: Who) {
        self.put([match who {
            Who::Seat(seat) => seat,
            Who::Outsider => SEATS,
        }]);
    }

    fn size(&mut self, size: usize) {
        match (u8::try_from(size), u16::try_from(size)) {
            (Ok(size), _) => self.put([0, size]),
            (_, Ok(size)) => {
                self.put([224]);
                self.u16(size);
            }
            _ => self.put([255]),
        }
    }

    fn config(&mut self, config: &SlabConfig) {
        let limit = config.limit != SlabConfig::PLAIN.limit;
        self.put([u8::from(config.always_malloc)
            | u8::from(config.debug_blocks) << 1
            | u8::from(limit) << 2
            | u8::from(config.max_cached_bytes.is_some()) << 3]);
        if limit {
            self.u16(config.limit);
        }
        if let Some(max) = config.max_cached_bytes {
            self.put(max.to_le_bytes());
        }
    }

    fn op(&mut self, op: &SlabOp) {
        match *op {
            SlabOp::Alloc { seat, size, how } => {
                self.put([0, seat]);
                self.size(size);
                self.put([how as u8]);
            }
            SlabOp::Batch { seat, size, n } => {
                self.put([64, seat]);
                self.size(size);
                self.u16(n);
            }
            SlabOp::Free { seat, pick } => {
                self.put([96, seat]);
                self.u16(pick);
            }
            SlabOp::FreeBatch { seat, pick, n } => {
                self.put([136, seat]);
                self.u16(pick);
                self.put([n]);
            }
            SlabOp::FreeChain { seat, pick, n, link } => {
                self.put([176, seat]);
                self.u16(pick);
                self.put([n]);
                self.u16(link);
            }
            SlabOp::Trim(who) => {
                self.put([200]);
                self.who(who);
            }
            SlabOp::Tick { who, seconds } => {
                self.put([216]);
                self.who(who);
                self.put([seconds]);
            }
            SlabOp::End(seat) => self.put([232, seat]),
            SlabOp::Look => self.put([248]),
            SlabOp::Replace(config) => {
                self.put([252]);
                self.config(&config);
            }
        }
    }
}
