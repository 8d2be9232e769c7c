//! *Commands*: what the pages tell readers to type exists, also where no test runs it.
//!
//! Each `cargo xtask …` is parsed as the chores parse it. Each `kvmem …` must name subcommands and
//! options that the help of the command lists, or the Python package's own subcommands.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use super::blocks::language;
use super::chapters::Chapters;
use super::markdown::outline;
use super::reference::Help;
use crate::Cli;
use crate::say;

/// The files that declare the subcommands which only the Python package has, and their options.
const IN_PYTHON: [&str; 2] = [
    "crates/kvmem-python/python/kvmem/__main__.py",
    "crates/kvmem-python/python/kvmem/mooncake/command.py",
];

/// Checks the commands of all pages.
pub(super) fn check(root: &Path, chapters: &Chapters, helps: &[Help]) -> Result<()> {
    let python = IN_PYTHON.map(|path| std::fs::read_to_string(root.join(path)).context(path));
    let python = python.into_iter().collect::<Result<String>>()?;
    let (mut faults, mut known) = (Vec::new(), 0);
    for page in chapters.pages().filter(|page| !page.is_generated()) {
        let text = std::fs::read_to_string(root.join(&page.path))?;
        for block in outline(&text).blocks {
            if language(page, &block) != "bash" {
                continue;
            }
            for words in commands(&block.code) {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                match fault(&words, helps, &python) {
                    Some(fault) => faults.push(format!(
                        "{}:{}: `{}`: {fault}",
                        page.path,
                        block.line,
                        words.join(" ")
                    )),
                    None => known += 1,
                }
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n   "));
    say!("{known} commands of the pages exist");
    Ok(())
}

/// The commands of a block, as words, without comments.
fn commands(code: &str) -> Vec<Vec<String>> {
    let joined = code.replace("\\\n", " ");
    let words = |line: &str| -> Vec<String> {
        let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        words.take_while(|word| !["|", ">", "&", "&&"].contains(word)).map(str::to_owned).collect()
    };
    joined.lines().map(words).filter(|words| !words.is_empty()).collect()
}

/// Returns the fault of a command; nothing, if it is another program's.
fn fault(words: &[&str], helps: &[Help], python: &str) -> Option<String> {
    let arguments = match words {
        ["cargo", "xtask", ..] => {
            let parsed = Cli::try_parse_from(&words[1..]).err()?;
            return Some(parsed.to_string().lines().next().unwrap_or_default().to_owned());
        }
        ["cargo", "run", "--release", "--", rest @ ..] | ["kvmem", rest @ ..] => rest,
        _ => return None,
    };
    let named = |help: &&Help| {
        let below = &help.words[1..];
        below.len() <= arguments.len() && below.iter().zip(arguments).all(|(a, b)| a == b)
    };
    let help = helps.iter().filter(named).max_by_key(|help| help.words.len())?;
    let is_python = |word: &str| python.contains(&format!("\"{word}\""));
    let next = arguments.get(help.words.len() - 1).filter(|word| !word.starts_with('-'));
    let in_python = next.is_some_and(|next| is_python(next));
    if let Some(next) = next
        && help.text.contains("\nCommands:")
        && !in_python
    {
        return Some(format!("`{}` has no subcommand {next}", help.words.join(" ")));
    }
    arguments.iter().filter(|word| word.starts_with("--") && word.len() > 2).find_map(|word| {
        let option = word.split('=').next().unwrap_or(word);
        let listed = help.text.split([' ', ',', '\n']).any(|each| each == option);
        let exists = if in_python { is_python(option) } else { listed };
        (!exists).then(|| format!("`{}` has no option {option}", help.words.join(" ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helps() -> Vec<Help> {
        let help = |words: &str, text: &str| Help {
            words: words.split(' ').map(str::to_owned).collect(),
            text: text.to_owned(),
        };
        vec![
            help("kvmem", "\nCommands:\n  doctor  D\n\nOptions:\n  -h, --help  Print help\n"),
            help("kvmem doctor", "\nOptions:\n      --size <SIZE>  S\n"),
        ]
    }

    #[test]
    fn commands_lose_comments_and_keep_lines_together() {
        let found = commands("kvmem doctor \\\n    --size 1 # why\n\n# nothing\nls | cat\n");
        assert_eq!(found, [vec!["kvmem", "doctor", "--size", "1"], vec!["ls"]]);
    }

    #[test]
    fn unknown_subcommands_and_options_are_found() {
        let fault = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            fault(&words, &helps(), "parser(\"serve-mooncake\"); option(\"--master\")")
        };
        assert_eq!(fault("kvmem doctor --size 1"), None);
        assert_eq!(fault("cargo run --release -- doctor"), None);
        assert_eq!(fault("kvmem serve-mooncake --master a:1"), None);
        assert_eq!(fault("ls --all"), None);
        assert_eq!(fault("kvmem docter").unwrap(), "`kvmem` has no subcommand docter");
        assert_eq!(fault("kvmem doctor --sise=1").unwrap(), "`kvmem doctor` has no option --sise");
        assert!(fault("kvmem serve-mooncake --mister a").is_some());
        assert_eq!(fault("cargo xtask site --check"), None);
        assert!(fault("cargo xtask site --chek").is_some());
        assert!(fault("cargo xtask sight").is_some());
    }
}
