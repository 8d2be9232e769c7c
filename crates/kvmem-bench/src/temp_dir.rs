//! *Temporary directory* of a run.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// A directory that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Makes a directory of the suite `name` in `parent`.
    pub(crate) fn new(parent: &Path, name: &str) -> io::Result<TempDir> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("kvmem-bench-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(TempDir(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
