//! *Row*: one error with example values, as a row of the table.

use std::any::type_name;
use std::fmt::{Debug, Display};

use super::source::Docs;

/// An error: its name in the source, its text, and what to do.
pub(super) struct Row {
    name: String,
    text: String,
    /// What to do, if it is not the last part of the text.
    fix: Option<String>,
}

/// Makes the row of an error whose text ends with what to do.
pub(super) fn row<E: Debug + Display>(error: E) -> Row {
    let kind = type_name::<E>().rsplit("::").next().expect("a name has an end");
    let debug = format!("{error:?}");
    let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let name = if variant == kind { kind.to_owned() } else { format!("{kind}::{variant}") };
    Row { name, text: error.to_string(), fix: None }
}

impl Row {
    /// Says what to do: the text does not say it, or ends with this remedy of several parts.
    pub(super) fn fix(self, fix: impl Into<String>) -> Row {
        Row { fix: Some(fix.into()), ..self }
    }

    /// Says that the text is, or contains, that of another error.
    pub(super) fn contains_another(self) -> Row {
        self.fix("as for the error that it contains")
    }

    /// The name of the error: `Type::Variant`, or `Type` of a structure.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the line of the table. The text ends where the remedy begins: errors say what
    /// failed, the value, the limit, and then what to do.
    pub(super) fn line(&self, docs: &Docs) -> String {
        let cause = docs.get(&self.name).unwrap_or_else(|| panic!("{} is no error", self.name));
        let (text, fix) = match &self.fix {
            Some(fix) => (without(&self.text, fix), fix.as_str()),
            None => parts(&self.text)
                .unwrap_or_else(|| panic!("{}: what should its user do? {}", self.name, self.text)),
        };
        format!("| {} | {} `{}` | {} |\n", code(text), cell(cause), self.name, cell(fix))
    }
}

/// Splits a text in front of its remedy.
fn parts(text: &str) -> Option<(&str, &str)> {
    let at = text.rfind("; ").max(text.rfind(": "))?;
    Some((&text[..at], &text[at + 2..]))
}

/// Returns a text without the remedy at its end, if it is there.
fn without<'a>(text: &'a str, remedy: &str) -> &'a str {
    text.strip_suffix(remedy).map_or(text, |text| text.trim_end_matches([':', ';', ' ']))
}

/// Returns a text as code within a cell. A text with backticks needs two around it.
fn code(text: &str) -> String {
    let text = text.replace('|', "\\|");
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// Returns a text as it stands in a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn a_text_ends_where_the_remedy_begins() {
    assert_eq!(parts("a: 3 of 2; use less"), Some(("a: 3 of 2", "use less")));
    assert_eq!(parts("a is 0: use 1, or `a|b`"), Some(("a is 0", "use 1, or `a|b`")));
    assert_eq!(parts("nothing to do"), None);
    assert_eq!(without("a; do: b; or c", "do: b; or c"), "a");
    assert_eq!(without("a", "do b"), "a");
    assert_eq!(code("a `b` | c"), "`` a `b` \\| c ``");
}
