//! *Command*: runs the command, as a user does.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs a subcommand without an input, and returns what it wrote.
pub(crate) fn run(subcommand: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem"))
        .arg(subcommand)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Returns output as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Copies the command to a folder, for users who may have no access to that of the build.
///
/// Another process copies the file. A copy that this process writes could be inherited, open, by a
/// process that another test starts at that moment; running it then fails with ETXTBSY.
pub(crate) fn copied_to(folder: &Path) -> PathBuf {
    let command = folder.join("kvmem");
    if !command.exists() {
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_kvmem")).arg(&command).status();
        assert!(copied.expect("it can be started").success());
        set_permissions(&command, Permissions::from_mode(0o755)).expect("a file");
    }
    command
}
