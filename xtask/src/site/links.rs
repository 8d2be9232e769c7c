//! *Links*: every link, picture, style and script of the built site leads to a file of the site,
//! and every anchor to an element there.
//!
//! The files are read as they were written, generated pages included, so nothing depends on how the
//! tool finds its links. Rustdoc checks the links of its own pages; theirs are not followed, but
//! links to them are.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::folder::files;
use super::rust::{self, attribute, joined};
use crate::say;

/// Findings that are printed before the rest is only counted.
const SHOWN: usize = 40;

/// Checks all pages of a site.
pub(super) fn check(site: &Path) -> Result<()> {
    let mut anchors = Anchors { site, known: HashMap::new() };
    let mut faults = BTreeSet::new();
    let mut followed = 0;
    for file in pages(site)? {
        let html = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let page = name(site, &file);
        for target in targets(&html) {
            followed += 1;
            if let Some(fault) = anchors.fault(&page, &target)? {
                faults.insert(format!("{page}: {fault}"));
            }
        }
    }
    ensure!(followed > 0, "{} has no link", site.display());
    if !faults.is_empty() {
        let shown: Vec<&str> = faults.iter().take(SHOWN).map(String::as_str).collect();
        bail!("{} broken links:\n   {}", faults.len(), shown.join("\n   "));
    }
    say!("{followed} links lead somewhere");
    Ok(())
}

/// The pages that the tool wrote.
pub(super) fn pages(site: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = files(site)?;
    pages.retain(|file| {
        let other =
            [rust::FOLDER, "_static"].iter().any(|folder| file.starts_with(site.join(folder)));
        !other && file.extension().is_some_and(|extension| extension == "html")
    });
    Ok(pages)
}

/// The path of a file in the site, with `/`.
pub(super) fn name(site: &Path, file: &Path) -> String {
    joined(Path::new(""), &file.strip_prefix(site).unwrap_or(file).to_string_lossy())
}

/// What the tags of a page link or load.
fn targets(html: &str) -> Vec<String> {
    let mut found = Vec::new();
    for tag in html.split('<').skip(1).filter(|tag| !tag.starts_with('!')) {
        let tag = tag.split('>').next().unwrap_or_default();
        let values = ["href", "src"].iter().filter_map(|name| attribute(tag, name));
        found.extend(values.map(|value| value.replace("&amp;", "&")));
    }
    found
}

/// The anchors of the files that links lead to.
struct Anchors<'a> {
    site: &'a Path,
    known: HashMap<String, BTreeSet<String>>,
}

impl Anchors<'_> {
    /// Returns the fault of a link of a page, if it has one.
    fn fault(&mut self, page: &str, target: &str) -> Result<Option<String>> {
        if ["http://", "https://", "mailto:", "data:"].iter().any(|s| target.starts_with(s)) {
            return Ok(None);
        }
        if target.starts_with('/') || target.contains("://") || target.starts_with("site:") {
            return Ok(Some(format!("{target} is not relative")));
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = path.split('?').next().unwrap_or_default();
        let folder = Path::new(page).parent().unwrap_or(Path::new(""));
        let path = if path.is_empty() { page.to_owned() } else { joined(folder, path) };
        let file = self.site.join(&path);
        if !file.is_file() {
            return Ok(Some(format!("{target} leads to {path}, which does not exist")));
        }
        if anchor.is_empty() || !path.ends_with(".html") || path.starts_with("rust/src/") {
            return Ok(None);
        }
        if !self.known.contains_key(&path) {
            let html = std::fs::read_to_string(&file)?;
            self.known.insert(path.clone(), ids(&html));
        }
        let found = self.known[&path].contains(anchor);
        Ok((!found).then(|| format!("{target}: {path} has no anchor {anchor}")))
    }
}

/// The names of the elements of a page.
fn ids(html: &str) -> BTreeSet<String> {
    let tags = html.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default());
    tags.flat_map(|tag| ["id", "name"].map(|name| attribute(tag, name)))
        .flatten()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_anchors_are_found() {
        let made = tempfile::tempdir().unwrap();
        let site = made.path();
        std::fs::create_dir_all(site.join("d")).unwrap();
        let write = |name: &str, html: &str| std::fs::write(site.join(name), html).unwrap();
        write("a.html", "<h1 id=\"x\"></h1><a href=\"d/b.html#y\"></a><a href=\"#x\"></a>");
        write("d/b.html", "<p id=\"y\"><a href=\"../a.html?q#x\"></a><img src=\"https://e.f/g\">");
        check(site).unwrap();
        write("d/b.html", "<a href=\"../a.html#z\"></a><img src=\"c.png\"><a href=\"/a.html\">");
        let faults = check(site).unwrap_err().to_string();
        for fault in ["a.html has no anchor z", "d/c.png", "not relative", "has no anchor y"] {
            assert!(faults.contains(fault), "{fault}: {faults}");
        }
        assert!(faults.starts_with("4 broken links"), "{faults}");
    }
}
