//! *Feed*: hands the requests of a trace to worker threads, one at a time, in the order in which
//! the workers ask.

use std::path::Path;
use std::time::{Duration, Instant};

use super::sampling::{ReplaySamples, SoFar};
use super::store::Store;
use super::{Options, Progress, ReplayError, Watch};
use kvmem_trace::{Request, Trace};

/// A trace that is being replayed.
pub struct Feed<'a> {
    trace: Trace,
    block_tokens: u64,
    requests_max: Option<u64>,
    dealt: u64,
    so_far: SoFar,
    span_ms: Option<(f64, f64)>,
    sampling: Option<&'a mut ReplaySamples>,
    looked_on: Duration,
    watch: &'a mut dyn Watch,
    failed: Option<ReplayError>,
}

/// The result of a feed when all requests are served.
pub struct Dealt<'a> {
    /// The requests that were served.
    pub so_far: SoFar,
    /// First and last arrival, in milliseconds.
    pub span_ms: (f64, f64),
    /// The samples taken on the way.
    pub sampling: Option<&'a mut ReplaySamples>,
    /// The time it took.
    pub looked_on: Duration,
}

impl<'a> Feed<'a> {
    /// Makes a feed of the requests that `options` asks for. It takes samples if it is given a
    /// place for them.
    pub fn new(
        trace: Trace,
        options: &Options,
        sampling: Option<&'a mut ReplaySamples>,
        watch: &'a mut dyn Watch,
    ) -> Self {
        let (so_far, looked_on) = (SoFar::default(), Duration::ZERO);
        Feed {
            trace,
            block_tokens: options.layout.block_tokens(),
            requests_max: options.requests_max,
            dealt: 0,
            so_far,
            span_ms: None,
            sampling,
            looked_on,
            watch,
            failed: None,
        }
    }

    /// Returns the next request and its number, from 1; `None` at the end, or after a failure.
    pub fn deal(&mut self) -> Option<(u64, Request)> {
        if self.failed.is_some() || self.requests_max.is_some_and(|max| self.dealt >= max) {
            return None;
        }
        match self.trace.next().transpose() {
            Ok(request) => {
                let request = request?;
                if request.block_tokens != self.block_tokens {
                    let (found, expected) = (request.block_tokens, self.block_tokens);
                    let request = self.dealt + 1;
                    self.fail(ReplayError::MixedBlocks { request, found, expected });
                    return None;
                }
                let first_ms = self.span_ms.map_or(request.timestamp, |(first, _)| first);
                self.span_ms = Some((first_ms, request.timestamp));
                self.dealt += 1;
                Some((self.dealt, request))
            }
            Err(error) => {
                self.fail(error.into());
                None
            }
        }
    }

    /// Records a served request: its blocks, and how many of them were hits.
    pub fn served<S: Store>(&mut self, blocks: u64, hits: u64, store: &S, pool_bytes: u64) {
        self.so_far.requests += 1;
        self.so_far.blocks += blocks;
        self.so_far.hits += hits;
        let position = self.trace.position();
        if let Some(sampling) = self.sampling.as_mut().filter(|sampling| sampling.is_due(position))
        {
            let start = Instant::now();
            sampling.look(position, store, pool_bytes, self.so_far);
            self.looked_on += start.elapsed();
        }
        self.watch.served(Progress { bytes_read: position, requests: self.so_far.requests });
    }

    /// Records a failure; the first one is reported.
    pub fn fail(&mut self, error: ReplayError) {
        self.failed.get_or_insert(error);
    }

    /// Returns the result; `path` names the trace in the error for an empty one.
    ///
    /// # Errors
    /// The first failure, or that the trace has no request.
    pub fn finish(self, path: &Path) -> Result<Dealt<'a>, ReplayError> {
        let Feed { so_far, sampling, looked_on, .. } = self;
        match (self.failed, self.span_ms) {
            (Some(error), _) => Err(error),
            (None, None) => Err(ReplayError::Empty { path: path.to_owned() }),
            (None, Some(span_ms)) => Ok(Dealt { so_far, span_ms, sampling, looked_on }),
        }
    }
}
