//! *Layout*: the files of the C interface under a prefix, and the files that describe them to build
//! systems.
//!
//! ```text
//! include/kvmem.h …            lib/pkgconfig/kvmem.pc
//! lib/libkvmem.so.0.1.0        lib/cmake/kvmem/kvmemConfig.cmake
//! lib/libkvmem.so.0 → …        lib/cmake/kvmem/kvmemConfigVersion.cmake
//! lib/libkvmem.so → …          lib/libkvmem.a
//! ```
//!
//! All paths are relative, so the prefix can be moved. The tests of the C interface compile this
//! file too, and so test what is installed. It uses nothing but the standard library.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The system libraries of a static library, from `rustc --print native-static-libs`.
const PRIVATE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// The number of the binary interface, as in the soname that the crate's build.rs sets.
const INTERFACE: u32 = 0;

/// The files for pkg-config and CMake, under `lib`, and their templates.
const DESCRIPTIONS: [(&str, &str); 3] = [
    ("pkgconfig/kvmem.pc", include_str!("layout/kvmem.pc.in")),
    ("cmake/kvmem/kvmemConfig.cmake", include_str!("layout/kvmemConfig.cmake.in")),
    ("cmake/kvmem/kvmemConfigVersion.cmake", include_str!("layout/kvmemConfigVersion.cmake.in")),
];

/// The headers that declare functions for tests.
const TESTING_HEADERS: [&str; 2] = ["kvmem/testing.h", "kvmem/testing.hpp"];

/// The parts of the C interface that are installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// All but the functions for tests.
    Shipped,
    /// Also the headers of the functions for tests, which the library must then have.
    WithTesting,
}

/// Copies the built libraries and the headers to their places, and writes the files for pkg-config
/// and CMake.
///
/// `built` is the folder that holds `libkvmem_capi.so` and `.a`, `include` that of the headers.
pub(crate) fn install_into(
    prefix: &Path,
    built: &Path,
    include: &Path,
    version: &str,
    parts: Parts,
) -> io::Result<()> {
    let lib = prefix.join("lib");
    for folder in ["pkgconfig", "cmake/kvmem"] {
        fs::create_dir_all(lib.join(folder))?;
    }
    copy_folder(include, &prefix.join("include"))?;
    if parts == Parts::Shipped {
        for header in TESTING_HEADERS {
            remove(&prefix.join("include").join(header))?;
        }
    }

    let (real, short) = (format!("libkvmem.so.{version}"), format!("libkvmem.so.{INTERFACE}"));
    replace(&built.join("libkvmem_capi.so"), &lib.join(&real))?;
    replace(&built.join("libkvmem_capi.a"), &lib.join("libkvmem.a"))?;
    for (link, to) in [(&*short, &*real), ("libkvmem.so", &*short)] {
        remove(&lib.join(link))?;
        symlink(to, lib.join(link))?;
    }

    // While the version is 0.x every minor version is an interface of its own.
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    for (file, template) in DESCRIPTIONS {
        let text = template.replace("@VERSION@", version).replace("@MINOR@", minor);
        let text = text.replace("@SONAME@", &short).replace("@PRIVATE@", PRIVATE);
        let text = text.replace("@LIBRARIES@", &PRIVATE.replace("-l", "").replace(' ', ";"));
        fs::write(lib.join(file), text)?;
    }
    Ok(())
}

/// Replaces a library by a new file, since a running program may have mapped the old one.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    remove(to)?;
    fs::copy(from, to).map(drop)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy_folder(&from, &to)? } else { fs::copy(&from, &to).map(drop)? }
    }
    Ok(())
}
