#![doc = include_str!("../../docs/codec.md")]

mod block;
mod buffer;
mod error;
mod instructions;
mod level;
mod plan;
mod split;

pub use error::{CodecError, Fault};
pub use instructions::Instructions;

use kvmem::tier::DataType;

use block::Scratch;
use split::Format;

/// The first byte of a stream: this, and the number of a data type in the lower four bits.
const METHOD: u8 = 0x10;
/// One part in this many is to be saved.
const LEAST_SAVING: usize = 16;

/// Compresses `value` to the end of `into`; returns false and appends nothing if that does not save
/// a sixteenth.
///
/// A sample of the value decides first. If the data type is unknown, it also finds the type that
/// pays. The stream has at most `value.len() - value.len() / 16` bytes, and does not contain the
/// length of the value: [`decompress`] takes it. It does not depend on the processor.
///
/// Takes time proportional to the length, and 100 KiB of memory.
pub fn compress(value: &[u8], data_type: DataType, into: &mut Vec<u8>) -> bool {
    compress_with(Instructions::detected(), value, data_type, into)
}

/// Compresses with a chosen set of instructions. See [`compress`].
pub fn compress_with(
    instructions: Instructions,
    value: &[u8],
    data_type: DataType,
    into: &mut Vec<u8>,
) -> bool {
    let max = value.len() - value.len().div_ceil(LEAST_SAVING);
    let Some(format) = plan::choose_format(value, data_type, max) else {
        return false;
    };
    let start = into.len();
    into.reserve(max + format.block_bytes() + block::MAX_HEADERS + buffer::SLACK);
    into.push(METHOD | format.number());
    let mut scratch = Scratch::new();
    let mut blocks = value.chunks(format.block_bytes()).peekable();
    while let Some(block) = blocks.next() {
        let ahead = blocks.peek().copied().unwrap_or_default();
        scratch.encode(instructions, format, block, ahead, into);
        if into.len() - start > max {
            into.truncate(start);
            return false;
        }
    }
    true
}

/// Decodes a stream into all of `into`, whose length is that of the compressed value.
///
/// Any bytes are safe to decode. Takes time proportional to the length of `into`, and 100 KiB of
/// memory.
///
/// # Errors
///
/// If the stream is not one that [`compress`] made of a value of this length, as far as the codec
/// can see: a changed mantissa is another value. `into` then has unspecified bytes.
pub fn decompress(stream: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    decompress_with(Instructions::detected(), stream, into)
}

/// Decodes with a chosen set of instructions. See [`decompress`].
///
/// # Errors
///
/// The errors of [`decompress`].
pub fn decompress_with(
    instructions: Instructions,
    stream: &[u8],
    into: &mut [u8],
) -> Result<(), CodecError> {
    let (&first, mut stream) = stream.split_first().ok_or(CodecError::Empty)?;
    let format = Format::numbered(first ^ METHOD).ok_or(CodecError::UnknownMethod(first))?;
    let mut scratch = Scratch::new();
    for (index, block) in into.chunks_mut(format.block_bytes()).enumerate() {
        stream = scratch
            .decode(instructions, format, stream, block)
            .map_err(|fault| CodecError::Block { block: index, fault })?;
    }
    if stream.is_empty() { Ok(()) } else { Err(CodecError::TrailingBytes(stream.len())) }
}
