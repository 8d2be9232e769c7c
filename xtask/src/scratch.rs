//! *Scratch*: one folder for the temporary files of a run of the tests, removed when the run ends.
//!
//! Test programs that are killed, engines and compilers leave gigabytes in the folder for temporary
//! files. A machine that runs the tests every day keeps none of it: every command of a run gets
//! the folder as its `TMPDIR`, and the next run removes what a killed run has left.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;

/// The names of these folders end with the number of their process. They are short, because the
/// path of a Unix socket has at most 107 bytes.
const PREFIX: &str = "kvmem-run-";

/// The folder of this process.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The folder for temporary files, which exists as long as this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder of this process, and removes those of processes that have ended.
    pub(crate) fn begin() -> io::Result<Scratch> {
        let top = std::env::temp_dir();
        for entry in fs::read_dir(&top)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
                // Another user's folder stays.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = top.join(format!("{PREFIX}{}", process::id()));
        DirBuilder::new().mode(0o700).create(&folder)?;
        // Some tests run as another user.
        fs::set_permissions(&folder, Permissions::from_mode(0o1777))?;
        let folder = FOLDER.get_or_init(|| folder).clone();
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What remains is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Lets a command have the folder of this process, if there is one.
pub(crate) fn give(command: &mut Command) {
    if let Some(folder) = FOLDER.get() {
        command.env("TMPDIR", folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_ends_with_its_process() {
        let ended = std::env::temp_dir().join(format!("{PREFIX}0"));
        fs::create_dir_all(ended.join("deep")).unwrap();
        let scratch = Scratch::begin().unwrap();
        let own = scratch.0.clone();
        assert!(own.exists() && !ended.exists());
        drop(scratch);
        assert!(!own.exists());
    }
}
