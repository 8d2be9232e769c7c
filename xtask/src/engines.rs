//! *Engines*: those that kvmem's memory is tested with, and how each comes to the tests.
//!
//! All of them are in one place, `target/engines`, which is kept from one run to the next: a
//! virtual environment with the wheels that the tests can have installed, and folders beside its
//! packages, each named to the tests by a variable, for those that must not be among them. Tests in
//! Rust look for libraries in there; the environment of the tests in Python is fresh each time and
//! is lent the packages. What is there is not asked for again, so whichever group of steps comes
//! first gets what it needs, and a lock lets runs at the same time follow one another.
//!
//! PyTorch and what engines' own modules import is large: it is got if `KVMEM_WITH_TORCH` is 1, and
//! else stood in for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::python;
use crate::setup::{self, works};

/// Where they are. Tests in Rust know this name as well.
const PLACE: &str = "target/engines";

/// Set to 1 where nothing may be skipped for want of an engine, or of Python itself: in CI.
pub(crate) const REQUIRED: &str = "KVMEM_REQUIRE_ENGINES";

/// Set to 1 where the tests are to meet PyTorch, and engines' modules with all that they import.
const WITH_TORCH: &str = "KVMEM_WITH_TORCH";

/// An engine that some tests meet, or what one takes.
struct Engine {
    name: &'static str,
    /// What pip is asked for.
    wheels: &'static [&'static str],
    /// Whether these come without what they say that they need, since that would be PyTorch and
    /// CUDA's libraries.
    alone: bool,
    /// Debian packages, each with the library that shows that it is there.
    debian: &'static [(&'static str, &'static str)],
    found: Found,
    /// The variable that must be 1 for it to be got, where it is not for everybody.
    only_with: Option<&'static str>,
}

/// How it shows that an engine is there, which tells where it is as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Among the packages: this can be imported.
    Module(&'static str),
    /// Among the packages: tests in Rust load this file of them.
    Library(&'static str),
    /// In a folder of its own, which this variable names to the tests.
    Folder(&'static str),
}

/// All of them. Where one cannot be had its tests are skipped by name, or fail if [`REQUIRED`] is
/// 1.
const ENGINES: [Engine; 6] = [
    Engine {
        name: "Mooncake",
        wheels: &["mooncake-transfer-engine-non-cuda>=0.3.13"],
        alone: false,
        debian: &[
            ("libibverbs1", "libibverbs.so.1"),
            ("libnuma1", "libnuma.so.1"),
            ("libcurl4", "libcurl.so.4"),
        ],
        found: Found::Module("mooncake.store"),
        only_with: None,
    },
    Engine {
        name: "NIXL",
        wheels: &["nixl-cu12>=1.5", "nixl>=1.5", "numpy"],
        alone: true,
        debian: &[],
        found: Found::Library(".nixl_cu12.mesonpy.libs/libnixl_capi.so"),
        only_with: None,
    },
    Engine {
        name: "the sorted list of LMCache's addresses",
        wheels: &["sortedcontainers"],
        alone: false,
        debian: &[],
        found: Found::Module("sortedcontainers"),
        only_with: None,
    },
    Engine {
        name: "LMCache",
        wheels: &["lmcache>=0.5.6"],
        alone: true,
        debian: &[],
        found: Found::Folder("LMCACHE_DIR"),
        only_with: None,
    },
    Engine {
        name: "SGLang",
        wheels: &["sglang>=0.5.23"],
        alone: true,
        debian: &[],
        found: Found::Folder("SGLANG_DIR"),
        only_with: None,
    },
    Engine {
        name: "PyTorch",
        // After it, what the modules of LMCache that are tested import, and then SGLang's.
        wheels: &[
            "torch",
            "numpy",
            "sortedcontainers",
            "numba",
            "nvtx",
            "cachetools",
            "prometheus_client",
            "msgspec",
            "pyzmq",
            "psutil",
            "pyyaml",
            "py-cpuinfo",
            "requests",
            "aiofile",
            "aiofiles",
            "cryptography",
            "opentelemetry-api",
            "torchvision",
            "transformers",
            "apache-tvm-ffi",
            "compressed-tensors",
            "gguf",
            "sentencepiece",
            "orjson",
            "pybase64",
            "pillow",
            "starlette",
            "pydantic",
            "ipython",
            "dill",
            "loguru",
        ],
        alone: false,
        debian: &[],
        // Not among the packages either: NIXL would take another wheel if it saw PyTorch.
        found: Found::Folder("TORCH_DIR"),
        only_with: Some(WITH_TORCH),
    },
];

/// Whether a variable is 1.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// Whether nothing may be skipped for want of an engine.
pub(crate) fn required() -> bool {
    is_set(REQUIRED)
}

/// Gets those that tests in Rust load, where that is possible.
pub(crate) fn for_rust(root: &Path) {
    Place::new(root).get(|engine| matches!(engine.found, Found::Library(_)));
}

/// Gets all of them, where that is possible, and lends them to an environment by the same Python: a
/// line in a `.pth` file puts the packages behind its own. Returns what the tests are to be told by
/// variables.
pub(crate) fn for_python(root: &Path, environment: &Path) -> Vec<(&'static str, PathBuf)> {
    let place = Place::new(root);
    place.get(Engine::is_wanted);
    let theirs = packages(&place.folder);
    for mine in packages(environment) {
        let same = theirs.iter().find(|theirs| name_of_python(theirs) == name_of_python(&mine));
        if let Some(theirs) = same {
            let _ = fs::write(mine.join("engines.pth"), format!("{}\n", theirs.display()));
        }
    }
    let told = ENGINES.iter().filter(|engine| engine.is_wanted() && place.has(engine));
    told.filter_map(|engine| match engine.found {
        Found::Folder(variable) => Some((variable, place.apart(engine))),
        _ => None,
    })
    .collect()
}

/// Where the engines are.
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

    /// The folder of an engine that is not among the packages.
    fn apart(&self, engine: &Engine) -> PathBuf {
        self.folder.join("apart").join(engine.name.to_lowercase())
    }

    /// Installs those that are wanted and not there, and says what is missing in the end.
    fn get(&self, wanted: impl Fn(&Engine) -> bool) {
        // Another run may be at it. Without a lock, which some file systems have not, it is done
        // all the same.
        let lock = self.folder.parent().and_then(|target| {
            fs::create_dir_all(target).ok()?;
            File::create(target.join("engines.lock")).ok()
        });
        let _held = lock.as_ref().map(File::lock);
        self.make();
        for engine in ENGINES.iter().filter(|engine| wanted(engine)) {
            for (package, library) in engine.debian {
                let missing = format!("{library} is missing");
                // Whether it worked shows in the end.
                let _ = setup::package(&missing, package, || setup::has_library(library));
            }
            if !self.has(engine) {
                println!("{} is missing: {}", engine.name, engine.by_hand());
                self.install(engine);
            }
            if !self.has(engine) {
                println!("({} cannot be had, so its tests are skipped)", engine.name);
            }
        }
    }

    /// Makes the environment, unless there is one by the Python that the tests run with.
    fn make(&self) {
        let Some(python) = python::find() else { return };
        let version = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')";
        let version = Command::new(&python).args(["-c", version]).stdin(Stdio::null()).output();
        let version = version
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default();
        let mine = self.folder.join("lib").join(&version).exists()
            && works(self.python(), &["-m", "pip", "--version"]);
        if !mine {
            // Nothing in it is for another Python.
            let _ = fs::remove_dir_all(&self.folder);
            let _ = Command::new(&python)
                .args(["-m", "venv"])
                .arg(&self.folder)
                .stdin(Stdio::null())
                .status();
        }
    }

    fn install(&self, engine: &Engine) {
        let quiet =
            ["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"];
        let mut pip = Command::new(self.python());
        pip.args(quiet).args(engine.wheels).stdin(Stdio::null());
        if engine.alone {
            pip.arg("--no-deps");
        }
        let apart = self.apart(engine);
        // Got beside it and then moved: what is there is whole.
        let part = apart.with_extension("part");
        if engine.is_apart() {
            let _ = fs::remove_dir_all(&part);
            pip.arg("--target").arg(&part);
        }
        let done = pip.status().is_ok_and(|status| status.success());
        if done && engine.is_apart() {
            let _ = fs::write(part.join(ASKED), engine.wheels.join(" "));
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
            Found::Folder(_) => fs::read_to_string(self.apart(engine).join(ASKED))
                .is_ok_and(|asked| asked == engine.wheels.join(" ")),
        }
    }
}

/// In a folder of an engine: what pip was asked for. If that is something else now, it is asked
/// again.
const ASKED: &str = "asked-for.txt";

impl Engine {
    fn is_wanted(&self) -> bool {
        self.only_with.is_none_or(is_set)
    }

    fn is_apart(&self) -> bool {
        matches!(self.found, Found::Folder(_))
    }

    /// The command that gets it.
    fn by_hand(&self) -> String {
        let alone = if self.alone { "--no-deps " } else { "" };
        let target = match self.found {
            Found::Folder(variable) => format!("--target \"${variable}\" "),
            _ => String::new(),
        };
        let mut command =
            format!("{PLACE}/bin/pip install {alone}{target}'{}'", self.wheels.join("' '"));
        let packages: Vec<&str> = self.debian.iter().map(|(package, _)| *package).collect();
        if !packages.is_empty() {
            // What Debian recommends beside `libibverbs1` are drivers for RDMA cards, which the
            // wheels of NIXL do not get on with.
            command +=
                &format!(" && apt-get install --no-install-recommends {}", packages.join(" "));
        }
        command
    }
}

/// Where a virtual environment has its packages, whichever its Python.
fn packages(environment: &Path) -> Vec<PathBuf> {
    let pythons = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    pythons
        .map(|python| python.path().join("site-packages"))
        .filter(|packages| packages.is_dir())
        .collect()
}

/// Which Python packages are for, by the name of the folder that they are in.
fn name_of_python(packages: &Path) -> Option<&std::ffi::OsStr> {
    packages.parent()?.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        let folder =
            std::env::temp_dir().join(format!("kvmem-xtask-{name}-{}", std::process::id()));
        Place { folder }
    }

    #[test]
    fn what_is_missing_is_told_as_a_command() {
        let commands: Vec<String> = ENGINES.iter().map(Engine::by_hand).collect();
        assert_eq!(
            commands[0],
            "target/engines/bin/pip install 'mooncake-transfer-engine-non-cuda>=0.3.13' && \
             apt-get install --no-install-recommends libibverbs1 libnuma1 libcurl4"
        );
        assert_eq!(
            commands[1],
            "target/engines/bin/pip install --no-deps 'nixl-cu12>=1.5' 'nixl>=1.5' 'numpy'"
        );
        assert_eq!(
            commands[3],
            "target/engines/bin/pip install --no-deps --target \"$LMCACHE_DIR\" 'lmcache>=0.5.6'"
        );
    }

    #[test]
    fn a_library_is_looked_for_among_the_packages_of_any_python() {
        let (place, nixl) = (place("library"), &ENGINES[1]);
        let Found::Library(file) = nixl.found else { panic!("NIXL is a library") };
        assert!(!place.has(nixl));
        let file = place.folder.join("lib/python3.99/site-packages").join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        assert!(!place.has(nixl));
        fs::write(&file, "").unwrap();
        assert!(place.has(nixl));
        assert_eq!(name_of_python(&packages(&place.folder)[0]).unwrap(), "python3.99");
        fs::remove_dir_all(&place.folder).unwrap();
    }

    #[test]
    fn a_folder_is_asked_for_again_when_something_else_is_wanted() {
        let (place, lmcache) = (place("folder"), &ENGINES[3]);
        assert!(lmcache.is_apart() && !place.has(lmcache));
        fs::create_dir_all(place.apart(lmcache)).unwrap();
        assert!(!place.has(lmcache));
        let asked = place.apart(lmcache).join(ASKED);
        fs::write(&asked, "lmcache>=0.5.6").unwrap();
        assert!(place.has(lmcache));
        fs::write(&asked, "lmcache>=0.4").unwrap();
        assert!(!place.has(lmcache));
        fs::remove_dir_all(&place.folder).unwrap();
    }
}
