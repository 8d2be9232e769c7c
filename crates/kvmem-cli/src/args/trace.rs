//! Options of `kvmem trace`, and those of a trace and its blocks.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::size;
use crate::workload::model::{BlockLayout, LayoutError, Model};
use kvmem_trace::session::BLOCK_TOKENS_MAX;
use kvmem_trace::{SESSIONS, TraceFormat, TraceOptions};

/// Tokens of a page by default.
const PAGE_TOKENS: u64 = 64;

/// How a trace is read.
#[derive(Clone, Debug, ClapArgs)]
pub struct TraceReadingArgs {
    /// The format of the trace, if it is not to be recognized by its first bytes
    #[arg(long, value_enum, value_name = "NAME")]
    pub format: Option<TraceFormat>,

    /// Tokens of a block, instead of 512 in Mooncake's format and 64 in Azure's; sessions name
    /// theirs
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=BLOCK_TOKENS_MAX)
    )]
    pub block_tokens: Option<u64>,

    /// Sessions of kv-cache-tester that run at one time; when one ends, the next one begins
    #[arg(
        long, value_name = "N", default_value_t = SESSIONS,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub sessions: u32,
}

impl TraceReadingArgs {
    /// Returns how the trace is read.
    pub fn options(&self) -> TraceOptions {
        let &TraceReadingArgs { format, block_tokens, sessions } = self;
        TraceOptions { format, block_tokens, sessions }
    }
}

/// The objects that hold a block.
#[derive(Clone, Debug, ClapArgs)]
pub struct BlockArgs {
    /// The model whose KV cache the blocks are
    #[arg(long, value_enum, default_value = "glm-5.1-dsa")]
    pub model: Model,

    /// The sizes of the objects that hold a page of --page-tokens tokens, instead of a model
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size,
        conflicts_with = "model"
    )]
    pub object_bytes: Option<Vec<u64>>,

    /// Tokens of a page, 64 by default; a block of 512 tokens is 512 / N pages. A model's blocks
    /// that 64 does not divide get shorter pages
    #[arg(long, value_name = "N")]
    pub page_tokens: Option<u64>,
}

impl BlockArgs {
    /// Returns the layout of a block of `block_tokens` tokens, and its name.
    ///
    /// # Errors
    /// [`LayoutError`] if no such block can exist.
    pub fn layout(&self, block_tokens: u64) -> Result<(BlockLayout, String), LayoutError> {
        match &self.object_bytes {
            Some(sizes) => {
                let page_tokens = self.page_tokens.unwrap_or(PAGE_TOKENS);
                let layout = BlockLayout::of_objects(sizes, block_tokens, page_tokens)?;
                Ok((layout, "custom".into()))
            }
            None => {
                // The largest power of two that divides both.
                let shortened = 1 << block_tokens.trailing_zeros().min(PAGE_TOKENS.ilog2());
                let page_tokens = self.page_tokens.unwrap_or(shortened);
                let layout = BlockLayout::of_model(self.model, block_tokens, page_tokens)?;
                Ok((layout, self.model.name()))
            }
        }
    }
}

/// Options of `kvmem trace`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What to report about a trace.
#[derive(Clone, Debug, Subcommand)]
pub enum TraceCommand {
    /// Show what traces contain: format, requests, tokens, blocks, the hit rate of a pool without
    /// end, the working set, and how far apart the uses of a block are
    Info(TraceInfoArgs),
    /// Compute the hit rate for every size of a pool in one pass, and the sizes that reach 50, 90
    /// and 99 % of what is possible
    Curve(TraceCurveArgs),
}

/// How exact the distances are.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct SamplingArgs {
    /// Blocks that are tracked at most: a trace with more is sampled, at a rate that falls as more
    /// appear. 1048576 blocks take about 200 MB
    #[arg(
        long, value_name = "N", default_value_t = 1 << 20,
        value_parser = clap::value_parser!(u64).range(1024..=1 << 32)
    )]
    pub max_blocks: u64,

    /// Track this share of all blocks from the beginning
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub sample_rate: Option<f64>,
}

/// Options of `kvmem trace info`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TraceInfoArgs {
    /// The traces, each reported separately: files, folders of sessions; - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// How they are read.
    #[command(flatten)]
    pub reading: TraceReadingArgs,

    /// The objects of a block.
    #[command(flatten)]
    pub block: BlockArgs,

    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Write what is found as JSON to OUT, an array with an object for each trace; - for standard
    /// output instead of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// Options of `kvmem trace curve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TraceCurveArgs {
    /// The trace: a file, or a folder of sessions; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// How it is read.
    #[command(flatten)]
    pub reading: TraceReadingArgs,

    /// The objects of a block.
    #[command(flatten)]
    pub block: BlockArgs,

    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Report the hit rate of pools of these sizes, instead of powers of two
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size)]
    pub pools: Option<Vec<u64>>,

    /// Write what is found as JSON to OUT; - for standard output instead of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// Parses a share: above 0, and at most 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share is above 0 and at most 1, such as 0.01".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn layout(block_tokens: u64, args: &[&str]) -> Result<(BlockLayout, String), LayoutError> {
        let args = [&["kvmem", "trace", "curve", "t"], args].concat();
        match Args::try_parse_from(args).unwrap().command {
            Some(Command::Trace(TraceArgs { command: TraceCommand::Curve(curve) })) => {
                curve.block.layout(block_tokens)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blocks_come_from_the_model_or_from_object_sizes() {
        assert_eq!(layout(512, &[]).unwrap().1, "glm-5.1-dsa");
        let (llama, _) = layout(512, &["--model", "llama-3.1-8b"]).unwrap();
        assert_eq!(llama.objects(), [8 << 20; 8]);
        let (custom, name) =
            layout(512, &["--object-bytes", "4KiB,100", "--page-tokens", "256"]).unwrap();
        assert_eq!(
            (custom.objects(), name.as_str()),
            ([4096, 4096, 100, 100].as_slice(), "custom")
        );
    }

    #[test]
    fn short_blocks_of_a_model_get_short_pages() {
        let (short, _) = layout(48, &["--model", "llama-3.1-8b"]).unwrap();
        assert_eq!((short.page_tokens(), short.bytes()), (16, 48 * (128 << 10)));
        assert!(layout(48, &["--object-bytes", "4KiB"]).is_err(), "its page has 64 tokens");
        assert!(layout(48, &["--page-tokens", "32"]).is_err());
    }
}
