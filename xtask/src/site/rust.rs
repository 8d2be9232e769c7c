//! *Rust*: the pages of rustdoc for the library, and where the links to its items lead.
//!
//! The pages of the layers are shown by rustdoc as well, and link items by their paths
//! (`Region::discard`). Rustdoc resolves these paths. Its pages carry the full path of an item in
//! the title of each link to it, so the site takes its links from there and needs no resolver.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::folder::files;
use crate::workspace::{cargo, target_folder};

/// Where the pages of rustdoc lie in the site.
pub(super) const FOLDER: &str = "rust";

/// The pages of rustdoc.
pub(super) struct Rustdoc {
    pub(super) folder: PathBuf,
    /// For each page, the links to items: full path of the item → file and anchor from `folder`.
    pages: Vec<HashMap<String, String>>,
}

impl Rustdoc {
    /// Documents the library, without its dependencies and its private items.
    pub(super) fn build(root: &Path, target: &Path) -> Result<Rustdoc> {
        let own = target.join("rustdoc");
        let mut doc = Command::new(cargo());
        doc.current_dir(root).args([
            "doc",
            "--package",
            "kvmem",
            "--no-deps",
            "--locked",
            "--quiet",
        ]);
        // All of the library but the seam for its tests.
        doc.args(["--features", "metrics,tracing"]).env("RUSTDOCFLAGS", "-D warnings");
        // A folder of its own for the pages alone: what is compiled for them is shared, where cargo
        // can do that.
        doc.arg("--target-dir").arg(&own).env("CARGO_BUILD_BUILD_DIR", target_folder(root)?);
        let status = doc.status().context("cannot run cargo")?;
        ensure!(status.success(), "cargo doc ended with {status}");
        Rustdoc::read(own.join("doc"))
    }

    fn read(folder: PathBuf) -> Result<Rustdoc> {
        let mut pages = Vec::new();
        for file in files(&folder.join("kvmem"))? {
            if file.extension().is_some_and(|extension| extension == "html") {
                let html = std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                let page = file.strip_prefix(&folder)?.to_owned();
                pages.push(items(&html, &page));
            }
        }
        ensure!(!pages.is_empty(), "rustdoc wrote no page to {}", folder.display());
        Ok(Rustdoc { folder, pages })
    }

    /// Returns where links lead, in the order of `paths`: by the one page of rustdoc that has the
    /// most of them, because names of items repeat across modules.
    pub(super) fn resolve(&self, paths: &[&str]) -> Vec<Option<String>> {
        let by = |page: &HashMap<String, String>| -> Vec<Option<String>> {
            paths.iter().map(|path| find(page, path)).collect()
        };
        let found = |links: &Vec<Option<String>>| links.iter().flatten().count();
        self.pages.iter().map(by).max_by_key(found).unwrap_or_default()
    }
}

/// The link of an item, given as it is written in a page. The path may name private modules, which
/// are not in the public path: then the end of it counts.
fn find(page: &HashMap<String, String>, path: &str) -> Option<String> {
    let path = path.trim_matches('`').trim_end_matches("()");
    let mut words = path.split('@').next_back().unwrap_or(path);
    for start in ["super::", "crate::", "self::"] {
        words = words.trim_start_matches(start);
    }
    loop {
        let ends = |full: &str| {
            let before = full.strip_suffix(words);
            before.is_some_and(|before| before.is_empty() || before.ends_with("::"))
        };
        // The shortest path, if several items end alike.
        let links = page.iter().filter(|(full, _)| ends(full));
        if let Some((_, link)) = links.min_by_key(|(full, _)| (full.len(), *full)) {
            return Some(link.clone());
        }
        words = words.split_once("::")?.1;
    }
}

/// The items that a page of rustdoc links: `<a href="…" title="struct kvmem::pool::Pool">`.
fn items(html: &str, page: &Path) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for tag in html.split("<a ").skip(1) {
        let tag = tag.split('>').next().unwrap_or_default();
        let (Some(href), Some(title)) = (attribute(tag, "href"), attribute(tag, "title")) else {
            continue;
        };
        // The kind of the item, then its path.
        if let Some(path) = title.split_whitespace().last()
            && path.starts_with("kvmem")
            && !href.contains("://")
            && title.contains(' ')
        {
            let folder = page.parent().unwrap_or(Path::new(""));
            found.insert(path.to_owned(), joined(folder, href));
        }
    }
    found
}

/// Returns the value of an attribute of a tag.
pub(super) fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let at = tag.match_indices(name).find(|(at, _)| {
        let before = tag[..*at].chars().next_back();
        before.is_none_or(char::is_whitespace) && tag[at + name.len()..].starts_with("=\"")
    })?;
    tag[at.0 + name.len() + 2..].split('"').next()
}

/// Joins a folder and a relative link, without `..`, with `/`.
pub(super) fn joined(folder: &Path, link: &str) -> String {
    let whole = folder.join(link);
    let mut words: Vec<&str> = Vec::new();
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(words.pop()),
            Component::Normal(word) => words.push(word.to_str().unwrap_or_default()),
            _ => {}
        }
    }
    words.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_the_ends_of_their_paths() {
        let html = r##"<a href="struct.Pool.html#method.new" title="method kvmem::pool::Pool::new">
            <code>x</code></a><a href="../arena/index.html" title="mod kvmem::arena">
            <a href="https://a.b/c" title="struct kvmem::X"><a href="#top">"##;
        let page = items(html, Path::new("kvmem/pool/index.html"));
        assert_eq!(page.len(), 2);
        let new = Some("kvmem/pool/struct.Pool.html#method.new".to_owned());
        assert_eq!(find(&page, "`Pool::new`"), new);
        assert_eq!(find(&page, "crate::pool::Pool::new()"), new);
        assert_eq!(find(&page, "crate::hidden::Pool::new"), new);
        assert_eq!(find(&page, "ool"), None);
        assert_eq!(find(&page, "super::arena").as_deref(), Some("kvmem/arena/index.html"));
    }

    #[test]
    fn attributes_are_whole_words() {
        assert_eq!(attribute("a data-href=\"x\" href=\"y\"", "href"), Some("y"));
        assert_eq!(attribute("a title=\"y\"", "href"), None);
    }
}
