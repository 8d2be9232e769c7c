//! *Emulated*: a wheel of another architecture, run by QEMU's user mode emulation.
//!
//! The programs of that architecture come from Debian: a Python with the libraries that it needs.
//! Their packages are downloaded by an `apt-get` with a state of its own and unpacked into a
//! folder, so nothing is installed and the architectures of this system stay as they are. Without
//! QEMU or apt the checks are skipped, which is printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::stage::remove;
use super::target::{GLIBC, Target};
use crate::run::succeed;
use crate::say;
use crate::setup::{self, works};
use crate::step::Report;
use crate::venv::Environment;

/// The Debian package of the emulators.
const PACKAGE: &str = "qemu-user-static";

/// Uses an installed module, as far as that needs neither a shell nor other programs.
const MODULE: &str = "\
import kvmem, platform
with kvmem.Pool('4MiB', pages='4k') as pool:
    block = pool.allocate(65536)
    import numpy
    array = numpy.from_dlpack(block)
    array[:] = 7
    assert int(array.sum()) == 7 * 65536
    del array
    block.free()
print(' ', kvmem.__version__, 'on Python', platform.python_version(), platform.machine())
";

/// Runs the parts of a wheel that can be run, or says why not.
pub(crate) fn run(
    root: &Path,
    work: &Path,
    tools: &Environment,
    target: Target,
    wheel: &Path,
    report: &mut Report,
) {
    let machine = target.machine();
    let name = format!("qemu-{machine}-static");
    let missing = format!("{name} is missing");
    if !setup::package(&missing, PACKAGE, || works(&name, &["--version"])).unwrap_or(false) {
        say!("({missing}, so the wheel is not run: {})", setup::by_hand(PACKAGE));
        return;
    }
    let system = work.join("system").join(machine);
    if let Err(error) = unpack_system(&system, target) {
        say!("(there is no Python for {machine}, so the wheel is not run: {error:#})");
        return;
    }
    let site = work.join("site").join(machine);
    let emulator = Emulator { name, system };
    report.check(&format!("{machine}: installed"), || install(tools, target, wheel, &site));
    report.check(&format!("{machine}: module, emulated"), || emulator.module(&site));
    report.check(&format!("{machine}: command, emulated"), || emulator.command(&site));
    report.check(&format!("{machine}: C library, emulated"), || {
        emulator.c_library(root, work, tools, target, &site)
    });
}

/// Installs the wheel and NumPy for the target into a folder.
fn install(tools: &Environment, target: Target, wheel: &Path, site: &Path) -> Result<()> {
    remove(site)?;
    let pip = |what: &[&str]| {
        let mut pip = Command::new(tools.program("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        pip.args(["--only-binary=:all:", "--no-deps", "--implementation", "cp"]);
        // Wheels of others may be for older systems, too.
        for (major, minor) in [GLIBC, (2, 17)] {
            pip.args(["--platform", &format!("manylinux_{major}_{minor}_{}", target.machine())]);
        }
        pip.args(["--python-version", "3.11", "--target"]).arg(site).args(what);
        pip
    };
    let wheel = wheel.to_str().context("the path of the wheel is not Unicode")?;
    succeed(&mut pip(&["--no-index", wheel]))?;
    succeed(&mut pip(&["numpy"]))
}

/// The programs of another architecture, and what runs them.
struct Emulator {
    name: String,
    /// A folder with the libraries of that architecture, as they lie under `/`.
    system: PathBuf,
}

impl Emulator {
    /// Returns the command that runs a program.
    fn running(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.name);
        command.arg("-L").arg(&self.system).arg(program).stdin(Stdio::null());
        command
    }

    fn module(&self, site: &Path) -> Result<()> {
        let mut python = self.running(&python_of(&self.system)?);
        python.env("PYTHONHOME", self.system.join("usr")).env("PYTHONPATH", site);
        succeed(python.args(["-c", MODULE]))
    }

    fn command(&self, site: &Path) -> Result<()> {
        let program = site.join("bin/kvmem");
        let mut version = self.running(&program);
        succeed(version.arg("--version"))?;
        let mut doctor = self.running(&program);
        doctor.args(["doctor", "--size", "16MiB", "--pages", "4k"]);
        // Status 1: this machine lacks something, which is no fault of the command.
        let output = doctor.output().context("cannot run the emulator")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let is_complete = matches!(output.status.code(), Some(0 | 1));
        ensure!(
            is_complete && printed.contains("registrars"),
            "kvmem doctor ended with {}: {printed}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let mut mount = self.running(&program);
        succeed(mount.args(["mount", "--size", "16MiB", "--pages", "4k"]))
    }

    /// Compiles the C program with zig, and runs it with the wheel's library.
    fn c_library(
        &self,
        root: &Path,
        work: &Path,
        tools: &Environment,
        target: Target,
        site: &Path,
    ) -> Result<()> {
        let program = work.join(format!("program-{}", target.machine()));
        let (major, minor) = GLIBC;
        let mut compile = Command::new(tools.program("python"));
        compile.args(["-m", "ziglang", "cc", "-target"]);
        compile.arg(format!("{}-linux-gnu.{major}.{minor}", target.machine()));
        compile.arg(root.join("crates/kvmem-python/tests/wheel/program.c"));
        compile.arg("-I").arg(site.join("kvmem/include"));
        compile.arg("-L").arg(site.join("kvmem/lib")).arg("-lkvmem").arg("-o").arg(&program);
        succeed(&mut compile)?;
        let mut run = self.running(&program);
        // The emulator passes this on to the program alone.
        let library = format!("LD_LIBRARY_PATH={}", site.join("kvmem/lib").display());
        succeed(run.env("QEMU_SET_ENV", library))
    }
}

/// Returns the Python of an unpacked system.
fn python_of(system: &Path) -> Result<PathBuf> {
    let bin = system.join("usr/bin");
    for entry in fs::read_dir(&bin).with_context(|| format!("cannot read {}", bin.display()))? {
        let name = entry?.file_name();
        let minor = name.to_str().and_then(|name| name.strip_prefix("python3."));
        if minor.is_some_and(|minor| minor.parse::<u32>().is_ok()) {
            return Ok(bin.join(name));
        }
    }
    bail!("{} has no python3", bin.display())
}

/// Downloads and unpacks Debian's Python for the target, unless it is there.
fn unpack_system(system: &Path, target: Target) -> Result<()> {
    if python_of(system).is_ok() {
        return Ok(());
    }
    ensure!(works("apt-get", &["--version"]), "apt-get is missing");
    let state = system.with_extension("apt");
    for folder in ["lists/partial", "archives/partial", "cache"] {
        fs::create_dir_all(state.join(folder))?;
    }
    fs::write(state.join("status"), "")?;
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        let at = |name: &str| state.join(name).display().to_string();
        for (name, value) in [
            ("APT::Architecture", target.debian().to_owned()),
            ("APT::Architectures", target.debian().to_owned()),
            ("APT::Install-Recommends", "false".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Debug::NoLocking", "true".to_owned()),
            ("Dir::State::status", at("status")),
            ("Dir::State::lists", at("lists")),
            ("Dir::Cache", at("cache")),
            ("Dir::Cache::archives", at("archives")),
        ] {
            apt.arg("-o").arg(format!("{name}={value}"));
        }
        apt.args(["--quiet", "--yes"]).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        apt
    };
    succeed(&mut apt(&["update"])).context("no package lists")?;
    succeed(&mut apt(&["install", "--download-only", "python3", "libgcc-s1", "libstdc++6"]))
        .context("no packages")?;
    let unpacked = system.with_extension("new");
    remove(&unpacked)?;
    for entry in fs::read_dir(state.join("archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
        }
    }
    remove(&state)?;
    remove(system)?;
    fs::rename(&unpacked, system)?;
    python_of(system).map(drop)
}
