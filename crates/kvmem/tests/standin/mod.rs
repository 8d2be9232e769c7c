//! *Stand-ins*: C libraries that replace those of devices. Tests compile them and load them like
//! the real ones.
//!
//! Each instance has its own file: a library that is loaded twice from one file has only one state,
//! and tests run concurrently.

// Two test programs include this file, and one of them uses only a part.
#![allow(dead_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A compiled stand-in, loaded to control it. Its file is removed when it is dropped.
pub(crate) struct StandIn {
    path: PathBuf,
    library: libloading::Library,
}

impl StandIn {
    /// Compiles a stand-in without the functions in `without`.
    pub(crate) fn new(source: &str, without: &[&str]) -> StandIn {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the numbers only have to differ.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("{source}-{}-{number}.so", std::process::id()));
        // Also the tests of other crates include this file.
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let code = crates.join(format!("kvmem/tests/standin/{source}.c"));
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-fPIC",
            "-shared",
            "-pthread",
            "-fvisibility=hidden",
            "-o",
        ]);
        cc.arg(&path)
            .arg(&code)
            .args(without.iter().map(|name| format!("-D{name}=without_{name}")));
        let output =
            cc.output().expect("a C compiler, `cc`: Rust has it for a linker, else $CC names one");
        assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
        // SAFETY: the code of the stand-ins is sound.
        let library = unsafe { libloading::Library::new(&path) }.expect("compiled just now");
        StandIn { path, library }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a function of the stand-in.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise.
        *unsafe { self.library.get::<F>(name) }.expect("the stand-in has it")
    }

    pub(crate) fn set(&self, name: &str, value: u64) {
        let name = CString::new(name).expect("a name");
        // SAFETY: the type is that of control.h.
        unsafe {
            self.function::<unsafe extern "C" fn(*const c_char, u64, u64)>("standin_set")(
                name.as_ptr(),
                0,
                value,
            )
        };
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.get_at(name, 0)
    }

    pub(crate) fn get_at(&self, name: &str, at: u64) -> u64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: the type is that of control.h.
        unsafe {
            self.function::<unsafe extern "C" fn(*const c_char, u64) -> u64>("standin_get")(
                name.as_ptr(),
                at,
            )
        }
    }

    /// Makes `times` calls of `name` fail with `error`, from the `nth` call from now on (1 is the
    /// next).
    pub(crate) fn fail(&self, name: &str, nth: u64, times: u64, error: i32) {
        let name = CString::new(name).expect("a name");
        // SAFETY: the type is that of control.h.
        unsafe {
            self.function::<unsafe extern "C" fn(*const c_char, u64, u64, c_int)>("standin_fail")(
                name.as_ptr(),
                nth,
                times,
                error,
            )
        };
    }

    /// Returns how often `name` was called.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: the type is that of control.h.
        unsafe {
            self.function::<unsafe extern "C" fn(*const c_char) -> u64>("standin_calls")(
                name.as_ptr(),
            )
        }
    }

    /// Sets how long each call takes.
    pub(crate) fn latency(&self, latency: std::time::Duration) {
        // SAFETY: the type is that of control.h.
        unsafe {
            self.function::<unsafe extern "C" fn(u64)>("standin_latency")(latency.as_nanos() as u64)
        };
    }

    /// Returns the names of all calls since the last `log`.
    pub(crate) fn log(&self) -> Vec<String> {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: the type is that of control.h, and the buffer has this length.
        unsafe {
            self.function::<unsafe extern "C" fn(*mut c_void, u64)>("standin_log")(
                text.as_mut_ptr().cast(),
                text.len() as u64,
            )
        };
        let end = text.iter().position(|byte| *byte == 0).expect("a string");
        String::from_utf8_lossy(&text[..end]).lines().map(str::to_owned).collect()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
