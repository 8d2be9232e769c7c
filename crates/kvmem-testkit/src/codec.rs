//! Operations as bytes, for fuzzing.
//!
//! Any byte string is a test: each field is taken modulo the number of its cases, and a sequence
//! ends where the bytes end. A fuzzer may therefore cut, splice and flip bytes freely. Numbers are
//! little-endian.

use kvmem::offset::Placement;

use crate::op::{Amount, Base, Cache, Call, Change, Config, Count, Forgery, Op, Order, Part};

/// The longest space, in bytes.
const MAX_CAPACITY: u64 = 1 << 63;

/// Decodes a test: the settings of the first space, and the operations.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(Config, Vec<Op>)> {
    let mut reader = Reader::new(bytes);
    let config = reader.config()?;
    Some((config, std::iter::from_fn(|| reader.op()).collect()))
}

/// Decodes a test of the allocator with caches: the cache settings, then the fields of [`decode`].
#[must_use]
pub fn decode_cached(bytes: &[u8]) -> Option<(Config, Vec<Op>)> {
    let mut reader = Reader::new(bytes);
    let cache = reader.cache()?;
    let (config, ops) = decode(reader.rest)?;
    Some((Config { cache: Some(cache), ..config }, ops))
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads one of `n` cases.
    fn case(&mut self, n: u8) -> Option<u8> {
        self.u8().map(|byte| byte % n)
    }

    fn flag(&mut self) -> Option<bool> {
        self.case(2).map(|case| case == 1)
    }

    fn part(&mut self) -> Option<Part> {
        Some(match self.case(4)? {
            0 => Part::ALL,
            1 => Part { share: u16::MAX, off: self.u8()? as i8 },
            2 => Part { share: self.u16()?, off: 0 },
            _ => Part { share: self.u16()?, off: self.u8()? as i8 },
        })
    }

    fn amount(&mut self) -> Option<Amount> {
        let base = match self.case(10)? {
            0 => Base::Bytes(u64::from(self.u8()?)),
            1 => Base::Bytes(u64::from(self.u16()?)),
            2 => Base::Bytes(self.u64()?),
            3 => Base::Capacity,
            4 => Base::Limit,
            5 => Base::Free,
            6 => Base::Largest,
            7 => Base::Hole(self.u16()?),
            8 => Base::Held(self.u16()?),
            _ => Base::EndOfLast,
        };
        // An absolute number of bytes has no part.
        let part = if matches!(base, Base::Bytes(_)) { Part::ALL } else { self.part()? };
        Some(Amount { base, part })
    }

    fn count(&mut self) -> Option<Count> {
        Some(match self.case(4)? {
            0 => Count::AsManyAsFit,
            1 => Count::OneTooMany,
            _ => Count::Exactly(self.u8()?),
        })
    }

    fn align(&mut self) -> Option<u64> {
        let byte = self.u8()?;
        // A quarter of the alignments are arbitrary numbers.
        if byte < 192 { Some(1 << (byte % 64)) } else { self.u64() }
    }

    fn change(&mut self) -> Option<Change> {
        Some(match self.case(8)? {
            0..4 => Change::Free,
            4 => Change::Shrink(self.part()?),
            5 => Change::Extend(self.part()?),
            6 => Change::FreeRange(self.part()?, self.part()?),
            _ => Change::Turn,
        })
    }

    fn forgery(&mut self) -> Option<Forgery> {
        Some(match self.case(4)? {
            0 => Forgery::Stale(self.u16()?),
            1 => Forgery::Foreign(self.u16()?),
            2 => Forgery::Flipped(self.u16()?, self.u8()?),
            _ => Forgery::Garbage(self.u64()?, self.u64()?),
        })
    }

    fn number(&mut self) -> Option<u64> {
        match self.case(4)? {
            0 => self.u8().map(u64::from),
            1 => self.u16().map(u64::from),
            2 => Some(1 << self.case(64)?),
            _ => self.u64(),
        }
    }

    fn cache(&mut self) -> Option<Cache> {
        let flags = self.u8()?;
        let mut hot = [0; 4];
        for size in hot.iter_mut().take(usize::from(flags >> 2 & 7)) {
            *size = self.number()?;
        }
        let max_cached_bytes = if flags & 2 == 0 { None } else { Some(self.number()?) };
        Some(Cache { hot, auto_hot_sizes: flags & 1 == 0, max_cached_bytes })
    }

    fn config(&mut self) -> Option<Config> {
        let capacity = self.number()?.clamp(1, MAX_CAPACITY);
        let boundary = if self.flag()? { Some(self.number()?.max(1)) } else { None };
        let (placement, bounded) = match self.case(4)? {
            0 => (Placement::Renewal, false),
            1 => (Placement::BestFit, false),
            2 => (Placement::Renewal, true),
            _ => (Placement::BestFit, true),
        };
        let max_ranges = if bounded { Some(16 + u32::from(self.u16()?)) } else { None };
        Some(Config { capacity, boundary, placement, max_ranges, cache: None })
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.u8()? {
            0..80 => Op::Allocate { size: self.amount()?, raw: self.flag()? },
            80..104 => Op::AllocateAligned {
                size: self.amount()?,
                align: self.align()?,
                raw: self.flag()?,
            },
            104..112 => Op::AllocateBatch { size: self.amount()?, n: self.count()? },
            112..120 => Op::AllocateScattered { total: self.amount()?, max_ranges: self.u8()? },
            120..192 => Op::Held(self.u16()?, self.change()?),
            192..200 => Op::Burst { seed: self.u16()?, n: self.u8()? },
            200..208 => Op::Orphan(self.u16()?, self.change()?),
            208..216 => {
                let (first, len) = (self.u16()?, self.u8()?);
                Op::FreeBatch { first, len, order: Order::ALL[usize::from(self.case(3)?)] }
            }
            216..224 => {
                Op::Misuse { call: Call::ALL[usize::from(self.case(5)?)], handle: self.forgery()? }
            }
            224..232 => Op::Grow(self.amount()?),
            232..240 => Op::ShrinkTo(self.amount()?),
            240..248 => Op::Clone,
            248..=255 => Op::Replace(self.config()?),
        })
    }
}
