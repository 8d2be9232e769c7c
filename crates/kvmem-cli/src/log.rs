//! *Log*: the spans of setting up, printed on standard error on request.

use std::env;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::output::{Failure, Log};

/// The level of the log: off, error, warn, info, debug, trace.
const VARIABLE: &str = "KVMEM_LOG";

/// Begins to print at the level of the `-v` options, else of `KVMEM_LOG`. Without either it prints
/// nothing.
///
/// # Errors
/// `KVMEM_LOG` names no level.
pub fn begin(verbose: u8) -> Result<(), Failure> {
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
        // Otherwise it prints its own errors, and panics where standard error is closed.
        .log_internal_errors(false)
        // Each span once, at its end, with its time.
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_target(false);
    // A program that uses this crate as a library may have installed a log.
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
