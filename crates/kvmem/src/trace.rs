//! *Trace*: spans and events of the setup, with the feature `tracing`. Without it the macros expand
//! to nothing.
//!
//! Long steps are spans: `build`, `preflight`, `map`, `populate`, `register`, `grow`, `shrink`,
//! `attach`, and in each thread `populate_range` and `register_chunk`. Unusual outcomes are events
//! at `WARN`: a rung of the ladder that was skipped, a range that failed, a block in quarantine.
//! Allocating and freeing emit neither spans nor events.

/// Opens a span that ends with the block: `span!(INFO, "name", field = value)`.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($level:ident, $name:literal $($fields:tt)*) => {
        let _span =
            tracing::span!(target: "kvmem", tracing::Level::$level, $name $($fields)*).entered();
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($level:ident, $name:literal $($fields:tt)*) => {};
}

/// Emits an event: `event!(WARN, field = value, "what")`.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        tracing::event!(target: "kvmem", tracing::Level::$level, $($fields)*)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        ()
    };
}

pub(crate) use {event, span};

/// The current span and subscriber of a thread, for other threads that do a part of its work: their
/// spans become children of its span and go to its subscriber.
#[derive(Clone)]
pub(crate) struct TraceContext {
    #[cfg(feature = "tracing")]
    dispatch: tracing::Dispatch,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl TraceContext {
    /// Captures those of the calling thread.
    pub(crate) fn now() -> TraceContext {
        TraceContext {
            #[cfg(feature = "tracing")]
            dispatch: tracing::dispatcher::get_default(tracing::Dispatch::clone),
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }

    /// Runs `run` with the captured span and subscriber.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return tracing::dispatcher::with_default(&self.dispatch, || self.span.in_scope(run));
        #[cfg(not(feature = "tracing"))]
        run()
    }
}
