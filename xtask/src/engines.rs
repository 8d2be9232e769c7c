//! *Engines*: the engines that kvmem's memory is tested with, and how the tests get them.
//!
//! All of them are in one folder, `target/engines`, which stays from one run to the next. It has a
//! virtual environment with the engines' wheels, and separate folders for wheels that must not be
//! among the packages; a variable names each of these to the tests. Tests in Rust look for
//! libraries there. The environment of the tests in Python is made anew each time and borrows the
//! packages. An installed engine is not requested again, so the first group of steps that needs one
//! installs it. A lock orders runs that happen at the same time.
//!
//! PyTorch and the imports of the engines' own modules are large. They are installed if
//! `KVMEM_WITH_TORCH` is 1; otherwise the tests use stand-ins.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::say;
use crate::setup::{self, works};
use crate::step;
use crate::venv;

/// The folder of the engines. Tests in Rust know this name as well.
const PLACE: &str = "target/engines";

/// Set to 1 if no test may be skipped because an engine, or Python itself, is missing: in CI.
pub(crate) const REQUIRED: &str = "KVMEM_REQUIRE_ENGINES";

/// Set to 1 to test with PyTorch, and with the engines' modules and all their imports.
pub(crate) const WITH_TORCH: &str = "KVMEM_WITH_TORCH";

/// An engine that some tests use, or a dependency of one.
struct Engine {
    name: &'static str,
    /// What pip installs, one requirement in each line.
    requires: &'static str,
    /// Whether to install these without their dependencies, which are PyTorch and CUDA's
    /// libraries.
    alone: bool,
    /// Debian packages, each with the library that shows that it is installed.
    debian: &'static [(&'static str, &'static str)],
    found: Found,
    /// Whether to install it only if [`WITH_TORCH`] is 1.
    with_torch: bool,
    /// Whether to store the Python files and the metadata of the wheel only: the compiled ones are
    /// large and need a GPU.
    sources_only: bool,
}

/// How to find an installed engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Among the packages: this module can be imported.
    Module(&'static str),
    /// Among the packages: tests in Rust load this file of them.
    Library(&'static str),
    /// In a folder of its own, which this variable names to the tests.
    Folder(&'static str),
}

/// Returns an engine whose wheels are in a folder of its own, without their dependencies.
const fn apart(name: &'static str, requires: &'static str, variable: &'static str) -> Engine {
    let (debian, found) = (&[], Found::Folder(variable));
    Engine { name, requires, alone: true, debian, found, with_torch: false, sources_only: false }
}

/// All engines. The tests of one that cannot be installed are skipped by name, or fail if
/// [`REQUIRED`] is 1. Of an engine with two entries, the second is the oldest supported release:
/// tests of what differs run with both.
const ENGINES: [Engine; 11] = [
    Engine {
        alone: false,
        debian: &[
            ("libibverbs1", "libibverbs.so.1"),
            ("libnuma1", "libnuma.so.1"),
            ("libcurl4", "libcurl.so.4"),
        ],
        found: Found::Module("mooncake.store"),
        ..apart("Mooncake", "mooncake-transfer-engine-non-cuda>=0.3.13,<0.4", "")
    },
    // It links CUDA's runtime, although its name denies it; the releases after it do not.
    apart(
        "Mooncake-0.3.13",
        "mooncake-transfer-engine-non-cuda==0.3.13\nnvidia-cuda-runtime-cu12<12.9",
        "MOONCAKE_OLDEST_DIR",
    ),
    Engine {
        found: Found::Library(".nixl_cu12.mesonpy.libs/libnixl_capi.so"),
        ..apart("NIXL", "nixl-cu12>=1.5,<2\nnixl>=1.5,<2\nnumpy", "")
    },
    apart("NIXL-1.5.0", "nixl-cu12==1.5.0\nnixl==1.5.0", "NIXL_OLDEST_DIR"),
    Engine {
        alone: false,
        found: Found::Module("sortedcontainers"),
        ..apart("the sorted list of LMCache's addresses", "sortedcontainers", "")
    },
    apart("LMCache", "lmcache>=0.5.6,<0.6", "LMCACHE_DIR"),
    apart("SGLang", "sglang>=0.5.23,<0.6", "SGLANG_DIR"),
    Engine { sources_only: true, ..apart("vLLM", "vllm>=0.33,<0.34", "VLLM_DIR") },
    Engine { sources_only: true, ..apart("vLLM-0.32", "vllm>=0.32,<0.33", "VLLM_OLDEST_DIR") },
    // With the imports of the tested modules of LMCache and of SGLang. Not among the packages:
    // NIXL takes another wheel if it sees PyTorch.
    Engine {
        alone: false,
        with_torch: true,
        ..apart("PyTorch", include_str!("../requirements/modules.txt"), "TORCH_DIR")
    },
    Engine {
        alone: false,
        with_torch: true,
        ..apart(
            "LMCache-server",
            include_str!("../requirements/lmcache-server.txt"),
            "LMCACHE_SERVER_DIR",
        )
    },
];

/// Returns the Debian packages that an engine needs.
pub(crate) fn debian_packages(engine: &str) -> impl Iterator<Item = &'static str> {
    let of_engine = ENGINES.iter().filter(move |known| known.name == engine);
    of_engine.flat_map(|known| known.debian).map(|(package, _)| *package)
}

/// Whether a variable is 1.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// Whether a missing engine must fail its tests.
pub(crate) fn required() -> bool {
    is_set(REQUIRED)
}

/// Installs the engines that tests in Rust load, if possible.
pub(crate) fn for_rust(root: &Path) {
    Place::new(root).get(|engine| matches!(engine.found, Found::Library(_)));
}

/// Returns NIXL's library, if it is installed.
pub(crate) fn nixl_library(root: &Path) -> Option<PathBuf> {
    let place = Place::new(root);
    let nixl = ENGINES.iter().find(|engine| engine.name == "NIXL")?;
    let Found::Library(file) = nixl.found else { return None };
    packages(&place.folder).iter().map(|packages| packages.join(file)).find(|file| file.exists())
}

/// Installs all engines, if possible, and lends them to an environment of the same Python: a line
/// in a `.pth` file puts the packages behind its own. Returns the variables for the tests.
pub(crate) fn for_python(root: &Path, environment: &Path) -> Vec<(&'static str, PathBuf)> {
    let place = Place::new(root);
    place.get(Engine::is_wanted);
    lend(root, environment);
    let there = ENGINES.iter().filter(|engine| engine.is_wanted() && place.has(engine));
    place.variables(&there.collect::<Vec<_>>())
}

/// Lends the engines' packages to an environment of the same Python. Its own come first.
pub(crate) fn lend(root: &Path, environment: &Path) {
    let theirs = packages(&Place::new(root).folder);
    for mine in packages(environment) {
        let same = theirs.iter().find(|theirs| name_of_python(theirs) == name_of_python(&mine));
        if let Some(theirs) = same {
            let _ = fs::write(mine.join("engines.pth"), format!("{}\n", theirs.display()));
        }
    }
}

/// Installs these engines, if they are wanted and that is possible. Returns the folder of the
/// Python that has them, and the variables that name their wheels.
pub(crate) fn named(
    root: &Path,
    names: &[&str],
) -> Option<(PathBuf, Vec<(&'static str, PathBuf)>)> {
    let place = Place::new(root);
    let is_named = |engine: &Engine| names.contains(&engine.name) && engine.is_wanted();
    place.get(is_named);
    let there = ENGINES.iter().filter(|engine| is_named(engine) && place.has(engine));
    let there: Vec<&Engine> = there.collect();
    (there.len() == names.len()).then(|| (place.folder.join("bin"), place.variables(&there)))
}

/// The folders of the engines.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(root: &Path) -> Place {
        Place { folder: root.join(PLACE) }
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// Returns the folder of an engine that is not among the packages.
    fn apart(&self, engine: &Engine) -> PathBuf {
        self.folder.join("apart").join(engine.name.to_lowercase())
    }

    /// Returns the variables that name the folders of engines.
    fn variables(&self, engines: &[&Engine]) -> Vec<(&'static str, PathBuf)> {
        let of = |engine: &&Engine| match engine.found {
            Found::Folder(variable) => Some((variable, self.apart(engine))),
            _ => None,
        };
        engines.iter().filter_map(of).collect()
    }

    /// Installs the missing engines, and prints those that could not be installed.
    fn get(&self, wanted: impl Fn(&Engine) -> bool) {
        // Another run may be installing. File systems without locks do without this one.
        let lock = self.folder.parent().and_then(|target| {
            fs::create_dir_all(target).ok()?;
            File::create(target.join("engines.lock")).ok()
        });
        let _held = lock.as_ref().map(File::lock);
        self.make();
        for engine in ENGINES.iter().filter(|engine| wanted(engine)) {
            for (package, library) in engine.debian {
                let missing = format!("{library} is missing");
                // The check at the end shows whether it worked.
                let _ = setup::package(&missing, package, || setup::has_library(library));
            }
            if !self.has(engine) {
                self.install(engine);
            }
            if !self.has(engine) {
                say!("({} cannot be installed, so its tests are skipped)", engine.name);
            }
        }
    }

    /// Makes the environment, unless there is one of the Python that the tests run with.
    fn make(&self) {
        let Some(python) = venv::find() else { return };
        let version = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')";
        let version = Command::new(&python).args(["-c", version]).stdin(Stdio::null()).output();
        let version = version
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default();
        let mine = self.folder.join("lib").join(&version).exists()
            && works(self.python(), &["-m", "pip", "--version"]);
        if !mine {
            // Packages of another Python are useless.
            let _ = fs::remove_dir_all(&self.folder);
            step::succeeds(Command::new(&python).args(["-m", "venv"]).arg(&self.folder));
        }
    }

    fn install(&self, engine: &Engine) {
        let [verb, into] = match engine.sources_only {
            true => ["download", "--dest"],
            false => ["install", "--target"],
        };
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", verb, "--quiet", "--no-input", "--disable-pip-version-check"]);
        pip.args(engine.alone.then_some("--no-deps")).args(venv::requirements(engine.requires));
        let apart = self.apart(engine);
        // Installed into another folder and then moved, so an existing folder is complete.
        let part = apart.with_extension("part");
        if engine.is_apart() {
            let _ = fs::remove_dir_all(&part);
            pip.arg(into).arg(&part);
        }
        say!("{} is missing: {pip:?}", engine.name);
        let done = step::succeeds(&mut pip)
            && (!engine.sources_only
                || step::succeeds(Command::new(self.python()).args(["-c", UNPACK]).arg(&part)));
        if done && engine.is_apart() {
            let _ = fs::write(part.join(REQUESTED), venv::requirements(engine.requires).join(" "));
            let _ = fs::remove_dir_all(&apart);
            let _ = fs::rename(&part, &apart);
        }
    }

    fn has(&self, engine: &Engine) -> bool {
        match engine.found {
            Found::Module(module) => works(self.python(), &["-c", &format!("import {module}")]),
            Found::Library(file) => {
                packages(&self.folder).iter().any(|packages| packages.join(file).exists())
            }
            Found::Folder(_) => fs::read_to_string(self.apart(engine).join(REQUESTED))
                .is_ok_and(|requested| requested == venv::requirements(engine.requires).join(" ")),
        }
    }
}

/// The program that unpacks what is stored of the wheels in a folder.
const UNPACK: &str = include_str!("engines/unpack.py");

/// The file in an engine's folder with the arguments of pip. Other arguments install it again.
const REQUESTED: &str = "requested.txt";

impl Engine {
    fn is_wanted(&self) -> bool {
        !self.with_torch || is_set(WITH_TORCH)
    }

    fn is_apart(&self) -> bool {
        matches!(self.found, Found::Folder(_))
    }
}

/// Returns the folder of the packages of a virtual environment of any Python.
fn packages(environment: &Path) -> Vec<PathBuf> {
    let pythons = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    pythons
        .map(|python| python.path().join("site-packages"))
        .filter(|packages| packages.is_dir())
        .collect()
}

/// Returns the version of Python that packages are for, from the name of their folder.
fn name_of_python(packages: &Path) -> Option<&std::ffi::OsStr> {
    packages.parent()?.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_found_by_its_file_or_by_its_request() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { folder: folder.path().to_owned() };
        let of = |name| ENGINES.iter().find(|engine| engine.name == name).unwrap();
        let (nixl, lmcache) = (of("NIXL"), of("LMCache"));
        let Found::Library(library) = nixl.found else { panic!("NIXL is a library") };
        let library = place.folder.join("lib/python3.99/site-packages").join(library);
        let requested = place.apart(lmcache).join(REQUESTED);
        for (engine, file) in [(nixl, library), (lmcache, requested)] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            assert!(!place.has(engine));
            fs::write(&file, "lmcache>=0.5.6,<0.6").unwrap();
            assert!(place.has(engine));
        }
        assert_eq!(name_of_python(&packages(&place.folder)[0]).unwrap(), "python3.99");
        // An older request.
        fs::write(place.apart(lmcache).join(REQUESTED), "lmcache>=0.4").unwrap();
        assert!(!place.has(lmcache));
    }
}
