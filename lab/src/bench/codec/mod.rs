//! The benchmark of the codec of KV blocks: how short values become, and how fast.
//!
//! 1. *Values.* The keys and values of an attention layer with random weights, which the suite
//!    makes itself, or float32 from a file: `lab/kv/trained.py` writes those of all layers of two
//!    models with trained weights. They are rounded to each data type and cut into values of 1 MiB.
//!    The entropy of their exponents is in each row. That of published caches is 2.5 to 3.0 bits
//!    for BF16, so a reader can judge how far the values resemble them.
//! 2. *Contenders.* `kvmem` is the library's codec with the processor's best instructions;
//!    `kvmem-avx2` and `kvmem-portable` are the same with fewer. `zstd-1` and `lz4` compress the
//!    bytes as they are. `zipnn-model` is a model of ZipNN's method: bytes with the exponents are
//!    coded with zstd's Huffman coder without matches, the other bytes are copied. `memcpy` is the
//!    limit.
//! 3. *Time* is wall time of a pass over all values, from one buffer of the memory to another. The
//!    threads of a row have as many values each. After a pass all bytes are compared.
//! 4. *At best* is the share of the size that an ideal coder of single exponents reaches.

mod contenders;
pub(super) mod numbers;

use std::time::Instant;

use anyhow::{Result, ensure};
use kvmem::tier::DataType;

use self::contenders::{CodecContender, contender};
use super::args::CodecArgs;
use super::suite::{Figures, Run, Skip, Turns, names};

/// Bytes of a value.
const VALUE_BYTES: usize = 1 << 20;
/// Data types, the bytes of their numbers, and the first bits and numbers of their exponents.
const TYPES: [(DataType, usize, u32, u32); 4] = [
    (DataType::Bfloat16, 2, 7, 8),
    (DataType::Float16, 2, 10, 5),
    (DataType::Float8E4m3, 1, 3, 4),
    (DataType::Float8E5m2, 1, 2, 5),
];

/// Runs the benchmark.
pub fn run(run: &mut Run, args: &CodecArgs) -> Result<()> {
    let reps = run.reps(9, 3);
    let count = run.length(32 << 20, 4 << 20, 1 << 20);
    let (numbers, source) = match &args.values {
        Some(file) => (numbers::read(file, count)?, file.display().to_string()),
        None => (numbers::random_weights(count), "an attention layer with random weights".into()),
    };
    run.settings(format_args!(
        "{reps} repetition(s), {} MiB of BF16 from {source}, values of 1 MiB",
        numbers.len() >> 19
    ));
    run.about("codec", "GB/s of plain bytes; shares of the size; bits of entropy of an exponent");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (data_type, number_bytes, mantissa, exponent) in TYPES {
        let plain = numbers::rounded(&numbers, data_type);
        let len = VALUE_BYTES.min(plain.len());
        let values: Vec<&[u8]> = plain.chunks_exact(len).collect();
        ensure!(!values.is_empty(), "no numbers: the file has fewer than four bytes");
        let bits = entropy(&plain, number_bytes, mantissa, exponent);
        let all = 8.0 * number_bytes as f64;
        let best = (all - f64::from(exponent) + bits) / all;
        let mut streams = vec![Vec::new(); values.len()];
        let mut decoded = vec![0; values.len() * len];
        for threads in [1, 2].into_iter().filter(|threads| *threads <= cores) {
            let line = format!("{}, {threads} core(s)", data_type.name());
            let turns = Turns { warm: true, ..Turns::of(reps) };
            let names: Vec<_> = CodecContenderId::ALL
                .into_iter()
                .filter(|id| match contender(*id, data_type) {
                    Err(error) if error.is::<Skip>() => {
                        run.skip(id.name(), error);
                        false
                    }
                    _ => true,
                })
                .collect();
            run.turns(("codec", &line), &names, turns, |id, _| {
                let make = || contender(id, data_type);
                let share = values.len().div_ceil(threads);
                let parts = values.chunks(share).zip(streams.chunks_mut(share));
                let seconds = pass(parts, make, |contender, (values, streams)| {
                    values.iter().zip(streams).try_for_each(|(value, stream)| {
                        stream.clear();
                        contender.compress(value, stream)
                    })
                })?;
                let parts = streams.chunks(share).zip(decoded.chunks_mut(share * len));
                let back = pass(parts, make, |contender, (streams, decoded)| {
                    let places = decoded.chunks_exact_mut(len);
                    streams.iter().zip(places).try_for_each(|(it, to)| contender.decompress(it, to))
                })?;
                ensure!(decoded[..] == plain[..decoded.len()], "{id} decodes another value");
                let bytes = decoded.len() as f64;
                let size = streams.iter().map(Vec::len).sum::<usize>() as f64 / bytes;
                Ok(Figures::of("compress", bytes / 1e9 / seconds)
                    .with("decompress", bytes / 1e9 / back)
                    .with("size", size)
                    .with("at best", best)
                    .with("entropy", bits))
            })?;
        }
    }
    goals(run);
    Ok(())
}

/// Runs a pass in one thread for each part, and returns its seconds.
fn pass<P: Send>(
    parts: impl Iterator<Item = P>,
    make: impl Fn() -> Result<CodecContender>,
    work: impl Fn(&mut CodecContender, P) -> Result<()> + Sync,
) -> Result<f64> {
    let parts: Vec<(P, CodecContender)> =
        parts.map(|part| Ok((part, make()?))).collect::<Result<_>>()?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = parts
            .into_iter()
            .map(|(part, mut contender)| scope.spawn(move || work(&mut contender, part)))
            .collect();
        threads.into_iter().try_for_each(|it| it.join().expect("a pass does not panic"))
    })?;
    Ok(start.elapsed().as_secs_f64())
}

/// Returns the bits of entropy of an exponent.
fn entropy(bytes: &[u8], number_bytes: usize, mantissa: u32, exponent: u32) -> f64 {
    let mut counts = [0_u64; 256];
    for number in bytes.chunks_exact(number_bytes) {
        let number = number.iter().rev().fold(0, |high, byte| high << 8 | usize::from(*byte));
        counts[number >> mantissa & ((1 << exponent) - 1)] += 1;
    }
    let all: u64 = counts.iter().sum();
    let share = |count: u64| count as f64 / all as f64;
    counts.into_iter().filter(|it| *it > 0).map(|it| -share(it) * share(it).log2()).sum()
}

fn goals(run: &mut Run) {
    let one = |line: &str| line.ends_with(", 1 core(s)");
    let kvmem = |run: &Run, figure: &str, lines: &dyn Fn(&str) -> bool| {
        run.values("codec", "kvmem", figure, lines)
    };
    let bfloat16 = kvmem(run, "size", &|line| line.starts_with("bfloat16"));
    run.at_most("BF16: share of the size", 0.72, bfloat16);
    let float8 = kvmem(run, "size", &|line| line.starts_with("float8"));
    run.at_most("FP8: share of the size", 0.88, float8);
    run.at_least("compress: GB/s of a core", 3.0, kvmem(run, "compress", &one));
    run.at_least("decompress: GB/s of a core", 5.0, kvmem(run, "decompress", &one));
}

names! {
    /// The contenders by name.
    pub enum CodecContenderId ("contender") {
        Kvmem = "kvmem",
        Avx2 = "kvmem-avx2",
        Portable = "kvmem-portable",
        Zstd = "zstd-1",
        Lz4 = "lz4",
        ZipNn = "zipnn-model",
        Memcpy = "memcpy",
    }
}
