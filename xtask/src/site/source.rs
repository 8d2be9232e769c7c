//! *Source*: the pages of the repository, as the tool reads them.
//!
//! Pages keep their paths, so links between them work unchanged. Four things differ:
//!
//! - the front page is `index.md`, and it has the menu,
//! - links to what is no page lead to rustdoc's page of an item, module or source file, or to a
//!   copy of the file; a folder that has none of these is named without a link,
//! - code for rustdoc loses the lines that rustdoc hides, and blocks get their language,
//! - a page that rustdoc shows has no heading of its own and gets one.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::blocks;
use super::chapters::{Chapters, Page};
use super::folder::Folder;
use super::markdown::{Link, outline, replace};
use super::rust::{self, Rustdoc, joined};

/// The scheme of links to files beside the pages; `docs/site/conf.py` makes them relative.
pub(super) const SCHEME: &str = "site:";

/// Where copies of linked files lie in the site.
pub(super) const FILES: &str = "files";

/// The name of the front page.
pub(super) const INDEX: &str = "index.md";

/// What the pages are made from.
pub(super) struct Repository<'a> {
    pub(super) root: &'a Path,
    pub(super) chapters: &'a Chapters,
    pub(super) rustdoc: &'a Rustdoc,
}

impl Repository<'_> {
    /// Writes all pages that are not generated. Returns the files that they link, which the site
    /// needs copies of.
    pub(super) fn write(&self, source: &mut Folder) -> Result<Vec<String>> {
        let mut linked = Vec::new();
        let front = self.chapters.pages().next().map(|page| page.path.clone());
        for page in self.chapters.pages().filter(|page| !page.is_generated()) {
            let text = std::fs::read_to_string(self.root.join(&page.path))
                .with_context(|| format!("cannot read {}", page.path))?;
            let mut text = self.page(page, &text, source, &mut linked)?;
            if front.as_ref() == Some(&page.path) {
                text += &menu(self.chapters);
                source.write(INDEX, text.as_bytes())?;
            } else {
                text += &below(page);
                source.write(&page.path, text.as_bytes())?;
            }
        }
        linked.sort();
        linked.dedup();
        Ok(linked)
    }

    /// Rewrites one page.
    fn page(
        &self,
        page: &Page,
        text: &str,
        source: &mut Folder,
        linked: &mut Vec<String>,
    ) -> Result<String> {
        let outline = outline(text);
        let mut edits: Vec<(Range<usize>, String)> = Vec::new();
        for block in &outline.blocks {
            let language = blocks::language(page, block);
            let fenced = text[block.place.clone()].starts_with("```");
            if fenced && (language == "rust" || block.info.contains(',')) {
                let code = if language == "rust" { shown(&block.code) } else { block.code.clone() };
                edits.push((block.place.clone(), format!("```{language}\n{code}```")));
            }
        }
        let items: Vec<&Link> = outline.links.iter().filter(|link| is_item(page, link)).collect();
        let paths: Vec<&str> = items.iter().map(|link| link.target.as_str()).collect();
        let targets = self.rustdoc.resolve(&paths);
        for (link, target) in items.iter().zip(targets) {
            let target = target.with_context(|| {
                format!("{} links `{}`, which rustdoc does not", page.path, link.target)
            })?;
            let new = format!("[{}]({SCHEME}{}/{target})", link.text, rust::FOLDER);
            edits.push((link.place.clone(), new));
        }
        for link in outline.links.iter().filter(|link| !link.is_bare && !is_item(page, link)) {
            if let Some(new) = self.link(page, link, source, linked)? {
                edits.push((link.place.clone(), new));
            }
        }
        let has_heading = outline
            .headings
            .first()
            .is_some_and(|(place, level)| *level == 1 && text[..place.start].trim().is_empty());
        if !has_heading {
            for (place, _) in &outline.headings {
                edits.push((place.start..place.start, "#".to_owned()));
            }
        }
        let text = replace(text, edits);
        if has_heading {
            return Ok(text);
        }
        let title = page.title.as_ref().with_context(|| {
            format!("{} has no heading, so its line in the chapters needs a title", page.path)
        })?;
        Ok(format!("# {title}\n\n{text}"))
    }

    /// Returns what replaces a link, if it does not stay as it is.
    fn link(
        &self,
        page: &Page,
        link: &Link,
        source: &mut Folder,
        linked: &mut Vec<String>,
    ) -> Result<Option<String>> {
        let (path, anchor) = match link.target.split_once('#') {
            Some((path, anchor)) => (path, format!("#{anchor}")),
            None => (link.target.as_str(), String::new()),
        };
        if path.is_empty() || link.target.contains("://") || link.target.starts_with("mailto:") {
            return Ok(None);
        }
        let here = Path::new(&page.path).parent().unwrap_or(Path::new(""));
        let mut path = joined(here, path);
        let whole = self.root.join(&path);
        if whole.is_dir() && self.chapters.contains(&format!("{path}/README.md")) {
            path += "/README.md";
        }
        let up = "../".repeat(here.components().count());
        if self.chapters.contains(&path) {
            let front = self.chapters.pages().next().is_some_and(|front| front.path == path);
            let path = if front { INDEX } else { &path };
            return Ok(Some(format!("[{}]({up}{path}{anchor})", link.text)));
        }
        if !whole.exists() {
            bail!("{} links {}, which does not exist", page.path, link.target);
        }
        if link.is_image {
            source.write(&path, &std::fs::read(&whole)?)?;
            return Ok(None);
        }
        let target = if let Some(target) = self.rust_page(&path) {
            target
        } else if whole.is_file() {
            linked.push(path.clone());
            format!("{FILES}/{}", copy_name(&path))
        } else {
            return Ok(Some(link.text.clone()));
        };
        Ok(Some(format!("[{}]({SCHEME}{target}{anchor})", link.text)))
    }

    /// The page of rustdoc for a source file or a public module of the library.
    fn rust_page(&self, path: &str) -> Option<String> {
        let inside = path.strip_prefix("crates/kvmem/src/")?;
        let page = match inside.strip_suffix(".rs") {
            Some(_) => format!("src/kvmem/{inside}.html"),
            None => format!("kvmem/{inside}/index.html"),
        };
        self.rustdoc.folder.join(&page).is_file().then(|| format!("{}/{page}", rust::FOLDER))
    }
}

/// Whether rustdoc resolves a link: `[`Pool`]`, `[text](Pool::new)`.
fn is_item(page: &Page, link: &Link) -> bool {
    let is_path = link.target.contains("::")
        || (!link.target.contains(['/', '.', '#', ':']) && !link.target.is_empty());
    blocks::is_rustdoc(page)
        && !link.is_image
        && (if link.is_bare { link.target.starts_with('`') } else { is_path })
}

/// The name of a file's copy. Browsers show text and would save other endings.
pub(super) fn copy_name(path: &str) -> String {
    match path.rsplit_once('.') {
        Some((_, "png" | "svg" | "txt" | "html")) => path.to_owned(),
        _ => format!("{path}.txt"),
    }
}

/// Code without the lines that rustdoc hides.
fn shown(code: &str) -> String {
    let hidden = |line: &&str| {
        let line = line.trim_start();
        line == "#" || line.starts_with("# ")
    };
    let lines: Vec<&str> = code.lines().filter(|line| !hidden(line)).collect();
    let lines = lines.join("\n");
    // An empty line often divides hidden lines from the others.
    format!("{}\n", lines.trim_start_matches('\n').trim_end())
}

/// The menu of the whole site, for the front page.
fn menu(chapters: &Chapters) -> String {
    let mut text = String::new();
    for (at, part) in chapters.parts.iter().enumerate() {
        // The front page itself is no entry.
        let pages = &part.pages[usize::from(at == 0)..];
        if !pages.is_empty() {
            text += &toctree(Some(&part.name), pages);
        }
    }
    text
}

/// The menu of the pages below a page.
fn below(page: &Page) -> String {
    if page.below.is_empty() { String::new() } else { toctree(None, &page.below) }
}

fn toctree(caption: Option<&str>, pages: &[Page]) -> String {
    let mut text = "\n```{toctree}\n:hidden:\n".to_owned();
    if let Some(caption) = caption {
        text += &format!(":caption: {caption}\n");
    }
    text.push('\n');
    for page in pages {
        let name = page.path.rsplit_once('.').map_or(page.path.as_str(), |(name, _)| name);
        text += &match &page.title {
            Some(title) => format!("{title} </{name}>\n"),
            None => format!("/{name}\n"),
        };
    }
    text + "```\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_rustdoc_hides_are_not_shown() {
        let code = "# use a::B;\n#\n\n#[test]\nfn f() {}\n# Ok::<(), E>(())\n";
        assert_eq!(shown(code), "#[test]\nfn f() {}\n");
    }

    #[test]
    fn the_menu_has_captions_titles_and_no_front_page() {
        let page = |path: &str, title: Option<&str>| Page {
            path: path.to_owned(),
            title: title.map(str::to_owned),
            below: Vec::new(),
        };
        let start = vec![page("README.md", None), page("a/b.md", Some("B"))];
        let chapters = Chapters {
            parts: vec![super::super::chapters::Part { name: "Start".to_owned(), pages: start }],
        };
        assert_eq!(menu(&chapters), "\n```{toctree}\n:hidden:\n:caption: Start\n\nB </a/b>\n```\n");
    }

    #[test]
    fn copies_are_shown_by_browsers() {
        assert_eq!(copy_name("LICENSE"), "LICENSE.txt");
        assert_eq!(copy_name("docs/plot.png"), "docs/plot.png");
    }
}
