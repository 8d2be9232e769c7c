//! *Chapters*: which page stands where, as `docs/site/chapters.txt` lists them.
//!
//! Three faults are errors: a listed page that does not exist, a page that is listed twice, and a
//! Markdown file of the repository that is in no line. So a new page is never forgotten.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The list, from the root of the repository.
pub(super) const LIST: &str = "docs/site/chapters.txt";

/// Where generated pages lie in the source of the site.
pub(super) const GENERATED: &str = "reference/";

/// The page of all names, which the tool writes.
pub(super) const NAMES: &str = "genindex";

/// The name of the part that lists what the site leaves out.
const OUTSIDE: &str = "-";

/// A page of the site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Page {
    /// From the root of the repository, or `reference/…`.
    pub(super) path: String,
    /// The title in the menu. A page without a heading of its own has it as its heading.
    pub(super) title: Option<String>,
    /// The pages below this one.
    pub(super) below: Vec<Page>,
}

impl Page {
    /// Whether no file of the repository has it.
    pub(super) fn is_generated(&self) -> bool {
        is_generated(&self.path)
    }
}

fn is_generated(path: &str) -> bool {
    path.starts_with(GENERATED) || path == NAMES
}

/// Pages under one heading of the menu.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) pages: Vec<Page>,
}

/// All pages. The first one is the site's front page.
pub(super) struct Chapters {
    pub(super) parts: Vec<Part>,
}

impl Chapters {
    /// Reads the list and compares it with the files of the repository.
    pub(super) fn read(root: &Path) -> Result<Chapters> {
        let list = root.join(LIST);
        let text = std::fs::read_to_string(&list)
            .with_context(|| format!("cannot read {}", list.display()))?;
        Chapters::parse(&text, &markdown_files(root)?)
    }

    fn parse(list: &str, files: &BTreeSet<String>) -> Result<Chapters> {
        let lines = lines(list)?;
        let mut listed = BTreeSet::new();
        for line in lines.iter().filter(|line| line.depth > 0 && !line.text.contains('*')) {
            let path = line.path();
            ensure!(listed.insert(path.to_owned()), "{LIST} lists {path} twice");
            ensure!(
                files.contains(path) || is_generated(path),
                "{LIST} lists {path}, which does not exist: write it, or remove the line"
            );
        }
        let mut parts = Vec::new();
        let mut left_out = Vec::new();
        for line in &lines {
            if line.depth == 0 {
                parts.push(Part { name: line.text.to_owned(), pages: Vec::new() });
                continue;
            }
            let part = parts.last_mut().with_context(|| {
                format!("{LIST} begins with an indented line: name a part before it")
            })?;
            if part.name == OUTSIDE {
                ensure!(line.title().is_some(), "{LIST} leaves {} out without a reason", line.text);
                left_out.push(line.path());
            } else {
                let level = level(&mut part.pages, line.depth)
                    .with_context(|| format!("{LIST} has no page above {}", line.text))?;
                level.extend(line.pages(files, &listed)?);
            }
        }
        parts.retain(|part| part.name != OUTSIDE);
        let chapters = Chapters { parts };
        let forgotten: Vec<&str> = files
            .iter()
            .map(String::as_str)
            .filter(|file| !chapters.contains(file))
            .filter(|file| !left_out.iter().any(|pattern| matches(pattern, file)))
            .collect();
        ensure!(
            forgotten.is_empty(),
            "no chapter has {}: add a line to {LIST}, or say at its end why it is left out",
            forgotten.join(", ")
        );
        ensure!(chapters.pages().next().is_some(), "{LIST} lists no page");
        Ok(chapters)
    }

    /// All pages, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = &Page> {
        fn collect<'a>(pages: &'a [Page], found: &mut Vec<&'a Page>) {
            for page in pages {
                found.push(page);
                collect(&page.below, found);
            }
        }
        let mut found = Vec::new();
        self.parts.iter().for_each(|part| collect(&part.pages, &mut found));
        found.into_iter()
    }

    /// Whether a file of the repository is a page.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.pages().any(|page| page.path == path)
    }
}

/// A line of the list.
struct Line<'a> {
    /// 0 for the name of a part, 1 for a page, 2 for a page below it.
    depth: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn path(&self) -> &'a str {
        self.text.split_once(": ").map_or(self.text, |(path, _)| path)
    }

    fn title(&self) -> Option<&'a str> {
        self.text.split_once(": ").map(|(_, title)| title.trim())
    }

    /// The page of the line, or all pages that its `*` stands for.
    fn pages(&self, files: &BTreeSet<String>, listed: &BTreeSet<String>) -> Result<Vec<Page>> {
        let page = |path: &str| Page {
            path: path.to_owned(),
            title: self.title().map(str::to_owned),
            below: Vec::new(),
        };
        let Some(folder) = self.path().strip_suffix('*') else {
            return Ok(vec![page(self.path())]);
        };
        let in_folder = |path: &&String| {
            path.strip_prefix(folder).is_some_and(|name| !name.contains('/'))
                && !listed.contains(*path)
        };
        let pages: Vec<Page> = files.iter().filter(in_folder).map(|path| page(path)).collect();
        ensure!(!pages.is_empty(), "{LIST} lists {}, which stands for no page", self.text);
        Ok(pages)
    }
}

fn lines(list: &str) -> Result<Vec<Line<'_>>> {
    let mut lines = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let indentation = line.len() - line.trim_start().len();
        ensure!(indentation % 4 == 0, "{LIST}: indent by 4 spaces or 8: {line}");
        lines.push(Line { depth: indentation / 4, text: line.trim() });
    }
    Ok(lines)
}

/// Whether a path fits a pattern, in which a `*` stands for any one name.
fn matches(pattern: &str, path: &str) -> bool {
    let (mut names, mut found) = (pattern.split('/'), path.split('/'));
    names.by_ref().zip(found.by_ref()).all(|(name, found)| name == "*" || name == found)
        && pattern.matches('/').count() == path.matches('/').count()
}

/// The list that a page of some depth goes to: the part's own, or the last page's.
fn level(pages: &mut Vec<Page>, depth: usize) -> Result<&mut Vec<Page>> {
    match depth {
        1 => Ok(pages),
        _ => {
            let Some(last) = pages.last_mut() else { bail!("there is no page above") };
            level(&mut last.below, depth - 1)
        }
    }
}

/// The Markdown files that git tracks or would track.
fn markdown_files(root: &Path) -> Result<BTreeSet<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let listed = git
        .arg("*.md")
        .output()
        .context("cannot run git: install it, the chapters are compared with what it tracks")?;
    ensure!(listed.status.success(), "git ls-files ended with {}", listed.status);
    let files = String::from_utf8(listed.stdout)?;
    let files = files.split('\0').filter(|path| root.join(path).is_file());
    Ok(files.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    const LISTED: &str = r#"# chapters
Start
    README.md: Home

Project
    d/README.md
        d/*
    reference/c.md
-
    LONG.md: too long
"#;

    #[test]
    fn pages_stand_in_parts_and_below_pages() {
        let all = files(&["README.md", "d/README.md", "d/1.md", "d/2.md", "LONG.md"]);
        let chapters = Chapters::parse(LISTED, &all).unwrap();
        let paths: Vec<&str> = chapters.pages().map(|page| page.path.as_str()).collect();
        assert_eq!(paths, ["README.md", "d/README.md", "d/1.md", "d/2.md", "reference/c.md"]);
        assert_eq!(chapters.parts.len(), 2);
        assert_eq!(chapters.parts[1].pages[0].below.len(), 2);
        assert_eq!(chapters.pages().next().unwrap().title.as_deref(), Some("Home"));
        assert!(chapters.contains("d/2.md") && !chapters.contains("LONG.md"));
    }

    #[test]
    fn missing_forgotten_and_doubled_pages_are_errors() {
        let fails = |list: &str, names: &[&str]| {
            Chapters::parse(list, &files(names)).err().expect("a fault").to_string()
        };
        assert!(fails("A\n    a.md\n", &["a.md", "b.md"]).contains("no chapter has b.md"));
        assert!(fails("A\n    a.md\n", &[]).contains("which does not exist"));
        assert!(fails("A\n    a.md\n    a.md\n", &["a.md"]).contains("twice"));
        assert!(fails("A\n    a.md\n-\n    b.md\n", &["a.md", "b.md"]).contains("a reason"));
        assert!(fails("A\n    a.md\n    d/*\n", &["a.md"]).contains("stands for no page"));
        assert!(fails("    a.md\n", &["a.md"]).contains("name a part"));
        let left_out = "A\n    a.md\n-\n    c/*/R.md: short\n";
        assert!(Chapters::parse(left_out, &files(&["a.md", "c/d/R.md"])).is_ok());
        assert!(fails(left_out, &["a.md", "c/d/e/R.md"]).contains("no chapter has c/d/e/R.md"));
    }
}
