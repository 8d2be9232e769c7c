//! `kvmem tier verify`: reads every value and names those that are damaged. On request, it gives
//! back the parts that were quarantined and hold what is written to them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{BinaryBytes, HumanCount};
use kvmem_tier::{
    Contents, DamagedValue, DiskTier, DiskTierOptions, Keyring, RepairReport, verify,
    verify_with_keys,
};
use serde::Serialize;

use super::{ExtentFigures, Hex, access, failure, inspected, offset, unusable};
use crate::args::TierVerifyArgs;
use crate::output::{Failure, JsonSink, progress_bar};
use crate::output_file::OutputFiles;

/// Damaged values that are named.
const NAMED: usize = 20;

/// Verifies all values under a progress bar, and prints the report. A damaged value makes the
/// command fail.
pub(super) fn run(args: &TierVerifyArgs) -> Result<(), Failure> {
    let mut files = OutputFiles::new().protect("the tier that is verified", &args.file);
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let (device, inspection) = inspected(&args.file)?;
    let contents = match &inspection.contents {
        Ok(contents) => contents,
        Err(error) => return Err(unusable(&args.file, &inspection, error)),
    };
    let keys = args.key_file.as_deref().map(Keyring::open).transpose().map_err(Failure::usage)?;
    let keys = keys.map(Arc::new);
    let bar = progress_bar(
        Some(contents.used_bytes() << u32::from(keys.is_some())),
        "{elapsed_precise} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
    );
    let start = Instant::now();
    let damaged = match &keys {
        None => verify(&device, contents, |bytes| bar.inc(bytes)),
        Some(keys) => verify_with_keys(&device, contents, keys, |bytes| bar.inc(bytes))
            .map_err(|error| Failure::new(error, 1))?,
    };
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let access = access(&device);
    // The tier is opened, which it cannot be while it is read.
    drop(device);
    let repair = if args.repair { Some(repair(args, contents)?) } else { None };
    let (_, encrypted) = contents.encoded();
    let not_decrypted = if args.key_file.is_none() { encrypted as u64 } else { 0 };
    let report = VerifyReport {
        file: args.file.display().to_string(),
        access,
        values: contents.entries.len() as u64,
        bytes: contents.used_bytes(),
        seconds,
        dropped_entries: contents.dropped,
        journal_damaged: contents.journal_damaged,
        in_doubt: contents.in_doubt,
        journal_damage: contents.journal_damage(),
        damaged: damaged.len() as u64,
        not_decrypted,
        repair,
        named: damaged.iter().take(NAMED).map(|value| NamedValue::new(contents, value)).collect(),
    };
    json.write(&report, &report)?;
    if damaged.is_empty() {
        return Ok(());
    }
    let count = |number: u64| HumanCount(number).to_string();
    Err(Failure::new(
        format_args!(
            "{} of {} values are damaged: a fetch of one is a miss",
            count(report.damaged),
            count(report.values)
        ),
        1,
    ))
}

/// Tests the parts that are quarantined.
fn repair(args: &TierVerifyArgs, contents: &Contents) -> Result<RepairFigures, Failure> {
    let options = DiskTierOptions::default();
    let repaired = DiskTier::open(&args.file, &options).and_then(|(tier, _)| tier.repair());
    let report = repaired.map_err(|error| failure(&args.file, &error, 1))?;
    Ok(RepairFigures::new(contents, &report))
}

/// Parts that were quarantined.
#[derive(Debug, Serialize)]
struct RepairFigures {
    /// Those that are used again.
    returned: Vec<ExtentFigures>,
    /// The bytes of those.
    returned_bytes: u64,
    /// Those that do not hold what is written to them.
    left: Vec<ExtentFigures>,
    /// The bytes of those.
    left_bytes: u64,
}

impl RepairFigures {
    fn new(contents: &Contents, report: &RepairReport) -> RepairFigures {
        RepairFigures {
            returned: ExtentFigures::of(contents, &report.returned),
            returned_bytes: report.returned_bytes(),
            left: ExtentFigures::of(contents, &report.left),
            left_bytes: report.left_bytes(),
        }
    }
}

impl fmt::Display for RepairFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} part(s) with {} are used again, {} with {} stay quarantined",
            HumanCount(self.returned.len() as u64),
            BinaryBytes(self.returned_bytes),
            HumanCount(self.left.len() as u64),
            BinaryBytes(self.left_bytes)
        )
    }
}

/// The outcome.
#[derive(Debug, Serialize)]
struct VerifyReport {
    /// The path.
    file: String,
    /// How it is read.
    access: String,
    values: u64,
    /// Bytes read, with padding.
    bytes: u64,
    /// Seconds of the reading.
    seconds: f64,
    /// Entries that were dropped because they contradict others.
    dropped_entries: u64,
    /// Damaged blocks of the journal before whole ones, and the values that were dropped for that.
    journal_damaged: u64,
    /// Values that were dropped for damage of the journal.
    in_doubt: u64,
    /// The same in words.
    #[serde(skip)]
    journal_damage: Option<String>,
    /// Damaged values.
    damaged: u64,
    /// Encrypted values of which only the checksum was verified, without a key file.
    not_decrypted: u64,
    /// With --repair: what became of the quarantined parts.
    repair: Option<RepairFigures>,
    /// The first of the damaged values, in address order.
    #[serde(rename = "damaged_values")]
    named: Vec<NamedValue>,
}

/// A damaged value.
#[derive(Debug, Serialize)]
struct NamedValue {
    /// The digest of the key.
    digest: String,
    /// Where its bytes begin in the file, and how many ranges they have there.
    offset: u64,
    /// How many ranges it has.
    ranges: usize,
    /// Its length.
    len: u64,
    /// The reason why it is damaged.
    damage: String,
}

impl NamedValue {
    fn new(contents: &Contents, value: &DamagedValue) -> NamedValue {
        NamedValue {
            digest: Hex::from(value.entry.digest).to_string(),
            offset: offset(contents, value.entry.start()),
            ranges: value.entry.extents.len(),
            len: value.entry.len,
            damage: value.damage.to_string(),
        }
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: u64| HumanCount(number).to_string();
        writeln!(f, "file           {}: {}", self.file, self.access)?;
        writeln!(
            f,
            "values         {}, {} read in {:.2} s, {:.2} GB/s",
            count(self.values),
            BinaryBytes(self.bytes),
            self.seconds,
            self.bytes as f64 / self.seconds.max(1e-9) / 1e9
        )?;
        if self.dropped_entries > 0 {
            writeln!(
                f,
                "dropped        {} entries outside of the data area, or in blocks of others",
                count(self.dropped_entries)
            )?;
        }
        if let Some(damage) = &self.journal_damage {
            writeln!(f, "journal        {damage}")?;
        }
        writeln!(f, "damaged        {}", count(self.damaged))?;
        if self.not_decrypted > 0 {
            writeln!(
                f,
                "encrypted      {} value(s), of which only checksums were verified: --key-file",
                count(self.not_decrypted)
            )?;
        }
        if let Some(repair) = &self.repair {
            writeln!(f, "repair         {repair}")?;
        }
        if !self.named.is_empty() {
            writeln!(f, "\n{:<32} {:>16} {:>12}", "digest", "offset", "bytes")?;
        }
        for NamedValue { digest, offset, ranges, len, damage } in &self.named {
            let ranges = if *ranges > 1 { format!(", in {ranges} ranges") } else { String::new() };
            writeln!(f, "{digest:<32} {offset:>16} {len:>12}  {damage}{ranges}")?;
        }
        match self.damaged - self.named.len() as u64 {
            0 => Ok(()),
            more => writeln!(f, "and {} more", count(more)),
        }
    }
}
