//! The codec of KV blocks: any bytes are a stream that each set of instructions decodes to the same
//! value or the same error, and a value that comes back.
#![cfg_attr(fuzzing, no_main)]

use anyhow::{Result, ensure};
use kvmem::tier::DataType;
use kvmem_encoding::codec::{Instructions, compress, compress_with, decompress_with};

/// Bytes before the stream: the length of the value, and its data type.
const HEAD: usize = 4;

fn target(bytes: &[u8]) -> Result<()> {
    let Some((head, bytes)) = bytes.split_at_checked(HEAD) else { return Ok(()) };
    // At most two blocks of 16-bit numbers, and a bit.
    let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize % 40_000;
    let data_type = DataType::ALL[usize::from(head[3]) % DataType::ALL.len()];
    comes_back(bytes, data_type)?;
    let mut first = None;
    for set in Instructions::available() {
        let mut value = vec![0; len];
        let seen = decompress_with(set, bytes, &mut value).map(|()| value);
        let first = first.get_or_insert_with(|| seen.clone());
        ensure!(*first == seen, "{} decodes something else", set.name());
    }
    if let Some(Ok(value)) = first {
        comes_back(&value, data_type)?;
    }
    Ok(())
}

/// Compresses a value with each set of instructions, and decodes the streams.
fn comes_back(value: &[u8], data_type: DataType) -> Result<()> {
    let mut first = None;
    for set in Instructions::available() {
        let mut stream = Vec::new();
        let pays = compress_with(set, value, data_type, &mut stream);
        ensure!(pays != stream.is_empty(), "an answer without a stream, or the reverse");
        let first = first.get_or_insert_with(|| stream.clone());
        ensure!(*first == stream, "{} writes another stream", set.name());
        if pays {
            ensure!(stream.len() <= value.len() - value.len().div_ceil(16), "a stream too long");
            let mut decoded = vec![0; value.len()];
            decompress_with(set, &stream, &mut decoded)?;
            ensure!(decoded == value, "{} decodes another value", set.name());
        }
    }
    Ok(())
}

/// Returns streams of each data type, with some special numbers.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (number, data_type) in (0..).zip(DataType::ALL).skip(1) {
        for len in [301, 3001] {
            // Few upper bits, and lower ones of which none repeats soon.
            let mut state = 1_u32;
            let value: Vec<u8> = (0..len)
                .map(|at: usize| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let upper = (state >> 24).trailing_zeros() as u8 + 0x3a;
                    match data_type {
                        DataType::Float8E4m3 | DataType::Float8E5m2 => upper << 1 | at as u8 & 1,
                        _ if at % 2 == 1 => upper,
                        _ => (state >> 16) as u8,
                    }
                })
                .collect();
            let mut input = (len as u32).to_le_bytes().to_vec();
            input[3] = number;
            if compress(&value, data_type, &mut input) {
                seeds.push((format!("{}-{len}", data_type.name()), input));
            }
        }
    }
    let repeated = [&[200, 0, 0, 1, 0x11, 255], &[0x80, 0x3f][..]].concat();
    let stored = [&[5, 0, 0, 1, 0x11, 0], &[1, 2, 3, 4, 5][..]].concat();
    seeds.extend([("repeated".to_owned(), repeated), ("stored".to_owned(), stored)]);
    seeds
}

kvmem_fuzz::run!(target, corpus);
