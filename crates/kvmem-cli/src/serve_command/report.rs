//! *Report*: what a server says when clients can connect.

use std::fmt;
use std::net::SocketAddr;

use indicatif::{BinaryBytes, HumanCount};
use kvmem::arena::Receipt;
use kvmem_node::RecoveryReport;
use serde::Serialize;

use crate::args::RetainBy;

/// Report of the memory that was mapped or recovered, and of the address that serves it.
#[derive(Serialize)]
pub(super) struct ServeReport {
    pub(super) socket: String,
    pub(super) memory_bytes: u64,
    /// The memory of a server before; none: the memory is fresh.
    pub(super) recovered: Option<RecoveryFigures>,
    /// Receipt of fresh memory; none: the memory is that of an earlier server.
    pub(super) receipt: Option<Receipt>,
    /// Seconds until clients could connect, those of mapping included.
    pub(super) seconds: f64,
    pub(super) retained_by: &'static str,
    pub(super) holder_pid: Option<u32>,
    /// The files of the disk tiers, and the number of their values.
    pub(super) tiers: Vec<String>,
    /// How the values of each file are encoded, of those whose values are.
    pub(super) tier_encodings: Vec<String>,
    pub(super) tier_values: Option<u64>,
    /// The master of the cluster. Its helper may not be ready yet.
    pub(super) mooncake: Option<String>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) kv_events: Option<SocketAddr>,
    /// `retained_by` in words.
    #[serde(skip)]
    pub(super) retained: String,
}

/// Figures of a recovery.
#[derive(Serialize)]
pub(super) struct RecoveryFigures {
    values: u64,
    bytes: u64,
    completed: u64,
    freed_reservations: u64,
    orphaned_sessions: u64,
    ended_sessions: u64,
    unfinished_reads: u64,
    damaged: u64,
}

impl From<RecoveryReport> for RecoveryFigures {
    fn from(report: RecoveryReport) -> RecoveryFigures {
        RecoveryFigures {
            values: report.values,
            bytes: report.bytes,
            completed: report.completed,
            freed_reservations: report.freed_reservations,
            orphaned_sessions: report.orphaned_sessions,
            ended_sessions: report.ended_sessions,
            unfinished_reads: report.unfinished_reads,
            damaged: report.damaged,
        }
    }
}

pub(super) fn retained_by(by: RetainBy) -> &'static str {
    match by {
        RetainBy::Holder => "holder",
        RetainBy::Systemd => "systemd",
        RetainBy::None => "none",
    }
}

impl fmt::Display for ServeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(receipt) = &self.receipt {
            write!(f, "{receipt}")?;
        }
        if let Some(recovered) = &self.recovered {
            writeln!(f, "{recovered}")?;
        }
        if let Some(values) = self.tier_values {
            let files = self.tiers.join(", ");
            writeln!(f, "disk tier in {files} with {} value(s)", HumanCount(values))?;
            self.tier_encodings.iter().try_for_each(|how| writeln!(f, "values of {how}"))?;
        }
        if let Some(master) = &self.mooncake {
            writeln!(
                f,
                "the cluster of the master at {master} as a tier, when its helper is ready"
            )?;
        }
        let ServeReport { socket, memory_bytes, seconds, retained, .. } = self;
        let memory = BinaryBytes(*memory_bytes);
        writeln!(f, "serving {memory} at {socket} after {seconds:.2} s, {retained}")
    }
}

impl fmt::Display for RecoveryFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryFigures { values, bytes, completed, freed_reservations, .. } = self;
        write!(
            f,
            "recovered {} value(s) of {}: {completed} completed from an unfinished commit, \
             {freed_reservations} reservation(s) freed, {} client(s) expected back, {} gone",
            HumanCount(*values),
            BinaryBytes(*bytes),
            self.orphaned_sessions,
            self.ended_sessions
        )?;
        if self.unfinished_reads > 0 {
            write!(
                f,
                "; {} block(s) held until a device has ended its reads for the server before",
                HumanCount(self.unfinished_reads)
            )?;
        }
        if self.damaged > 0 {
            write!(f, "; {} damaged entries freed", HumanCount(self.damaged))?;
        }
        Ok(())
    }
}
