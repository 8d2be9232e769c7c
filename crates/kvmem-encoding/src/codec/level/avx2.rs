//! The loops over levels with AVX2, 32 symbols at once. The portable code does what is left.
//!
//! AVX2 has no instructions that compress or expand bytes under a mask. Tables of shuffles do that
//! for eight bytes at once.

use std::arch::x86_64::*;

use super::{Ahead, Buffer, Level, decode_portable, encode_portable};

/// Symbols of a vector.
const LANES: usize = 32;

/// For each mask of eight bytes, the shuffle that moves its bytes to the front.
static COMPRESS: [[u8; 8]; 256] = shuffles(false);
/// For each mask of eight bytes, the shuffle that moves the first bytes to its places; other bytes
/// become 0.
static EXPAND: [[u8; 8]; 256] = shuffles(true);

const fn shuffles(expand: bool) -> [[u8; 8]; 256] {
    let mut shuffles = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut place, mut found) = (0, 0);
        while place < 8 {
            if mask >> place & 1 == 1 {
                if expand {
                    shuffles[mask][place] = found;
                } else {
                    shuffles[mask][found as usize] = place as u8;
                }
                found += 1;
            }
            place += 1;
        }
        mask += 1;
    }
    shuffles
}

/// Encodes `count` symbols. See [`encode`](super::encode).
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn encode(
    level: &Level,
    symbols: &Buffer,
    count: usize,
    packed: &mut [u8],
    escapes: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    let width = usize::from(level.width);
    let whole = count / LANES * LANES;
    let escape = _mm256_set1_epi8(level.len() as i8);
    // The code of an equal symbol is the escape with the bits of `flips` flipped. A symbol that is
    // twice in the table, as a filler, flips them once.
    let mut table = [(_mm256_setzero_si256(), _mm256_setzero_si256()); 15];
    let mut used = 0;
    for (code, symbol) in level.symbols[..level.len()].iter().enumerate() {
        if !level.symbols[..code].contains(symbol) {
            let flips = (level.len() ^ code) as i8;
            table[used] = (_mm256_set1_epi8(*symbol as i8), _mm256_set1_epi8(flips));
            used += 1;
        }
    }
    let mut found = 0;
    for start in (0..whole).step_by(LANES) {
        ahead.fetch(start, LANES);
        let vector = load(symbols, start);
        let mut codes = escape;
        for (symbol, flips) in &table[..used] {
            let equal = _mm256_cmpeq_epi8(vector, *symbol);
            codes = _mm256_xor_si256(codes, _mm256_and_si256(equal, *flips));
        }
        let mut escaped = _mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, escape)) as u32;
        for eight in symbols[start..start + LANES].as_chunks().0 {
            let mask = escaped as u8;
            store_8(escapes, found, shuffle_8(eight, mask, &COMPRESS));
            found += mask.count_ones() as usize;
            escaped >>= 8;
        }
        pack_32(width, codes, &mut packed[start / 8 * width..]);
    }
    let packed = &mut packed[whole / 8 * width..];
    encode_portable(level, &symbols[whole..count], packed, escapes, found)
}

/// Decodes `count` symbols. See [`decode`](super::decode).
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn decode(
    level: &Level,
    packed: &[u8],
    count: usize,
    escapes: &Buffer,
    symbols: &mut Buffer,
    ahead: Ahead<'_>,
) -> usize {
    let bits = Bits256::new(level.width);
    // SAFETY: the array has the 16 bytes that are read.
    let table = unsafe { _mm_loadu_si128(level.symbols.as_ptr().cast()) };
    let table = _mm256_broadcastsi128_si256(table);
    let escape = _mm256_set1_epi8(level.len() as i8);
    let (mut start, mut found) = (0, 0);
    while start + LANES <= count
        && let Some(vector) = packed[start / 8 * bits.width..].first_chunk()
    {
        ahead.fetch(start, LANES);
        let codes = bits.unpack(vector);
        let escaped = _mm256_cmpeq_epi8(codes, escape);
        let mut mask = _mm256_movemask_epi8(escaped) as u32;
        let mut next = [_mm_setzero_si128(); 4];
        for next in &mut next {
            let eight = escapes[found..].first_chunk().expect("a buffer's slack");
            *next = shuffle_8(eight, mask as u8, &EXPAND);
            found += (mask as u8).count_ones() as usize;
            mask >>= 8;
        }
        let low = _mm_unpacklo_epi64(next[0], next[1]);
        let next = _mm256_set_m128i(_mm_unpacklo_epi64(next[2], next[3]), low);
        let coded = _mm256_andnot_si256(escaped, _mm256_shuffle_epi8(table, codes));
        store(symbols, start, _mm256_or_si256(coded, next));
        start += LANES;
    }
    let packed = &packed[start / 8 * bits.width..];
    decode_portable(level, packed, escapes, found, &mut symbols[start..count])
}

/// Packs `count` numbers, a multiple of 32. See [`pack`](super::pack).
#[target_feature(enable = "avx2")]
pub(super) fn pack(width: u8, numbers: &Buffer, count: usize, packed: &mut [u8]) {
    for start in (0..count).step_by(LANES) {
        let packed = &mut packed[start / 8 * usize::from(width)..];
        pack_32(width.into(), load(numbers, start), packed);
    }
}

/// Unpacks numbers, and returns their number: all but the last of `count`.
#[target_feature(enable = "avx2")]
pub(super) fn unpack(width: u8, packed: &[u8], count: usize, numbers: &mut Buffer) -> usize {
    let bits = Bits256::new(width);
    let mut start = 0;
    while start + LANES <= count
        && let Some(vector) = packed[start / 8 * bits.width..].first_chunk()
    {
        store(numbers, start, bits.unpack(vector));
        start += LANES;
    }
    start
}

/// Writes 32 numbers to the first `4 width` bytes, and anything to the next `8 - width`.
#[target_feature(enable = "avx2")]
fn pack_32(width: usize, numbers: __m256i, packed: &mut [u8]) {
    // In each word: two numbers in 16 bits, four in 32, eight in 64.
    let twos = _mm256_maddubs_epi16(numbers, _mm256_set1_epi16((0x100 << width | 1) as i16));
    let fours = _mm256_madd_epi16(twos, _mm256_set1_epi32(0x1_0000 << (2 * width) | 1));
    let high = _mm256_srl_epi64(fours, _mm_cvtsi32_si128(32 - 4 * width as i32));
    let words = _mm256_or_si256(fours, high);
    let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    for (place, word) in
        [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)].into_iter().enumerate()
    {
        store_8(packed, place * width, word);
    }
}

/// The way to unpack 32 numbers of a width.
struct Bits256 {
    width: usize,
    /// Move the two bytes that hold a number to 16 bits: those of numbers 0 to 7 and 16 to 23, and
    /// those of the others.
    windows: [__m256i; 2],
    /// Factors that move a number to the highest of 16 bits.
    factors: __m256i,
    down: __m128i,
}

impl Bits256 {
    #[target_feature(enable = "avx2")]
    fn new(width: u8) -> Bits256 {
        let width = usize::from(width);
        let windows = [0, 8].map(|first| {
            let mut window = [0; LANES];
            for (place, pair) in window.as_chunks_mut().0.iter_mut().enumerate() {
                let number = first + place % 8 + place / 8 * 16;
                let byte = (number * width / 8) as u8;
                *pair = [byte, byte + 1];
            }
            load(&window, 0)
        });
        let mut factors = [0; LANES];
        for (place, factor) in factors.as_chunks_mut().0.iter_mut().enumerate() {
            *factor = (1_u16 << (16 - width - place * width % 8)).to_le_bytes();
        }
        let down = _mm_cvtsi32_si128(16 - width as i32);
        Bits256 { width, windows, factors: load(&factors, 0), down }
    }

    /// Returns the 32 numbers in the first `4 width` bytes.
    #[target_feature(enable = "avx2")]
    fn unpack(&self, packed: &[u8; 16]) -> __m256i {
        // SAFETY: the array has the 16 bytes that are read.
        let packed = unsafe { _mm_loadu_si128(packed.as_ptr().cast()) };
        let packed = _mm256_broadcastsi128_si256(packed);
        let [low, high] = self.windows.map(|window| {
            let high = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, window), self.factors);
            _mm256_srl_epi16(high, self.down)
        });
        _mm256_packus_epi16(low, high)
    }
}

/// Returns eight bytes in the order of a mask's shuffle; the upper half is undefined.
#[target_feature(enable = "avx2")]
fn shuffle_8(bytes: &[u8; 8], mask: u8, shuffles: &[[u8; 8]; 256]) -> __m128i {
    let shuffle = &shuffles[usize::from(mask)];
    let load = |bytes: &[u8; 8]| _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
    _mm_shuffle_epi8(load(bytes), load(shuffle))
}

#[target_feature(enable = "avx2")]
fn store_8(bytes: &mut [u8], start: usize, vector: __m128i) {
    bytes[start..start + 8].copy_from_slice(&_mm_cvtsi128_si64(vector).to_le_bytes());
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8], start: usize) -> __m256i {
    let bytes = &bytes[start..start + LANES];
    // SAFETY: the slice has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8], start: usize, vector: __m256i) {
    let bytes = &mut bytes[start..start + LANES];
    // SAFETY: the slice has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) };
}
