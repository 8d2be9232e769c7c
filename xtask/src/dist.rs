//! `cargo xtask dist`: what is shipped to those who have no Rust toolchain, as one archive.
//!
//! ```text
//! kvmem-0.1.0-x86_64-unknown-linux-gnu/
//!   bin/kvmem        lib/libkvmem.so.0.1.0 …  lib/libkvmem.a   lib/pkgconfig  lib/cmake
//!   include/kvmem.h …                         share/man/man1   share/…/completions
//!   LICENSE          THIRD-PARTY.md           README.md
//! ```
//!
//! Beside the archive stand a list of its parts (`.cdx.json`) and `SHA256SUMS`.
//!
//! - [`build`] compiles the command and the C library,
//! - [`manual`] writes the manual pages and completions,
//! - [`stage`] lays out the files, with the versions of glibc that they need,
//! - [`archive`] packs: the same files give the same bytes,
//! - [`check`] unpacks the archive and uses all that is in it.

mod archive;
pub(crate) mod build;
mod check;
mod manual;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::notices;
use crate::run::output;
use crate::say;
use crate::step::Report;
use crate::workspace::{VERSION, target_folder};

/// The platform, and the folder of the archive.
#[derive(Args)]
pub(crate) struct DistOptions {
    /// The platform of the archive, by Rust's name (default: this machine's).
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// The folder that gets the archive (default: `target/archives`).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Link for this version of glibc, with zig, which is installed (default: this machine's; for
    /// another platform 2.28).
    #[arg(long, value_name = "VERSION", value_parser = build::glibc)]
    glibc: Option<String>,
    /// Then unpack the archive, run the command, and build C programs with the library.
    #[arg(long)]
    check: bool,
}

/// One archive that is being made.
struct Shipment<'a> {
    root: &'a Path,
    triple: String,
    version: &'static str,
    /// Seconds since 1970 that all files get as their time.
    epoch: u64,
    /// The folder of everything that is made on the way.
    scratch: PathBuf,
    out: PathBuf,
}

impl Shipment<'_> {
    /// Returns the name of the archive without its ending, and of the folder inside.
    fn name(&self) -> String {
        format!("kvmem-{}-{}", self.version, self.triple)
    }

    /// Returns the folder that becomes the archive.
    fn stage(&self) -> PathBuf {
        self.scratch.join("stage").join(self.name())
    }
}

/// Builds the archive, and checks it if that is wanted.
pub(crate) fn run(root: &Path, options: &DistOptions) -> Result<ExitCode> {
    let target = target_folder(root)?;
    let shipment = Shipment {
        root,
        triple: options.target.clone().map_or_else(build::host, Ok)?,
        version: VERSION,
        epoch: epoch(root)?,
        scratch: target.join("shipped"),
        out: options.out.clone().unwrap_or_else(|| target.join("archives")),
    };
    let built = build::run(&shipment, options.glibc.as_deref())?;
    manual::write(root, &shipment.scratch.join("manual"), shipment.epoch, false)?;
    stage::fill(&shipment, &built)?;
    let files = archive::pack(&shipment)?;
    for file in &files {
        say!("{}", file.display());
    }
    if !options.check {
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    check::run(&shipment, &mut report);
    report.finish()
}

/// Runs the steps that take seconds once the command was built for tests: the manual pages and
/// completions, the notices and the list of parts. The tests have `built` the examples, or not.
pub(crate) fn quick(root: &Path, built: bool, report: &mut Report) {
    report.check("dist: manual pages and completions", || {
        let folder = target_folder(root)?.join("manual");
        manual::write(root, &folder, epoch(root)?, built)?;
        manual::check(&folder)
    });
    report.check("dist: notices and list of parts", || {
        let triple = build::host()?;
        stage::notices(root, &triple)?;
        notices::parts(root, &build::PACKAGES, &triple, epoch(root)?).map(drop)
    });
}

/// Removes a folder, if it exists.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the files of a folder, by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Returns the time of all files: `SOURCE_DATE_EPOCH`, or that of the commit.
pub(crate) fn epoch(root: &Path) -> Result<u64> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().with_context(|| {
            format!("SOURCE_DATE_EPOCH is {epoch:?}, and must be a number of seconds")
        });
    }
    let mut git = Command::new("git");
    git.current_dir(root).args(["log", "-1", "--format=%ct"]);
    let time = output(&mut git).context("install git, or set SOURCE_DATE_EPOCH")?;
    time.trim().parse().context("git tells no time of the commit: set SOURCE_DATE_EPOCH")
}
