//! Chooses the format of a value, and the levels of a block, from counts of symbols.
//!
//! The symbols are ranked by their counts, and the first 16 go into levels. A program over the
//! ranks, from the last to the first, finds the widths with the fewest bits: a level that begins at
//! a rank costs its width for each symbol of that rank and above, its header, and the best levels
//! for the ranks behind it. Each symbol of a level counts an eighth of a bit more, for the time.

use kvmem::tier::DataType;

use super::Instructions;
use super::buffer::{BLOCK_VALUES, Buffer};
use super::level::{LEVEL_HEADER, Level};
use super::split::Format;

/// Symbols that levels can have together: five of three symbols, and one more.
const MAX_RANKS: usize = 16;
/// Levels of a block: the narrowest that begin at rank 1 or behind it have two bits.
pub(super) const MAX_LEVELS: usize = 6;

/// Numbers from each of [`SAMPLES`] places of a value.
const SAMPLE_VALUES: usize = 256;
/// Places of a value that are looked at before anything is compressed.
const SAMPLES: usize = 8;

/// One run of symbols in `STRIDE` is counted. The number is odd, so that the runs move through the
/// channels of a row.
const STRIDE: usize = 17;
/// Symbols of a run.
const RUN: usize = 16;
/// Fewer symbols than this are all counted.
const COUNT_ALL: usize = 2048;

/// Counts of symbols.
pub(super) type Counts = [u32; 256];

/// The levels of a block. No level: the block is stored.
pub(super) struct Plan {
    levels: [Level; MAX_LEVELS],
    len: usize,
    /// Bits that all symbols are estimated to take.
    bits: usize,
}

impl Plan {
    pub(super) fn levels(&self) -> &[Level] {
        &self.levels[..self.len]
    }
}

/// Counts `symbols`, or a seventeenth of them if they are many.
pub(super) fn count(symbols: &[u8]) -> Counts {
    // Four tables: symbols repeat, and the processor counts one behind the other in one place.
    let mut counts = [[0_u16; 256]; 4];
    let stride = if symbols.len() < COUNT_ALL { 1 } else { STRIDE };
    for run in symbols.chunks(RUN).step_by(stride) {
        for four in run.chunks(4) {
            for (counts, symbol) in counts.iter_mut().zip(four) {
                counts[usize::from(*symbol)] += 1;
            }
        }
    }
    std::array::from_fn(|symbol| counts.iter().map(|it| u32::from(it[symbol])).sum())
}

/// Returns the best levels for `values` symbols with the frequencies of `counts`.
pub(super) fn plan(counts: &Counts, values: usize) -> Plan {
    // The symbol is in the lowest bits of its count, so that the order is one of plain numbers.
    let mut ranked = [0; 256];
    let mut used = 0;
    for (symbol, &count) in counts.iter().enumerate() {
        ranked[used] = count << 8 | symbol as u32;
        used += usize::from(count > 0);
    }
    let ranked = &mut ranked[..used];
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    let total = ranked.iter().map(|it| it >> 8).sum::<u32>() as usize;
    let ranks = ranked.len().min(MAX_RANKS);

    // Estimated symbols of each rank and above, and the lowest costs in eighths of bits.
    let mut symbols = [0; MAX_RANKS + 1];
    let mut left = total;
    for (rank, symbols) in symbols[..=ranks].iter_mut().enumerate() {
        *symbols = left * values / total.max(1);
        left -= ranked.get(rank).map_or(0, |it| *it as usize >> 8);
    }
    let mut costs = [0; MAX_RANKS + 1];
    let mut widths = [0; MAX_RANKS + 1];
    for rank in (0..=ranks).rev() {
        costs[rank] = symbols[rank] * 64;
        let narrowest = if rank == 0 { 1 } else { 2 };
        for width in narrowest..=if rank < ranks { Level::MAX_WIDTH } else { 0 } {
            let next = (rank + Level::symbols_of(width)).min(ranks);
            let header = 64 * (LEVEL_HEADER + Level::symbols_of(width));
            let cost = symbols[rank] * (8 * usize::from(width) + 1) + header + costs[next];
            if cost < costs[rank] {
                (costs[rank], widths[rank]) = (cost, width);
            }
        }
    }

    let mut plan = Plan { levels: [Level::default(); MAX_LEVELS], len: 0, bits: costs[0] / 8 };
    let mut rank = 0;
    while rank < ranks && widths[rank] > 0 {
        let symbols = &ranked[rank..ranks.min(rank + Level::symbols_of(widths[rank]))];
        let level = &mut plan.levels[plan.len];
        level.width = widths[rank];
        level.symbols = [symbols[0] as u8; 16];
        for (place, symbol) in level.symbols.iter_mut().zip(symbols) {
            *place = *symbol as u8;
        }
        plan.len += 1;
        rank += symbols.len();
    }
    plan
}

/// Returns the format in which a sample of `value` takes the fewest bytes; `None` if the value is
/// estimated to take more than `max`.
pub(super) fn choose_format(value: &[u8], data_type: DataType, max: usize) -> Option<Format> {
    let named = |format: &Format| data_type == DataType::Unknown || format.is_of(data_type);
    let candidates = Format::ALL.into_iter().filter(named);
    let best = candidates.map(|format| (estimate(value, format), format));
    let (bytes, format) = best.min_by_key(|(bytes, _)| *bytes)?;
    (bytes <= max).then_some(format)
}

/// Returns the estimated bytes of a compressed value.
fn estimate(value: &[u8], format: Format) -> usize {
    let value_bytes = format.value_bytes();
    let values = value.len() / value_bytes;
    let piece = (SAMPLE_VALUES * value_bytes).min(value.len());
    let mut symbols: Buffer = [0; _];
    let mut counts = [0; 256];
    let mut rest = [0; 2 * SAMPLE_VALUES + 64];
    let mut bits: Buffer = [0; _];
    let places = if values <= SAMPLE_VALUES { 1 } else { SAMPLES };
    for place in 0..places {
        // The first, the last, and some between them, each at the start of a number.
        let start = (values - piece / value_bytes) * place / (places.max(2) - 1) * value_bytes;
        let piece = &value[start..start + piece];
        format.split(Instructions::PORTABLE, piece, &mut symbols, &mut rest, &mut bits);
        for &symbol in &symbols[..piece.len() / value_bytes] {
            counts[usize::from(symbol)] += 1;
        }
    }
    let blocks = value.len().div_ceil(format.block_bytes());
    let per_block = values.clamp(1, BLOCK_VALUES);
    let bits = plan(&counts, per_block).bits * values / per_block;
    1 + blocks + bits / 8 + format.rest_len(values)
}
