//! *Trace*: spans and events of setting up, where the feature `tracing` is on; nothing where it is
//! not.
//!
//! Steps that take long are spans: `build`, `preflight`, `map`, `populate`, `register`, `grow`,
//! `shrink`, `attach`, and by each thread `populate_range` and `register_chunk`. What one may want
//! to know of is an event at `WARN`: a rung of the ladder that was passed, a range that failed,
//! something in quarantine. No span and no event is where memory is allocated or freed.

/// A span that lasts to the end of the block: `span!(INFO, "name", field = value)`.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($level:ident, $name:literal $($fields:tt)*) => {
        let _span = tracing::span!(target: "kvmem", tracing::Level::$level, $name $($fields)*).entered();
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($level:ident, $name:literal $($fields:tt)*) => {};
}

/// An event: `event!(WARN, field = value, "what")`.
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

/// Where a thread is, for others that do a part of its work: their spans are within its span, and
/// go where its spans go.
#[derive(Clone)]
pub(crate) struct Here {
    #[cfg(feature = "tracing")]
    dispatch: tracing::Dispatch,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Here {
    /// Where this thread is.
    pub(crate) fn now() -> Here {
        Here {
            #[cfg(feature = "tracing")]
            dispatch: tracing::dispatcher::get_default(tracing::Dispatch::clone),
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }

    /// Runs there.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return tracing::dispatcher::with_default(&self.dispatch, || self.span.in_scope(run));
        #[cfg(not(feature = "tracing"))]
        run()
    }
}
