//! *Context*: a step in progress: its folders, its random numbers, its findings.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::machine::Settings;
use crate::say;

/// A step in progress.
pub(super) struct Chaos {
    /// The folder of the repository.
    pub(super) root: PathBuf,
    /// The working folder of the runs. Every user may write there.
    pub(super) folder: PathBuf,
    pub(super) quick: bool,
    /// It has the built commands, where every user may run them.
    pub(super) top: PathBuf,
    random: Cell<u64>,
    settings: Settings,
    /// The number of runs.
    pub(super) runs: Cell<u64>,
    complaints: RefCell<Vec<String>>,
    skipped: RefCell<Vec<String>>,
}

impl Chaos {
    pub(super) fn begin(root: &Path, kvmem: &Path, seed: u64, quick: bool) -> Result<Chaos> {
        let top = std::env::temp_dir().join(format!("kvmem-chaos-{}", std::process::id()));
        let folder = top.join("work");
        for path in [&folder, &top.join("tmp")] {
            fs::create_dir_all(path).with_context(|| path.display().to_string())?;
            fs::set_permissions(path, Permissions::from_mode(0o777))?;
        }
        for built in [kvmem, &kvmem.with_file_name("kvmem-lab")] {
            let copy = top.join(built.file_name().context("a program has a name")?);
            if !copy.exists() {
                fs::copy(built, &copy).with_context(|| built.display().to_string())?;
            }
        }
        let chaos = Chaos {
            root: root.to_owned(),
            folder,
            quick,
            top,
            random: Cell::new(seed),
            settings: Settings::now(),
            runs: Cell::new(0),
            complaints: RefCell::default(),
            skipped: RefCell::default(),
        };
        chaos.trace("trace.jsonl")?;
        Ok(chaos)
    }

    /// Compares the state of the machine with that before, cleans up, and returns the findings.
    pub(super) fn end(self, ran: Result<()>) -> Result<()> {
        let changed = self.settings.restore();
        self.complaints.borrow_mut().extend(changed);
        fs::remove_dir_all(&self.top).with_context(|| self.top.display().to_string())?;
        ran?;
        let (complaints, runs) = (self.complaints.into_inner(), self.runs.get());
        for reason in self.skipped.into_inner() {
            say!("   skipped: {reason}");
        }
        say!("   {runs} runs");
        if complaints.is_empty() {
            return Ok(());
        }
        bail!(
            "{} of {runs} runs went wrong:\n     {}",
            complaints.len(),
            complaints.join("\n     ")
        );
    }

    /// The settings of the machine before the step.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Records a part of the step that this machine does not allow.
    pub(super) fn skip(&self, reason: impl Into<String>) {
        self.skipped.borrow_mut().push(reason.into());
    }

    pub(super) fn complain(&self, complaint: impl Into<String>) {
        self.complaints.borrow_mut().push(complaint.into());
    }

    /// Returns a random number below `below`. Source: S. Vigna's SplitMix64.
    pub(super) fn random(&self, below: u64) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }

    /// Writes a file of the working folder with these bytes.
    pub(super) fn file(&self, name: impl AsRef<OsStr>, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.folder.join(name.as_ref());
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Writes a small valid trace as a new file of the working folder.
    pub(super) fn trace(&self, name: &str) -> Result<PathBuf> {
        self.file(name, fs::read(self.root.join("crates/kvmem-cli/tests/data/small_trace.jsonl"))?)
    }
}
