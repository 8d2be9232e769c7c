//! *Made-up tree*: the files of a machine that does not exist, for tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process};

/// A folder with the files of a made-up machine, which is removed when the value is dropped.
pub(crate) struct MadeUpTree(PathBuf);

impl MadeUpTree {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> MadeUpTree {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to be distinct.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = env::temp_dir().join(format!("kvmem-{name}-{}-{number}", process::id()));
        let tree = MadeUpTree(root);
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let place = self.0.join(path);
        fs::create_dir_all(place.parent().expect("a folder above")).expect("a folder");
        fs::write(place, text).expect("a file");
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }
}

impl Drop for MadeUpTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
