//! *Made-up tree*: the files of a machine that does not exist, for tests.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A folder with the files of a made-up machine, which is removed when the value is dropped.
pub(crate) struct MadeUpTree(TempDir);

impl MadeUpTree {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> MadeUpTree {
        let tree = MadeUpTree(TempDir::with_prefix(name).expect("a folder"));
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let place = self.root().join(path);
        fs::create_dir_all(place.parent().expect("a folder above")).expect("a folder");
        fs::write(place, text).expect("a file");
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }
}
