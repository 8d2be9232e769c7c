//! Every public field of the structures of a disk tier in Rust is in C, C++ and Python.
//!
//! The sources are parsed, so that a field that is added in Rust alone fails the test.

use std::collections::BTreeSet;
use std::fs;

use crate::support::crate_folder;

/// A structure of Rust, and what it is called elsewhere.
struct Structure {
    /// The file below `crates`, and the name.
    rust: (&'static str, &'static str),
    faces: &'static [Face],
    /// Fields that no face has, with the reason.
    absent: &'static [(&'static str, &'static str)],
}

/// A declaration in one of the other languages.
struct Face {
    language: &'static str,
    /// The file below `crates`.
    file: &'static str,
    /// The text before the fields, and the text after them.
    begin: &'static str,
    end: &'static str,
    /// Fields with another name there.
    renamed: &'static [(&'static str, &'static str)],
}

const C: &str = "kvmem-capi/include/kvmem.h";
const DATA: &str = "kvmem-python/python/kvmem/data.py";
const STUB: &str = "kvmem-python/python/kvmem/_kvmem.pyi";

const fn c(
    begin: &'static str,
    end: &'static str,
    renamed: &'static [(&'static str, &'static str)],
) -> Face {
    Face { language: "C", file: C, begin, end, renamed }
}

/// The constructor of a class of Python.
const fn arguments(begin: &'static str, renamed: &'static [(&'static str, &'static str)]) -> Face {
    Face { language: "Python", file: STUB, begin, end: ") -> Self: ...", renamed }
}

const fn python(
    begin: &'static str,
    end: &'static str,
    renamed: &'static [(&'static str, &'static str)],
) -> Face {
    Face { language: "Python", file: DATA, begin, end, renamed }
}

const STRUCTURES: &[Structure] = &[
    Structure {
        rust: ("kvmem-tier/src/tier/options.rs", "DiskTierOptions"),
        faces: &[
            c(
                "typedef struct kvmem_disk_tier_options {",
                "} kvmem_disk_tier_options;",
                &[("keys", "key_file")],
            ),
            arguments("class DiskTier(_TierValues):", &[("keys", "key_file")]),
            arguments("class TierSet(_TierValues):", &[("keys", "key_file")]),
        ],
        absent: &[
            ("depth", "the default is right for every drive; hidden, for measurements"),
            ("journal_bytes", "the default is right for every file; hidden, for tests"),
        ],
    },
    Structure {
        rust: ("kvmem-tier/src/tier/verification.rs", "DamagedValue"),
        faces: &[
            c(
                "typedef struct kvmem_disk_tier_damaged_value {",
                "} kvmem_disk_tier_damaged_value;",
                &[("entry", "digest")],
            ),
            python("class DamagedValue(NamedTuple):", "\nclass ", &[("entry", "digest")]),
        ],
        absent: &[],
    },
];

/// Names by which C++ has a structure of C.
const ALIASES: &[(&str, &str)] = &[
    (
        "kvmem-capi/include/kvmem/disk_tier.hpp",
        "WithDefaults<kvmem_disk_tier_options, kvmem_disk_tier_options_init>",
    ),
    ("kvmem-capi/include/kvmem/tier_values.hpp", "using DiskTierStats = kvmem_disk_tier_stats;"),
    ("kvmem-capi/include/kvmem/tier_values.hpp", "using DiskTierReport = kvmem_disk_tier_report;"),
    (
        "kvmem-capi/include/kvmem/tier_inspection.hpp",
        "using DiskTierInspection = kvmem_disk_tier_inspection;",
    ),
    (
        "kvmem-capi/include/kvmem/tier_inspection.hpp",
        "using DiskTierDamagedValue = kvmem_disk_tier_damaged_value;",
    ),
    ("kvmem-capi/include/kvmem/kv_cache.hpp", "using WriteBehindStats = kvmem_write_behind_stats;"),
    (
        "kvmem-capi/include/kvmem/tier_inspection.hpp",
        "struct DiskTierVerification : kvmem_disk_tier_verification {",
    ),
];

fn read(file: &str) -> String {
    let path = crate_folder().parent().map(|crates| crates.join(file)).unwrap_or_default();
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the part of a text between `begin` and the next `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, behind) = text.split_once(begin)?;
    Some(behind.split_once(end)?.0)
}

/// Returns the name that a line declares.
fn declared<'a>(language: &str, line: &'a str) -> Option<&'a str> {
    let line = line.trim();
    let name = match language {
        _ if line.starts_with("//") || line.starts_with('#') => return None,
        "Rust" => line.strip_prefix("pub ")?.split_once(':')?.0,
        "Python" => line.split_once(':')?.0,
        _ => {
            let line = line.strip_suffix(';')?;
            let line = line.split_once(" = ").map_or(line, |(name, _)| name);
            let line = line.split_once('[').map_or(line, |(name, _)| name);
            line.rsplit_once([' ', '*'])?.1
        }
    };
    let is_name = name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
    (is_name && !name.is_empty()).then_some(name)
}

fn fields<'a>(language: &str, body: &'a str) -> BTreeSet<&'a str> {
    body.lines().filter_map(|line| declared(language, line)).collect()
}

impl Structure {
    /// Returns the fields that the faces must have.
    fn wanted(&self, rust: &str) -> Vec<String> {
        let (file, name) = self.rust;
        let body = between(rust, &format!("pub struct {name} {{"), "\n}")
            .unwrap_or_else(|| panic!("{file} has no structure {name}"));
        let all = fields("Rust", body);
        assert!(all.len() > 1, "{name} of {file} has the fields {all:?}");
        for (absent, reason) in self.absent {
            assert!(
                all.contains(absent),
                "{name} has no field {absent}, of which is said: {reason}"
            );
        }
        let is_absent = |field: &str| self.absent.iter().any(|(absent, _)| *absent == field);
        all.into_iter().filter(|field| !is_absent(field)).map(str::to_owned).collect()
    }
}

impl Face {
    fn name_of<'a>(&self, field: &'a str) -> &'a str {
        let renamed = self.renamed.iter().find(|(rust, _)| *rust == field);
        renamed.map_or(field, |(_, here)| here)
    }

    /// Returns those of the fields that the text does not declare.
    fn missing(&self, text: &str, wanted: &[String]) -> Vec<String> {
        let Face { file, begin, end, language, .. } = self;
        let body = between(text, begin, end).unwrap_or_else(|| panic!("{file} has no {begin:?}"));
        let here = fields(language, body);
        let is_missing = |field: &&String| !here.contains(self.name_of(field));
        wanted.iter().filter(is_missing).cloned().collect()
    }

    /// Returns the text without the lines that declare a field.
    fn without(&self, text: &str, field: &str) -> String {
        let body = between(text, self.begin, self.end).unwrap_or("");
        let is_other = |line: &&str| declared(self.language, line) != Some(self.name_of(field));
        let less: Vec<&str> = body.lines().filter(is_other).collect();
        text.replacen(body, &(less.join("\n") + "\n"), 1)
    }
}

#[test]
fn every_field_of_rust_is_in_every_face() {
    let mut missing = Vec::new();
    for structure in STRUCTURES {
        let wanted = structure.wanted(&read(structure.rust.0));
        for face in structure.faces {
            for field in face.missing(&read(face.file), &wanted) {
                let Face { language, file, begin, .. } = face;
                missing.push(format!(
                    "{}::{field} is not in {language}: {file} after {begin:?}",
                    structure.rust.1
                ));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    for (file, alias) in ALIASES {
        assert!(read(file).contains(alias), "{file} has no {alias:?}");
    }
}

/// The test above would notice each field that is left out of a face, or added to Rust alone.
#[test]
fn a_field_that_is_missing_is_named() {
    let mut tried = 0;
    for structure in STRUCTURES {
        let rust = read(structure.rust.0);
        let wanted = structure.wanted(&rust);
        let head = format!("pub struct {} {{", structure.rust.1);
        let more = rust.replacen(&head, &format!("{head}\n    pub added_alone: u64,"), 1);
        let more = structure.wanted(&more);
        for face in structure.faces {
            let text = read(face.file);
            assert_eq!(face.missing(&text, &more), ["added_alone"], "{}", face.begin);
            for field in &wanted {
                assert_eq!(face.missing(&face.without(&text, field), &wanted), [field.as_str()]);
                tried += 1;
            }
        }
    }
    assert!(tried > 25, "{tried} fields were left out");
}
