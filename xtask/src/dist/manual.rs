//! *Manual*: the manual pages and the completions of the command.
//!
//! An example of `kvmem-cli` writes them, from the options that the command parses with.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use time::OffsetDateTime;

use super::{files, remove};
use crate::run::{output, succeed};
use crate::say;
use crate::setup::works;
use crate::workspace::{cargo, target_folder};

/// Programs that find faults in manual pages, with their arguments.
const FORMATTERS: [(&str, &[&str]); 2] =
    [("groff", &["-ww", "-man", "-Tutf8", "-z"]), ("mandoc", &["-T", "lint", "-W", "error"])];

/// Each shell with the file of its completions, and where it looks for them under the prefix.
pub(super) const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "bash/kvmem", "share/bash-completion/completions/kvmem"),
    ("zsh", "zsh/_kvmem", "share/zsh/site-functions/_kvmem"),
    ("fish", "fish/kvmem.fish", "share/fish/vendor_completions.d/kvmem.fish"),
];

/// Writes the pages, with their date, and the completions into a folder, by an example that is
/// `built` already or not.
pub(super) fn write(root: &Path, folder: &Path, epoch: u64, built: bool) -> Result<()> {
    let date = OffsetDateTime::from_unix_timestamp(epoch.try_into()?)?.date().to_string();
    remove(folder)?;
    if built {
        let example = target_folder(root)?.join("debug/examples/manual");
        return succeed(Command::new(example).arg(folder).arg(date));
    }
    let mut example = Command::new(cargo());
    example.current_dir(root).args(["run", "--quiet", "--locked", "--package", "kvmem-cli"]);
    example.args(["--example", "manual", "--"]).arg(folder).arg(date);
    // The example runs on this machine, whatever platform is built for.
    succeed(example.env_remove("CARGO_BUILD_TARGET"))
}

/// Formats every page and parses every completion, with the programs that there are.
pub(super) fn check(folder: &Path) -> Result<()> {
    let pages = files(&folder.join("man1"))?;
    ensure!(
        pages.iter().any(|page| page.ends_with("kvmem.1")) && pages.len() > 5,
        "{} holds {} pages: the command has more subcommands",
        folder.display(),
        pages.len()
    );
    for (formatter, arguments) in FORMATTERS {
        // An empty page tells whether the program is there: mandoc has no option for its version.
        if !works(formatter, &[arguments, &["/dev/null"]].concat()) {
            say!("({formatter} is missing, so it does not read the manual pages)");
            continue;
        }
        let mut format = Command::new(formatter);
        format.args(arguments).args(&pages);
        let done = format.output().with_context(|| format!("cannot run {formatter}"))?;
        ensure!(
            done.status.success() && done.stderr.is_empty(),
            "{formatter} rejects the manual pages: {}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    for (shell, file, _) in COMPLETIONS {
        let file = folder.join("completions").join(file);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        ensure!(text.contains("doctor"), "{} does not complete `doctor`", file.display());
        if works(shell, &["--version"]) {
            output(Command::new(shell).arg("-n").arg(&file))?;
        } else {
            say!("({shell} is missing, so it does not parse its completions)");
        }
    }
    Ok(())
}
