//! *Feed*: deals the requests of a trace to those who serve them, one at a time, each to whoever
//! asks next.

use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use super::sampling::{Sampling, SoFar};
use super::store::Store;
use super::trace::{Request, Trace};
use super::{Progress, ReplayError, Watch};

/// A trace that is being replayed.
pub struct Feed<'a, R> {
    trace: Trace<R>,
    requests_max: Option<u64>,
    dealt: u64,
    so_far: SoFar,
    span_ms: Option<(f64, f64)>,
    sampling: Option<&'a mut Sampling>,
    looked_on: Duration,
    watch: &'a mut dyn Watch,
    failed: Option<ReplayError>,
}

/// What a feed knows when all is served.
pub struct Dealt<'a> {
    /// What was served.
    pub so_far: SoFar,
    /// First and last arrival, in milliseconds.
    pub span_ms: (f64, f64),
    /// What was seen on the way.
    pub sampling: Option<&'a mut Sampling>,
    /// How long that took.
    pub looked_on: Duration,
}

impl<'a, R: BufRead> Feed<'a, R> {
    /// A feed of at most so many requests. Samples are taken if there is something to put them
    /// into.
    pub fn new(
        trace: Trace<R>,
        requests_max: Option<u64>,
        sampling: Option<&'a mut Sampling>,
        watch: &'a mut dyn Watch,
    ) -> Self {
        let (so_far, looked_on) = (SoFar::default(), Duration::ZERO);
        Feed {
            trace,
            requests_max,
            dealt: 0,
            so_far,
            span_ms: None,
            sampling,
            looked_on,
            watch,
            failed: None,
        }
    }

    /// The next request and its number, from 1; `None` when there are no more, or something went
    /// wrong.
    pub fn deal(&mut self) -> Option<(u64, Request)> {
        if self.failed.is_some() || self.requests_max.is_some_and(|max| self.dealt >= max) {
            return None;
        }
        match self.trace.next().transpose() {
            Ok(request) => {
                let request = request?;
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

    /// A request was served: so many blocks, of which so many were found.
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

    /// Something went wrong; what did first is told.
    pub fn fail(&mut self, error: ReplayError) {
        self.failed.get_or_insert(error);
    }

    /// What came of it; `path` names the trace if it is empty.
    ///
    /// # Errors
    /// What went wrong, or that there was no request.
    pub fn finish(self, path: &Path) -> Result<Dealt<'a>, ReplayError> {
        let Feed { so_far, sampling, looked_on, .. } = self;
        match (self.failed, self.span_ms) {
            (Some(error), _) => Err(error),
            (None, None) => Err(ReplayError::Empty { path: path.to_owned() }),
            (None, Some(span_ms)) => Ok(Dealt { so_far, span_ms, sampling, looked_on }),
        }
    }
}
