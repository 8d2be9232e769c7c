//! `cargo xtask site`: the documentation as a site, from the pages of the repository.
//!
//! Sphinx makes it, by the settings in `docs/site`: MyST reads the pages, Doxygen and Breathe the
//! headers of C and C++, and rustdoc documents the library. lychee follows every link of the
//! result, and Playwright opens each page in Chromium. The site needs no server: it is opened as
//! files, and fetches nothing from elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::deploy::{self, left_out};
use crate::run::succeed;
use crate::say;
use crate::setup;
use crate::step::{Kind, Report, succeeds};
use crate::venv::{self, Environment};
use crate::workspace::{VERSION, cargo, target_folder};

/// The destination of the site, and what is done with it.
#[derive(Args)]
pub(crate) struct SiteOptions {
    /// The folder of the site.
    #[arg(long, value_name = "DIR", default_value = "target/site/html")]
    out: PathBuf,
    /// Check the site: links and anchors, and each page in Chromium, at 1280 and at 390 pixels,
    /// light and dark.
    #[arg(long)]
    check: bool,
    /// Serve the site on the loopback interface until interrupted.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8000")]
    serve: Option<u16>,
}

/// Builds the site.
pub(crate) fn run(root: &Path, options: &SiteOptions) -> Result<ExitCode> {
    let out = std::path::absolute(&options.out).context("there is no folder to be in")?;
    let tools = tools(root)?;
    if options.check {
        let mut report = Report::default();
        check(root, &tools, &out, false, &mut report);
        report.print();
        if report.total().failed > 0 {
            return Ok(ExitCode::FAILURE);
        }
    } else {
        build(root, &tools, &out, false)?;
    }
    say!("{}", out.join("index.html").display());
    if let Some(port) = options.serve {
        say!("http://127.0.0.1:{port}/ (Ctrl-C ends it)");
        let mut serve = Command::new(tools.program("python"));
        serve.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "--directory"]);
        succeed(serve.arg(&out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The site and its checks, as steps of `cargo xtask test`. If the command and the laboratory are
/// `built` with the tests, they are not built with other features once more.
pub(crate) fn test(root: &Path, built: bool, report: &mut Report) {
    deploy::tests(root, Path::new("kvmem"), "site", report);
    match tools(root) {
        Ok(tools) => check(root, &tools, &root.join("target/site/html"), built, report),
        Err(error) => left_out("site", error, report),
    }
}

/// Installs what makes the site.
fn tools(root: &Path) -> Result<Environment> {
    setup::required("doxygen", "doxygen")?;
    venv::site_tools(root)
}

/// Documents the library, without its dependencies and its private items.
fn rustdoc(root: &Path, target: &Path) -> Result<PathBuf> {
    let own = target.join("rustdoc");
    let mut doc = Command::new(cargo());
    doc.current_dir(root).args(["doc", "--package", "kvmem", "--no-deps", "--locked", "--quiet"]);
    // All of the library but the seam for its tests.
    doc.args(["--features", "metrics,tracing"]).env("RUSTDOCFLAGS", "-D warnings");
    // A folder of its own for the pages alone: what is compiled for them is shared, where cargo can
    // do that.
    doc.arg("--target-dir").arg(&own).env("CARGO_BUILD_BUILD_DIR", target_folder(root)?);
    ensure!(succeeds(&mut doc), "cargo doc has failed, see above");
    Ok(own.join("doc"))
}

/// Runs the build script of the Python package, which writes one of its modules. It needs no
/// crates, so it is compiled alone: the package takes a minute.
fn python_modules(root: &Path, target: &Path) -> Result<()> {
    let package = root.join("crates/kvmem-python");
    let program = target.join("python-build-script");
    fs::create_dir_all(target)?;
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root).args(["--edition", "2024", "-o"]).arg(&program);
    ensure!(succeeds(rustc.arg(package.join("build.rs"))), "rustc has failed, see above");
    let mut script = Command::new(&program);
    script.env("CARGO_MANIFEST_DIR", package).env("OUT_DIR", target).stdout(Stdio::null());
    ensure!(script.status()?.success(), "the build script of kvmem-python has failed, see above");
    Ok(())
}

fn build(root: &Path, tools: &Environment, out: &Path, built: bool) -> Result<()> {
    let programs = target_folder(root)?.join("debug");
    let target = target_folder(root)?.join("site");
    let rustdoc = rustdoc(root, &target)?;
    python_modules(root, &target)?;
    if !built {
        let mut build = Command::new(cargo());
        build.current_dir(root).args(["build", "--locked", "--quiet"]);
        build.args(["--package", "kvmem-cli", "--package", "kvmem-lab"]);
        ensure!(succeeds(&mut build), "the build of the command has failed, see above");
    }
    let source = target.join("source");
    fs::create_dir_all(&source)?;
    let _ = fs::remove_dir_all(out);
    let mut sphinx = Command::new(tools.program("python"));
    // Each page has the menu of all, so all are written when one changes.
    sphinx.args(["-m", "sphinx", "--builder", "html", "--quiet", "--write-all"]);
    sphinx.args(["--fail-on-warning", "--conf-dir"]).arg(root.join("docs/site"));
    for (name, value) in [
        ("release", Path::new(VERSION)),
        ("rustdoc", &rustdoc),
        ("command", &programs.join("kvmem")),
        ("xtask", &std::env::current_exe()?),
    ] {
        sphinx.arg(format!("--define={name}={}", value.display()));
    }
    sphinx.arg("--doctree-dir").arg(target.join("doctrees")).arg(&source).arg(out);
    // No byte code beside the settings, in the repository.
    sphinx.env("PYTHONDONTWRITEBYTECODE", "1");
    ensure!(succeeds(&mut sphinx), "Sphinx has found faults, see above");
    Ok(())
}

/// Builds and checks the site.
fn check(root: &Path, tools: &Environment, out: &Path, built: bool, report: &mut Report) {
    if !report.check("site: pages, blocks and commands", || build(root, tools, out, built)) {
        return;
    }
    let mut lychee = Command::new(tools.program("lychee"));
    lychee.args(["--offline", "--include-fragments", "--no-progress"]);
    // Rustdoc checks the links of its own pages.
    for folder in ["rust", "_static"] {
        lychee.arg("--exclude-path").arg(out.join(folder));
    }
    report.command("site: links", Kind::Plain, lychee.arg(out.join("**/*.html")));
    if !setup::chromium() {
        return;
    }
    let mut look = Command::new(tools.program("python"));
    look.arg(root.join("docs/site/look.py")).arg(out).arg(root.join("target/site-shots"));
    look.env("PYTHONDONTWRITEBYTECODE", "1");
    let name = "site: pages at 1280 and 390 pixels, light and dark";
    report.command(name, Kind::Plain, &mut look);
}
