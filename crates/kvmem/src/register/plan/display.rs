//! *Display*: a plan as text, one line for each part of the work.

use std::fmt;
use std::ops::Range;

use super::plan::{CalibrationPlan, Estimate, Plan};
use crate::arena::HumanBytes;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, resident) = (HumanBytes(self.len_bytes), HumanBytes(self.resident_bytes));
        let (devices, policy) = (self.devices.len(), self.policy);
        writeln!(f, "{len} for {devices} registrar(s), {policy}; {resident} of it resident")?;
        self.fmt_populate(f)?;
        self.fmt_register(f)?;
        self.fmt_order(f)?;
        if let Some(boundary) = self.boundary_bytes {
            writeln!(
                f,
                "  boundary  {}: what does not straddle a multiple of it has one key",
                HumanBytes(boundary)
            )?;
        }
        let Estimate { populate_seconds, sequential_seconds, parallel_seconds } = self.estimate;
        writeln!(
            f,
            "  estimate  populate {populate_seconds:.2} s, \
             register {parallel_seconds:.2} to {sequential_seconds:.2} s"
        )
    }
}

impl Plan {
    fn fmt_populate(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |range: &Range<usize>| format!("{:#x}..{:#x}", range.start, range.end);
        for range in &self.populate {
            let size = HumanBytes(range.len() as u64);
            writeln!(
                f,
                "  populate  {}  {size}, by up to {} thread(s), an even share each",
                hex(range),
                self.populate_threads
            )?;
        }
        Ok(())
    }

    /// Writes a line for adjacent registrars with the same chunks.
    fn fmt_register(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for same in self.devices.chunk_by(|one, next| one.chunks == next.chunks) {
            let names: Vec<&str> = same.iter().map(|device| &*device.device).collect();
            let chunks = &same[0].chunks;
            let longest = chunks.iter().map(Range::len).max().unwrap_or(0);
            writeln!(
                f,
                "  register  {} chunk(s) of up to {}, each with {}",
                chunks.len(),
                HumanBytes(longest as u64),
                names.join(", ")
            )?;
        }
        Ok(())
    }

    fn fmt_order(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.len() > 1 {
            writeln!(
                f,
                "  steps     {}: each is populated and registered before the next",
                self.steps.len()
            )?;
        }
        let calibration = match (self.threads, self.calibration) {
            (1, _) => return writeln!(f, "  order     chunk by chunk, one call after another"),
            (threads, None) => {
                return writeln!(
                    f,
                    "  order     chunk by chunk, {threads} registrars side by side"
                );
            }
            (_, Some(calibration)) => calibration,
        };
        let (how, rounds) = match calibration {
            CalibrationPlan::Chunks { rounds } => ("the first chunks".to_owned(), rounds),
            CalibrationPlan::Slices { rounds, slice_bytes } => {
                (format!("slices of {}", HumanBytes(slice_bytes)), rounds)
            }
        };
        writeln!(
            f,
            "  order     chunk by chunk, up to {} registrars side by side if that is faster on \
             {how} ({rounds} round(s))",
            self.threads
        )
    }
}
