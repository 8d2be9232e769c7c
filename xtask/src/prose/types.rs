//! *Types*: a type's name is defined in one file of a crate.
//!
//! A name that is defined in several files of a crate sends a reader to the wrong one. Tests may
//! call their fixtures what they like: what is under `tests/` or `models/`, in a file `tests.rs` or
//! `models.rs`, or behind `#[cfg(test)]` does not count, and neither do the associated types of
//! implementations.

use std::collections::BTreeMap;

use super::File;

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// The names that are defined in more than one file of a crate, with the places.
pub(super) fn twice(files: &[File]) -> impl Iterator<Item = String> {
    let mut defined: BTreeMap<(&str, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    for file in files {
        let Some((home, inner)) = file.path.split_once("/src/") else { continue };
        let test = |part: &str| ["tests", "models"].contains(&part.trim_end_matches(".rs"));
        if !file.path.ends_with(".rs") || inner.split('/').any(test) {
            continue;
        }
        for (number, name) in definitions(file.text.code()) {
            defined.entry((home, name)).or_default().entry(inner).or_insert(number);
        }
    }
    defined.into_iter().filter(|(_, places)| places.len() > 1).map(|((home, name), places)| {
        let places: Vec<_> = places.iter().map(|(at, number)| format!("{at}:{number}")).collect();
        format!("{home}: `{name}` is defined in {} files: {}", places.len(), places.join(", "))
    })
}

/// Types that a source file defines, with the numbers of their lines.
fn definitions(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    // The blocks that are open: whether definitions in each of them count.
    let mut open: Vec<bool> = Vec::new();
    let (mut next, mut test) = (true, false);
    for (at, line) in code.lines().enumerate() {
        test |= line.contains("#[cfg(test)]") || line.contains("#[cfg(all(test");
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let counts = open.iter().all(|counts| *counts);
            match word {
                // What these blocks define is theirs.
                "impl" | "fn" | "macro_rules!" => next = false,
                _ if word.starts_with("impl<") => next = false,
                _ if counts && !test && next && KEYWORDS.contains(&word) => {
                    let end = |c: char| !(c.is_alphanumeric() || c == '_');
                    let name = words.peek().and_then(|name| name.split(end).next());
                    if let Some(name) = name.filter(|name| !name.is_empty()) {
                        found.push((at + 1, name));
                    }
                    next &= word != "trait";
                }
                _ => {}
            }
            for c in word.chars() {
                match c {
                    '{' => {
                        open.push(next && !test);
                        (next, test) = (true, false);
                    }
                    '}' => {
                        open.pop();
                    }
                    ';' => (next, test) = (true, false),
                    _ => {}
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::scan::{Language, Text};

    #[test]
    fn definitions_are_found_but_for_associated_and_tests() {
        let code = "pub struct A;\nimpl<T> B for A {\n    type C = u8;\n    fn d() { struct E; \
                    }\n}\n\
                    trait F { type G; }\npub(crate) enum H<T> { X(T) }\ntype I = [u8; 2];\n\
                    #[cfg(test)]\nmod tests {\n    struct J;\n}\n\
                    mod k {\n    union L { a: u8 }\n}\n";
        let names: Vec<&str> = definitions(code).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["A", "F", "H", "I", "L"]);
    }

    #[test]
    fn a_name_counts_once_a_crate() {
        let file = |path: &str| File {
            path: path.to_owned(),
            text: Text::new("struct Slot;", Language::Slashes),
        };
        let one = [file("crates/a/src/x.rs"), file("crates/b/src/y.rs")];
        assert_eq!(twice(&one).count(), 0);
        let two = [file("crates/a/src/x.rs"), file("crates/a/src/z/y.rs")];
        let found: Vec<String> = twice(&two).collect();
        assert_eq!(found, ["crates/a: `Slot` is defined in 2 files: x.rs:1, z/y.rs:1"]);
        assert_eq!(twice(&[file("crates/a/src/x.rs"), file("crates/a/src/tests.rs")]).count(), 0);
    }
}
