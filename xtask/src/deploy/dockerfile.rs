//! *Dockerfile*: its instructions, and what they have to do with the rest of the project.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{understands, workflows};
use crate::engines;

/// One instruction, with the name of its stage.
struct Instruction {
    stage: String,
    word: String,
    rest: String,
}

/// The user of the images.
pub(super) const USER: u64 = 10001;

/// Checks the instructions.
pub(super) fn check(root: &Path, command: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join("deploy/Dockerfile"))?;
    let instructions = read(&text);
    check_builds(root, &instructions)?;
    check_copies(&instructions)?;
    check_libraries(&instructions)?;
    for stage in ["command", "mooncake"] {
        let user = last(&instructions, stage, "USER")?;
        ensure!(user == format!("{USER}:{USER}"), "{stage} runs as {user}, not as {USER}");
        ensure!(list(last(&instructions, stage, "ENTRYPOINT")?)? == ["kvmem"], "{stage}");
    }
    // The Python package has the other image's command; its tests run it.
    understands(command, &list(last(&instructions, "command", "CMD")?)?)
}

/// Checks that cargo, the chores and pip know what the first stage builds.
fn check_builds(root: &Path, instructions: &[Instruction]) -> Result<()> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let runs = of(instructions, "build", "RUN").flat_map(|run| run.split("&&").map(str::trim));
    let mut built = 0;
    for run in runs {
        let words: Vec<&str> = run.split_whitespace().collect();
        let after = |option: &str| {
            let mut pairs = words.windows(2);
            pairs.find(|pair| pair[0] == option).map(|pair| pair[1].to_owned())
        };
        match words.as_slice() {
            ["cargo", "xtask", ..] => workflows::understood(run)?,
            ["cargo", "build", ..] => {
                let profile = after("--profile").context("cargo build has no --profile")?;
                ensure!(
                    manifest.contains(&format!("[profile.{profile}]")),
                    "{run}: no such profile"
                );
                let package = after("--package").context("cargo build has no --package")?;
                let package = root.join("crates").join(&package);
                ensure!(package.join("Cargo.toml").is_file(), "{run}: no such package");
            }
            ["python3", "-m", "pip", "wheel", .., folder] => {
                ensure!(
                    root.join(folder).join("pyproject.toml").is_file(),
                    "{run}: no such package"
                );
            }
            ["install", .., from, _] => {
                ensure!(from.starts_with("target/dist/"), "{run}: the profile is dist");
            }
            ["apt-get" | "rm", ..] => continue,
            _ => bail!("{run:?} is no command that is checked"),
        }
        built += 1;
    }
    ensure!(built == 4, "the first stage has {built} commands that build, and 4 are known");
    Ok(())
}

/// Checks that later stages copy what the first one makes.
fn check_copies(instructions: &[Instruction]) -> Result<()> {
    let makes: String = of(instructions, "build", "RUN").collect();
    let copies = instructions.iter().filter(|one| one.word == "COPY" && one.stage != "build");
    for copy in copies {
        let mut words = copy.rest.split_whitespace();
        ensure!(words.next() == Some("--from=build"), "{}: not from the build", copy.rest);
        let from = words.next().context("COPY has no source")?;
        ensure!(makes.contains(from), "{from} is copied, and no RUN makes it");
    }
    let mounts = of(instructions, "mooncake", "RUN").filter_map(|run| run.split_once("source="));
    for (_, rest) in mounts {
        let source = rest.split(',').next().unwrap_or_default();
        ensure!(makes.contains(source), "{source} is mounted, and no RUN makes it");
    }
    Ok(())
}

/// Checks that the image has the shared libraries of the engine that the tests install.
fn check_libraries(instructions: &[Instruction]) -> Result<()> {
    let installs: Vec<&str> = of(instructions, "mooncake", "RUN").collect();
    for package in engines::debian_packages("Mooncake") {
        ensure!(
            installs.iter().any(|run| run.split_whitespace().any(|word| word == package)),
            "the engine needs {package}, and no RUN installs it"
        );
    }
    Ok(())
}

/// Returns what follows the instructions with a word in a stage.
fn of<'a>(
    instructions: &'a [Instruction],
    stage: &'a str,
    word: &'a str,
) -> impl Iterator<Item = &'a str> {
    let wanted = move |one: &&Instruction| one.stage == stage && one.word == word;
    instructions.iter().filter(wanted).map(|one| one.rest.as_str())
}

fn last<'a>(instructions: &'a [Instruction], stage: &'a str, word: &'a str) -> Result<&'a str> {
    of(instructions, stage, word).last().with_context(|| format!("{stage} has no {word}"))
}

/// Returns the words of an instruction in the form of a list.
fn list(rest: &str) -> Result<Vec<String>> {
    serde_json::from_str(rest).with_context(|| format!("{rest} is no list of words"))
}

/// Reads the instructions: without comments, each in one line.
fn read(text: &str) -> Vec<Instruction> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut stage = String::new();
    let mut instructions = Vec::new();
    for line in joined.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
        if word == "FROM" {
            stage = rest.rsplit(" AS ").next().unwrap_or_default().to_owned();
        }
        instructions.push(Instruction { stage: stage.clone(), word: word.to_owned(), rest });
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_may_have_several_lines_and_comments() {
        let text =
            "# a\nFROM a AS one\nRUN x \\\n    # why\n    && y\nFROM one AS two\nCMD [\"z\"]\n";
        let read = read(text);
        assert_eq!(of(&read, "one", "RUN").collect::<Vec<_>>(), ["x && y"]);
        assert_eq!(list(last(&read, "two", "CMD").unwrap()).unwrap(), ["z"]);
        assert!(last(&read, "two", "RUN").is_err() && list("z").is_err());
    }

    #[test]
    fn what_is_copied_must_be_made() {
        let made = "FROM a AS build\nRUN cp x /out/a\nFROM b AS c\nCOPY --from=build /out/a /a\n";
        assert!(check_copies(&read(made)).is_ok());
        assert!(check_copies(&read(&made.replace("/out/a /a", "/out/b /a"))).is_err());
    }
}
