//! Encodes and decodes one block.
//!
//! ```text
//! stored    0 · the bytes
//! repeated  255 · one number, of which the block consists
//! coded     levels L, 1 to 6 · the rest · L headers · L × bits of a level · escapes of the last ·
//!           the odd byte of a value that ends within a number
//! header    width w · 2^w - 1 symbols · number of escapes, 2 bytes, lowest first
//! ```
//!
//! Bits of a level lie in bytes from the lowest bit; a level ends with a whole byte.

use super::buffer::{Buffer, SLACK};
use super::error::Fault;
use super::instructions::Instructions;
use super::level::{self, Ahead, LEVEL_HEADER, Level};
use super::plan::{self, MAX_LEVELS};
use super::split::Format;

/// Bytes of a coded block that are neither rest nor symbols, at most.
pub(super) const MAX_HEADERS: usize = 1 + MAX_LEVELS * (LEVEL_HEADER + 15);

const STORED: u8 = 0;
const REPEATED: u8 = 255;

/// Memory for coding blocks.
pub(super) struct Scratch(Box<[Buffer; 3]>);

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch(Box::new([[0; _]; 3]))
    }

    /// Appends the encoded form of a block. `ahead` is the next one.
    pub(super) fn encode(
        &mut self,
        instructions: Instructions,
        format: Format,
        block: &[u8],
        ahead: &[u8],
        into: &mut Vec<u8>,
    ) {
        let start = into.len();
        let number = format.value_bytes().min(block.len());
        if block[number..] == block[..block.len() - number] {
            into.push(REPEATED);
            into.extend_from_slice(&block[..number]);
            return;
        }
        into.resize(start + MAX_HEADERS + block.len() + SLACK, 0);
        let coded = self.encode_levels(instructions, format, block, ahead, &mut into[start..]);
        match coded {
            Some(len) => into.truncate(start + len),
            None => {
                into[start] = STORED;
                into[start + 1..][..block.len()].copy_from_slice(block);
                into.truncate(start + 1 + block.len());
            }
        }
    }

    /// Writes a coded block, and returns its length; `None` if no levels pay.
    fn encode_levels(
        &mut self,
        instructions: Instructions,
        format: Format,
        block: &[u8],
        ahead: &[u8],
        coded: &mut [u8],
    ) -> Option<usize> {
        let values = block.len() / format.value_bytes();
        let odd = &block[values * format.value_bytes()..];
        let [symbols, escapes, bits] = &mut *self.0;
        let (mut symbols, mut escapes) = (symbols, escapes);
        format.split(instructions, block, symbols, &mut coded[1..], bits);
        let plan = plan::plan(&plan::count(&symbols[..values]), values);
        let levels = plan.levels();
        if levels.is_empty() {
            return None;
        }
        coded[0] = levels.len() as u8;
        let mut at = 1 + format.rest_len(values);
        let mut end = at + levels.iter().map(|it| LEVEL_HEADER + it.len()).sum::<usize>();
        let mut ahead = Ahead { read: ahead, write: &[], step: format.value_bytes() };
        let mut left = values;
        for level in levels {
            let len = level::packed_len(level.width, left);
            if end + len > block.len() {
                return None;
            }
            let packed = &mut coded[end..];
            let escaped = level::encode(instructions, level, symbols, left, packed, escapes, ahead);
            end += len;
            coded[at] = level.width;
            coded[at + 1..][..level.len()].copy_from_slice(&level.symbols[..level.len()]);
            at += 1 + level.len();
            coded[at..at + 2].copy_from_slice(&(escaped as u16).to_le_bytes());
            at += 2;
            left = escaped;
            std::mem::swap(&mut symbols, &mut escapes);
            ahead = Ahead::default();
        }
        if end + left + odd.len() > block.len() {
            return None;
        }
        for bytes in [&symbols[..left], odd] {
            coded[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        }
        Some(end)
    }

    /// Decodes a block, and returns the stream behind it.
    pub(super) fn decode<'a>(
        &mut self,
        instructions: Instructions,
        format: Format,
        mut stream: &'a [u8],
        block: &mut [u8],
    ) -> Result<&'a [u8], Fault> {
        match take(&mut stream, 1)?[0] {
            STORED => block.copy_from_slice(take(&mut stream, block.len())?),
            REPEATED => {
                let number = take(&mut stream, format.value_bytes().min(block.len()))?;
                block
                    .chunks_mut(number.len())
                    .for_each(|it| it.copy_from_slice(&number[..it.len()]));
            }
            levels if usize::from(levels) <= MAX_LEVELS => {
                self.decode_levels(instructions, format, levels.into(), &mut stream, block)?;
            }
            levels => return Err(Fault::Levels(levels)),
        }
        Ok(stream)
    }

    fn decode_levels(
        &mut self,
        instructions: Instructions,
        format: Format,
        levels: usize,
        stream: &mut &[u8],
        block: &mut [u8],
    ) -> Result<(), Fault> {
        let values = block.len() / format.value_bytes();
        let rest = take(stream, format.rest_len(values))?;
        let mut headers = [(Level::default(), 0, 0); MAX_LEVELS];
        let headers = &mut headers[..levels];
        let mut left = values;
        for (level, symbols, escapes) in &mut *headers {
            level.width = take(stream, 1)?[0];
            if !(1..=Level::MAX_WIDTH).contains(&level.width) {
                return Err(Fault::Width(level.width));
            }
            let coded = level.len();
            level.symbols[..coded].copy_from_slice(take(stream, coded)?);
            let escaped = take(stream, 2)?;
            *symbols = left;
            *escapes = usize::from(u16::from_le_bytes([escaped[0], escaped[1]]));
            if *escapes > *symbols {
                return Err(Fault::Escapes { symbols: *symbols, expected: *escapes });
            }
            left = *escapes;
        }
        let mut packed = [&[][..]; MAX_LEVELS];
        for ((level, symbols, _), packed) in headers.iter().zip(&mut packed) {
            *packed = take(stream, level::packed_len(level.width, *symbols))?;
        }
        let [escapes, symbols, bits] = &mut *self.0;
        let (mut escapes, mut symbols) = (escapes, symbols);
        escapes[..left].copy_from_slice(take(stream, left)?);
        let odd = take(stream, block.len() % format.value_bytes())?;
        // The next block's part of the stream, about.
        let next = &stream[..stream.len().min(block.len())];
        for ((level, count, expected), packed) in headers.iter().zip(packed).rev() {
            // The first level is decoded last, before the numbers are written.
            let first = count == &values;
            let step = if first { format.value_bytes() } else { 0 };
            let ahead = Ahead { read: next, write: block, step };
            let found = level::decode(instructions, level, packed, *count, escapes, symbols, ahead);
            if found != *expected {
                return Err(Fault::Escapes { symbols: *count, expected: *expected });
            }
            std::mem::swap(&mut escapes, &mut symbols);
        }
        // The symbols of the first level were swapped, too.
        format.join(instructions, escapes, rest, bits, block);
        block[values * format.value_bytes()..].copy_from_slice(odd);
        Ok(())
    }
}

/// Takes the next `len` bytes off the stream.
fn take<'a>(stream: &mut &'a [u8], len: usize) -> Result<&'a [u8], Fault> {
    let fault = Fault::Truncated { needed: len, left: stream.len() };
    stream.split_off(..len).ok_or(fault)
}
