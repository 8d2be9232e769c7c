//! *Setup*: the tools of a full test run: rustfmt, clippy, a C linker, the tools that build the
//! benchmarks' contenders; and libraries that some tests use if they are there.
//!
//! Rustup components are installed. The linker and the libraries are installed when running as root
//! on a machine with `apt-get`. For anything else the error names the command that installs it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use crate::say;
use crate::step;
use crate::workspace::cargo;

/// apt-get runs once at a time.
static APT_GET: Mutex<()> = Mutex::new(());

/// Whether a command runs and succeeds; its output is dropped.
pub(crate) fn works(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> bool {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Makes sure that `cargo <subcommand>` works, by installing its rustup component.
pub(crate) fn component(subcommand: &str, component: &str) -> Result<()> {
    if works(cargo(), &[subcommand, "--version"]) {
        return Ok(());
    }
    say!("cargo {subcommand} is missing: rustup component add {component}");
    let added = step::succeeds(Command::new("rustup").args(["component", "add", component]));
    ensure!(
        added && works(cargo(), &[subcommand, "--version"]),
        "cargo {subcommand} is missing: install the component `{component}` of the toolchain, by \
         rustup component add {component}"
    );
    Ok(())
}

/// Makes sure that a tool works, which comes from a Debian package.
pub(crate) fn required(tool: &str, debian: &str) -> Result<()> {
    let missing = format!("{tool} is missing");
    let is_there = package(&missing, debian, || works(tool, &["--version"]))?;
    ensure!(is_there, "{missing}: {}", by_hand(debian));
    Ok(())
}

/// Makes sure that the benchmarks' contenders can be built: one takes CMake and a C++ compiler.
pub(crate) fn cmake() -> Result<()> {
    required("c++", "build-essential").and_then(|()| required("cmake", "cmake"))
}

/// Installs a tool, if possible, and returns whether it is there. Says what goes without it.
pub(crate) fn tool(tool: &str, debian: &str, so: &str) -> bool {
    optional(tool, debian, so, || works(tool, &["--version"]))
}

/// Installs what some tests or benchmarks use if it is there. Says what goes without it.
fn optional(what: &str, debian: &str, so: &str, is_there: impl Fn() -> bool) -> bool {
    let missing = format!("{what} is missing");
    let found = package(&missing, debian, is_there).unwrap_or(false);
    if !found {
        say!("({missing}, so {so}: {})", by_hand(debian));
    }
    found
}

/// Installs GLib, if possible. Its slice allocator is a contender of a benchmark.
pub(crate) fn glib() {
    library("libglib2.0-0", "libglib-2.0.so.0", "its allocator is not met");
}

/// Installs Chromium, if possible, and returns whether it is there. Tests open pages with it.
pub(crate) fn chromium() -> bool {
    const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
    let so = "pages of reports and of the site are written and not opened";
    optional(NAMES[0], NAMES[0], so, || NAMES.iter().any(|name| works(name, &["--version"])))
}

/// Installs what the tests of the workspace use if it is there.
pub(crate) fn for_tests() {
    library("libibverbs1", "libibverbs.so.1", "its tests are skipped");
    glib();
    chromium();
    tool("valgrind", "valgrind", "what it would find in the C interface is not looked for");
    tool("pkg-config", "pkg-config", "it is not asked for the C interface");
    optional("glib.h", "libglib2.0-dev", "slices of GLib are tried without it", || {
        works("pkg-config", &["--exists", "glib-2.0"])
    });
}

fn library(debian: &str, library: &str, so: &str) {
    optional(library, debian, so, || has_library(library));
}

/// Whether something is there, if necessary after installing its Debian package: as root, with
/// `apt-get`.
pub(crate) fn package(missing: &str, package: &str, is_there: impl Fn() -> bool) -> Result<bool> {
    if is_there() {
        return Ok(true);
    }
    let as_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    if !as_root || !Path::new("/usr/bin/apt-get").exists() {
        return Ok(false);
    }
    say!("{missing}: {}", by_hand(package));
    let _one = APT_GET.lock().unwrap_or_else(PoisonError::into_inner);
    // The package lists may exist already, so the first command may fail.
    step::succeeds(Command::new("apt-get").arg("update"));
    let install = ["install", "-y", "--no-install-recommends", package];
    step::succeeds(Command::new("apt-get").args(install));
    Ok(is_there())
}

/// Returns the folder of a tool of a Debian package whose services must not start: the package is
/// unpacked in `target`. `None` if the tool is in `PATH`, or if it is missing: then says what goes
/// without it.
pub(crate) fn unpacked(root: &Path, tool: &str, debian: &str, so: &str) -> Option<PathBuf> {
    let folder = root.join("target/debian").join(debian);
    in_target(tool, "--version", folder.join("usr/bin"), &by_hand(debian), so, || {
        let _one = APT_GET.lock().unwrap_or_else(PoisonError::into_inner);
        let fetch = format!("apt-get download {debian} && dpkg-deb --extract {debian}_*.deb .");
        say!("{tool} is missing: {fetch}");
        step::succeeds(Command::new("apt-get").arg("update"));
        if std::fs::create_dir_all(&folder).is_ok() {
            step::succeeds(Command::new("sh").args(["-c", &fetch]).current_dir(&folder));
        }
    })
}

/// Returns the folder of a tool that Go builds in `target`, as [`unpacked`] does. A `quick` run
/// takes it if it is there.
pub(crate) fn by_go(root: &Path, quick: bool, module: &str, so: &str) -> Option<PathBuf> {
    let (path, version) = module.split_once('@')?;
    let (tool, remedy) = (path.rsplit('/').next()?, format!("go install {module}"));
    let programs = root.join("target/go").join(version);
    in_target(tool, "version", programs.clone(), &remedy, so, || {
        if !quick && works("go", &["version"]) {
            say!("{tool} is missing: {remedy}");
            let mut install = Command::new("go");
            install.args(["install", module]).env("GOBIN", &programs).env("GOTOOLCHAIN", "local");
            step::succeeds(&mut install);
        }
    })
}

fn in_target(
    tool: &str,
    version: &str,
    programs: PathBuf,
    remedy: &str,
    so: &str,
    make: impl FnOnce(),
) -> Option<PathBuf> {
    if works(tool, &[version]) {
        return None;
    }
    let is_there = || works(programs.join(tool), &[version]);
    if !is_there() {
        make();
    }
    if is_there() {
        return Some(programs);
    }
    say!("({tool} is missing, so {so}: {remedy})");
    None
}

/// Returns the command that installs a package.
pub(crate) fn by_hand(package: &str) -> String {
    format!("apt-get install {package}")
}

/// Whether the loader knows a library.
pub(crate) fn has_library(name: &str) -> bool {
    let known = "PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q \"^[[:space:]]$0 \"";
    works("sh", &["-c", known, name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_made_once_and_used_from_its_folder() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("kvmem-xtask-{}", std::process::id()));
        let tool = folder.join("kvmem-no-such-program");
        let find = |make: &dyn Fn()| {
            in_target(
                "kvmem-no-such-program",
                "",
                folder.clone(),
                "make it",
                "nothing is done",
                make,
            )
        };
        assert_eq!(find(&|| ()), None);
        let make = || {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&tool, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        };
        assert_eq!(find(&make), Some(folder.clone()));
        assert_eq!(find(&|| panic!("it is there")), Some(folder.clone()));
        assert_eq!(in_target("ls", "--version", folder.clone(), "", "", || panic!()), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_loader_knows_whole_names() {
        // Every Rust program needs this library.
        assert!(has_library("libc.so.6") && !works("kvmem-no-such-program", &[]));
        assert!(!has_library("libc.so") && !has_library("c.so.6"));
    }
}
