//! *Command*: runs the command, as a user does.

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
