//! *Engines*: those that kvmem's memory is tested with from Python, and how each comes to the tests.
//!
//! Some are installed into the environment of the tests, one is lent from the environment that the library's own tests use, and of those
//! that depend on PyTorch the wheels are unpacked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::setup::{self, works};

/// Engines whose own modules are tests' other half: what pip calls the wheel, and what tells the tests where it lies unpacked. They are not
/// installed, for they depend on PyTorch, which is large and needs CUDA's libraries.
const UNPACKED: [(&str, &str, &str); 2] =
    [("lmcache", ">=0.5.6", "LMCACHE_DIR"), ("sglang", ">=0.5.23", "SGLANG_DIR")];

/// What modules of engines import that the tests can have: LMCache's addresses are in a sorted list.
const FOR_ENGINES: &str = "sortedcontainers";
/// An engine that some tests meet, as it is installed.
struct Engine {
    name: &'static str,
    /// What pip is asked for.
    wheels: &'static [&'static str],
    /// Debian packages, each with the library that shows that it is there.
    debian: &'static [(&'static str, &'static str)],
    /// What can be imported when all is there.
    module: &'static str,
}

/// All of them. Where one cannot be had its tests are skipped by name, or fail if `KVMEM_REQUIRE_ENGINES=1`.
const ENGINES: [Engine; 1] = [Engine {
    name: "Mooncake",
    wheels: &["mooncake-transfer-engine-non-cuda>=0.3.13"],
    debian: &[("libibverbs1", "libibverbs.so.1"), ("libnuma1", "libnuma.so.1"), ("libcurl4", "libcurl.so.4")],
    module: "mooncake.store",
}];

/// Set to 1 where nothing may be skipped for want of an engine, or of Python itself: in CI.
pub(crate) const REQUIRED: &str = "KVMEM_REQUIRE_ENGINES";

/// Whether it is.
pub(crate) fn required() -> bool {
    std::env::var_os(REQUIRED).is_some_and(|value| value == "1")
}

/// Installs into the environment what is to be installed, and lends it the rest.
pub(crate) fn install(root: &Path, environment: &Path) {
    lend_nixl(root, environment);
    let python = environment.join("bin/python");
    for engine in &ENGINES {
        engine.install(&python);
    }
}

/// Lets the environment see NIXL where that is installed for the library's tests, so that it is got once: a line in a `.pth` file puts it
/// behind the environment's own packages. It must be by the same Python.
fn lend_nixl(root: &Path, environment: &Path) {
    let packages = setup::packages(&root.join(setup::NIXL));
    for mine in setup::packages(environment) {
        let theirs = packages
            .iter()
            .find(|theirs| theirs.parent().map(Path::file_name) == mine.parent().map(Path::file_name));
        if let Some(theirs) = theirs {
            let _ = std::fs::write(mine.join("nixl.pth"), format!("{}\n", theirs.display()));
        }
    }
}

/// The engines' wheels, unpacked; they are kept from one run to the next. Tests of one that cannot be had are skipped, and say so.
pub(crate) fn unpack(python: &Path, folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(python);
        command.args(["-m", "pip"]).args(arguments).args([
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ]);
        command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !pip(&["install", FOR_ENGINES]) {
        println!("(pip cannot get {FOR_ENGINES}, so LMCache's own class is not tested against)");
    }
    let mut found = Vec::new();
    for (name, version, variable) in UNPACKED {
        let (place, wheels) = (folder.join(name), folder.join("wheels").join(name));
        // Unpacked beside it and then moved: what is there is whole.
        let part = folder.join(format!("{name}.part"));
        let unpack = || {
            let wheel = std::fs::read_dir(&wheels).ok()?.flatten().map(|entry| entry.path()).max()?;
            let _ = std::fs::remove_dir_all(&part);
            let mut unzip = Command::new(python);
            unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&part);
            unzip.status().is_ok_and(|status| status.success()).then_some(())?;
            std::fs::rename(&part, &place).ok()
        };
        let there = place.exists()
            || pip(&[
                "download",
                "--no-deps",
                "--dest",
                &wheels.to_string_lossy(),
                &format!("{name}{version}"),
            ]) && unpack().is_some();
        if there {
            found.push((variable, place));
        } else {
            println!("(the wheel of {name} cannot be had: pip download --no-deps '{name}{version}')");
        }
    }
    found
}

impl Engine {
    /// Installs it where that is possible, and says what is missing where it is not.
    fn install(&self, python: &Path) {
        for (package, library) in self.debian {
            let missing = format!("{library} is missing");
            // Whether it worked shows in the end.
            let _ = setup::package(&missing, package, || setup::has_library(library));
        }
        let quiet = ["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"];
        let _ = Command::new(python).args(quiet).args(self.wheels).stdin(Stdio::null()).status();
        if !works(python, &["-c", &format!("import {}", self.module)]) {
            println!("({} cannot be used, so its tests are skipped: {})", self.name, self.by_hand());
        }
    }

    /// The command that gets it.
    fn by_hand(&self) -> String {
        let packages: Vec<&str> = self.debian.iter().map(|(package, _)| *package).collect();
        format!("pip install '{}' && {}", self.wheels.join("' '"), setup::by_hand(&packages.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_as_a_command() {
        let command = ENGINES[0].by_hand();
        assert_eq!(
            command,
            "pip install 'mooncake-transfer-engine-non-cuda>=0.3.13' && apt-get install libibverbs1 libnuma1 libcurl4"
        );
    }
}
