//! *Lockers*: the users that have locked a file.
//!
//! Any process that may read a directory may lock it, whatever its user. The kernel says of such a
//! lock neither its process nor its user. It does so in `/proc/<pid>/fdinfo`, one open file after
//! the other, for the processes that this one sees and may look into.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the bytes of a file that processes of some users have locked for reading by other open
/// files than this one. Those of processes that this one cannot look into are missing. Takes
/// milliseconds: it looks at all open files of all processes.
pub(super) fn locked_by(file: &File, users: &[u32]) -> u64 {
    let Ok(wanted) = file.metadata() else { return 0 };
    let wanted = (wanted.dev(), wanted.ino());
    let own = (std::process::id().to_string(), file.as_raw_fd().to_string());
    let mut bytes = 0_u64;
    for process in entries(Path::new("/proc")) {
        let name = process.file_name().to_string_lossy().into_owned();
        let is_of_users = || process.metadata().is_ok_and(|it| users.contains(&it.uid()));
        if !name.bytes().all(|byte| byte.is_ascii_digit()) || !is_of_users() {
            continue;
        }
        let folder = process.path();
        for descriptor in entries(&folder.join("fd")) {
            let number = descriptor.file_name().to_string_lossy().into_owned();
            let is_it = fs::metadata(descriptor.path())
                .is_ok_and(|found| (found.dev(), found.ino()) == wanted);
            if is_it && (&name, &number) != (&own.0, &own.1) {
                let text = fs::read_to_string(folder.join("fdinfo").join(number));
                bytes = bytes.saturating_add(text.map_or(0, |text| locked(&text)));
            }
        }
    }
    bytes
}

fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// Returns the bytes of the read locks of an open file, as its `fdinfo` has them:
/// `lock:  1: OFDLCK  ADVISORY  READ -1 00:2e:23 0 4095`.
fn locked(fdinfo: &str) -> u64 {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.strip_prefix("lock:")?.split_whitespace().collect();
        let [_, "OFDLCK", _, "READ", .., first, last] = words[..] else { return None };
        let last = if last == "EOF" { i64::MAX as u64 } else { last.parse().ok()? };
        last.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    fdinfo.lines().filter_map(of_line).fold(0, u64::saturating_add)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn the_lines_of_read_locks_count() {
        let text = "pos:\t0\nflags:\t0100000\nlock:\t1: OFDLCK  ADVISORY  READ -1 00:2e:23 10 19\n\
                    lock:\t2: OFDLCK  ADVISORY  WRITE -1 00:2e:23 0 9\nlock:\t3: nonsense\n\
                    lock:\t4: FLOCK  ADVISORY  READ 5 00:2e:23 0 EOF\n\
                    lock:\t5: OFDLCK  ADVISORY  READ -1 00:2e:23 0 6\n";
        assert_eq!(locked(text), 17);
        let all = "lock:\t1: OFDLCK  ADVISORY  READ -1 00:2e:23 0 EOF\n";
        assert_eq!(locked(all), 1 << 63);
        assert_eq!(locked(""), 0);
    }

    #[test]
    fn locks_of_other_users_do_not_count() {
        let folder = tempfile::tempdir().expect("a new directory");
        let open = || sys::open_to_lock(folder.path()).expect("it is readable");
        let (own, other) = (open(), open());
        sys::lock_range(&other, &(100..1100)).expect("it is free");
        let uid = fs::metadata("/proc/self").expect("there is /proc").uid();
        assert_eq!(locked_by(&own, &[uid]), 1000);
        assert_eq!(locked_by(&other, &[uid]), 0, "its own locks are no others");
        assert_eq!(locked_by(&own, &[uid + 1]), 0);
        drop(other);
        assert_eq!(locked_by(&own, &[uid]), 0);
    }
}
