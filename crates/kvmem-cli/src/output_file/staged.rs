//! *Staged*: content that waits in a file in the folder of its target until it is complete.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// The file that holds the content until it is complete.
#[derive(Debug)]
pub(super) enum Staged {
    /// In a file without a name, in the target's folder.
    Unnamed,
    /// In a file with a name of its own there, which is removed on drop.
    Named(PathBuf),
    /// In an unnamed file in the folder for temporary files: the target's folder cannot be written.
    OtherFolder,
}

impl Staged {
    /// Opens a file in the folder of `target`, or in the folder for temporary files if `target` can
    /// be written and its folder cannot.
    pub(super) fn new(target: &Path, exists: bool) -> io::Result<(File, Staged)> {
        let folder = target.parent().unwrap_or(Path::new("/"));
        match Staged::in_folder(folder) {
            Err(error) if exists => {
                let (file, staged) = Staged::in_folder(&std::env::temp_dir()).map_err(|_| error)?;
                // From here on the file has no name.
                drop(staged);
                Ok((file, Staged::OtherFolder))
            }
            made => made,
        }
    }

    fn in_folder(folder: &Path) -> io::Result<(File, Staged)> {
        // Such a file gets its name through /proc.
        if Path::new("/proc/self/fd").exists() {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok((file.into(), Staged::Unnamed)),
                // The file system has no such files, or the kernel does not know them.
                Err(
                    Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS,
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        with_free_name(folder, |name| {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(name)?;
            Ok((file, Staged::Named(name.to_owned())))
        })
    }

    /// Links the file under an unused name.
    fn link(&self, file: &File, name: &Path) -> io::Result<()> {
        match self {
            Staged::Named(staged) => fs::hard_link(staged, name),
            _ => {
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                let linked = rustix::fs::linkat(CWD, unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW);
                linked.map_err(io::Error::from)
            }
        }
    }

    /// Renames the file over `target`.
    pub(super) fn rename(&self, file: &File, target: &Path) -> io::Result<()> {
        if let Staged::Named(staged) = self {
            return fs::rename(staged, target);
        }
        let folder = target.parent().unwrap_or(Path::new("/"));
        let name = with_free_name(folder, |name| self.link(file, name).map(|()| name.to_owned()))?;
        fs::rename(&name, target).inspect_err(|_| {
            let _ = fs::remove_file(&name);
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Staged::Named(staged) = self {
            // After the rename the temporary name is gone.
            let _ = fs::remove_file(staged);
        }
    }
}

/// Calls `make` with an unused name in `folder`.
fn with_free_name<T>(folder: &Path, mut make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        // Relaxed: only the numbers must differ.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = folder.join(format!(".kvmem-{}-{number}.part", std::process::id()));
        match make(&name) {
            // Left by a killed process, or in use by one of the same number in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
}
