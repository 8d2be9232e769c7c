//! *Task*: one measurement, and its text form for the process that takes it.

use std::fmt;
use std::str::FromStr;

use super::{Pattern, SlabContenderId};

/// One measurement. Its text form, `random 512 2 mimalloc 50`, parses back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabTask {
    /// The pattern of the threads.
    pub pattern: Pattern,
    /// Bytes of the largest block; of all blocks in `fixed`.
    pub max_block_bytes: u32,
    /// Number of threads.
    pub threads: u32,
    /// The allocator.
    pub contender: SlabContenderId,
    /// Duration in milliseconds.
    pub milliseconds: u32,
}

impl fmt::Display for SlabTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, max_block_bytes, threads, contender, milliseconds } = self;
        write!(f, "{pattern} {max_block_bytes} {threads} {contender} {milliseconds}")
    }
}

/// The text is not a measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a measurement: write it as `random 512 2 mimalloc 50`")]
pub struct UnknownTaskError(pub String);

impl FromStr for SlabTask {
    type Err = UnknownTaskError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let parse = || {
            let [pattern, max, threads, contender, milliseconds] = words.as_slice() else {
                return None;
            };
            let number = |word: &str| word.parse::<u32>().ok();
            Some(Self {
                pattern: pattern.parse().ok()?,
                max_block_bytes: number(max).filter(|&max| max > 0)?,
                threads: number(threads).filter(|threads| (1..=1024).contains(threads))?,
                contender: contender.parse().ok()?,
                milliseconds: number(milliseconds)?,
            })
        };
        parse().ok_or_else(|| UnknownTaskError(s.to_owned()))
    }
}
