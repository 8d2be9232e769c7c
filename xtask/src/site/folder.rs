//! *Folder*: a folder of generated files. Unchanged files are not written again, so the next tool
//! reads only new ones. Files that are not written any more are removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder that is being filled.
pub(super) struct Folder {
    root: PathBuf,
    written: BTreeSet<PathBuf>,
}

impl Folder {
    pub(super) fn new(root: PathBuf) -> Folder {
        Folder { root, written: BTreeSet::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.root
    }

    /// Writes a file, unless it has this content already.
    pub(super) fn write(&mut self, path: impl AsRef<Path>, content: &[u8]) -> Result<()> {
        let file = self.root.join(path);
        if fs::read(&file).is_ok_and(|now| now == content) {
            self.written.insert(file);
            return Ok(());
        }
        create_folder_of(&file)?;
        fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
        self.written.insert(file);
        Ok(())
    }

    /// Copies all files below a folder.
    pub(super) fn copy_all(&mut self, from: &Path, to: &str) -> Result<()> {
        for file in files(from)? {
            let path = Path::new(to).join(file.strip_prefix(from)?);
            let content =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()));
            self.write(path, &content?)?;
        }
        Ok(())
    }

    /// Removes the files below `within` that were not written.
    pub(super) fn remove_others(&self, within: &str) -> Result<()> {
        for file in files(&self.root.join(within))? {
            if !self.written.contains(&file) {
                fs::remove_file(&file)
                    .with_context(|| format!("cannot remove {}", file.display()))?;
            }
        }
        Ok(())
    }
}

/// Creates the folder of a file.
pub(super) fn create_folder_of(file: &Path) -> Result<()> {
    let folder = file.parent().context("a file has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// All files below a folder, sorted; none if it does not exist.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if !folder.exists() {
            continue;
        }
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("cannot read the folder {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_files_stay_and_others_go() {
        let made = tempfile::tempdir().unwrap();
        let root = made.path();
        let mut folder = Folder::new(root.to_owned());
        folder.write("a/b.md", b"1").unwrap();
        folder.write("c.md", b"2").unwrap();
        let changed = || fs::metadata(root.join("a/b.md")).unwrap().modified().unwrap();
        let before = changed();
        let mut folder = Folder::new(root.to_owned());
        folder.write("a/b.md", b"1").unwrap();
        folder.remove_others("").unwrap();
        assert_eq!(changed(), before);
        assert_eq!(files(root).unwrap(), [root.join("a/b.md")]);
    }
}
