//! *Programs*: the test programs, examples and commands that cargo builds, as it reports them.
//!
//! They are built at once and then run directly, because cargo would run them one after the other,
//! and lock the target folder while it looks at them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};

/// The kind of program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramKind {
    /// Tests, with a harness.
    Test,
    /// An example of a package.
    Example,
    /// A command.
    Command,
}

/// A program that cargo has built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) kind: ProgramKind,
    /// The folder of its package.
    pub(crate) folder: PathBuf,
    /// The name of the target: of a test or an example.
    pub(crate) target: String,
    /// The package and the target, for readers.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Program {
    /// Returns the command that runs it as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder);
        command.env("CARGO", cargo()).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Runs `cargo` with arguments that build programs, as the step `name`, and returns the programs.
pub(crate) fn build(root: &Path, report: &mut Report, name: &str, args: &[&str]) -> Vec<Program> {
    build_with(root, report, name, args, &[])
}

/// The same with environment variables of the build.
pub(crate) fn build_with(
    root: &Path,
    report: &mut Report,
    name: &str,
    args: &[&str],
    variables: &[(&str, &OsStr)],
) -> Vec<Program> {
    let mut programs = Vec::new();
    let list = root.join(format!("target/xtask/{}.json", name.replace([' ', ':', '/'], "-")));
    let made = list.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(&list));
    let file = match made {
        Ok(file) => file,
        Err(error) => {
            report.check(name, || Err(error).context(list.display().to_string()));
            return programs;
        }
    };
    let mut cargo = Command::new(cargo());
    cargo.current_dir(root).args(args).arg("--message-format=json-render-diagnostics");
    cargo.envs(variables.iter().copied());
    if report.command_into(name, Kind::Plain, &mut cargo, Some(file)) {
        report.check(&format!("{name}: programs"), || {
            programs = read(&fs::read_to_string(&list)?)?;
            ensure!(!programs.is_empty(), "cargo has built no program");
            Ok(())
        });
    }
    programs
}

/// Reads the programs from the lines that cargo prints, one JSON object each.
fn read(text: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        programs.extend(program(&message));
    }
    Ok(programs)
}

fn program(message: &Value) -> Option<Program> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?.to_owned();
    let of = message["target"]["kind"][0].as_str()?;
    let kind = match (message["profile"]["test"].as_bool()?, of) {
        (true, _) => ProgramKind::Test,
        (false, "example") => ProgramKind::Example,
        (false, _) => ProgramKind::Command,
    };
    let name = match of {
        "test" => format!("{package} {target}"),
        "bin" => format!("{package} command"),
        "example" => format!("{package} example {target}"),
        _ => format!("{package} unit"),
    };
    Some(Program { kind, folder, target, name, path })
}

/// Returns the variables that name built programs to the tests.
pub(crate) fn variables(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let Ok(target) = target_folder(root) else { return Vec::new() };
    [("KVMEM_COMMAND", "kvmem"), ("KVMEM_NODE_SERVER", "examples/serve")]
        .map(|(variable, program)| (variable, target.join("debug").join(program)))
        .into_iter()
        .filter(|(_, program)| program.exists())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_what_cargo_prints() {
        let line = |kind: &str, target: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/kvmem-cli/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"{target}"}},"profile":{{"test":{test}}},
                "executable":{executable}}}"#
            )
            .replace('\n', "")
        };
        let text = [
            line("lib", "kvmem_cli", true, "\"/w/target/debug/deps/kvmem_cli-1\""),
            line("lib", "kvmem_cli", false, "null"),
            line("bin", "kvmem", false, "\"/w/target/debug/kvmem\""),
            line("test", "it", true, "\"/w/target/debug/deps/it-1\""),
            line("example", "pool", false, "\"/w/target/debug/examples/pool\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ]
        .join("\n");
        let programs = read(&text).unwrap();
        let of = |program: &Program| (program.kind, program.name.clone());
        assert_eq!(
            programs.iter().map(of).collect::<Vec<_>>(),
            [
                (ProgramKind::Test, "kvmem-cli unit".to_owned()),
                (ProgramKind::Command, "kvmem-cli command".to_owned()),
                (ProgramKind::Test, "kvmem-cli it".to_owned()),
                (ProgramKind::Example, "kvmem-cli example pool".to_owned()),
            ]
        );
        assert_eq!(programs[0].folder, Path::new("/w/crates/kvmem-cli"));
        assert!(read("{broken").is_err());
    }
}
