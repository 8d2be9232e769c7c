//! *Tier*: the disks of a node.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, absolute};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvmem_tier::{Codec, DiskTier, DiskTierOptions, Keyring, OpenReport, TierError, TierSet};
use sd_notify::NotifyState;

use crate::args::{ServeArgs, ServeTier};
use crate::output::{Failure, print_message};
use kvmem_trace::escape::shown;

/// The most time for the checkpoint of a server that ends.
const MAX_CHECKPOINT: Duration = Duration::from_secs(10);

/// How much longer systemd is asked to wait, after each attempt to open a disk.
const MORE_TIME: Duration = Duration::from_secs(15);

/// The disk tiers of a server.
pub(super) struct OpenedTiers {
    pub(super) set: Arc<TierSet>,
    /// Their files, in the order of the options.
    pub(super) files: Vec<String>,
    /// How the values of each are encoded, of those whose values are.
    pub(super) encodings: Vec<String>,
    /// The values that they have.
    pub(super) values: u64,
}

/// Opens the disk tiers that `--tier` names, or makes them.
pub(super) fn open(args: &ServeArgs) -> Result<Option<OpenedTiers>, Failure> {
    if args.tiers.is_empty() {
        return Ok(None);
    }
    let paths: Vec<_> = args.tiers.iter().map(|tier| absolute(&tier.path)).collect();
    for (number, path) in paths.iter().enumerate() {
        if let Ok(path) = path
            && paths[..number].iter().flatten().any(|before| before == path)
        {
            return Err(Failure::usage(format_args!(
                "--tier disk:{}: the file is named twice: name each file once",
                shown(path)
            )));
        }
    }
    let keys = read_keys(args)?;
    let (mut tiers, mut values) = (Vec::new(), 0);
    for (tier, opened) in args.tiers.iter().zip(open_all(args, &keys)) {
        let (opened, found) = opened.map_err(|error| failure(tier, &error))?;
        tiers.push(opened);
        values += found.entries;
        if let Some(damage) = found.journal_damage() {
            print_message(format_args!("kvmem: --tier disk:{}: {damage}", shown(&tier.path)));
        }
    }
    let set =
        TierSet::new(tiers).map_err(|error| Failure::usage(format_args!("--tier: {error}")))?;
    let files = args.tiers.iter().map(|tier| shown(&tier.path).to_string()).collect();
    let encodings = args.tiers.iter().filter_map(|tier| encoding(tier, &keys)).collect();
    Ok(Some(OpenedTiers { set: Arc::new(set), files, encodings, values }))
}

/// The keys of each key file.
type Keys<'a> = HashMap<&'a Path, Arc<Keyring>>;

/// Reads each key file once: it may be a pipe.
fn read_keys(args: &ServeArgs) -> Result<Keys<'_>, Failure> {
    let mut keys = Keys::new();
    for tier in &args.tiers {
        let Some(path) = tier.key_file.as_deref() else { continue };
        if !keys.contains_key(path) {
            let failed =
                |error| Failure::usage(format_args!("--tier disk:{}: {error}", shown(&tier.path)));
            keys.insert(path, Arc::new(Keyring::open(path).map_err(failed)?));
        }
    }
    Ok(keys)
}

/// Says how the values of a tier are encoded; `None` if they are not.
fn encoding(tier: &ServeTier, keys: &Keys<'_>) -> Option<String> {
    let keys = tier.key_file.as_deref().and_then(|path| keys.get(path));
    let encrypted = keys.map(|keys| format!("encrypted with the key {}", keys.writes_with()));
    let compressed = (tier.codec != Codec::None).then(|| "compressed".to_owned());
    let how: Vec<String> = compressed.into_iter().chain(encrypted).collect();
    (!how.is_empty()).then(|| format!("{}: {}", shown(&tier.path), how.join(", ")))
}

/// Opens all of them side by side: each has an index to read.
fn open_all(args: &ServeArgs, keys: &Keys<'_>) -> Vec<Result<(DiskTier, OpenReport), TierError>> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            args.tiers.iter().map(|tier| scope.spawn(move || open_one(args, tier, keys))).collect();
        let opened = threads.into_iter().map(|thread| thread.join());
        opened
            .map(|opened| opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Opens one of them. Waits, and says so, while another process has it open: the kernel closes the
/// files of a killed process when the disk has written all that the process gave it.
fn open_one(
    args: &ServeArgs,
    tier: &ServeTier,
    keys: &Keys<'_>,
) -> Result<(DiskTier, OpenReport), TierError> {
    let mut options = DiskTierOptions {
        bytes: len(args, tier),
        dsync: args.tier_dsync,
        take_over: args.tier_take_over,
        codec: tier.codec,
        keys: tier.key_file.as_deref().and_then(|path| keys.get(path)).cloned(),
        ..DiskTierOptions::default()
    };
    let max_wait = Duration::from_secs(args.tier_wait.into());
    let (started, mut has_said) = (Instant::now(), false);
    loop {
        match DiskTier::open(&tier.path, &options) {
            // A tier that is there is never made anew: a server that starts again finds its values.
            Err(TierError::Superblocks { .. } | TierError::Checkpoint { .. })
                if args.tier_format && !options.format =>
            {
                options.format = true;
            }
            Err(error) if is_busy(&error) && started.elapsed() < max_wait => {
                if !std::mem::replace(&mut has_said, true) {
                    print_message(format_args!(
                        "kvmem: --tier disk:{} is open in another process, perhaps one that was \
                         killed and whose last writes the disk has still to make: waits for up to \
                         {} s",
                        shown(&tier.path),
                        args.tier_wait
                    ));
                }
                let more = MORE_TIME.as_micros() as u32;
                let _ = sd_notify::notify(&[
                    NotifyState::Status("waiting for a disk that another process has open"),
                    NotifyState::ExtendTimeoutUsec(more),
                ]);
            }
            opened => return opened,
        }
    }
}

/// Returns whether another process has the device open.
fn is_busy(error: &TierError) -> bool {
    matches!(error, TierError::Device { source, .. } if source.kind() == ErrorKind::WouldBlock)
}

/// Writes the index of each file that has changed. Without it the next server reads the journals,
/// and finds the same values.
pub(super) fn end(tier: &OpenedTiers) {
    match tier.set.checkpoint_within(MAX_CHECKPOINT) {
        Ok(true) => {}
        Ok(false) => print_message(format_args!(
            "kvmem: no checkpoint of the tier within {} s: the next server reads its journal",
            MAX_CHECKPOINT.as_secs()
        )),
        Err(error) => print_message(format_args!(
            "kvmem: no checkpoint of the tier: {error}; the next server reads its journal"
        )),
    }
}

/// Status 1 for what may be over when the server is started again, such as a disk that fails or is
/// in use, 2 for what is not.
fn failure(tier: &ServeTier, error: &TierError) -> Failure {
    let (remedy, exit_status) = match error {
        TierError::Owned { .. } => (" (--tier-take-over)", 2),
        TierError::Superblocks { .. } | TierError::Checkpoint { .. } => (" (--tier-format)", 2),
        TierError::Device { source, .. } => {
            let is_lasting = matches!(
                source.kind(),
                ErrorKind::NotFound
                    | ErrorKind::PermissionDenied
                    | ErrorKind::IsADirectory
                    | ErrorKind::NotADirectory
                    | ErrorKind::InvalidInput
                    | ErrorKind::ReadOnlyFilesystem
                    | ErrorKind::Unsupported
            );
            ("", if is_lasting { 2 } else { 1 })
        }
        TierError::TakenOver { .. } | TierError::ReadOnly { .. } => ("", 1),
        _ => ("", 2),
    };
    let message = format_args!("--tier disk:{}: {error}{remedy}", shown(&tier.path)).to_string();
    Failure::new(message, exit_status)
}

/// The least time between two lines about values that a file failed to store.
const STORE_ERRORS: Duration = Duration::from_secs(60);

/// Says of each file when it stores nothing any more, when it does again, and why it does not store
/// single values.
pub(super) struct TierWatch {
    set: Arc<TierSet>,
    files: Vec<WatchedFile>,
}

struct WatchedFile {
    name: String,
    /// Whether it was said to store nothing.
    has_failed: bool,
    /// When it was said why values were not stored.
    said_why: Option<Instant>,
}

impl TierWatch {
    pub(super) fn new(tier: &OpenedTiers) -> TierWatch {
        let watched =
            |name: &String| WatchedFile { name: name.clone(), has_failed: false, said_why: None };
        let files = tier.files.iter().map(watched).collect();
        TierWatch { set: Arc::clone(&tier.set), files }
    }

    pub(super) fn look(&mut self) {
        for (tier, file) in self.set.in_path_order().zip(&mut self.files) {
            let WatchedFile { name, has_failed, said_why } = file;
            match (tier.failure(), *has_failed) {
                (Some(cause), false) => print_message(format_args!(
                    "kvmem: --tier disk:{name} stores nothing any more: {cause}"
                )),
                (None, true) => {
                    print_message(format_args!("kvmem: --tier disk:{name} stores again"))
                }
                (None, false) => {
                    if said_why.is_none_or(|at| at.elapsed() >= STORE_ERRORS)
                        && let Some((values, error)) = tier.take_store_errors()
                    {
                        *said_why = Some(Instant::now());
                        print_message(format_args!(
                            "kvmem: --tier disk:{name} did not store {values} value(s): {error}"
                        ));
                    }
                    continue;
                }
                (Some(_), true) => continue,
            }
            *has_failed = !*has_failed;
        }
    }
}

/// Returns the bytes of the file; `None`: the length of a tier that exists does not change.
fn len(args: &ServeArgs, tier: &ServeTier) -> Option<u64> {
    let default = || (!tier.path.exists()).then(|| args.size.saturating_mul(4));
    tier.bytes.or_else(default)
}
