//! *Links*: what the programs and libraries of a wheel need from the system that they run on.
//!
//! The policies of manylinux allow more libraries than these. kvmem needs libc alone, and loads the
//! libraries of devices at run time.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::target::GLIBC;

/// The libraries that belong to libc and the compiler, and the loader.
const ALLOWED: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    UNWINDER,
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The library with the unwinder of the process.
const UNWINDER: &str = "libgcc_s.so.1";

/// The needs of one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    libraries: Vec<String>,
    /// The newest version of glibc that a symbol names.
    glibc: (u32, u32),
    /// Symbols that no version of a library provides, but for those of Python.
    unprovided: Vec<String>,
    /// Run paths, which would name folders of the builder.
    run_paths: Vec<String>,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, glibc {}.{}", self.libraries.join(", "), self.glibc.0, self.glibc.1)
    }
}

/// Checks every ELF file under a folder, and returns them with their needs.
///
/// # Errors
/// A file needs a library, a glibc or a run path that it must not need, or contains the name of one
/// of the `builder`'s folders; or there is no ELF file.
pub(crate) fn check_wheel(folder: &Path, builder: &[PathBuf]) -> Result<Vec<(PathBuf, Needs)>> {
    let mut checked = Vec::new();
    for file in files(folder)? {
        let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if !content.starts_with(b"\x7fELF") {
            continue;
        }
        let name = file.strip_prefix(folder).unwrap_or(&file).display().to_string();
        let needs = read(&file)?;
        judge(&name, &needs)?;
        for part in builder {
            let part = part.as_os_str().as_encoded_bytes();
            ensure!(
                !content.windows(part.len()).any(|window| window == part),
                "{name} contains the folder {}, which is the builder's: is it built without \
                 --remap-path-prefix?",
                String::from_utf8_lossy(part)
            );
        }
        checked.push((file, needs));
    }
    ensure!(!checked.is_empty(), "{} holds no compiled file", folder.display());
    Ok(checked)
}

/// Rejects needs that a wheel must not have.
fn judge(name: &str, needs: &Needs) -> Result<()> {
    for library in &needs.libraries {
        ensure!(
            ALLOWED.contains(&library.as_str()),
            "{name} links {library}, and a wheel may link {} only: load it at run time",
            ALLOWED.join(", ")
        );
    }
    ensure!(
        !name.contains(".so") || needs.libraries.iter().any(|library| library == UNWINDER),
        "{name} does not link {UNWINDER}, so it has an unwinder of its own, which crashes a \
         process that ends a thread inside of it: link what wheel/unwinder.rs makes"
    );
    ensure!(
        needs.glibc <= GLIBC,
        "{name} needs glibc {}.{}, and the wheel's tag promises {}.{}: find the newer symbol with \
         readelf --version-info",
        needs.glibc.0,
        needs.glibc.1,
        GLIBC.0,
        GLIBC.1
    );
    if let Some(symbol) = needs.unprovided.first() {
        bail!(
            "{name} needs the symbol {symbol}, which glibc {}.{} lacks: raise the wheel's glibc in \
             wheel/target.rs, or call the kernel",
            GLIBC.0,
            GLIBC.1
        );
    }
    if let Some(path) = needs.run_paths.first() {
        bail!("{name} has the run path {path}, which exists on the builder only");
    }
    Ok(())
}

fn read(file: &Path) -> Result<Needs> {
    let output = Command::new("readelf")
        .args(["--wide", "--dynamic", "--version-info", "--dyn-syms"])
        .arg(file)
        .env("LC_ALL", "C")
        .output()
        .context("cannot run readelf: apt-get install binutils")?;
    ensure!(output.status.success(), "readelf failed on {}", file.display());
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads the output of readelf.
fn parse(output: &str) -> Needs {
    let mut needs = Needs::default();
    for line in output.lines() {
        let bracketed = || Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
        if line.contains("(NEEDED)") {
            needs.libraries.extend(bracketed());
        } else if line.contains("(RUNPATH)") || line.contains("(RPATH)") {
            needs.run_paths.extend(bracketed());
        } else if let Some((_, version)) = line.split_once("Name: GLIBC_") {
            // The name stands before flags: `Name: GLIBC_2.14  Flags: none  Version: 3`.
            let version = version.split_whitespace().next().unwrap_or_default();
            let mut numbers = version.split('.').map_while(|number| number.parse().ok());
            let both = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            needs.glibc = needs.glibc.max(both);
        } else {
            needs.unprovided.extend(unprovided(line));
        }
    }
    needs
}

/// Reads a line of the table of symbols, such as `7: 0 0 FUNC GLOBAL DEFAULT UND memfd_create`. A
/// symbol of a library has its version behind it. The linker leaves one that it has not found
/// without a version, and a weak one may be missing.
fn unprovided(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, _, "GLOBAL", _, "UND", name] = words.as_slice() else { return None };
    let of_python = name.starts_with("Py") || name.starts_with("_Py");
    (!name.contains('@') && !of_python).then(|| (*name).to_owned())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libssl.so.3]
 0x000000000000000e (SONAME)             Library soname: [libkvmem.so.0]
Version needs section '.gnu.version_r' contains 2 entries:
  0x0010:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0020:   Name: GLIBC_2.14  Flags: none  Version: 2
";

    #[test]
    fn libraries_and_the_newest_version_are_read() {
        let needs = parse(OUTPUT);
        assert_eq!(needs.libraries, ["libc.so.6", "libssl.so.3"]);
        assert_eq!((needs.glibc, needs.run_paths.len()), ((2, 14), 0));
        assert_eq!(needs.to_string(), "libc.so.6, libssl.so.3, glibc 2.14");
        let run_path = " 0x1d (RUNPATH)            Library runpath: [/home/me/lib]\n";
        assert_eq!(parse(run_path).run_paths, ["/home/me/lib"]);
    }

    #[test]
    fn the_error_names_the_library_the_version_or_the_path() {
        let error = judge("kvmem.so", &parse(OUTPUT)).unwrap_err().to_string();
        assert!(error.contains("kvmem.so links libssl.so.3"), "{error}");
        let needs = Needs { libraries: vec!["libc.so.6".to_owned()], ..Needs::default() };
        assert!(judge("fine", &needs).is_ok());
        let error = judge("new", &Needs { glibc: (2, 99), ..needs.clone() }).unwrap_err();
        assert!(error.to_string().contains("needs glibc 2.99"), "{error}");
        let error = judge("lib/libkvmem.so.0", &needs).unwrap_err().to_string();
        assert!(error.contains("does not link libgcc_s.so.1"), "{error}");
        let run_paths = vec!["/home/me/lib".to_owned()];
        let error = judge("led", &Needs { run_paths, ..needs }).unwrap_err();
        assert!(error.to_string().contains("/home/me/lib"), "{error}");
    }

    #[test]
    fn a_symbol_without_a_version_is_provided_by_nothing() {
        let table = "\
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (3)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND PyLong_FromLong
     3: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND gettid
     4: 0000000000001230    40 FUNC    GLOBAL DEFAULT   12 kvmem_version
     5: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memfd_create
";
        assert_eq!(parse(table).unprovided, ["memfd_create"]);
        let error = judge("kvmem", &parse(table)).unwrap_err().to_string();
        assert!(error.contains("needs the symbol memfd_create"), "{error}");
    }

    #[test]
    fn the_tests_own_program_is_read_and_its_folder_found() {
        let made = tempfile::tempdir().unwrap();
        let folder = made.path();
        fs::write(folder.join("plain.txt"), "text").unwrap();
        let error = check_wheel(folder, &[]).unwrap_err().to_string();
        assert!(error.contains("holds no compiled file"), "{error}");
        fs::write(folder.join("broken.so"), b"\x7fELF and no more").unwrap();
        assert!(check_wheel(folder, &[]).is_err());
        let needs = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.libraries.iter().any(|library| library == "libc.so.6"), "{needs}");
    }
}
