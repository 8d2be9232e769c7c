//! `kvmem serve-mooncake`: starts the program of this name that the Python package installs.
//!
//! Mooncake's engine is a Python wheel, so the command that lends memory to it is part of the
//! Python package. The package installs it as `kvmem-serve-mooncake` in the folder of `kvmem`. The
//! process becomes that program, so signals and the exit status are the program's own.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::ServeMooncakeArgs;
use crate::output::Failure;

/// The program that serves.
const PROGRAM: &str = "kvmem-serve-mooncake";

/// Replaces this process by the program. Returns only if that fails.
pub(crate) fn run(args: &ServeMooncakeArgs) -> Result<(), Failure> {
    let here = env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    // A relative folder is one of the current folder, which may be anybody's.
    let folders = env::split_paths(&path).filter(|folder| folder.is_absolute());
    let Some(program) = find(here.into_iter().chain(folders)) else {
        return Err(Failure::usage(format_args!(
            "serve-mooncake needs {PROGRAM}, which is neither in this program's folder nor in an \
             absolute folder of PATH: it is part of the Python package, which `pip install \
             ./crates/kvmem-python` installs from kvmem's repository"
        )));
    };
    let error = Command::new(&program).args(&args.options).exec();
    Err(Failure::usage(format_args!("cannot run {}: {error}", program.display())))
}

/// Returns the first executable file of this name in the folders.
fn find(folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join(PROGRAM)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
