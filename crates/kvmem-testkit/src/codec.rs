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
    let mut reader = Reader { rest: bytes };
    let config = reader.config()?;
    Some((config, std::iter::from_fn(|| reader.op()).collect()))
}

/// Decodes a test of the allocator with caches: the cache settings, then the fields of [`decode`].
#[must_use]
pub fn decode_cached(bytes: &[u8]) -> Option<(Config, Vec<Op>)> {
    let mut reader = Reader { rest: bytes };
    let cache = reader.cache()?;
    let (config, ops) = decode(reader.rest)?;
    Some((Config { cache: Some(cache), ..config }, ops))
}

/// Encodes a test for [`decode_cached`].
#[must_use]
pub fn encode_cached(config: &Config, ops: &[Op]) -> Vec<u8> {
    let mut writer = Writer { bytes: Vec::new() };
    writer.cache(&config.cache.unwrap_or_default());
    writer.bytes.extend(encode(config, ops));
    writer.bytes
}

/// Encodes a test for [`decode`].
#[must_use]
pub fn encode(config: &Config, ops: &[Op]) -> Vec<u8> {
    let mut writer = Writer { bytes: Vec::new() };
    writer.config(config);
    for op in ops {
        writer.op(op);
    }
    writer.bytes
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
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

    fn call(&mut self) -> Option<Call> {
        const CALLS: [Call; 5] =
            [Call::Free, Call::Resolve, Call::Shrink, Call::Extend, Call::Adopt];
        self.case(5).map(|case| CALLS[usize::from(case)])
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
                const ORDERS: [Order; 3] = [Order::Ascending, Order::Descending, Order::Riffled];
                let (first, len) = (self.u16()?, self.u8()?);
                Op::FreeBatch { first, len, order: ORDERS[usize::from(self.case(3)?)] }
            }
            216..224 => Op::Misuse { call: self.call()?, handle: self.forgery()? },
            224..232 => Op::Grow(self.amount()?),
            232..240 => Op::ShrinkTo(self.amount()?),
            240..248 => Op::Clone,
            248..=255 => Op::Replace(self.config()?),
        })
    }
}

/// The inverse of [`Reader`].
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn u8(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn u16(&mut self, number: u16) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn part(&mut self, part: Part) {
        if part == Part::ALL {
            return self.u8(0);
        }
        self.u8(3);
        self.u16(part.share);
        self.u8(part.off as u8);
    }

    fn amount(&mut self, amount: Amount) {
        match amount.base {
            Base::Bytes(bytes) => {
                self.u8(2);
                // The part is applied here: the encoding of bytes has none.
                return self.u64(amount.part.of(bytes));
            }
            Base::Capacity => self.u8(3),
            Base::Limit => self.u8(4),
            Base::Free => self.u8(5),
            Base::Largest => self.u8(6),
            Base::Hole(pick) => {
                self.u8(7);
                self.u16(pick);
            }
            Base::Held(pick) => {
                self.u8(8);
                self.u16(pick);
            }
            Base::EndOfLast => self.u8(9),
        }
        self.part(amount.part);
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Free => self.u8(0),
            Change::Shrink(part) => {
                self.u8(4);
                self.part(part);
            }
            Change::Extend(part) => {
                self.u8(5);
                self.part(part);
            }
            Change::FreeRange(from, to) => {
                self.u8(6);
                self.part(from);
                self.part(to);
            }
            Change::Turn => self.u8(7),
        }
    }

    fn forgery(&mut self, handle: Forgery) {
        match handle {
            Forgery::Stale(pick) => {
                self.u8(0);
                self.u16(pick);
            }
            Forgery::Foreign(pick) => {
                self.u8(1);
                self.u16(pick);
            }
            Forgery::Flipped(pick, bit) => {
                self.u8(2);
                self.u16(pick);
                self.u8(bit);
            }
            Forgery::Garbage(high, low) => {
                self.u8(3);
                self.u64(high);
                self.u64(low);
            }
        }
    }

    fn cache(&mut self, cache: &Cache) {
        self.u8(u8::from(!cache.auto_hot_sizes)
            | u8::from(cache.max_cached_bytes.is_some()) << 1
            | 4 << 2);
        for number in cache.hot.into_iter().chain(cache.max_cached_bytes) {
            self.u8(3);
            self.u64(number);
        }
    }

    fn config(&mut self, config: &Config) {
        self.u8(3);
        self.u64(config.capacity);
        self.u8(u8::from(config.boundary.is_some()));
        if let Some(boundary) = config.boundary {
            self.u8(3);
            self.u64(boundary);
        }
        let best_fit = u8::from(config.placement == Placement::BestFit);
        self.u8(best_fit | u8::from(config.max_ranges.is_some()) << 1);
        if let Some(ranges) = config.max_ranges {
            self.u16(u16::try_from(ranges.saturating_sub(16)).unwrap_or(u16::MAX));
        }
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Allocate { size, raw } => {
                self.u8(0);
                self.amount(size);
                self.u8(u8::from(raw));
            }
            Op::AllocateAligned { size, align, raw } => {
                self.u8(80);
                self.amount(size);
                self.u8(255);
                self.u64(align);
                self.u8(u8::from(raw));
            }
            Op::AllocateBatch { size, n } => {
                self.u8(104);
                self.amount(size);
                match n {
                    Count::AsManyAsFit => self.u8(0),
                    Count::OneTooMany => self.u8(1),
                    Count::Exactly(n) => {
                        self.u8(2);
                        self.u8(n);
                    }
                }
            }
            Op::AllocateScattered { total, max_ranges } => {
                self.u8(112);
                self.amount(total);
                self.u8(max_ranges);
            }
            Op::Held(pick, change) => {
                self.u8(120);
                self.u16(pick);
                self.change(change);
            }
            Op::Orphan(pick, change) => {
                self.u8(200);
                self.u16(pick);
                self.change(change);
            }
            Op::FreeBatch { first, len, order } => {
                self.u8(208);
                self.u16(first);
                self.u8(len);
                self.u8(order as u8);
            }
            Op::Burst { seed, n } => {
                self.u8(192);
                self.u16(seed);
                self.u8(n);
            }
            Op::Misuse { call, handle } => {
                self.u8(216);
                self.u8(call as u8);
                self.forgery(handle);
            }
            Op::Grow(to) => {
                self.u8(224);
                self.amount(to);
            }
            Op::ShrinkTo(to) => {
                self.u8(232);
                self.amount(to);
            }
            Op::Clone => self.u8(240),
            Op::Replace(config) => {
                self.u8(248);
                self.config(&config);
            }
        }
    }
}
