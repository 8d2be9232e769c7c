//! Readers of traces: any bytes, in a format that is given or recognized. Every request stays
//! within the limits of the readers, an error names a line of the file, and the curve of the
//! requests before it is one.
#![cfg_attr(fuzzing, no_main)]

use std::io::Cursor;
use std::path::Path;

use anyhow::{Result, ensure};
use kvmem_trace::reuse::distances::ReuseDistances;
use kvmem_trace::{SECONDS_MAX, TOKENS_MAX, Trace, TraceError, TraceFormat, TraceOptions};

/// Blocks after which an input has done enough.
const BLOCKS_MAX: usize = 1 << 20;

/// Reads the bytes after the first as a trace; the first chooses how.
fn target(bytes: &[u8]) -> Result<()> {
    let Some((&how, text)) = bytes.split_first() else { return Ok(()) };
    let format = match how % 4 {
        0 => None,
        1 => Some(TraceFormat::Mooncake),
        2 => Some(TraceFormat::KvCacheTester),
        _ => Some(TraceFormat::Azure),
    };
    let options =
        TraceOptions { format, block_tokens: None, sessions: 1 + u32::from(how >> 2) % 4 };
    let stream = Box::new(Cursor::new(text.to_vec()));
    let mut trace = match Trace::new(stream, Path::new("fuzzed"), &options) {
        Ok(trace) => trace,
        Err(TraceError::Unrecognized { .. }) if format.is_none() => return Ok(()),
        Err(error) => anyhow::bail!("{error}"),
    };
    let lines = 1 + text.iter().filter(|byte| **byte == b'\n').count();
    let mut distances = ReuseDistances::new(1 << (4 + how % 16), 1.0);
    let mut blocks = 0;
    while let Some(request) = trace.next() {
        ensure!(trace.position() <= text.len() as u64, "more is read than there is");
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                let message = error.to_string();
                let line = message.strip_prefix("fuzzed:").and_then(|rest| rest.split(':').next());
                let line: usize = line.unwrap_or_default().parse()?;
                ensure!((1..=lines).contains(&line), "{message}");
                ensure!(trace.next().is_none(), "a trace goes on after an error");
                break;
            }
        };
        let tokens = [request.input_length, request.output_length];
        ensure!(tokens.into_iter().all(|tokens| tokens <= TOKENS_MAX), "{tokens:?}");
        ensure!(request.timestamp.is_finite() && request.block_tokens > 0, "{request:?}");
        ensure!(
            format != Some(TraceFormat::Azure)
                || request.timestamp.abs() <= 2000.0 * SECONDS_MAX as f64,
            "{}",
            request.timestamp
        );
        blocks += request.hash_ids.len();
        let size = request.block_tokens;
        distances.request(&request.hash_ids, size, size, request.input_length);
        if blocks > BLOCKS_MAX {
            break;
        }
    }
    let sizes = (0..64).map(|power| 1u64 << power);
    let rates: Vec<f64> = sizes.map(|size| distances.hit_rate(size)).collect();
    ensure!(rates.is_sorted(), "a larger pool has fewer hits: {rates:?}");
    ensure!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{rates:?}");
    Ok(())
}

/// Returns a trace of each format, and some that end early.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let line = |time: u64, ids: &[u64]| {
        format!(
            "{{\"timestamp\": {time}, \"input_length\": {}, \"output_length\": 3, \"hash_ids\": \
             {ids:?}}}\n",
            500 * ids.len()
        )
    };
    let lines = [line(0, &[1, 2]), line(5, &[1, 2, 3]), line(7, &[4]), line(9, &[1])].concat();
    let session = |scope: &str, begin: u64| {
        let ids: Vec<u64> = (begin..begin + 4).collect();
        format!(
            "{{\"id\": \"s\", \"block_size\": 64, \"hash_id_scope\": \"{scope}\", \"requests\": [\n\
             {{\"t\": 0.5, \"type\": \"s\", \"in\": 200, \"out\": 2, \"hash_ids\": {ids:?}}},\n\
             {{\"t\": 1, \"type\": \"subagent\", \"requests\": [\n\
             {{\"t\": 2, \"in\": 64, \"out\": 1, \"hash_ids\": [{begin}]}}]}}]}}\n"
        )
    };
    let sessions = [session("local", 1), session("local", 3), session("local", 1)].concat();
    let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00.5000000,130,1\n\
               2026-01-01T00:00:01+00:00,64,2\n5,0,0\n";
    let named =
        |name: &str, how: u8, text: &str| (name.to_owned(), [&[how], text.as_bytes()].concat());
    vec![
        named("lines", 0, &lines),
        named("lines-given", 1, &lines),
        named("lines-cut", 0, &lines[..lines.len() - 20]),
        named("sessions", 0, &sessions),
        named("sessions-side-by-side", 8 | 2, &sessions),
        named("sessions-global", 2, &session("global", u64::MAX - 9)),
        named("sessions-mixed", 2, &(session("global", 1) + &session("local", 1))),
        named("csv", 0, csv),
        named("csv-given", 3, csv),
        named("csv-large", 3, &csv.replace("130", "1000000")),
        named("words", 0, "hello"),
    ]
}

kvmem_fuzz::run!(target, corpus);
