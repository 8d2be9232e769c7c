//! *Source*: the public error types of the library, with their variants and documentation, as its
//! source declares them.
//!
//! A type is an error type if it derives `Error`. The files are formatted by rustfmt, so a line
//! shows what it is: items begin in the first column, variants in the fifth.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The documentation of each public error, by its name: `Type::Variant`, or `Type` of a structure.
/// Only the first paragraph, without links.
pub(super) type Docs = BTreeMap<String, String>;

/// Returns the errors of the library, and the variants of these other types.
pub(super) fn read(others: &[&str]) -> Docs {
    let mut docs = Docs::new();
    for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).expect("a source can be read");
        add(&text, others, &mut docs);
    }
    docs
}

/// Returns the Rust files in a folder and the folders in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// Adds the errors of one file.
fn add(text: &str, others: &[&str], docs: &mut Docs) {
    let (mut documentation, mut derives_error) = (Vec::new(), false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(sentence) = line.strip_prefix("///") {
            documentation.push(sentence.trim().to_owned());
        } else if line.starts_with("#[derive(") {
            derives_error = line.trim_end_matches(")]").ends_with("Error");
        } else if let Some(rest) =
            line.strip_prefix("pub enum ").or(line.strip_prefix("pub struct "))
        {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            if derives_error || others.contains(&name.as_str()) {
                if line.starts_with("pub enum ") {
                    add_variants(&name, &mut lines, docs);
                } else {
                    docs.insert(name, paragraph(&documentation));
                }
            }
            (documentation, derives_error) = (Vec::new(), false);
        } else if line.is_empty() {
            (documentation, derives_error) = (Vec::new(), false);
        }
    }
}

/// Adds the variants of an enumeration, whose first line has been read.
fn add_variants<'a>(name: &str, lines: &mut impl Iterator<Item = &'a str>, docs: &mut Docs) {
    let (mut documentation, mut in_attribute) = (Vec::new(), false);
    for line in lines.take_while(|line| *line != "}") {
        if in_attribute || line.starts_with("    #[") {
            in_attribute = !line.ends_with(")]");
        } else if let Some(sentence) = line.strip_prefix("    ///") {
            documentation.push(sentence.trim().to_owned());
        } else if line.strip_prefix("    ").is_some_and(|rest| rest.starts_with(char::is_uppercase))
        {
            let variant: String = line.trim().chars().take_while(|c| c.is_alphanumeric()).collect();
            docs.insert(format!("{name}::{variant}"), paragraph(&documentation));
            documentation.clear();
        }
    }
}

/// Returns the first paragraph as one line, with links replaced by their texts.
fn paragraph(lines: &[String]) -> String {
    let first: Vec<&str> =
        lines.iter().map(String::as_str).take_while(|line| !line.is_empty()).collect();
    let (text, mut plain) = (first.join(" "), String::new());
    let mut rest = text.as_str();
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        let (shown, after) = link.split_once(']').expect("a link ends");
        plain.push_str(shown);
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain + rest
}

#[test]
fn items_variants_and_links_are_found() {
    let text = r#"
/// A whole
/// [`thing`](x::y).
///
/// More.
#[derive(Debug, Error)]
#[error("{a}")]
pub struct Whole {
}

#[derive(Debug, thiserror::Error)]
pub enum Many {
    /// First.
    #[error(
        "x: [{a}, {b}) y"
    )]
    First {
        /// A field.
        a: u64,
    },
    /// Then [`First`].
    #[error(transparent)]
    Then(u64),
}

#[derive(Debug)]
pub enum Other {
    /// None.
    None,
}
"#;
    let (mut docs, mut more) = (Docs::new(), Docs::new());
    add(text, &[], &mut docs);
    let found: Vec<(&str, &str)> =
        docs.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(
        found,
        [("Many::First", "First."), ("Many::Then", "Then `First`."), ("Whole", "A whole `thing`.")]
    );
    add(text, &["Other"], &mut more);
    assert_eq!(more["Other::None"], "None.");
}
