//! *Log*: what the library says of setting up, on standard error, for who asks.

use std::env;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::output::{Failure, Log};

/// Says how much, in words: off, error, warn, info, debug, trace.
const VARIABLE: &str = "KVMEM_LOG";

/// Begins to print: as much as `-v` says so often, or else `KVMEM_LOG`; nothing where neither is
/// there.
pub(crate) fn begin(verbose: u8) -> Result<(), Failure> {
    let level = match verbose {
        0 => requested()?,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    if level == LevelFilter::OFF {
        return Ok(());
    }
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Log)
        // Else it would print, and panic where standard error is closed.
        .log_internal_errors(false)
        // Once each, at the end, with the time it took.
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_target(false);
    // Somebody who uses this as a library may have a log already.
    let _ = log.try_init();
    Ok(())
}

fn requested() -> Result<LevelFilter, Failure> {
    let Some(value) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(LevelFilter::OFF);
    };
    let level = value.to_str().and_then(|text| text.parse().ok());
    level.ok_or_else(|| {
        let value = value.to_string_lossy();
        Failure::usage(format_args!(
            "{VARIABLE}={value}: say off, error, warn, info, debug or trace"
        ))
    })
}
