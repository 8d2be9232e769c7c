//! *Place*: what a path leads to: a file that can be replaced, or something that is written
//! directly.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::rights::Rights;

/// Maximum symbolic links to follow, as in the kernel.
const MAX_LINKS: usize = 40;

/// Where a path leads.
pub(super) enum Place {
    /// To something that cannot be replaced.
    Direct(File),
    /// To an existing file, opened for writing, or to an unused name.
    File { path: PathBuf, existing: Option<(File, Rights)> },
}

impl Place {
    pub(super) fn of(path: &Path) -> io::Result<Place> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let Some(name) = path.file_name() else {
                return Err(io::ErrorKind::IsADirectory.into());
            };
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            let full = folder.join(name);
            if folder.starts_with("/proc") {
                return descriptor(&full).map(Place::Direct);
            }
            let found = match fs::symlink_metadata(&full) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Place::File { path: full, existing: None });
                }
                found => found?,
            };
            if found.is_symlink() {
                path = folder.join(fs::read_link(&full)?);
                continue;
            }
            // A directory, or a file without permission, says so here. A FIFO waits for its reader.
            let file = OpenOptions::new().write(true).custom_flags(NO_TERMINAL).open(&full)?;
            let metadata = file.metadata()?;
            return Ok(match metadata.is_file() {
                true => Place::File { path: full, existing: Some((file, Rights::of(&metadata))) },
                false => Place::Direct(file),
            });
        }
        Err(Errno::LOOP.into())
    }
}

/// A terminal that is opened does not become the one that controls this process.
const NO_TERMINAL: i32 = OFlags::NOCTTY.bits().cast_signed();

/// A descriptor, named by a path in `/proc`. The first three are shared with this process's own,
/// so that text and output follow each other; others are written at their end.
fn descriptor(path: &Path) -> io::Result<File> {
    let own = Path::new("/proc/self/fd").canonicalize()?;
    let number = path.strip_prefix(&own).ok().and_then(|number| number.to_str());
    let shared = |stream: BorrowedFd<'_>| stream.try_clone_to_owned().map(File::from);
    match number {
        Some("0") => shared(io::stdin().as_fd()),
        Some("1") => shared(io::stdout().as_fd()),
        Some("2") => shared(io::stderr().as_fd()),
        _ => OpenOptions::new().append(true).custom_flags(NO_TERMINAL).open(path),
    }
}
