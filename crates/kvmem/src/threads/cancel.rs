//! *Cancel token*: ends long work early, from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token by which any thread, or a signal handler, can end work early. Clones are the same token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    /// Cancelling the parent cancels this token too.
    parent: Option<Arc<AtomicBool>>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels the work at its next chunk. This cannot be undone.
    pub fn cancel(&self) {
        // Relaxed: it publishes nothing, and the workers check again soon.
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Makes a token that is cancelled together with this one, but not the other way round.
    pub(crate) fn child(&self) -> CancelToken {
        CancelToken { cancelled: Arc::default(), parent: Some(Arc::clone(&self.cancelled)) }
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called on this token or its parent.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: it publishes nothing; see `cancel`.
        let cancelled = |token: &Arc<AtomicBool>| token.load(Ordering::Relaxed);
        cancelled(&self.cancelled) || self.parent.as_ref().is_some_and(cancelled)
    }
}
