//! *Blocks*: each code block of a page is run by a test, or says why it is not.
//!
//! `docs/site/tested.txt` names the test that runs the blocks of a page in a language. The test's
//! file must name the page, so a line cannot outlive its test. A block that no test runs has a
//! comment above its fence, which no reader of the page sees:
//!
//! ```text
//! <!-- not run: it takes a NIC -->
//! ```
//!
//! Output and diagrams (`text`) cannot run, so nothing is asked of them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::chapters::{Chapters, Page};
use super::markdown::{Block, outline};

/// The list of tests.
const LIST: &str = "docs/site/tested.txt";

/// How the comment of a block that is not run begins.
const NOT_RUN: &str = "not run:";

/// Languages that do not run.
const DATA: [&str; 9] = ["text", "json", "toml", "yaml", "ini", "diff", "dockerfile", "xml", "csv"];

/// Checks the blocks of all pages. Returns how many run and how many do not.
pub(super) fn check(root: &Path, chapters: &Chapters) -> Result<(usize, usize)> {
    let list =
        std::fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let tested = tested(root, &list)?;
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    let (mut run, mut not_run) = (0, 0);
    for page in chapters.pages().filter(|page| !page.is_generated()) {
        let text = std::fs::read_to_string(root.join(&page.path))
            .with_context(|| format!("cannot read {}", page.path))?;
        for block in outline(&text).blocks {
            let language = language(page, &block);
            if DATA.contains(&&*language) {
                continue;
            }
            let key = (page.path.clone(), language);
            match fate(&block, tested.contains(&key)) {
                Fate::Runs => run += 1,
                Fate::DoesNotRun => not_run += 1,
                Fate::Unknown => faults.push(format!(
                    "{}:{}: no test runs this block of {}: add a line to {LIST}, or the line \
                     \"<!-- {NOT_RUN} the reason -->\" above it",
                    page.path, block.line, key.1
                )),
            }
            used.insert(key);
        }
    }
    let unused = tested.difference(&used);
    faults.extend(unused.map(|(page, language)| {
        format!("{LIST}: {page} has no block of {language}: remove the line")
    }));
    ensure!(faults.is_empty(), "{}", faults.join("\n   "));
    Ok((run, not_run))
}

/// Reads the list, and looks for each page in its test.
fn tested(root: &Path, list: &str) -> Result<BTreeSet<(String, String)>> {
    let mut tested = BTreeSet::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [page, language, test] = words[..] else {
            anyhow::bail!("{LIST}: a line has a page, a language and a test: {line}")
        };
        let text = std::fs::read_to_string(root.join(test))
            .with_context(|| format!("{LIST}: cannot read {test}, the test of {page}"))?;
        ensure!(
            names(&text, page),
            "{LIST}: {test} does not name {page}, so it cannot run its blocks"
        );
        tested.insert((page.to_owned(), language.to_owned()));
    }
    Ok(tested)
}

/// Whether a test names a page: by its path, the end of it, or a pattern for its folder.
fn names(test: &str, page: &str) -> bool {
    let (folder, name) = page.rsplit_once('/').unwrap_or(("", page));
    let words = |word: &str| {
        test.match_indices(word).any(|(at, _)| {
            let before = test[..at].chars().next_back();
            before.is_none_or(|c| !(c.is_alphanumeric() || "_-.".contains(c)))
        })
    };
    let last = folder.rsplit('/').next().unwrap_or_default();
    words(name) || (!last.is_empty() && words(last) && test.contains("*.md"))
}

/// The language of a block. Rustdoc takes a block without a language for Rust.
pub(super) fn language(page: &Page, block: &Block) -> String {
    let word = block.info.split([',', ' ', '{']).next().unwrap_or_default();
    match word {
        "" if is_rustdoc(page) => "rust",
        "" => "text",
        "no_run" | "should_panic" | "compile_fail" | "ignore" => "rust",
        "sh" | "shell" | "console" => "bash",
        "c++" => "cpp",
        word => word,
    }
    .to_owned()
}

/// Whether a page is shown by rustdoc as well.
pub(super) fn is_rustdoc(page: &Page) -> bool {
    page.path.starts_with("crates/kvmem/docs/")
}

#[derive(PartialEq, Eq, Debug)]
enum Fate {
    Runs,
    DoesNotRun,
    Unknown,
}

fn fate(block: &Block, is_tested: bool) -> Fate {
    let reason = block.comment.as_deref().and_then(|comment| comment.strip_prefix(NOT_RUN));
    if reason.is_some_and(|reason| !reason.trim().is_empty()) {
        return Fate::DoesNotRun;
    }
    match (is_tested, block.info.contains("no_run")) {
        (true, false) => Fate::Runs,
        // The doc test compiles it.
        (true, true) => Fate::DoesNotRun,
        (false, _) => Fate::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str) -> Page {
        Page { path: path.to_owned(), title: None, below: Vec::new() }
    }

    #[test]
    fn a_test_names_its_page() {
        assert!(names("DOCS / \"lmcache.md\"", "docs/distributed/lmcache.md"));
        assert!(!names("\"my-lmcache.md\"", "docs/distributed/lmcache.md"));
        assert!(names("(\"docs\" / \"how-to\").glob(\"*.md\")", "docs/how-to/lower-tier.md"));
        assert!(!names("glob(\"*.md\")", "docs/how-to/lower-tier.md"));
    }

    #[test]
    fn blocks_run_or_say_why_not() {
        let text = "```bash\na\n```\n<!-- not run: a NIC -->\n```bash\nb\n```\n<!-- not run: \
                    -->\n```bash\nc\n```\n\n```rust,no_run\nd\n```\n";
        let blocks = outline(text).blocks;
        let fates: Vec<Fate> = blocks.iter().map(|block| fate(block, false)).collect();
        assert_eq!(fates, [Fate::Unknown, Fate::DoesNotRun, Fate::Unknown, Fate::Unknown]);
        assert_eq!(fate(&blocks[0], true), Fate::Runs);
        assert_eq!(fate(&blocks[3], true), Fate::DoesNotRun);
    }

    #[test]
    fn languages_are_those_of_the_page() {
        let blocks = outline("```\nx\n```\n\n```sh\ny\n```\n\n```rust,no_run\nz\n```\n").blocks;
        let of = |path: &str| {
            let page = page(path);
            blocks.iter().map(|block| language(&page, block)).collect::<Vec<_>>()
        };
        assert_eq!(of("README.md"), ["text", "bash", "rust"]);
        assert_eq!(of("crates/kvmem/docs/arena.md"), ["rust", "bash", "rust"]);
    }
}
