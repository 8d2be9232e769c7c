//! `cargo xtask install --prefix DIR`: builds the C interface and installs it under a prefix.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::layout::{Parts, install_into};
use crate::run::succeed;
use crate::workspace::{VERSION, cargo, target_folder};

/// The destination, and which parts it gets.
#[derive(Args)]
pub(crate) struct InstallOptions {
    /// The folder that gets `include` and `lib`.
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Also install the simulated registrars of `kvmem/testing.h`. Not for libraries that are
    /// shipped.
    #[arg(long)]
    testing: bool,
}

/// Builds the libraries and installs them.
pub(crate) fn run(root: &Path, options: &InstallOptions) -> Result<ExitCode> {
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--profile", "dist", "--locked"]);
    build.args(["--package", "kvmem-capi"]);
    let parts = if options.testing { Parts::WithTesting } else { Parts::Shipped };
    if parts == Parts::WithTesting {
        build.args(["--features", "testing"]);
    }
    succeed(&mut build)?;
    let crate_folder = root.join("crates/kvmem-capi");
    let built = target_folder(root)?.join("dist");
    install_into(&options.prefix, &built, &crate_folder.join("include"), VERSION, parts)
        .with_context(|| format!("cannot install to {}", options.prefix.display()))?;
    println!("kvmem {VERSION} is in {}", options.prefix.display());
    Ok(ExitCode::SUCCESS)
}
