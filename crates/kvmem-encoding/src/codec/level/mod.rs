//! Codes the symbols of a level as numbers of a few bits.
//!
//! Number `i` of width `w` lies in bits `i w` to `i w + w - 1`, counted from the lowest bit of the
//! first byte. Eight numbers so take `w` bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::buffer::Buffer;
use super::instructions::{Instructions, Set};

/// Bytes of a level's header without its symbols.
pub(super) const LEVEL_HEADER: usize = 3;

/// A width, and the symbols that have a code.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) width: u8,
    /// The symbol of each code but the last, which is the escape.
    pub(super) symbols: [u8; 16],
}

impl Level {
    pub(super) const MAX_WIDTH: u8 = 4;

    /// Returns the number of symbols of a level of `width` bits.
    pub(super) fn symbols_of(width: u8) -> usize {
        (1 << width) - 1
    }

    /// Returns the number of its symbols, which is the escape's code, too.
    pub(super) fn len(&self) -> usize {
        Level::symbols_of(self.width)
    }

    /// Returns the code of each symbol.
    fn codes(&self) -> [u8; 256] {
        let mut codes = [self.len() as u8; 256];
        for (code, symbol) in self.symbols[..self.len()].iter().enumerate().rev() {
            codes[usize::from(*symbol)] = code as u8;
        }
        codes
    }
}

/// Memory that the thread touches next. A loop over a level fetches it: such loops work in the
/// first two caches, and would leave the memory idle.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
pub(super) struct Ahead<'a> {
    /// Bytes to read.
    pub(super) read: &'a [u8],
    /// Bytes to overwrite.
    pub(super) write: &'a [u8],
    /// Bytes to fetch for each symbol of the level.
    pub(super) step: usize,
}

#[cfg(target_arch = "x86_64")]
impl Ahead<'_> {
    /// Fetches the part of the memory that belongs to symbols from `start` on.
    #[inline(always)]
    fn fetch(self, start: usize, symbols: usize) {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};

        for at in (self.step * start..self.step * (start + symbols)).step_by(64) {
            if let Some(line) = self.read.get(at) {
                // SAFETY: fetching ahead has no effect on the program.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) };
            }
            if let Some(line) = self.write.get(at) {
                // SAFETY: fetching ahead has no effect on the program.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(line).cast()) };
            }
        }
    }
}

/// Returns the bytes that `count` numbers of `width` bits take.
pub(super) fn packed_len(width: u8, count: usize) -> usize {
    (count * usize::from(width)).div_ceil(8)
}

/// Writes the codes of the first `count` symbols to `packed`, and the symbols without a code to
/// `escapes`; returns their number. `packed` has a buffer's slack.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub(super) fn encode(
    instructions: Instructions,
    level: &Level,
    symbols: &Buffer,
    count: usize,
    packed: &mut [u8],
    escapes: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    match instructions.0 {
        Set::Portable => encode_portable(level, &symbols[..count], packed, escapes, 0),
        // SAFETY: the value of `Instructions` proves that the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { avx2::encode(level, symbols, count, packed, escapes, ahead) },
        // SAFETY: the value of `Instructions` proves that the processor has these sets.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { avx512::encode(level, symbols, count, packed, escapes, ahead) },
    }
}

/// Writes `count` symbols, taking those without a code from `escapes`; returns how many those are.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub(super) fn decode(
    instructions: Instructions,
    level: &Level,
    packed: &[u8],
    count: usize,
    escapes: &Buffer,
    symbols: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    match instructions.0 {
        Set::Portable => decode_portable(level, packed, escapes, 0, &mut symbols[..count]),
        // SAFETY: the value of `Instructions` proves that the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { avx2::decode(level, packed, count, escapes, symbols, ahead) },
        // SAFETY: the value of `Instructions` proves that the processor has these sets.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { avx512::decode(level, packed, count, escapes, symbols, ahead) },
    }
}

/// Writes `count` numbers of `width` bits to `packed`, which has a buffer's slack.
pub(super) fn pack(
    instructions: Instructions,
    width: u8,
    numbers: &Buffer,
    count: usize,
    packed: &mut [u8],
) {
    if width == 0 {
        return;
    }
    let done = match instructions.0 {
        Set::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => {
            let whole = count / 32 * 32;
            // SAFETY: the value of `Instructions` proves that the processor has AVX2.
            unsafe { avx2::pack(width, numbers, whole, packed) };
            whole
        }
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => {
            // SAFETY: the value of `Instructions` proves that the processor has these sets.
            unsafe { avx512::pack(width, numbers, count, packed) };
            count
        }
    };
    let starts = (packed_len(width, done)..).step_by(width.into());
    for (numbers, start) in numbers[done..count].chunks(8).zip(starts) {
        let mut eight = [0; 8];
        eight[..numbers.len()].copy_from_slice(numbers);
        packed[start..start + 8].copy_from_slice(&pack_8(width, eight));
    }
}

/// Reads `count` numbers of `width` bits.
pub(super) fn unpack(
    instructions: Instructions,
    width: u8,
    packed: &[u8],
    count: usize,
    numbers: &mut Buffer,
) {
    if width == 0 {
        return;
    }
    let done = match instructions.0 {
        Set::Portable => 0,
        // SAFETY: the value of `Instructions` proves that the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { avx2::unpack(width, packed, count, numbers) },
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => {
            // SAFETY: the value of `Instructions` proves that the processor has these sets.
            unsafe { avx512::unpack(width, packed, count, numbers) };
            count
        }
    };
    let starts = (packed_len(width, done)..).step_by(width.into());
    for (numbers, start) in numbers[done..count].chunks_mut(8).zip(starts) {
        numbers.copy_from_slice(&unpack_8(width, &packed[start..])[..numbers.len()]);
    }
}

/// Encodes all `symbols`, whose number is a multiple of eight except at the end of a level.
/// `found` escapes precede.
fn encode_portable(
    level: &Level,
    symbols: &[u8],
    packed: &mut [u8],
    escapes: &mut Buffer,
    mut found: usize,
) -> usize {
    let escape = level.len() as u8;
    let codes = level.codes();
    for (symbols, start) in symbols.chunks(8).zip((0..).step_by(level.width.into())) {
        let mut eight = [0; 8];
        for (code, &symbol) in eight.iter_mut().zip(symbols) {
            *code = codes[usize::from(symbol)];
            escapes[found] = symbol;
            found += usize::from(*code == escape);
        }
        packed[start..start + 8].copy_from_slice(&pack_8(level.width, eight));
    }
    found
}

/// Decodes as many symbols as fit. `found` escapes precede.
fn decode_portable(
    level: &Level,
    packed: &[u8],
    escapes: &Buffer,
    mut found: usize,
    symbols: &mut [u8],
) -> usize {
    let escape = level.len() as u8;
    for (symbols, start) in symbols.chunks_mut(8).zip((0..).step_by(level.width.into())) {
        let eight = unpack_8(level.width, &packed[start..]);
        for (symbol, code) in symbols.iter_mut().zip(eight) {
            // Without a branch: escapes come by chance.
            let escaped = u8::from(code == escape);
            let (coded, next) = (level.symbols[usize::from(code & 15)], escapes[found]);
            *symbol = coded ^ (coded ^ next) & escaped.wrapping_neg();
            found += usize::from(escaped);
        }
    }
    found
}

/// Returns a word whose parts of `part` bits are all `ones` ones.
const fn mask(part: u32, ones: u32) -> u64 {
    (u64::MAX / (u64::MAX >> (64 - part))) * ((1 << ones) - 1)
}

/// Moves eight numbers of `width` bits together: pairs of them, pairs of pairs, and the two halves.
fn pack_8(width: u8, eight: [u8; 8]) -> [u8; 8] {
    let width = u32::from(width);
    let mut word = u64::from_le_bytes(eight);
    word = (word | word >> (8 - width)) & mask(16, 2 * width);
    word = (word | word >> (16 - 2 * width)) & mask(32, 4 * width);
    word |= word >> (32 - 4 * width);
    word.to_le_bytes()
}

/// Undoes [`pack_8`] for the first `width` bytes, or as many as there are.
fn unpack_8(width: u8, packed: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    match packed.first_chunk() {
        Some(eight) => word = *eight,
        None => word[..packed.len()].copy_from_slice(packed),
    }
    let width = u32::from(width);
    let mut word = u64::from_le_bytes(word) & mask(64, 8 * width);
    word = (word | word << (32 - 4 * width)) & mask(32, 4 * width);
    word = (word | word << (16 - 2 * width)) & mask(16, 2 * width);
    word = (word | word << (8 - width)) & mask(8, width);
    word.to_le_bytes()
}
