//! The loops over levels with AVX-512 and its byte instructions (VBMI, VBMI2), 64 symbols at once.

use std::arch::x86_64::*;

use super::{Ahead, Buffer, Level};

/// For each width, the shuffle that moves byte `w j + i` to byte `i` of word `j`, for `i < w`.
static SPREAD: [[u8; 64]; 5] = shuffles(true);
/// The shuffles that undo those of [`SPREAD`].
static GATHER: [[u8; 64]; 5] = shuffles(false);

const fn shuffles(spread: bool) -> [[u8; 64]; 5] {
    let mut shuffles = [[0; 64]; 5];
    let mut width = 1;
    while width < 5 {
        let mut byte = 0;
        while byte < 8 * width {
            let apart = byte / width * 8 + byte % width;
            if spread {
                shuffles[width][apart] = byte as u8;
            } else {
                shuffles[width][byte] = apart as u8;
            }
            byte += 1;
        }
        width += 1;
    }
    shuffles
}

/// The way to pack and unpack 64 numbers of a width.
struct Bits512 {
    width: usize,
    spread: __m512i,
    gather: __m512i,
    /// The lowest bit of each number in a word.
    shifts: __m512i,
}

impl Bits512 {
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new(width: u8) -> Bits512 {
        let width = usize::from(width);
        let shifts = _mm512_set1_epi64((0x0706_0504_0302_0100 * width as u64) as i64);
        Bits512 { width, spread: load(&SPREAD[width]), gather: load(&GATHER[width]), shifts }
    }

    /// Reads 64 numbers, or as many as `packed` has; higher bits of their bytes are undefined.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn unpack(&self, packed: &[u8]) -> __m512i {
        let len = packed.len().min(8 * self.width);
        let mask = u64::MAX >> (64 - len.max(1));
        // SAFETY: only the first `len` bytes are read, which the slice has: the mask has no other
        // bit, and a vector without a symbol is never read.
        let packed = unsafe { _mm512_maskz_loadu_epi8(mask, packed.as_ptr().cast()) };
        let words = _mm512_permutexvar_epi8(self.spread, packed);
        _mm512_multishift_epi64_epi8(self.shifts, words)
    }

    /// Moves 64 numbers into the first `8 width` bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn pack(&self, numbers: __m512i) -> __m512i {
        let width = self.width as u32;
        // In each word: two numbers in 16 bits, four in 32, eight in 64.
        let twos = _mm512_maddubs_epi16(numbers, _mm512_set1_epi16((0x100 << width | 1) as i16));
        let fours = _mm512_madd_epi16(twos, _mm512_set1_epi32(0x1_0000 << (2 * width) | 1));
        let high = _mm512_srl_epi64(fours, _mm_cvtsi32_si128(32 - 4 * width as i32));
        _mm512_permutexvar_epi8(self.gather, _mm512_or_si512(fours, high))
    }
}

/// Encodes `count` symbols. See [`encode`](super::encode).
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
pub(super) fn encode(
    level: &Level,
    symbols: &Buffer,
    count: usize,
    packed: &mut [u8],
    escapes: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    let bits = Bits512::new(level.width);
    let codes = level.codes();
    let table: [__m512i; 4] = std::array::from_fn(|part| load(part_of(&codes, 64 * part)));
    let escape = _mm512_set1_epi8(level.len() as i8);
    let mut found = 0;
    for start in (0..count).step_by(64) {
        ahead.fetch(start, 64);
        let present = u64::MAX >> (64 - (count - start).min(64));
        let symbols = load(part_of(symbols, start));
        let low = _mm512_permutex2var_epi8(table[0], symbols, table[1]);
        let high = _mm512_permutex2var_epi8(table[2], symbols, table[3]);
        let codes = _mm512_mask_blend_epi8(_mm512_movepi8_mask(symbols), low, high);
        let codes = _mm512_maskz_mov_epi8(present, codes);
        let escaped = _mm512_mask_cmpeq_epi8_mask(present, codes, escape);
        store(part_of_mut(escapes, found), _mm512_maskz_compress_epi8(escaped, symbols));
        found += escaped.count_ones() as usize;
        store(part_of_mut(packed, start / 8 * bits.width), bits.pack(codes));
    }
    found
}

/// Decodes `count` symbols. See [`decode`](super::decode).
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
pub(super) fn decode(
    level: &Level,
    packed: &[u8],
    count: usize,
    escapes: &Buffer,
    symbols: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    let bits = Bits512::new(level.width);
    let mut table = [0; 64];
    table[..16].copy_from_slice(&level.symbols);
    let table = _mm512_permutexvar_epi64(_mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0), load(&table));
    let escape = _mm512_set1_epi8(level.len() as i8);
    let mut found = 0;
    for start in (0..count).step_by(64) {
        ahead.fetch(start, 64);
        let present = u64::MAX >> (64 - (count - start).min(64));
        let codes = bits.unpack(&packed[start / 8 * bits.width..]);
        let codes = _mm512_and_si512(codes, escape);
        let escaped = _mm512_mask_cmpeq_epi8_mask(present, codes, escape);
        let coded = _mm512_shuffle_epi8(table, codes);
        let next = load(part_of(escapes, found));
        store(part_of_mut(symbols, start), _mm512_mask_expand_epi8(coded, escaped, next));
        found += escaped.count_ones() as usize;
    }
    found
}

/// Packs `count` numbers. See [`pack`](super::pack).
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
pub(super) fn pack(width: u8, numbers: &Buffer, count: usize, packed: &mut [u8]) {
    let bits = Bits512::new(width);
    for start in (0..count).step_by(64) {
        let present = u64::MAX >> (64 - (count - start).min(64));
        let numbers = _mm512_maskz_mov_epi8(present, load(part_of(numbers, start)));
        store(part_of_mut(packed, start / 8 * bits.width), bits.pack(numbers));
    }
}

/// Unpacks `count` numbers. See [`unpack`](super::unpack).
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
pub(super) fn unpack(width: u8, packed: &[u8], count: usize, numbers: &mut Buffer) {
    let bits = Bits512::new(width);
    let mask = _mm512_set1_epi8(Level::symbols_of(width) as i8);
    for start in (0..count).step_by(64) {
        let words = bits.unpack(&packed[start / 8 * bits.width..]);
        store(part_of_mut(numbers, start), _mm512_and_si512(words, mask));
    }
}

#[inline(always)]
fn part_of(bytes: &[u8], start: usize) -> &[u8; 64] {
    bytes[start..].first_chunk().expect("buffers have 64 bytes behind their symbols")
}

#[inline(always)]
fn part_of_mut(bytes: &mut [u8], start: usize) -> &mut [u8; 64] {
    bytes[start..].first_chunk_mut().expect("buffers have 64 bytes behind their symbols")
}

#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; 64], vector: __m512i) {
    // SAFETY: the array has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) };
}
