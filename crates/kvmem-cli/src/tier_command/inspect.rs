//! `kvmem tier inspect`: what a tier holds, as text or JSON.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{BinaryBytes, HumanCount, HumanDuration};
use kvmem_tier::device::FileDevice;
use kvmem_tier::format::{BLOCK, Superblock, SuperblockError};
use kvmem_tier::{Contents, Inspection, KeyId, key_ids};
use serde::Serialize;

use super::{ExtentFigures, Hex, access, inspected, unusable};
use crate::args::TierInspectArgs;
use crate::output::{Failure, JsonSink};
use crate::output_file::OutputFiles;

/// Prints what is found. A tier that cannot be opened is shown as far as it can be read.
pub(super) fn run(args: &TierInspectArgs) -> Result<(), Failure> {
    let mut files = OutputFiles::new().protect("the tier that is inspected", &args.file);
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    // Superblocks, checkpoint and journal are read one after the other.
    let (device, inspection) = inspected(&args.file)?;
    let report = InspectReport::new(&args.file, &device, &inspection);
    let failure = match &inspection.contents {
        Ok(_) => None,
        Err(error) => Some(unusable(&args.file, &inspection, error)),
    };
    match failure {
        None => json.write(&report, &report),
        // There is nothing to show of a file that is no tier.
        Some(failure) if failure.exit_status() == 2 => Err(failure),
        Some(failure) => {
            json.write(&report, &report)?;
            Err(failure)
        }
    }
}

/// The findings of an inspection.
#[derive(Debug, Serialize)]
struct InspectReport {
    /// The path.
    file: String,
    file_bytes: u64,
    /// How it is read.
    access: String,
    /// The two copies of the superblock.
    superblocks: [CopyFigures; 2],
    /// The tier, if its index can be read.
    tier: Option<TierFigures>,
    /// Why it cannot.
    error: Option<String>,
}

/// A copy of the superblock.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum CopyFigures {
    /// It is whole.
    Valid {
        /// The generation.
        generation: u64,
        /// How often the tier was opened.
        epoch: u64,
    },
    /// It is not.
    Invalid {
        /// Why.
        error: String,
    },
}

/// A tier whose index can be read.
#[derive(Debug, Serialize)]
struct TierFigures {
    /// The identity of the tier.
    identity: String,
    format_version: u32,
    /// The generation of the superblock.
    generation: u64,
    /// How often it was opened.
    epoch: u64,
    bytes: u64,
    /// When the file was made, or first opened by a program that counts what it writes, in seconds
    /// since 1970. 0: not yet.
    since: u64,
    /// Bytes that were written to the file since then, up to the last checkpoint.
    lifetime_bytes: u64,
    /// The process that has the tier open, or was killed while it had.
    owner: Option<String>,
    /// The parts of the file.
    parts: Vec<PartFigures>,
    values: ValueFigures,
    /// The last checkpoint.
    checkpoint: ChangeFigures,
    /// The journal behind it.
    journal: ChangeFigures,
    /// Damaged blocks of the journal before whole ones, those of them whose keys are not known, and
    /// the values that were dropped for that.
    journal_damaged: u64,
    /// Of those, blocks whose keys are not known.
    journal_unknown: u64,
    /// Values that were dropped for damage of the journal.
    in_doubt: u64,
    /// The same in words.
    #[serde(skip)]
    journal_damage: Option<String>,
    /// Parts that are not used, because they failed.
    quarantined: Vec<ExtentFigures>,
    /// The bytes of those parts.
    quarantined_bytes: u64,
    /// Bytes that no value has.
    free_bytes: u64,
    /// Bytes of the longest free range.
    longest_free_bytes: u64,
    /// Share of the data area that values occupy, without padding.
    utilization: f64,
    /// Entries that were dropped because they contradict others.
    dropped_entries: u64,
}

/// A part of the file.
#[derive(Debug, Serialize)]
struct PartFigures {
    name: &'static str,
    /// Where it begins in the file.
    offset: u64,
    bytes: u64,
    /// Whether the tier uses it now.
    in_use: bool,
}

/// The values.
#[derive(Debug, Serialize)]
struct ValueFigures {
    count: u64,
    /// How many there may be.
    max_count: u64,
    /// Of them, values in several ranges.
    scattered: u64,
    /// Of them, values that a power cut may have taken, and that were not read since.
    unverified: u64,
    /// Bytes of all values, before they were encoded.
    bytes: u64,
    /// Bytes that are stored of them.
    stored_bytes: u64,
    /// The part of their bytes that is stored. None: there are no values.
    ratio: Option<f64>,
    /// Of them, values that are compressed or encrypted.
    encoded: u64,
    /// Of them, values that are encrypted, and the namespaces of those.
    encrypted: u64,
    namespaces: u64,
    /// The names of the keys that encrypt them.
    keys: Vec<KeyFigures>,
    /// Bytes behind the ends of values.
    padding_bytes: u64,
    /// The length of the shortest.
    len_min: Option<u64>,
    /// The median of the lengths.
    len_median: Option<u64>,
    /// The length of the longest.
    len_max: Option<u64>,
}

/// A key that encrypts values.
#[derive(Debug, Serialize)]
struct KeyFigures {
    /// Its name, which does not disclose it.
    id: String,
    values: u64,
}

/// Blocks of changes: checkpoint or journal.
#[derive(Debug, Serialize)]
struct ChangeFigures {
    number: u32,
    changes: u64,
    blocks: u64,
    /// Blocks that it may have.
    max_blocks: u64,
}

impl InspectReport {
    fn new(path: &Path, device: &FileDevice, inspection: &Inspection) -> InspectReport {
        let contents = inspection.contents.as_ref();
        InspectReport {
            file: path.display().to_string(),
            file_bytes: inspection.device_len,
            access: access(device),
            superblocks: inspection.superblocks.each_ref().map(CopyFigures::new),
            tier: contents.ok().map(|contents| TierFigures::new(device, contents)),
            error: contents.err().map(ToString::to_string),
        }
    }
}

impl CopyFigures {
    fn new(copy: &Result<Superblock, SuperblockError>) -> CopyFigures {
        match copy {
            &Ok(Superblock { generation, epoch, .. }) => CopyFigures::Valid { generation, epoch },
            Err(error) => CopyFigures::Invalid { error: error.to_string() },
        }
    }
}

impl TierFigures {
    fn new(device: &FileDevice, contents: &Contents) -> TierFigures {
        let superblock = &contents.superblock;
        let layout = superblock.layout;
        let (block, bytes) = (BLOCK as u64, contents.value_bytes());
        let (stored_bytes, lengths) = (contents.stored_bytes(), contents.lengths());
        let (encoded, encrypted) = contents.encoded();
        let key = |(id, values): (KeyId, u64)| KeyFigures { id: id.to_string(), values };
        TierFigures {
            identity: Hex(superblock.file).to_string(),
            format_version: superblock.version,
            generation: superblock.generation,
            epoch: superblock.epoch,
            bytes: superblock.len,
            since: superblock.since,
            lifetime_bytes: superblock.lifetime_bytes,
            owner: superblock.owner.map(|owner| owner.to_string()),
            parts: parts(superblock),
            values: ValueFigures {
                count: contents.entries.len() as u64,
                max_count: layout.max_entries(),
                scattered: contents.scattered() as u64,
                unverified: contents.unverified_values() as u64,
                bytes,
                stored_bytes,
                ratio: (bytes > 0).then(|| stored_bytes as f64 / bytes as f64),
                encoded: encoded as u64,
                encrypted: encrypted as u64,
                namespaces: superblock.namespaces.count() as u64,
                keys: key_ids(device, contents).into_iter().map(key).collect(),
                padding_bytes: contents.used_bytes() - stored_bytes,
                len_min: lengths.map(|lengths| lengths.min),
                len_median: lengths.map(|lengths| lengths.median),
                len_max: lengths.map(|lengths| lengths.max),
            },
            checkpoint: ChangeFigures {
                number: superblock.checkpoint,
                changes: contents.checkpoint_changes,
                blocks: superblock.checkpoint_blocks,
                max_blocks: layout.checkpoints[0].blocks(),
            },
            journal: ChangeFigures {
                number: superblock.journal,
                changes: contents.journal_changes,
                blocks: contents.journal_blocks,
                max_blocks: layout.journals[0].blocks(),
            },
            journal_damaged: contents.journal_damaged,
            journal_unknown: contents.journal_unknown,
            in_doubt: contents.in_doubt,
            journal_damage: contents.journal_damage(),
            quarantined: ExtentFigures::of(contents, &contents.quarantined),
            quarantined_bytes: contents.quarantined_bytes(),
            free_bytes: contents.free_blocks * block,
            longest_free_bytes: contents.longest_free_blocks * block,
            utilization: contents.utilization(),
            dropped_entries: contents.dropped,
        }
    }
}

impl TierFigures {
    /// How long the file has counted what is written to it.
    fn age(&self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (self.since > 0).then(|| now.saturating_sub(Duration::from_secs(self.since)))
    }
}

/// Lists the parts of the file in their order.
fn parts(superblock: &Superblock) -> Vec<PartFigures> {
    let layout = superblock.layout;
    let ([journal_0, journal_1], [checkpoint_0, checkpoint_1]) =
        (layout.journals, layout.checkpoints);
    let in_use = |number: u32| [number == 0, number == 1];
    let [of_journal_0, of_journal_1] = in_use(superblock.journal);
    let [of_checkpoint_0, of_checkpoint_1] = in_use(superblock.checkpoint);
    let parts = [
        ("journal 0", journal_0, of_journal_0),
        ("journal 1", journal_1, of_journal_1),
        ("checkpoint 0", checkpoint_0, of_checkpoint_0),
        ("checkpoint 1", checkpoint_1, of_checkpoint_1),
        ("data", layout.data, true),
    ];
    let superblocks =
        PartFigures { name: "superblocks", offset: 0, bytes: 2 * BLOCK as u64, in_use: true };
    let rest = parts.map(|(name, area, in_use)| PartFigures {
        name,
        offset: area.start,
        bytes: area.len,
        in_use,
    });
    [superblocks].into_iter().chain(rest).collect()
}

impl fmt::Display for InspectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<14} {value}");
        line("file", format!("{}: {}, {}", self.file, BinaryBytes(self.file_bytes), self.access))?;
        for (name, copy) in ["superblock 1", "superblock 2"].into_iter().zip(&self.superblocks) {
            line(name, copy.to_string())?;
        }
        if let Some(tier) = &self.tier {
            write!(f, "{tier}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CopyFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyFigures::Valid { generation, epoch } => {
                write!(f, "generation {generation}, epoch {epoch}")
            }
            CopyFigures::Invalid { error } => write!(f, "not valid: {error}"),
        }
    }
}

impl fmt::Display for ChangeFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangeFigures { number, changes, blocks, max_blocks } = *self;
        write!(
            f,
            "number {number}: {} change(s) in {} of {} blocks",
            HumanCount(changes),
            HumanCount(blocks),
            HumanCount(max_blocks)
        )
    }
}

impl fmt::Display for TierFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: u64| BinaryBytes(bytes).to_string();
        let mut line = |name: &str, value: String| writeln!(f, "{name:<14} {value}");
        line(
            "tier",
            format!("{}, format {}, {}", self.identity, self.format_version, bytes(self.bytes)),
        )?;
        if let Some(age) = self.age() {
            line("written", format!("{} in {}", bytes(self.lifetime_bytes), HumanDuration(age)))?;
        }
        if let Some(owner) = &self.owner {
            line("not closed by", owner.clone())?;
        }
        let values = &self.values;
        line(
            "values",
            format!(
                "{} of at most {}: {} and {} of padding",
                HumanCount(values.count),
                HumanCount(values.max_count),
                bytes(values.bytes),
                bytes(values.padding_bytes)
            ),
        )?;
        if let (Some(min), Some(median), Some(max)) =
            (values.len_min, values.len_median, values.len_max)
        {
            let lengths = format!("{min} bytes least, {median} median, {max} most");
            line("  lengths", lengths)?;
        }
        if let (Some(ratio), true) = (values.ratio, values.encoded > 0) {
            let (encoded, stored) = (HumanCount(values.encoded), bytes(values.stored_bytes));
            line("  encoded", format!("{encoded}: {stored} of them stored, {ratio:.3}"))?;
        }
        if values.encrypted > 0 {
            let (encrypted, of) = (HumanCount(values.encrypted), HumanCount(values.namespaces));
            line("  encrypted", format!("{encrypted} in {of} namespace(s)"))?;
        }
        for KeyFigures { id, values } in &values.keys {
            line("  key", format!("{id}: {} value(s)", HumanCount(*values)))?;
        }
        if values.scattered > 0 {
            line("  scattered", format!("{} in several ranges", HumanCount(values.scattered)))?;
        }
        if values.unverified > 0 {
            let unverified = HumanCount(values.unverified);
            line("  unverified", format!("{unverified} not read since they may have been lost"))?;
        }
        line("checkpoint", self.checkpoint.to_string())?;
        line("journal", self.journal.to_string())?;
        if let Some(damage) = &self.journal_damage {
            line("  damaged", damage.clone())?;
        }
        line(
            "free",
            format!(
                "{}, {} in the longest range",
                bytes(self.free_bytes),
                bytes(self.longest_free_bytes)
            ),
        )?;
        line("utilization", format!("{:.2} % of the data area", 100.0 * self.utilization))?;
        let quarantined = format!(
            "{} in {} part(s)",
            bytes(self.quarantined_bytes),
            HumanCount(self.quarantined.len() as u64)
        );
        line("quarantined", quarantined)?;
        if self.dropped_entries > 0 {
            line(
                "dropped",
                format!(
                    "{} entries outside of the data area, or in blocks of others",
                    HumanCount(self.dropped_entries)
                ),
            )?;
        }
        writeln!(f, "\n{:<14} {:>16} {:>16}", "part", "offset", "bytes")?;
        for PartFigures { name, offset, bytes, in_use } in &self.parts {
            let unused = if *in_use { "" } else { "  not in use" };
            writeln!(f, "{name:<14} {offset:>16} {bytes:>16}{unused}")?;
        }
        Ok(())
    }
}
