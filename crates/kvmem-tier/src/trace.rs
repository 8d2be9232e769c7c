//! *Trace*: spans and events, with the feature `tracing`. Without it the macros expand to nothing.
//!
//! Opening a tier is a span. Events at `WARN` say what costs values or speed: damaged and dropped
//! values, a journal that failed, transfers without io_uring or through the page cache. Storing and
//! fetching emit neither.

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
