//! `kvmem-lab snapshot`, with snapshots that the test writes byte by byte.

use std::process::{Command, Output};

use kvmem_lab::snapshot::{
    AllocatorSnapshot, NO_NODE, SnapshotError, bin_of, check, import, size_of,
};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempPath;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).output().unwrap()
}

/// A range of a snapshot that is written.
#[derive(Clone, Copy, Debug)]
struct Part {
    units: u32,
    used: bool,
}

/// Ranges behind each other, no two free ones side by side, and nodes numbered by `order`.
#[derive(Clone, Debug)]
struct Layout {
    parts: Vec<Part>,
    /// The numbers of all nodes, those of the ranges first.
    order: Vec<u32>,
    multiplier_bits: u32,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let part = (1..5000_u32, any::<bool>()).prop_map(|(units, used)| Part { units, used });
    (prop::collection::vec(part, 1..40), 0..5_usize, 0..32_u32).prop_flat_map(
        |(mut parts, spare, multiplier_bits)| {
            parts.dedup_by(|part, before| !part.used && !before.used);
            let numbers: Vec<u32> = (0..(parts.len() + spare) as u32).collect();
            Just(numbers).prop_shuffle().prop_map(move |order| Layout {
                parts: parts.clone(),
                order,
                multiplier_bits,
            })
        },
    )
}

impl Layout {
    /// Writes the bytes as the original does.
    fn bytes(&self) -> Vec<u8> {
        let Layout { parts, order, multiplier_bits } = self;
        let count = parts.len();
        let number = |at: usize| parts.get(at).map_or(NO_NODE, |_| order[at]);
        let units = |used: bool| -> u32 {
            parts.iter().filter(|part| part.used == used).map(|part| part.units).sum()
        };
        // Each bin is a list with the newest range first.
        let (mut bins, mut links) = ([NO_NODE; 256], vec![[NO_NODE; 2]; count]);
        for (at, _) in parts.iter().enumerate().filter(|(_, part)| !part.used) {
            let first = &mut bins[bin_of(parts[at].units)];
            if let Some(behind) = (0..count).find(|other| order[*other] == *first) {
                links[behind][0] = order[at];
            }
            links[at][1] = std::mem::replace(first, order[at]);
        }
        let mut nodes = vec![[0_u8; 28]; order.len()];
        let mut offset = 0;
        for (at, part) in parts.iter().enumerate() {
            let before = at.checked_sub(1).map_or(NO_NODE, number);
            let fields = [offset, part.units, links[at][0], links[at][1], before, number(at + 1)];
            let node = &mut nodes[order[at] as usize];
            for (place, field) in node.chunks_mut(4).zip(fields) {
                place.copy_from_slice(&field.to_le_bytes());
            }
            node[24] = part.used.into();
            offset += part.units;
        }
        let mut used_bins = [0_u8; 32];
        for (bin, _) in bins.iter().enumerate().filter(|(_, first)| **first != NO_NODE) {
            used_bins[bin >> 3] |= 1 << (bin & 7);
        }
        let groups = (0..32).filter(|group| used_bins[*group] != 0);
        let used_groups: u32 = groups.map(|group| 1 << group).sum();
        let live = parts.iter().filter(|part| part.used).count() as u64;
        let mut bytes = Vec::new();
        let requested = u64::from(units(true)) << multiplier_bits;
        let capacity = u64::from(offset) << multiplier_bits;
        let wide = [0x7f00_0000_0000, u64::from(*multiplier_bits), capacity, requested, live];
        wide.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        let narrow = [offset, order.len() as u32, 1 << 20, units(false), used_groups];
        narrow.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(used_bins);
        bins.iter().for_each(|first| bytes.extend(first.to_le_bytes()));
        bytes.extend((count as u32).to_le_bytes());
        nodes.iter().for_each(|node| bytes.extend(node));
        order.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    }
}

fn read(bytes: &[u8]) -> Result<AllocatorSnapshot, SnapshotError> {
    AllocatorSnapshot::read(bytes, bytes.len() as u64)
}

#[test]
fn bins_are_floating_point_numbers() {
    let sizes = [0, 1, 7, 8, 9, 15, 16, 17, 18, 1000, 4095, 4096, u32::MAX];
    assert_eq!(sizes.map(bin_of), [0, 1, 7, 8, 9, 15, 16, 16, 17, 63, 79, 80, 239],);
    for bin in 1..240 {
        assert_eq!(bin_of(size_of(bin) as u32), bin);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A snapshot is read as it was written, is found right, and is imported range by range.
    #[test]
    fn a_whole_snapshot_is_imported(layout in layouts()) {
        let snapshot = read(&layout.bytes()).unwrap();
        prop_assert_eq!(check(&snapshot), []);
        let imported = import(&snapshot).unwrap();
        let mut offset = 0;
        let mut wanted = Vec::new();
        for part in &layout.parts {
            let bytes = u64::from(part.units) << layout.multiplier_bits;
            if part.used {
                wanted.push((offset, bytes));
            }
            offset += bytes;
        }
        let found: Vec<_> =
            imported.ranges.iter().map(|range| (range.offset, range.bytes)).collect();
        prop_assert_eq!(&found, &wanted);
        let metrics = imported.space.metrics();
        prop_assert_eq!(metrics.live as usize, found.len());
        prop_assert_eq!(imported.used, metrics.allocated);
        prop_assert_eq!(imported.used + imported.free, offset);
        prop_assert!(imported.longest_of_bins <= imported.longest);
        let free: Vec<u64> = layout
            .parts
            .iter()
            .filter(|part| !part.used)
            .map(|part| u64::from(part.units) << layout.multiplier_bits)
            .collect();
        let longest = free.iter().copied().max().unwrap_or(0);
        prop_assert_eq!(imported.free_ranges as usize, free.len());
        prop_assert_eq!(imported.longest, longest);
        let lost = (imported.free - longest) as f64;
        prop_assert!((imported.fragmentation * imported.free as f64 - lost).abs() <= 1.0);
        prop_assert!((0.0..=1.0).contains(&imported.fragmentation));
        prop_assert!(imported.fragmentation <= imported.fragmentation_of_bins);
    }

    /// A changed field of a live range, of a bin or of the counts is found; whatever the change,
    /// the check ends.
    #[test]
    fn damage_is_found(
        layout in layouts(),
        at in any::<prop::sample::Index>(),
        field in 0..5_usize,
        bits in 1..=u32::MAX,
    ) {
        let mut bytes = layout.bytes();
        let node = layout.order[at.index(layout.parts.len())] as usize;
        // Offset, size and neighbours of a node; or a word of the header from the free units on.
        let place = match field {
            4 => 52 + 4 * at.index(267),
            field => 1120 + 28 * node + [0, 4, 16, 20][field],
        };
        for (byte, bits) in bytes[place..place + 4].iter_mut().zip(bits.to_le_bytes()) {
            *byte ^= bits;
        }
        let snapshot = read(&bytes).unwrap();
        prop_assert!(!check(&snapshot).is_empty(), "byte {}", place);
        let _ = import(&snapshot);
    }

    /// Any bytes are an error, or a snapshot that can be checked.
    #[test]
    fn any_bytes_are_told(
        mut bytes in prop::collection::vec(any::<u8>(), 0..1500),
        nodes in 0..9_u32,
    ) {
        if bytes.len() >= 1120 {
            bytes.resize(1120 + 32 * nodes as usize, 0xFF);
            bytes[8..16].copy_from_slice(&3_u64.to_le_bytes());
            bytes[44..48].copy_from_slice(&nodes.to_le_bytes());
        }
        if let Ok(snapshot) = read(&bytes) {
            let _ = (check(&snapshot), import(&snapshot).is_ok());
        }
    }
}

/// A file that is removed at the end.
struct SnapshotFile(TempPath);

impl SnapshotFile {
    fn new(name: &str, bytes: &[u8]) -> SnapshotFile {
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(name).tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(&file, bytes).unwrap();
        SnapshotFile(file.into_temp_path())
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

/// 4 KiB units: 5 in use, 9 free, 7 in use.
fn small() -> Layout {
    let part = |units, used| Part { units, used };
    Layout {
        parts: vec![part(5, true), part(9, false), part(7, true)],
        order: vec![2, 0, 3, 1],
        multiplier_bits: 12,
    }
}

#[test]
fn the_command_tells_what_is_in_use_and_what_is_wrong() {
    let whole = SnapshotFile::new("whole", &small().bytes());
    let output = kvmem(&["snapshot", whole.text()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in ["in units of 4KiB", "2 range(s), 48KiB", "36KiB", "nothing is wrong"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    // Two free ranges of 9 and 17 units: the original is sure to serve the 16 of the second bin.
    let mut two = small();
    two.parts.push(Part { units: 17, used: false });
    two.order.push(4);
    let two = SnapshotFile::new("two", &two.bytes());
    let text = String::from_utf8(kvmem(&["snapshot", two.text()]).stdout).unwrap();
    for part in ["104KiB in 2 range(s)", "34.6 % in kvmem's allocator, 38.5 % in the original"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let output = kvmem(&["snapshot", whole.text(), "--json", "-"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["imported"]["ranges"][1]["offset"], 14 * 4096);

    // The second range in use begins one unit early.
    let mut bytes = small().bytes();
    bytes[1120 + 28 * 3] = 13;
    let damaged = SnapshotFile::new("damaged", &bytes);
    let output = kvmem(&["snapshot", damaged.text()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("node 3 begins at unit 13, and the range before it ends at 14"),
        "{text}"
    );
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("do not restore it"), "{error}");

    for (name, bytes, why) in [
        ("cut", &small().bytes()[..1200], "has 1200: it was cut"),
        ("short", &b"hello"[..], "has 5 bytes, and a snapshot at least 1120"),
    ] {
        let file = SnapshotFile::new(name, bytes);
        let output = kvmem(&["snapshot", file.text()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why), "{error}");
    }
}
