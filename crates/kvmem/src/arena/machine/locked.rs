//! *Locked memory*: how much of `RLIMIT_MEMLOCK` is used, and whether the limit applies.

use super::files::MachineFiles;
use super::files::Read;
use super::parse;

/// `CAP_IPC_LOCK`, which turns the limit off.
const CAP_IPC_LOCK: u32 = 14;

/// Returns the bytes that the process has locked with `mlock`.
pub(crate) fn locked_bytes(files: &MachineFiles) -> Read<u64> {
    files.value("/proc/self/status", |text| parse::field_bytes(text, "VmLck"))
}

/// Returns the bytes that drivers have pinned for the process.
pub(crate) fn pinned_bytes(files: &MachineFiles) -> Read<u64> {
    files.value("/proc/self/status", |text| parse::field_bytes(text, "VmPin"))
}

/// Returns whether the calling thread is exempt from the limit; capabilities belong to threads.
///
/// The capability counts only in the initial user namespace: root in a rootless container appears
/// to have it and is limited all the same. An error if the files do not say so.
pub(crate) fn is_exempt_from_memlock(files: &MachineFiles) -> Read<bool> {
    let capable = |text: &str| parse::mask_bit(parse::field(text, "CapEff")?, CAP_IPC_LOCK);
    let thread = files.value_if_exists("/proc/thread-self/status", capable)?;
    let capable = match thread {
        Some(capable) => capable,
        // Before Linux 3.17.
        None => files.value("/proc/self/status", capable)?,
    };
    if !capable {
        return Ok(false);
    }
    files.value("/proc/self/uid_map", |text| Some(maps_all_users(text)))
}

/// Returns whether a `uid_map` is that of the initial namespace, which maps each user to itself.
fn maps_all_users(text: &str) -> bool {
    text.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::super::MadeUpTree;
    use super::*;

    fn tree(capabilities: &str, users: Option<&str>) -> MadeUpTree {
        let status = format!(
            "Name:\tVmLck: 7 kB\nVmPeak:\t   10056 kB\nVmLck:\t      64 kB\nVmPin:\t       8 \
             kB\nCapEff:\t{capabilities}\n"
        );
        let mut files = vec![("proc/self/status", &*status)];
        files.extend(users.map(|users| ("proc/self/uid_map", users)));
        MadeUpTree::new("locked", &files)
    }

    fn files(tree: &MadeUpTree) -> MachineFiles {
        MachineFiles::under(tree.root())
    }

    #[test]
    fn the_used_bytes_are_those_of_their_lines() {
        let tree = tree("0", None);
        assert_eq!(locked_bytes(&files(&tree)).unwrap(), 64 << 10);
        assert_eq!(pinned_bytes(&files(&tree)).unwrap(), 8 << 10);
    }

    #[test]
    fn a_capability_counts_in_the_initial_namespace_alone() {
        let initial = "         0          0 4294967295\n";
        for (capabilities, users, exempt) in [
            ("000001fffeffffff", Some(initial), true),
            ("0000000000004000", Some(initial), true),
            ("0000000000003fff", Some(initial), false),
            ("0000000000003fff", None, false),
            ("000001fffeffffff", Some("         0       1000          1\n"), false),
            ("000001fffeffffff", Some("0 100000 65536\n"), false),
            ("000001fffeffffff", Some("0 0 4294967295\n1 1 1\n"), false),
            ("000001fffeffffff", Some(""), false),
        ] {
            let tree = tree(capabilities, users);
            let found = is_exempt_from_memlock(&files(&tree)).unwrap();
            assert_eq!(found, exempt, "{capabilities} {users:?}");
        }
        for capabilities in ["0000000000004000", "all"] {
            assert!(is_exempt_from_memlock(&files(&tree(capabilities, None))).is_err());
        }
    }
}
