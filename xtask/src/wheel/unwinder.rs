//! *Unwinder*: makes the libraries of a wheel use the unwinder of the process that loads them.
//!
//! Zig links a copy of LLVM's libunwind into everything. A program may keep its own, but a library
//! must not. When a thread ends by `pthread_exit` or is cancelled, glibc unwinds its stack with
//! `libgcc_s.so.1`, and calls Rust's personality function for each frame. Inside of a library with
//! a copy, that function would hand libgcc's state to libunwind, and the process would die. Python
//! ends threads this way when it exits.
//!
//! A library is therefore linked against `libgcc_s.so.1`, which every system with glibc has. The
//! linker needs its names and versions only, so it gets a library of empty functions.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::target::{GLIBC, Target};
use crate::venv::Environment;

/// The functions of the unwinder, by the versions that libgcc gives them.
const FUNCTIONS: [(&str, &[&str]); 3] = [
    (
        "GCC_3.0",
        &[
            "_Unwind_DeleteException",
            "_Unwind_ForcedUnwind",
            "_Unwind_GetDataRelBase",
            "_Unwind_GetGR",
            "_Unwind_GetIP",
            "_Unwind_GetLanguageSpecificData",
            "_Unwind_GetRegionStart",
            "_Unwind_GetTextRelBase",
            "_Unwind_RaiseException",
            "_Unwind_Resume",
            "_Unwind_SetGR",
            "_Unwind_SetIP",
        ],
    ),
    (
        "GCC_3.3",
        &[
            "_Unwind_Backtrace",
            "_Unwind_FindEnclosingFunction",
            "_Unwind_GetCFA",
            "_Unwind_Resume_or_Rethrow",
        ],
    ),
    ("GCC_4.2.0", &["_Unwind_GetIPInfo"]),
];

/// Makes the library in a folder and returns its path, which the compiler links before zig's copy.
pub(crate) fn make(tools: &Environment, target: Target, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let (source, versions) = (folder.join("unwinder.c"), folder.join("unwinder.map"));
    fs::write(&source, functions())?;
    fs::write(&versions, version_script())?;
    let library = folder.join("libgcc_s.so.1");
    let mut cc = Command::new(tools.program("python"));
    cc.args(["-m", "ziglang", "cc", "-shared", "-nostdlib", "-target"]);
    cc.arg(format!("{}-linux-gnu.{}.{}", target.machine(), GLIBC.0, GLIBC.1));
    cc.arg("-Wl,-soname,libgcc_s.so.1");
    cc.arg(format!("-Wl,--version-script={}", versions.display()));
    cc.arg("-o").arg(&library).arg(&source);
    super::run_shown(&format!("{}: names of the unwinder", target.machine()), &mut cc)?;
    Ok(library)
}

fn functions() -> String {
    let names = FUNCTIONS.iter().flat_map(|(_, names)| *names);
    names.map(|name| format!("void {name}(void) {{}}\n")).collect()
}

fn version_script() -> String {
    let mut script = String::new();
    let mut before = "";
    for (version, names) in FUNCTIONS {
        let local = if before.is_empty() { " local: *;" } else { "" };
        let _ = writeln!(script, "{version} {{ global: {};{local} }} {before};", names.join("; "));
        before = version;
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_build_on_each_other() {
        let script = version_script();
        let lines: Vec<&str> = script.lines().collect();
        assert!(lines[0].starts_with("GCC_3.0 {") && lines[0].ends_with("local: *; } ;"));
        assert_eq!(lines[2], "GCC_4.2.0 { global: _Unwind_GetIPInfo; } GCC_3.3;");
        assert_eq!(functions().lines().count(), 17);
    }
}
