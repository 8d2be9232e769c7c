//! *Rights*: owner, group and mode, which a file inherits from the one that it replaces.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Gid, Mode, Uid};

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights {
    mode: u32,
    user: u32,
    group: u32,
}

impl Rights {
    pub(super) fn of(metadata: &Metadata) -> Rights {
        Rights { mode: metadata.mode() & 0o777, user: metadata.uid(), group: metadata.gid() }
    }
}

impl Rights {
    /// Sets owner, group and mode of `file`, as far as this process may.
    pub(super) fn give(self, file: &File) -> io::Result<()> {
        let Rights { mut mode, user, group } = self;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (user, group) {
            let group = Some(Gid::from_raw(group));
            let held = rustix::fs::fchown(file, Some(Uid::from_raw(user)), group)
                .or_else(|_| rustix::fs::fchown(file, None, group));
            if held.is_err() {
                // This process is not in the group: the file's group gets the rights of others.
                mode = mode & !0o070 | (mode & 0o007) << 3 & mode;
            }
        }
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }
}
