//! *Summary* of a trace: what it contains, and what a pool can make of it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;

use crate::args::BlockArgs;
use crate::workload::model::LayoutError;
use kvmem_trace::escape::shown;
use kvmem_trace::reuse::distances::ReuseDistances;
use kvmem_trace::{Trace, TraceError, TraceFormat};

/// The shares of the possible hit rate for which a summary names a size.
pub const MARKS: [f64; 3] = [0.5, 0.9, 0.99];

/// The quantiles of reach in a summary.
const QUANTILES: [f64; 4] = [0.1, 0.5, 0.9, 0.99];

/// Bytes beyond which sizes are no longer numbers of 64 bits.
const BYTES_MAX: f64 = (1u64 << 63) as f64;

/// A trace cannot be summarized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReuseError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The blocks cannot exist.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The trace holds no request.
    #[error("{}: the trace is empty", shown(.path))]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// The blocks of the trace take more bytes than numbers have.
    #[error(
        "{}: its blocks take {bytes:e} bytes, at most 2^63 can be counted; choose smaller \
         --object-bytes",
        shown(.path)
    )]
    TooLarge {
        /// The trace.
        path: PathBuf,
        /// The bytes.
        bytes: f64,
    },
}

/// A trace in figures.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TraceSummary {
    /// Always `trace`.
    pub suite: &'static str,
    /// The version of the command.
    pub version: &'static str,
    /// The trace, as named on the command line.
    pub trace: String,
    /// Its format.
    pub format: TraceFormat,
    /// The model's name, or `custom`.
    pub model: String,
    /// The requests.
    pub requests: u64,
    /// Time between the first and the last request, by the trace's clock.
    pub trace_span_s: f64,
    /// Prompt tokens.
    pub tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens of the longest prompt.
    pub longest_prompt_tokens: u64,
    /// The lengths of blocks, in tokens, and their bytes.
    pub block_sizes: Vec<BlockSize>,
    /// Requested blocks.
    pub blocks: u64,
    /// Different blocks.
    pub distinct_blocks: u64,
    /// Bytes of all requested blocks.
    pub requested_bytes: f64,
    /// Bytes of all different blocks: a pool of this size evicts nothing.
    pub working_set_bytes: u64,
    /// Bytes of the blocks that are requested more than once.
    pub reused_bytes: u64,
    /// The share of the requested bytes that a pool without end has.
    pub max_hit_rate: f64,
    /// The share of the prompt tokens that lie in these blocks.
    pub max_hit_rate_tokens: f64,
    /// Sizes of a pool in which a share of all possible hits are hits.
    pub reach: Vec<ReachQuantile>,
    /// Sizes of a pool that reach a share of the possible hit rate.
    pub marks: Vec<CurveMark>,
    /// The share of blocks that is tracked: 1 if the figures are exact.
    pub sample_rate: f64,
    /// Tracked blocks.
    pub tracked_blocks: u64,
    /// How far the largest hit rate may be wrong, with a probability of 95 %.
    pub max_hit_rate_error: f64,
}

/// A length of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct BlockSize {
    /// Tokens of a block.
    pub tokens: u64,
    /// Bytes of a block.
    pub bytes: u64,
    /// Requested blocks of this length.
    pub blocks: u64,
}

/// The pool that a share of the hits needs at most.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ReachQuantile {
    /// The share.
    pub quantile: f64,
    /// The size.
    pub bytes: u64,
}

/// The pool that reaches a share of the possible hit rate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CurveMark {
    /// The share of the possible hit rate.
    pub of_max: f64,
    /// The hit rate.
    pub hit_rate: f64,
    /// The size.
    pub pool_bytes: u64,
    /// How far the hit rate may be wrong, with a probability of 95 %.
    pub error: f64,
}

/// The counts of a trace while it is read.
#[derive(Default)]
struct TraceCounts {
    requests: u64,
    span_ms: Option<(f64, f64)>,
    tokens: u64,
    output_tokens: u64,
    longest: u64,
    blocks: u64,
    /// Bytes and blocks, by the tokens of a block.
    sizes: HashMap<u64, (u64, u64)>,
}

/// Reads a trace to its end, and calls `progress` with the bytes read after each request. The
/// `distances` must be empty; they have the curve afterwards.
///
/// # Errors
/// [`ReuseError`]: the trace cannot be read to its end, and no summary is made.
pub fn summarize(
    mut trace: Trace,
    path: &Path,
    block: &BlockArgs,
    distances: &mut ReuseDistances,
    mut progress: impl FnMut(u64),
) -> Result<TraceSummary, ReuseError> {
    let mut counts = TraceCounts::default();
    let mut model = String::new();
    while let Some(request) = trace.next() {
        let request = request?;
        let size = match counts.sizes.get_mut(&request.block_tokens) {
            Some(size) => size,
            None => {
                let (layout, name) = block.layout(request.block_tokens)?;
                model = name;
                counts.sizes.entry(request.block_tokens).or_insert((layout.bytes(), 0))
            }
        };
        let blocks = request.hash_ids.len() as u64;
        size.1 += blocks;
        distances.request(&request.hash_ids, size.0, request.block_tokens, request.input_length);
        counts.requests += 1;
        counts.blocks += blocks;
        counts.tokens = counts.tokens.saturating_add(request.input_length);
        counts.output_tokens = counts.output_tokens.saturating_add(request.output_length);
        counts.longest = counts.longest.max(request.input_length);
        let (first, last) = counts.span_ms.unwrap_or((request.timestamp, request.timestamp));
        counts.span_ms = Some((first.min(request.timestamp), last.max(request.timestamp)));
        progress(trace.position());
    }
    let Some((first_ms, last_ms)) = counts.span_ms else {
        return Err(ReuseError::Empty { path: path.to_owned() });
    };
    let working_set = counts.sizes.values().map(|(bytes, blocks)| *bytes as f64 * *blocks as f64);
    let bytes = working_set.sum::<f64>() / distances.rate();
    if bytes >= BYTES_MAX {
        return Err(ReuseError::TooLarge { path: path.to_owned(), bytes });
    }
    let mut block_sizes: Vec<BlockSize> = counts
        .sizes
        .iter()
        .map(|(&tokens, &(bytes, blocks))| BlockSize { tokens, bytes, blocks })
        .collect();
    block_sizes.sort_unstable_by_key(|size| size.tokens);
    let reach = |quantile| {
        distances.reach_quantile(quantile).map(|bytes| ReachQuantile { quantile, bytes })
    };
    let max_hit_rate = distances.max_hit_rate();
    let mark = |of_max| {
        let pool_bytes = distances.size_for(of_max * max_hit_rate)?;
        let (hit_rate, error) = (distances.hit_rate(pool_bytes), distances.error(pool_bytes));
        Some(CurveMark { of_max, hit_rate, pool_bytes, error })
    };
    Ok(TraceSummary {
        suite: "trace",
        version: env!("CARGO_PKG_VERSION"),
        trace: path.display().to_string(),
        format: trace.format(),
        model,
        requests: counts.requests,
        trace_span_s: (last_ms - first_ms) / 1000.0,
        tokens: counts.tokens,
        output_tokens: counts.output_tokens,
        longest_prompt_tokens: counts.longest,
        block_sizes,
        blocks: counts.blocks,
        distinct_blocks: distances.distinct().round() as u64,
        requested_bytes: distances.used_bytes(),
        working_set_bytes: distances.distinct_bytes().round() as u64,
        reused_bytes: distances.reused_bytes().round() as u64,
        max_hit_rate,
        max_hit_rate_tokens: distances.token_hit_rate(),
        reach: QUANTILES.into_iter().filter_map(reach).collect(),
        marks: MARKS.into_iter().filter_map(mark).collect(),
        sample_rate: distances.rate(),
        tracked_blocks: distances.tracked() as u64,
        max_hit_rate_error: distances.error(u64::MAX),
    })
}

impl TraceSummary {
    /// Whether all blocks were tracked.
    pub fn is_exact(&self) -> bool {
        self.sample_rate >= 1.0
    }
}

/// Formats a share as percent.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: u64| HumanCount(number).to_string();
        let mut line = |name: &str, value: String| writeln!(f, "{name:<12} {value}");
        line(
            "trace",
            format!(
                "{}: format {}, {} requests over {:.0} s",
                self.trace,
                self.format,
                count(self.requests),
                self.trace_span_s
            ),
        )?;
        line(
            "tokens",
            format!(
                "{} in, {} out, {} in the longest prompt",
                count(self.tokens),
                count(self.output_tokens),
                count(self.longest_prompt_tokens)
            ),
        )?;
        for (number, size) in self.block_sizes.iter().take(8).enumerate() {
            line(
                if number == 0 { "blocks" } else { "" },
                format!(
                    "{} of {} tokens, {} each for {}",
                    count(size.blocks),
                    size.tokens,
                    BinaryBytes(size.bytes),
                    self.model
                ),
            )?;
        }
        if self.block_sizes.len() > 8 {
            line("", format!("and blocks of {} other lengths", self.block_sizes.len() - 8))?;
        }
        line(
            "working set",
            format!(
                "{} in {} different blocks, {} of it requested more than once",
                BinaryBytes(self.working_set_bytes),
                count(self.distinct_blocks),
                BinaryBytes(self.reused_bytes)
            ),
        )?;
        if self.format == TraceFormat::Azure {
            let text = "unknown: the format has no hashes, so every request has blocks of its own";
            return line("hit rate", text.into());
        }
        line(
            "hit rate",
            format!(
                "{} of blocks, {} of tokens in a pool without end",
                percent(self.max_hit_rate),
                percent(self.max_hit_rate_tokens)
            ),
        )?;
        if !self.reach.is_empty() {
            let reach = self.reach.iter().map(|reach| {
                format!("p{:.0} {}", 100.0 * reach.quantile, BinaryBytes(reach.bytes))
            });
            let reach = reach.collect::<Vec<_>>().join(", ");
            line("reuse", format!("{reach}: the pool in which a use is a hit"))?;
        }
        for (number, mark) in self.marks.iter().enumerate() {
            let error = match self.is_exact() {
                true => String::new(),
                false => format!(" ± {:.2}", 100.0 * mark.error),
            };
            line(
                if number == 0 { "pool" } else { "" },
                format!(
                    "{} for {:.0} % of that, a hit rate of {:.2}{error} %",
                    BinaryBytes(mark.pool_bytes),
                    100.0 * mark.of_max,
                    100.0 * mark.hit_rate
                ),
            )?;
        }
        if self.is_exact() {
            return Ok(());
        }
        line(
            "sampled",
            format!(
                "{} of {} blocks: hit rates are within {:.2} points of the exact ones, 19 times of \
                 20",
                count(self.tracked_blocks),
                count(self.distinct_blocks),
                100.0
                    * self
                        .marks
                        .iter()
                        .map(|mark| mark.error)
                        .fold(self.max_hit_rate_error, f64::max)
            ),
        )
    }
}
