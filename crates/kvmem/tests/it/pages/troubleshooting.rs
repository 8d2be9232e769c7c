//! `docs/troubleshooting.md`: error text, cause, remedy.
//!
//! The tables are generated: texts by showing each error, causes from the documentation of its
//! variant, remedies from its text. An error that has no row fails the test, and so does a page
//! that differs. `KVMEM_WRITE_PAGES=1 cargo test -p kvmem --test it troubleshooting` writes the
//! tables.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::{errors, limits, source};

/// The line after which the page is generated.
const MARK: &str =
    "<!-- From here on generated: KVMEM_WRITE_PAGES=1 cargo test -p kvmem --test it \
                    troubleshooting -->
";

#[test]
fn every_error_has_one_row() {
    let docs = source::read(&limits::TYPES);
    let rows = errors::all().into_iter().flat_map(|(_, rows)| rows);
    let mut listed: Vec<String> = rows.map(|row| row.name().to_owned()).collect();
    listed.extend(limits::all().into_iter().map(|(name, ..)| name));
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "an error has two rows");
    let declared: BTreeSet<&String> = docs.keys().collect();
    assert_eq!(once, declared, "add a row in tests/it/pages/errors.rs, or remove it there");
}

#[test]
fn the_page_has_the_errors_of_the_sources() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/troubleshooting.md");
    let present = fs::read_to_string(&page).expect("the page can be read");
    let (head, _) = present.split_once(MARK).expect("the page has the mark");
    let generated = format!("{head}{MARK}{}", tables());
    if std::env::var_os("KVMEM_WRITE_PAGES").is_some() {
        fs::write(&page, &generated).expect("the page can be written");
    }
    let present = fs::read_to_string(&page).expect("the page can be read");
    assert!(
        present == generated,
        "docs/troubleshooting.md differs from the errors: run KVMEM_WRITE_PAGES=1 cargo test -p \
         kvmem --test pages"
    );
}

/// Returns the generated part of the page.
fn tables() -> String {
    let docs = source::read(&limits::TYPES);
    let mut page = String::new();
    for (heading, rows) in errors::all() {
        let lines: String = rows.iter().map(|row| row.line(&docs)).collect();
        write!(page, "\n### {heading}\n\n| text | cause | fix |\n|---|---|---|\n{lines}")
            .expect("a text grows");
    }
    page.push_str("\n### Limits that errors name\n\n| text | cause | fix |\n|---|---|---|\n");
    for (name, text, fix) in limits::all() {
        let cause = &docs[&name];
        writeln!(page, "| `{text}` | {cause} `{name}` | {fix} |").expect("a text grows");
    }
    page
}
