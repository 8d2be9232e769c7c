//! Makes what Rust and Python would otherwise write twice.
//!
//! - `python/kvmem/_stats.py` has a named tuple for each of the library's tables of statistics
//!   (`kvmem::stats!`). It lies in the package, whose files the wheel takes, and is not tracked.
//! - The macro `doc!` has the docstrings of the stub, for `help()`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// A named tuple of Python.
struct Class {
    /// The file of the table below `crates`, and its name.
    table: (&'static str, &'static str),
    name: &'static str,
    /// Fields with another type than that of Rust, or that only Python has: name, type, meaning.
    fields: &'static [(&'static str, &'static str, &'static str)],
    methods: &'static str,
}

const CLASSES: &[Class] = &[
    Class {
        table: ("kvmem/src/offset/heap/report.rs", "Metrics"),
        name: "Metrics",
        fields: &[],
        methods: r#"
    @property
    def utilization(self) -> float:
        """Share of the space that is in use."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lie outside the longest free range."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0
"#,
    },
    Class {
        table: ("kvmem/src/arena/bump/arena.rs", "BumpStats"),
        name: "BumpStats",
        fields: &[],
        methods: "",
    },
    Class {
        table: ("kvmem/src/cache/stats.rs", "KvCacheStats"),
        name: "KvCacheStats",
        fields: &[],
        methods: r#"
    @property
    def hit_rate(self) -> float:
        """Hits per call of ``get``; 0 before the first call."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0
"#,
    },
    Class {
        table: ("kvmem/src/tier/write_behind/stats.rs", "WriteBehindStats"),
        name: "WriteBehindStats",
        fields: &[(
            "last_error",
            "str | None",
            "Message of the latest failure of the tier in a writer.",
        )],
        methods: "",
    },
    Class {
        table: ("kvmem-tier/src/tier/stats.rs", "TierStats"),
        name: "DiskTierStats",
        fields: &[],
        methods: r#"
    @property
    def hit_rate(self) -> float:
        """Hits per fetch; 0 before the first one."""
        fetches = self.hits + sum(
            getattr(self, name) for name in self._fields if name.endswith("misses")
        )
        return self.hits / fetches if fetches else 0.0

    @property
    def write_amplification(self) -> float:
        """Bytes written per byte of values written; 0 before the first one."""
        written = self.written_bytes + self.metadata_bytes
        return written / self.written_bytes if self.written_bytes else 0.0
"#,
    },
    Class {
        table: ("kvmem-tier/src/tier/open.rs", "OpenReport"),
        name: "OpenReport",
        fields: &[],
        methods: "",
    },
    Class {
        table: ("kvmem-tier/src/tier/inspection.rs", "DiskTierInspection"),
        name: "DiskTierInspection",
        fields: &[(
            "identity",
            "str",
            "The identity of the file, chosen at random when it was made: 32 digits.",
        )],
        methods: r#"
    @property
    def utilization(self) -> float:
        """Share of the bytes for values that values occupy, without padding."""
        return self.value_bytes / self.capacity
"#,
    },
    Class {
        table: ("kvmem-cluster/src/stats.rs", "ClusterStats"),
        name: "ClusterTierStats",
        fields: &[(
            "last_report",
            "str | None",
            "Why the cluster went away last, or that it works.",
        )],
        methods: "",
    },
    Class {
        table: ("kvmem-node/src/node/stats.rs", "NamespaceStats"),
        name: "NamespaceStats",
        fields: &[(
            "max_bytes",
            "int | None",
            "The most bytes that it may use; None: as many as the node has.",
        )],
        methods: "",
    },
    Class {
        table: ("kvmem-node/src/node/stats.rs", "NodeStats"),
        name: "NodeStats",
        fields: &[],
        methods: r#"
    @property
    def hit_rate(self) -> float:
        """Hits per key that was acquired; 0 before the first one."""
        keys = self.hits + self.misses
        return self.hits / keys if keys else 0.0
"#,
    },
];

fn main() {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut stats =
        "\"\"\"*Stats*: statistics, which the build makes from the library's tables.\"\"\"\n\n\
                     from typing import Literal, NamedTuple\n"
            .to_owned();
    for class in CLASSES {
        let text = read(&crate_folder.join("..").join(class.table.0));
        write_class(&mut stats, class, &text);
    }
    write(&crate_folder.join("python/kvmem/_stats.py"), &stats);
    let mut docs = "macro_rules! doc {\n".to_owned();
    for (name, text) in docstrings(&read(&crate_folder.join("python/kvmem/_kvmem.pyi"))) {
        writeln!(docs, "    ({name:?}) => {{ {text:?} }};").expect("it is a string");
    }
    docs.push_str("}\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    write(&out.join("docs.rs"), &docs);
}

/// Returns the docstrings of the stub, by the names of classes, methods and functions.
fn docstrings(stub: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut class, mut named) = (String::new(), None);
    let mut lines = stub.lines();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let words = text.strip_prefix("async ").unwrap_or(text);
        if let Some((kind, rest)) =
            words.split_once(' ').filter(|it| ["class", "def"].contains(&it.0))
        {
            let name = rest.split(['(', ':']).next().unwrap_or(rest);
            named = Some((
                indent,
                if indent == 0 { name.to_owned() } else { format!("{class}.{name}") },
            ));
            if indent == 0 {
                class = if kind == "class" { name.to_owned() } else { String::new() };
            }
        }
        let Some((_, name)) =
            named.take_if(|(at, _)| text.starts_with("\"\"\"") && indent == *at + 4)
        else {
            continue;
        };
        let mut doc = text[3..].to_owned();
        while !doc.ends_with("\"\"\"") {
            let next =
                lines.next().unwrap_or_else(|| panic!("the docstring of {name} does not end"));
            write!(doc, "\n{}", next.get(indent..).unwrap_or("")).expect("it is a string");
        }
        if found.iter().all(|(other, _)| *other != name) {
            found.push((name, doc[..doc.len() - 3].trim_end().to_owned()));
        }
    }
    found
}

fn read(path: &Path) -> String {
    println!("cargo:rerun-if-changed={}", path.display());
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes a file unless it has the text: tools look at the time of the last change.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Writes the class of a table. A comment of the table is the docstring of what follows it.
fn write_class(into: &mut String, class: &Class, text: &str) {
    let head = format!("pub struct {}:", class.table.1);
    let at = text.find(&head).unwrap_or_else(|| panic!("{} has no {head}", class.table.0));
    let about = text[..at].lines().rev().map(str::trim).skip(1);
    let about: Vec<&str> = about.map_while(|line| line.strip_prefix("///")).collect();
    let about: Vec<&str> = about.into_iter().rev().collect();
    let name = class.name;
    writeln!(into, "\n\nclass {name}(NamedTuple):\n{}", docstring(&about)).expect("it is a string");
    let mut doc = Vec::new();
    let mut own = class.fields.to_vec();
    for line in text[at..].lines().skip(1).map(str::trim).take_while(|line| *line != "}") {
        if let Some(comment) = line.strip_prefix("///") {
            doc.push(comment);
        } else if let (Some((field, ty)), false) = (line.split_once(": "), doc.is_empty()) {
            let ty = ty.split(" [").next().unwrap_or(ty).trim_end_matches(',');
            match own.iter().position(|(name, ..)| *name == field) {
                Some(index) => {
                    let (_, own_type, meaning) = own.remove(index);
                    write_field(into, field, own_type, &[meaning]);
                }
                None => write_field(into, field, &type_of(ty), &doc),
            }
            doc.clear();
        }
    }
    for (field, ty, meaning) in own {
        write_field(into, field, ty, &[meaning]);
    }
    into.push_str(class.methods);
}

fn write_field(into: &mut String, name: &str, ty: &str, doc: &[&str]) {
    writeln!(into, "    {name}: {ty}\n{}", docstring(doc).trim_end()).expect("it is a string");
}

fn docstring(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let text = lines.join("\n    ").replace("\n    \n", "\n\n").replace('`', "``");
    let end = if lines.len() > 1 { "\n    " } else { "" };
    format!("    \"\"\"{text}{end}\"\"\"\n")
}

/// Returns the type of Python for one of Rust.
fn type_of(ty: &str) -> String {
    match ty {
        "u64" | "u32" | "usize" => "int".to_owned(),
        "bool" => "bool".to_owned(),
        "String" => "str".to_owned(),
        "TierState" => "Literal[\"none\", \"working\", \"read_only\", \"away\"]".to_owned(),
        list => match list.strip_prefix("Vec<").and_then(|item| item.strip_suffix('>')) {
            Some(item) => format!("tuple[{item}, ...]"),
            None => panic!("the type {list} has no equivalent in Python: add it"),
        },
    }
}
