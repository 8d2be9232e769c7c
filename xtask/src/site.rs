//! `cargo xtask site`: the documentation as a site, from the pages of the repository.
//!
//! - [`chapters`] reads which page stands where,
//! - [`markdown`] finds the code, links and headings of a page, [`blocks`] the test of each block,
//!   and [`commands`] what the commands in them are,
//! - [`source`] writes the pages as the tool reads them, into a [`folder`],
//! - [`mod@reference`] generates the pages of the command and of the languages: [`rust`],
//!   [`headers`],
//! - [`tool`] installs and runs Sphinx,
//! - [`links`] follows every link of the result, and [`browser`] opens each page.
//!
//! The site needs no server: it is opened as files, and fetches nothing from elsewhere.

mod blocks;
mod browser;
mod chapters;
mod commands;
mod devtools;
mod folder;
mod headers;
mod links;
mod markdown;
mod reference;
mod rust;
mod source;
mod tool;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::chapters::Chapters;
use self::folder::Folder;
use self::rust::Rustdoc;
use self::source::{FILES, Repository, copy_name};
use self::tool::Sphinx;
use crate::say;
use crate::step::Report;
use crate::workspace::{target_folder, version};

/// The destination of the site, and what is done with it.
#[derive(Args)]
pub(crate) struct SiteOptions {
    /// The folder of the site.
    #[arg(long, value_name = "DIR", default_value = "target/site/html")]
    out: PathBuf,
    /// Check the site: links, anchors, code blocks; and each page in Chromium, if it is there, at
    /// 1280 and at 390 pixels, light and dark.
    #[arg(long)]
    check: bool,
    /// Serve the site on the loopback interface until interrupted.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8000")]
    serve: Option<u16>,
}

/// Builds the site.
pub(crate) fn run(root: &Path, options: &SiteOptions) -> Result<ExitCode> {
    let out = std::path::absolute(&options.out).context("there is no folder to be in")?;
    let mut report = Report::default();
    let site = Site::new(root, out)?;
    if options.check {
        site.check(&mut report);
        report.print();
        if report.total().failed > 0 {
            return Ok(ExitCode::FAILURE);
        }
    } else {
        site.build(&Sphinx::install(&site.target)?)?;
    }
    say!("{}", site.out.join("index.html").display());
    if let Some(port) = options.serve {
        Sphinx::install(&site.target)?.serve(&site.out, port)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The site and its checks, as steps of `cargo xtask test`.
pub(crate) fn test(root: &Path, report: &mut Report) {
    let mut site = None;
    let read = || -> Result<()> {
        site = Some(Site::new(root, target_folder(root)?.join("site/html"))?);
        Ok(())
    };
    if report.check("site: chapters", read)
        && let Some(site) = site
    {
        site.check(report);
    }
}

/// A site that is built.
struct Site<'a> {
    root: &'a Path,
    /// The folder of everything that is not the site itself.
    target: PathBuf,
    out: PathBuf,
    chapters: Chapters,
}

impl<'a> Site<'a> {
    fn new(root: &'a Path, out: PathBuf) -> Result<Site<'a>> {
        let target = target_folder(root)?.join("site");
        Ok(Site { root, target, out, chapters: Chapters::read(root)? })
    }

    fn build(&self, tool: &Sphinx) -> Result<()> {
        let rustdoc = Rustdoc::build(self.root, &self.target)?;
        let mut source = Folder::new(self.target.join("source"));
        let repository =
            Repository { root: self.root, chapters: &self.chapters, rustdoc: &rustdoc };
        let linked = repository.write(&mut source)?;
        let helps = reference::write(self.root, &rustdoc, tool, &mut source)?;
        commands::check(self.root, &self.chapters, &helps)?;
        for page in self.chapters.pages().filter(|page| page.is_generated()) {
            let written = source.path().join(&page.path);
            ensure!(
                written.is_file() || page.path == chapters::NAMES,
                "{} lists {}, which nothing writes",
                chapters::LIST,
                page.path
            );
        }
        source.remove_others("")?;
        let version = version(&self.root.join("crates/kvmem/Cargo.toml"))?;
        tool.build(&self.root.join("docs/site"), source.path(), &self.out, &version)?;

        let mut out = Folder::new(self.out.clone());
        out.copy_all(&rustdoc.folder, rust::FOLDER)?;
        for path in linked {
            let content = std::fs::read(self.root.join(&path))
                .with_context(|| format!("cannot read {path}"))?;
            out.write(Path::new(FILES).join(copy_name(&path)), &content)?;
        }
        out.remove_others(rust::FOLDER)?;
        out.remove_others(FILES)?;
        Ok(())
    }

    /// Builds and checks the site. Without the tool, only what needs no site is checked.
    fn check(&self, report: &mut Report) {
        report.check("site: each code block runs or says why not", || {
            let (run, not_run) = blocks::check(self.root, &self.chapters)?;
            say!("{run} blocks run, {not_run} do not and say why");
            Ok(())
        });
        let tool = match Sphinx::install(&self.target) {
            Ok(tool) => tool,
            Err(error) => {
                say!("(the site is not built: {error:#})");
                return;
            }
        };
        if report.check("site: pages", || self.build(&tool))
            && report.check("site: links", || links::check(&self.out))
        {
            browser::check(&self.out, &self.target, report);
        }
    }
}
