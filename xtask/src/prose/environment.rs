//! *Environment*: the variables that the sources read, compared with the tables of their page.
//!
//! A name counts as read if it is the argument of a call that reads the environment, or if it is a
//! whole string literal that begins like a variable of kvmem or of an engine: many names are
//! constants, which a function reads later. Comments count too, so an example in a doc comment
//! names no variable that is not in the table.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::File;

/// The page with the tables.
const PAGE: &str = "docs/environment.md";

/// This file, which names beginnings of names.
const HERE: &str = "xtask/src/prose/environment.rs";

/// Endings of files with code.
const ENDINGS: [&str; 6] = [".rs", ".py", ".c", ".h", ".cpp", ".hpp"];

/// How a call that reads a variable ends before the name, in every language.
const READS: [&str; 7] = [
    "env::var(",
    "env::var_os(",
    "getenv(",
    "environ.get(",
    "environ.pop(",
    "environ.setdefault(",
    "environ[",
];

/// Beginnings of the names of variables.
const BEGINNINGS: [&str; 11] = [
    "G_SLICE",
    "HSA_",
    "KVMEM_",
    "LMCACHE_",
    "MC_",
    "NIXL_LOG",
    "PROPTEST_",
    "SGLANG_",
    "TORCH_",
    "UCX_",
    "VLLM_",
];

/// Beginnings of other names in capitals: status codes and macros of the C interface.
const OTHERS: [&str; 5] =
    ["KVMEM_ERR_", "KVMEM_GSLICE_", "KVMEM_INIT_ON_", "KVMEM_OK", "KVMEM_UNKNOWN_"];

/// Returns a line for each variable that only the sources or only the tables have.
pub(super) fn differences(files: &[File]) -> Result<Vec<String>> {
    let page = files
        .iter()
        .find(|file| file.path == PAGE)
        .with_context(|| format!("{PAGE} is missing: it lists the environment variables"))?;
    let sources = files.iter().filter(|file| {
        file.path != HERE && ENDINGS.iter().any(|ending| file.path.ends_with(ending))
    });
    let listed = listed(page);
    let mut found = Vec::new();
    let mut words = BTreeSet::new();
    for file in sources {
        for (number, line) in file.text.lines() {
            let names = line.split(|c| !in_name(c)).filter(|word| word.len() > 1);
            words.extend(names.filter(|word| listed.contains(word)));
            for name in read_in(line).filter(|name| !listed.contains(name)) {
                found.push(format!(
                    "{}:{number}: {name} is read and not in {PAGE}: add a row",
                    file.path
                ));
            }
        }
    }
    let stale = listed.iter().filter(|name| !words.contains(*name));
    found.extend(stale.map(|name| format!("{PAGE}: no source names {name}: remove its row")));
    Ok(found)
}

/// Returns the names in the first column of the page's tables.
fn listed(page: &File) -> BTreeSet<&str> {
    let rows = page.text.lines().filter(|(number, _)| page.text.prose_at(*number));
    rows.filter_map(|(_, line)| line.strip_prefix("| `"))
        .flat_map(|row| row.split('|').next().unwrap_or_default().split(", "))
        .map(|name| name.trim_matches(|c: char| c == '`' || c == ' '))
        .collect()
}

/// Returns the variables that a line of a source reads.
fn read_in(line: &str) -> impl Iterator<Item = &str> {
    // The odd pieces are within quotes, unless a quote is escaped: then they are no names.
    let pieces: Vec<&str> = line.split('"').collect();
    let quoted = (1..pieces.len()).step_by(2).map(move |at| (pieces[at - 1], pieces[at]));
    quoted
        .filter(|(before, name)| {
            let reads = READS.iter().any(|read| before.ends_with(read));
            let begins = BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
                && !OTHERS.iter().any(|other| name.starts_with(other));
            (reads || begins)
                && name.starts_with(|c: char| c.is_ascii_uppercase())
                && !name.ends_with('_')
                && name.chars().all(in_name)
        })
        .map(|(_, name)| name)
}

/// Whether a character is part of a variable's name.
fn in_name(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::super::scan::{Language, Text};
    use super::*;

    fn file(path: &str, text: &str) -> File {
        let language = Language::of(path).expect("a language");
        File { path: path.to_owned(), text: Text::new(text, language) }
    }

    #[test]
    fn reads_are_found_in_every_language() {
        for (line, name) in [
            ("let x = std::env::var_os(\"CC\");", "CC"),
            ("const NAME: &str = \"KVMEM_THING\";", "KVMEM_THING"),
            ("    \"MC_LIMIT\": 1000,", "MC_LIMIT"),
            ("char *x = getenv(\"OTHER\");", "OTHER"),
            ("x = os.environ[\"THIRD_1\"]", "THIRD_1"),
        ] {
            assert_eq!(read_in(line).collect::<Vec<_>>(), [name], "{line}");
        }
        for line in ["f(\"CC\")", "\"KVMEM_ERR_FULL\"", "env::var(name)", "\"KVMEM_X is not set\""]
        {
            assert_eq!(read_in(line).count(), 0, "{line}");
        }
    }

    #[test]
    fn missing_and_stale_rows_are_found() {
        let page = "| variable | meaning |\n|---|---|\n| `KVMEM_A`, `MC_A` | a |\n| `OLD` | b |\n";
        let source = "f(\"KVMEM_A\");\nf(\"KVMEM_B\");\nf(\"MC_A\");\n";
        let found = differences(&[file(PAGE, page), file("a.rs", source)]).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: KVMEM_B is read"), "{found:?}");
        assert!(found[1].contains("no source names OLD"), "{found:?}");
        assert!(differences(&[file("a.rs", source)]).is_err(), "without the page");
    }
}
