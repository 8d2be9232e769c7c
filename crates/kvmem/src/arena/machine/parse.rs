//! *Parsers*: the file formats of the kernel. Each parser accepts any text and
//! returns `None` for text that it does not understand.

use crate::arena::Nodes;

/// The largest number of members of a list such as `0-3,8`: more than the kernel can have
/// processors or nodes.
const LIST_MAX: usize = 1 << 16;

/// The smallest limit of cgroup v1 that means "none": half of the range, far above any memory.
const V1_UNLIMITED: u64 = 1 << 62;

/// Parses one number.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Parses a limit of cgroup v2 (`max`) or v1 (a huge number, or -1); `Some(None)` means no limit.
pub(crate) fn limit(text: &str) -> Option<Option<u64>> {
    match text.trim() {
        "max" | "-1" => Some(None),
        text => text.parse().ok().map(|limit| Some(limit).filter(|&limit| limit < V1_UNLIMITED)),
    }
}

/// Returns the word in brackets: `always [madvise] never`.
pub(crate) fn selected(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word)
        .filter(|word| !word.is_empty() && !word.contains(char::is_whitespace))
        .map(str::to_owned)
}

/// Parses a list of numbers, in ascending order: `0-3,8`. An empty line is an empty list.
pub(crate) fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    let text = text.trim();
    if text.is_empty() {
        return Some(all);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || (last - first) as usize >= LIST_MAX - all.len().min(LIST_MAX) {
            return None;
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Formats a list like the kernel: `0-3,8`. An empty list is `none`.
pub(crate) fn span(list: &[u32]) -> String {
    if list.is_empty() { "none".to_owned() } else { Nodes(list.to_vec()).to_string() }
}

/// Returns the value of `key` in lines of `key: value`.
pub(crate) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// Returns the value of `key` in lines of `key: N kB`, in bytes.
pub(crate) fn field_bytes(text: &str, key: &str) -> Option<u64> {
    kib(field(text, key)?)
}

/// Parses `N kB` to bytes.
fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the value of `key` in lines `Node 3 key: N kB` of a node's meminfo, in bytes.
pub(crate) fn node_field_bytes(text: &str, key: &str) -> Option<u64> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| name.split_whitespace().next_back() == Some(key))?;
    kib(value.trim())
}

/// Returns the value of `key` in lines `key N`.
pub(crate) fn stat(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)?
        .1
        .trim()
        .parse()
        .ok()
}

/// Returns a bit of a hexadecimal mask, such as `CapEff`.
pub(crate) fn mask_bit(text: &str, bit: u32) -> Option<bool> {
    u64::from_str_radix(text.trim(), 16).ok().map(|mask| mask >> bit & 1 == 1)
}

/// Parses the major and minor number of a kernel release: `6.18.44-fc` is (6, 18).
pub(crate) fn release(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.trim().split_once('.')?;
    let minor: &str = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Parses `cpu.max` (`max 100000`) to thousandths of a processor; `Some(None)` means no quota.
pub(crate) fn cpu_max(text: &str) -> Option<Option<u64>> {
    let (quota, period) = text.trim().split_once(' ')?;
    cpu_quota(limit(quota)?, number(period)?)
}

/// Converts a `quota` of each `period` to thousandths of a processor.
pub(crate) fn cpu_quota(quota: Option<u64>, period: u64) -> Option<Option<u64>> {
    match quota {
        None => Some(None),
        Some(quota) => quota.checked_mul(1000)?.checked_div(period).map(Some),
    }
}

/// A mount, parsed from a line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mounted folder of the file system.
    pub(crate) root: String,
    /// The mount point.
    pub(crate) point: String,
    /// The kind of file system.
    pub(crate) kind: String,
    /// The options of the file system: for cgroup v1 its controllers.
    pub(crate) options: Vec<String>,
}

/// Parses the mounts of `mountinfo`; skips lines of another form.
pub(crate) fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        Some(Mount {
            root: unescape(left.next()?)?,
            point: unescape(left.next()?)?,
            kind: right.next()?.to_owned(),
            options: right.nth(1)?.split(',').map(str::to_owned).collect(),
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Reverts the kernel's `\040` for characters that would split a line.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'\\' {
            let digits = std::str::from_utf8(after.get(..3)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 8).ok()?);
            rest = &after[3..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The cgroup of a process in one hierarchy, parsed from a line of `/proc/self/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Controllers of a v1 hierarchy; empty for v2.
    pub(crate) controllers: Vec<String>,
    /// The path of the cgroup from the root of the namespace.
    pub(crate) path: String,
    /// Whether it is the hierarchy of v2.
    pub(crate) unified: bool,
}

/// Parses the lines of `/proc/self/cgroup`. Returns `None` if one line has another form, because
/// nothing is certain then.
pub(crate) fn memberships(text: &str) -> Option<Vec<Membership>> {
    let membership = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let number: u64 = parts.next()?.parse().ok()?;
        let controllers = parts.next()?;
        let path = parts.next()?.to_owned();
        let unified = number == 0 && controllers.is_empty();
        let controllers =
            controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        path.starts_with('/').then_some(Membership { controllers, path, unified })
    };
    text.lines().map(membership).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_limits() {
        assert_eq!(number(" 12\n"), Some(12));
        for bad in ["", "x", "-1", "1 2", "18446744073709551616", "1\u{fffd}"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(limit("max\n"), Some(None));
        assert_eq!(limit("-1\n"), Some(None));
        assert_eq!(limit("9223372036854771712\n"), Some(None), "v1's word for none");
        assert_eq!(limit("1073741824\n"), Some(Some(1 << 30)));
        assert_eq!(limit("0\n"), Some(Some(0)));
        assert_eq!(limit("maximum"), None);
    }

    #[test]
    fn the_chosen_word() {
        assert_eq!(selected("always [madvise] never\n").as_deref(), Some("madvise"));
        for bad in ["", "always", "[", "[]", "]never[", "[a b]"] {
            assert_eq!(selected(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(list("1\n"), Some(vec![1]));
        assert_eq!(list("2-3,0,2\n"), Some(vec![0, 2, 3]));
        assert_eq!(list("\n"), Some(vec![]));
        for bad in ["3-1", "0-4294967295", "0-65535,0-65535", "a", "1-", "-1", "1,,2", "1-2-3"] {
            assert_eq!(list(bad), None, "{bad}");
        }
    }

    #[test]
    fn spans() {
        assert_eq!(span(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(span(&[]), "none");
        assert_eq!(span(&[u32::MAX]), u32::MAX.to_string());
    }

    #[test]
    fn fields() {
        let meminfo = "MemTotal:       24684092 kB\nMemFree:  1 kB\n\
                       HugePages_Total:       7\nHuge: 99999999999999999999 kB\n";
        assert_eq!(field_bytes(meminfo, "MemTotal"), Some(24_684_092 << 10));
        assert_eq!(field(meminfo, "HugePages_Total"), Some("7"));
        assert_eq!(field_bytes(meminfo, "HugePages_Total"), None, "no unit, no bytes");
        assert_eq!(field_bytes(meminfo, "Huge"), None);
        assert_eq!(field_bytes(meminfo, "Mem"), None);
        let node = "Node 1 MemTotal:  8 kB\nNode 1 MemFree:  4 kB\n";
        assert_eq!(node_field_bytes(node, "MemFree"), Some(4096));
        assert_eq!(stat("anon 5\ninactive_file 8192\n", "inactive_file"), Some(8192));
        assert_eq!(stat("total_inactive_file 1\n", "inactive_file"), None);
        assert_eq!(mask_bit("0000000000004000", 14), Some(true));
        assert_eq!(mask_bit("0000000000000000", 14), Some(false));
        assert_eq!(mask_bit("zz", 14), None);
    }

    #[test]
    fn releases() {
        for (text, version) in [
            ("6.18.44-fc-v657\n", (6, 18)),
            ("5.4", (5, 4)),
            ("5.14-rc1", (5, 14)),
            ("4.18.0-553.el8", (4, 18)),
        ] {
            assert_eq!(release(text), Some(version), "{text}");
        }
        for bad in ["", "6", "x.y", "6.", "99999999999.1"] {
            assert_eq!(release(bad), None, "{bad}");
        }
    }

    #[test]
    fn processor_quotas() {
        assert_eq!(cpu_max("max 100000\n"), Some(None));
        assert_eq!(cpu_max("150000 100000\n"), Some(Some(1500)));
        for bad in ["", "100000", "100000 0", "4611686018427387903 1", "a b"] {
            assert_eq!(cpu_max(bad), None, "{bad}");
        }
    }

    #[test]
    fn mounts_and_memberships() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                    35 31 0:32 /docker/a\\040b /sys/fs/cgroup/memory rw,relatime shared:5 \
                    master:1 - cgroup cgroup rw,memory\n\
                    nonsense\n36 31 0:32 / /x\\9 rw - cgroup2 none rw\n";
        let found = mounts(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[1].root.as_str(), found[1].kind.as_str()), ("/docker/a b", "cgroup"));
        assert_eq!(found[1].options, ["rw", "memory"]);

        let text = "9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/user.slice\n";
        let found = memberships(text).unwrap();
        assert_eq!(found[1].controllers, ["cpu", "cpuacct"]);
        assert_eq!((found[1].path.as_str(), found[1].unified), ("/a:b", false));
        assert_eq!((found[2].path.as_str(), found[2].unified), ("/user.slice", true));
        for bad in ["x", "1:memory", "a:memory:/", "1:memory:relative"] {
            assert_eq!(memberships(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            key in ".{0,8}",
        ) {
            let text = String::from_utf8_lossy(&bytes);
            every_parser(&text, &key);
        }

        #[test]
        fn nearly_valid_text_makes_no_parser_panic(
            text in "([0-9]{1,20}|[a-z]{1,3}|max|kB|[-:,./ \\[\\]\\\\\n]){0,30}",
        ) {
            every_parser(&text, "a");
        }

        #[test]
        fn spans_are_what_the_parser_reads(
            all in proptest::collection::btree_set(0u32..64, 1..20),
        ) {
            let all: Vec<u32> = all.into_iter().collect();
            prop_assert_eq!(list(&span(&all)), Some(all));
        }

        #[test]
        fn lists_are_ascending(text in "[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?){0,4}") {
            if let Some(list) = list(&text) {
                prop_assert!(list.is_sorted_by(|a, b| a < b), "{:?}", list);
            }
        }
    }

    fn every_parser(text: &str, key: &str) {
        number(text);
        limit(text);
        selected(text);
        list(text);
        field(text, key);
        field_bytes(text, key);
        node_field_bytes(text, key);
        stat(text, key);
        mask_bit(text, 63);
        release(text);
        cpu_max(text);
        mounts(text);
        memberships(text);
    }
}
