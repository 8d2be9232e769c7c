//! `cargo xtask test prose`: the mechanical part of how kvmem is written.
//!
//! [`docs/glossary.md`](../../docs/glossary.md) is the vocabulary and says how sentences are made.
//! Most of that needs a reader. Five rules do not, and each of them is one check here:
//!
//! 1. **Lines** of code, comments and Markdown end by column 100. Tables, URLs, and the output of
//!    programs shown in a fenced `text` block are exempt.
//! 2. **Words** that are retired do not come back as identifiers, as parts of identifiers, or as
//!    names of files. `prose/retired.txt` lists them, with the paths where each still has a meaning
//!    of its own.
//! 3. **Types**: a type's name is unique within the source of a crate.
//! 4. **Sentences** of doc comments and Markdown do not begin with "Who ", "Whoever " or "What is".
//! 5. **Packages**: no line tells to install kvmem by its name from a package index. It is not
//!    published there.
//!
//! The checks read the files that git tracks or would track. They know a language by the ending of
//! the file and take strings and comments out by a small scanner, not by a parser, so they cost
//! less than a second.
//!
//! [`environment`] compares the variables that the sources read with the tables of their page.

mod environment;
mod scan;
mod types;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use self::scan::{Language, Text};
use crate::step::Report;

/// Columns of the longest line.
const MAX_COLUMNS: usize = 100;

/// The words that are retired, each with the paths where it may stay.
const RETIRED: &str = include_str!("prose/retired.txt");

/// Files that programs write, and stored data.
const GENERATED: [&str; 5] =
    ["THIRD-PARTY.md", "bench/record/", "fuzz/corpus/", "proptest-regressions/", "tests/data/"];

/// Findings that are printed before the rest is only counted.
const SHOWN: usize = 40;

/// Runs the five checks.
pub(crate) fn run(root: &Path, report: &mut Report) {
    let mut files = Vec::new();
    if !report.check("prose: files", || read(root).map(|read| files = read)) {
        return;
    }
    report.check("prose: lines end by column 100", || none(files.iter().flat_map(long_lines)));
    let retired = retired(RETIRED);
    report.check("prose: no retired words in names", || {
        none(files.iter().flat_map(|file| retired_words(file, &retired)))
    });
    report.check("prose: environment variables are in the table", || {
        none(environment::differences(&files)?.into_iter())
    });
    report.check("prose: a type's name is unique in its crate", || none(types::twice(&files)));
    report.check("prose: sentences name their subject", || none(files.iter().flat_map(sentences)));
    report.check("prose: kvmem is not installed by its name", || {
        none(files.iter().flat_map(installs_by_name))
    });
}

/// A file under the rules.
struct File {
    /// Its path from the root of the repository.
    path: String,
    text: Text,
}

/// Reads every file that git tracks or would track and that is of a known language.
fn read(root: &Path) -> Result<Vec<File>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let listed =
        git.output().context("cannot run git: install it, the rules read what it tracks")?;
    ensure!(listed.status.success(), "git ls-files ended with {}", listed.status);
    let mut files = Vec::new();
    for path in String::from_utf8(listed.stdout)?.split('\0') {
        let whole = root.join(path);
        if GENERATED.iter().any(|part| path.contains(part)) || !whole.is_file() {
            continue;
        }
        let Some(language) = Language::of(path) else { continue };
        let text = fs::read_to_string(&whole).with_context(|| format!("cannot read {path}"))?;
        files.push(File { path: path.to_owned(), text: Text::new(&text, language) });
    }
    ensure!(!files.is_empty(), "git lists no source file in {}", root.display());
    Ok(files)
}

/// Fails with the findings, if there are any.
fn none(findings: impl Iterator<Item = String>) -> Result<()> {
    let findings: Vec<String> = findings.collect();
    if findings.is_empty() {
        return Ok(());
    }
    let rest = match findings.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\n   and {more} more"),
    };
    bail!("{}{rest}", findings[..findings.len().min(SHOWN)].join("\n   "))
}

/// Lines that are too long.
fn long_lines(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.text.lines() {
        let columns = line.chars().count();
        let words = line.trim_start_matches(|c: char| c.is_whitespace() || "/!*#".contains(c));
        let table = words.starts_with('|') && file.text.prose_at(number);
        if columns > MAX_COLUMNS && !table && !line.contains("://") && !file.text.output_at(number)
        {
            found.push(format!(
                "{}:{number}: {columns} columns, at most {MAX_COLUMNS}: break the line",
                file.path
            ));
        }
    }
    found
}

/// A word that is retired.
struct Retired<'a> {
    word: &'a str,
    /// Beginnings of the paths where it may stay.
    allowed: Vec<&'a str>,
}

/// Reads the list: a word a line, then the paths where it may stay; `#` begins a comment.
fn retired(list: &str) -> Vec<Retired<'_>> {
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(Retired { word: words.next()?, allowed: words.collect() })
        })
        .collect()
}

/// Retired words in the identifiers and in the path of a file.
fn retired_words(file: &File, retired: &[Retired<'_>]) -> Vec<String> {
    let here: Vec<&str> = retired
        .iter()
        .filter(|word| !word.allowed.iter().any(|path| file.path.starts_with(path)))
        .map(|word| word.word)
        .collect();
    let mut found = Vec::new();
    let mut look = |name: &str, number: usize| {
        let snake = snake_case(name);
        // Whole parts count: `played` has no `lay`.
        let part = |at: usize, word: &str| {
            let (before, behind) = (&snake[..at], &snake[at + word.len()..]);
            (before.is_empty() || before.ends_with('_'))
                && (behind.is_empty() || behind.starts_with('_'))
        };
        for word in &here {
            if snake.match_indices(word).any(|(at, word)| part(at, word)) {
                found.push(format!(
                    "{}:{number}: `{name}` has the retired word `{word}`: docs/glossary.md has the \
                     word for it",
                    file.path
                ));
            }
        }
    };
    for part in file.path.split(['/', '.']) {
        look(&part.replace('-', "_"), 1);
    }
    for (number, name) in file.text.identifiers() {
        look(name, number);
    }
    found
}

/// `freeRun`, `FreeRun` and `FREE_RUN` are all `free_run`.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    let mut before_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && before_lower {
            snake.push('_');
        }
        before_lower = c.is_lowercase() || c.is_ascii_digit();
        snake.extend(c.to_lowercase());
    }
    snake
}

/// Sentences of doc comments and Markdown that begin without naming what they are about.
fn sentences(file: &File) -> Vec<String> {
    const BEGINNINGS: [&str; 3] = ["Who ", "Whoever ", "What is "];
    let mut found = Vec::new();
    // A sentence begins with its line, or behind the full stop of the one before.
    let mut ended = true;
    for (number, line) in file.text.documentation() {
        let mut rest = line.trim_start_matches(['-', '*', '>', ' ', '#', '|']);
        let mut begins = ended || rest.len() < line.len() || line.is_empty();
        while !rest.is_empty() {
            if begins && let Some(beginning) = BEGINNINGS.iter().find(|b| rest.starts_with(**b)) {
                found.push(format!(
                    "{}:{number}: a sentence begins with \"{}\": name the thread, the caller or \
                     the thing that it is about",
                    file.path,
                    beginning.trim_end()
                ));
            }
            let Some((_, next)) = rest.split_once(". ") else { break };
            (rest, begins) = (next.trim_start(), true);
        }
        ended = line.is_empty() || line.ends_with(['.', ':', '|']);
    }
    found
}

/// Lines that tell to install kvmem by its name. A package of this name on an index is another's.
fn installs_by_name(file: &File) -> Vec<String> {
    const COMMANDS: [&str; 3] = ["pip install ", "pipx install ", "cargo add "];
    let names_it = |argument: &str| {
        let name = argument.trim_start_matches(['\'', '"', '`']);
        let rest = name.strip_prefix("kvmem");
        rest.is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_alphanumeric() || "-_/.".contains(c))
        })
    };
    let mut found = Vec::new();
    for (number, line) in file.text.lines() {
        let after = COMMANDS.iter().find_map(|command| Some(line.split_once(command)?.1));
        let arguments =
            after.map(|after| after.split(['#', '&', ';', '|']).next().unwrap_or(after));
        if arguments.is_some_and(|arguments| arguments.split_whitespace().any(names_it)) {
            found.push(format!(
                "{}:{number}: kvmem is not published: install it from ./crates/kvmem-python, or a \
                 wheel by its file",
                file.path
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        let language = Language::of(path).expect("a language");
        File { path: path.to_owned(), text: Text::new(text, language) }
    }

    #[test]
    fn long_lines_are_found_but_for_tables_urls_and_output() {
        let long = "x".repeat(99);
        let text = format!(
            "// {long}\nfn f() {{}} // {long}\n//! | {long} |\n// see https://{long}\n{}\n",
            "y".repeat(100)
        );
        let found = long_lines(&file("a.rs", &text));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:1: 102 columns"), "{found:?}");
        let text =
            format!("| {long} |\n```text\n{long}yy\n```\n```rust\n{long}yy\n```\n{long}yy\n");
        let found = long_lines(&file("a.md", &text));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.md:6:") && found[1].starts_with("a.md:8:"), "{found:?}");
    }

    #[test]
    fn columns_are_characters() {
        assert!(long_lines(&file("a.rs", &format!("// {}", "é".repeat(97)))).is_empty());
    }

    #[test]
    fn retired_words_are_found_in_every_case_of_names_alone() {
        let list = retired("# names\nfree_run\nreap slab/ # the depot's\n");
        let text = "// free_run and reap\nlet free_runs = \"free_run\";\n\
                    fn FreeRun() { x.free_run(reap) }\n";
        let found = retired_words(&file("pool/a.rs", text), &list);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|line| line.starts_with("pool/a.rs:3:")), "{found:?}");
        assert!(retired_words(&file("slab/a.rs", "let reap = 1;"), &list).is_empty());
        assert_eq!(retired_words(&file("pool/reap.rs", ""), &list).len(), 1);
        let python = file("a.py", "# reap\n'''reap'''\nx = 'reap'\nreap = 1\n");
        assert_eq!(retired_words(&python, &list).len(), 1);
    }

    #[test]
    fn sentences_without_a_subject_are_found() {
        let text = "/// Frees it. Who waits is woken.\n/// What is in use stays. A thread\n\
            \x2f// Who waits.\n// Who knows.\nfn f() {}\n";
        let found = sentences(&file("a.rs", text));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:1:") && found[1].starts_with("a.rs:2:"), "{found:?}");
        assert_eq!(sentences(&file("a.md", "- Whoever reads\n\nWhat is this?\n")).len(), 2);
    }

    #[test]
    fn lines_that_install_kvmem_by_name_are_found() {
        // Put together, because this file is under the rule, too.
        let line = |argument: &str| format!("pip {} {argument}\n", "install");
        for by_name in ["kvmem", "'kvmem[nixl]'", "`kvmem` numpy", "-q kvmem==0.1", "kvmem>=1"] {
            let found = installs_by_name(&file("a.md", &line(by_name)));
            assert_eq!(found.len(), 1, "{by_name}");
        }
        for other in
            ["./crates/kvmem-python", "numpy  # kvmem", "kvmem-0.1.0-cp311.whl", "x&& kvmem"]
        {
            assert!(installs_by_name(&file("a.md", &line(other))).is_empty(), "{other}");
        }
    }

    #[test]
    fn the_list_has_no_word_twice() {
        let mut words: Vec<&str> = retired(RETIRED).iter().map(|retired| retired.word).collect();
        words.sort_unstable();
        let all = words.len();
        words.dedup();
        assert_eq!(words.len(), all);
    }
}
