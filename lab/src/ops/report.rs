//! *Report*: how contenders served the same calls, side by side.

use std::fmt;

use indicatif::{BinaryBytes, HumanCount};
use kvmem_bench::contender::ContenderId;
use serde::Serialize;

use super::format::{Call, Recording};

/// The result of sending recorded calls through contenders.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OpsReport {
    /// Always `ops`.
    pub suite: &'static str,
    /// The version of the command.
    pub version: &'static str,
    /// The file, as named on the command line.
    pub ops: String,
    /// The allocator that served the recorded calls.
    pub recorded_on: String,
    /// Threads that called.
    pub threads: u32,
    /// Bytes of the space.
    pub capacity_bytes: u64,
    /// All calls.
    pub calls: u64,
    /// Calls that allocated.
    pub allocations: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that freed.
    pub frees: u64,
    /// Maximum number of live ranges.
    pub live_max: u32,
    /// One for each contender.
    pub rows: Vec<Row>,
    /// Contenders that cannot serve such a space, and why.
    pub not_run: Vec<String>,
}

/// The results of one contender.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The contender.
    pub contender: ContenderId,
    /// Calls that succeeded in both.
    pub served: u64,
    /// Calls that failed here and succeeded when recorded.
    pub failures: u64,
    /// Bytes of those calls.
    pub failed_bytes: u64,
    /// Calls that failed in both.
    pub failed_too: u64,
    /// Calls that succeeded here and failed when recorded; their ranges were freed at once.
    pub found_room: u64,
    /// Ranges at their recorded offsets.
    pub same_place: u64,
    /// Whether every call had its recorded result.
    pub same_decisions: bool,
    /// The greatest share of the space that was live.
    pub utilization_peak: f64,
    /// The mean of that share over all allocations since the first recorded failure; absent
    /// without one.
    pub utilization_full_mean: Option<f64>,
    /// The share at the end.
    pub utilization_end: f64,
    /// Time of a call, including the table of handles, whose cost `null` shows.
    pub ns_per_call: f64,
    /// Bytes of metadata at the end, if known.
    pub metadata_bytes: Option<u64>,
}

impl Row {
    pub(super) fn new(contender: ContenderId) -> Row {
        Row {
            contender,
            served: 0,
            failures: 0,
            failed_bytes: 0,
            failed_too: 0,
            found_room: 0,
            same_place: 0,
            same_decisions: false,
            utilization_peak: 0.0,
            utilization_full_mean: None,
            utilization_end: 0.0,
            ns_per_call: 0.0,
            metadata_bytes: None,
        }
    }
}

impl Row {
    /// Describes how its results differ from the recorded ones.
    pub fn deviation(&self, report: &OpsReport) -> String {
        format!(
            "{} does not decide as {} did when the calls were recorded: of {} allocations {} are \
             at another offset and {} failed, of {} \
             failures {} were served",
            self.contender,
            report.recorded_on,
            report.allocations,
            self.served - self.same_place,
            self.failures,
            report.failures,
            self.found_room
        )
    }
}

impl OpsReport {
    /// Makes a report without rows.
    pub fn new(ops: String, recording: &Recording) -> OpsReport {
        let header = &recording.header;
        let frees =
            recording.calls.iter().filter(|call| matches!(call, Call::Freed { .. })).count() as u64;
        let (calls, allocations) = (recording.calls.len() as u64, recording.offsets.len() as u64);
        OpsReport {
            suite: "ops",
            version: env!("CARGO_PKG_VERSION"),
            ops,
            recorded_on: header.allocator.clone(),
            threads: header.threads,
            capacity_bytes: header.capacity,
            calls,
            allocations,
            failures: calls - allocations - frees,
            frees,
            live_max: recording.places,
            rows: Vec::new(),
            not_run: Vec::new(),
        }
    }
}

impl fmt::Display for OpsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: u64| HumanCount(number).to_string();
        writeln!(
            f,
            "{}: {} calls to {} by {} thread(s), {}",
            self.ops,
            count(self.calls),
            self.recorded_on,
            self.threads,
            BinaryBytes(self.capacity_bytes)
        )?;
        writeln!(
            f,
            "{} allocated, {} failed, {} freed, at most {} live",
            count(self.allocations),
            count(self.failures),
            count(self.frees),
            count(u64::from(self.live_max))
        )?;
        writeln!(
            f,
            "\n{:<17} {:>12} {:>9} {:>9} {:>9} {:>9} {:>12}",
            "allocator", "utilization", "peak", "end", "failed", "ns/call", "as recorded"
        )?;
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        for row in &self.rows {
            writeln!(
                f,
                "{:<17} {:>12} {:>9} {:>9} {:>9} {:>9.1} {:>12}",
                row.contender,
                row.utilization_full_mean.map_or_else(|| "never full".to_owned(), percent),
                percent(row.utilization_peak),
                percent(row.utilization_end),
                count(row.failures),
                row.ns_per_call,
                if row.same_decisions {
                    "all".to_owned()
                } else {
                    percent(row.same_place as f64 / self.allocations.max(1) as f64)
                }
            )?;
        }
        for reason in &self.not_run {
            writeln!(f, "not run: {reason}")?;
        }
        writeln!(
            f,
            "\nutilization: mean over the allocations since the first failure; failed: served \
             when recorded, failed here;\n\
             as recorded: ranges at the recorded place"
        )
    }
}
