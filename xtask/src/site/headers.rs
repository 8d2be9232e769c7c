//! *Headers*: the reference of C from `kvmem.h`, and of C++ from the headers under `kvmem/`.
//!
//! The header of C is generated and regular: a comment `///`, then one declaration. Each becomes an
//! entry with a name that other pages can link. The headers of C++ hold code as well; [`mod@cpp`]
//! takes the bodies out.

mod cpp;

use std::path::Path;

use anyhow::{Context, Result, ensure};

pub(super) use self::cpp::cpp;

/// A declaration of the header.
#[derive(Debug)]
struct Entry {
    /// The directive of Sphinx that shows it.
    directive: &'static str,
    name: String,
    declaration: String,
    comment: String,
    members: Vec<Entry>,
}

/// Returns the page of C.
pub(super) fn c(root: &Path) -> Result<String> {
    let path = "crates/kvmem-capi/include/kvmem.h";
    let header = std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
    let entries = entries(&header);
    ensure!(entries.len() > 100, "{path} has only {} declarations: is it whole?", entries.len());
    let head = head(&header);
    let mut page = "# Reference of C\n\nEverything that `kvmem.h` declares. \
                    [The page on C](../crates/kvmem-capi/docs/c.md) explains how it is used.\n\n"
        .to_owned();
    page += &rules(&head);
    let layers = layers(&head);
    let section = |entry: &Entry| match entry.directive {
        "c:macro" => "Constants".to_owned(),
        "c:enum" => "Status".to_owned(),
        _ => layer(&layers, &entry.name),
    };
    let mut names = vec!["Status".to_owned()];
    names.extend(layers.iter().map(|(name, _)| name.clone()));
    names.extend(["General".to_owned(), "Constants".to_owned()]);
    for name in names {
        let mut entries = entries.iter().filter(|entry| section(entry) == name).peekable();
        if entries.peek().is_some() {
            page += &format!("\n## {name}\n");
            entries.for_each(|entry| page += &shown(entry));
        }
    }
    Ok(page)
}

/// An entry as a directive, with its members inside.
fn shown(entry: &Entry) -> String {
    let colons = if entry.members.is_empty() { ":::" } else { "::::" };
    let members: String = entry.members.iter().map(shown).collect();
    let declaration = entry.declaration.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "\n{colons}{{{}}} {declaration}\n{}\n{members}{colons}\n",
        entry.directive, entry.comment
    )
}

/// The comment at the top of the header, without its marks.
fn head(header: &str) -> Vec<&str> {
    let lines = header.lines().skip(1).take_while(|line| !line.contains("*/"));
    lines.map(|line| line.trim_start_matches(" *").trim_start_matches(' ')).collect()
}

/// The rules for all functions, from the head.
fn rules(head: &[&str]) -> String {
    let lines = head.iter().skip_while(|line| !line.starts_with("Rules"));
    // A pointer's star is no emphasis.
    lines.map(|line| line.replace('*', "\\*") + "\n").collect()
}

/// The layers that the head lists, each with the beginnings of its names:
/// `1, bytes:  kvmem_region_*, kvmem_bump_arena_*`.
fn layers(head: &[&str]) -> Vec<(String, Vec<String>)> {
    let lines = head.iter().skip_while(|line| !line.starts_with("Layers")).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let layer = |line: &&str| {
        let (name, names) = line.split_once(':')?;
        let name = name.trim_start_matches(|c: char| c.is_ascii_digit() || " ,".contains(c));
        let mut title = name.to_owned();
        title[..1].make_ascii_uppercase();
        let words = names.split([' ', ',', '(']).filter_map(|word| word.strip_suffix("_*"));
        Some((title, words.map(str::to_owned).collect()))
    };
    lines.filter_map(layer).collect()
}

/// The layer of a name: the one with the longest beginning of it.
fn layer(layers: &[(String, Vec<String>)], name: &str) -> String {
    let matches = layers.iter().flat_map(|(title, starts)| {
        starts
            .iter()
            .filter(|start| name.starts_with(*start))
            .map(move |start| (start.len(), title))
    });
    matches.max().map_or_else(|| "General".to_owned(), |(_, title)| title.clone())
}

/// All documented declarations of the header, in its order.
fn entries(header: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut comment = String::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            comment += text.strip_prefix(' ').unwrap_or(text);
            comment.push('\n');
            continue;
        }
        if comment.is_empty() {
            continue;
        }
        let comment = std::mem::take(&mut comment);
        if let Some(definition) = line.strip_prefix("#define ") {
            let (name, value) = definition.split_once(' ').unwrap_or((definition, ""));
            let comment = format!("{comment}\nValue: `{value}`\n");
            found.push(entry("c:macro", name, name, comment));
        } else if line.starts_with("enum ")
            || (line.starts_with("typedef struct") && line.ends_with('{'))
        {
            let is_enum = line.starts_with("enum ");
            let words = line.trim_start_matches("typedef ").trim_end_matches('{');
            let name = words.split_whitespace().nth(1).unwrap_or_default();
            let body: Vec<&str> = lines
                .by_ref()
                .take_while(|line| !line.starts_with('}'))
                .filter(|line| !line.starts_with(['#', ' ']) || line.starts_with("    "))
                .collect();
            let directive = if is_enum { "c:enum" } else { "c:struct" };
            let mut group = entry(directive, name, name, comment);
            group.members = members(&body, is_enum);
            found.push(group);
        } else {
            let mut declaration = line.to_owned();
            while !declaration.ends_with(';') {
                let Some(next) = lines.next() else { break };
                declaration = format!("{declaration} {}", next.trim());
            }
            found.push(declared(declaration.trim_end_matches(';'), comment));
        }
    }
    found
}

/// A function, a handle, or the type of a callback.
fn declared(declaration: &str, comment: String) -> Entry {
    let Some(typedef) = declaration.strip_prefix("typedef ") else {
        let before = declaration.split('(').next().unwrap_or_default();
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        return entry("c:function", name, declaration, comment);
    };
    match typedef.split_once("(*") {
        Some((_, rest)) => {
            let name = rest.split(')').next().unwrap_or_default();
            entry("c:type", name, typedef, comment)
        }
        None => {
            let name = typedef.rsplit(' ').next().unwrap_or_default();
            entry("c:struct", name, name, comment)
        }
    }
}

fn members(body: &[&str], is_enum: bool) -> Vec<Entry> {
    let mut found = Vec::new();
    let (mut comment, mut declaration) = (String::new(), String::new());
    for line in body.iter().map(|line| line.trim()) {
        if let Some(text) = line.strip_prefix("///") {
            comment += text.strip_prefix(' ').unwrap_or(text);
            comment.push('\n');
            continue;
        }
        declaration = format!("{declaration} {line}");
        if line.ends_with([';', ',']) && (is_enum || line.ends_with(';')) {
            let declared = declaration.trim().trim_end_matches([';', ',']).to_owned();
            let directive = if is_enum { "c:enumerator" } else { "c:member" };
            found.push(entry(directive, "", &declared, std::mem::take(&mut comment)));
            declaration.clear();
        }
    }
    found
}

fn entry(directive: &'static str, name: &str, declaration: &str, comment: String) -> Entry {
    Entry {
        directive,
        name: name.to_owned(),
        declaration: declaration.to_owned(),
        comment,
        members: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"/*
 * k
 * Layers:
 *   1, bytes:    k_region_*, k_bump_*
 *   all four:    k_pool_*
 *
 * Rules for all functions:
 *
 * - Objects (k_region *).
 */
/// One.
#define K_ONE 1

/// Result.
enum k_status
#if A
  : int32_t
#endif // A
 {
    /// Good.
    K_OK = 0,
};

/// Handle.
typedef struct k_pool k_pool;

/// Options.
typedef struct k_pool_options {
    /// Size.
    uint64_t size;
    /// Call.
    void (*call)(void *user,
                 int a);
} k_pool_options;

/// Called.
typedef void (*k_fn)(void *user);

/// Maps.
k_status k_region_map(uint64_t bytes,
                      struct k_region **out);
"#;

    #[test]
    fn each_declaration_is_an_entry() {
        let entries = entries(HEADER);
        let names: Vec<_> = entries.iter().map(|e| (e.directive, e.name.as_str())).collect();
        let expected = [
            ("c:macro", "K_ONE"),
            ("c:enum", "k_status"),
            ("c:struct", "k_pool"),
            ("c:struct", "k_pool_options"),
            ("c:type", "k_fn"),
            ("c:function", "k_region_map"),
        ];
        assert_eq!(names, expected);
        assert_eq!(entries[1].members[0].declaration, "K_OK = 0");
        assert_eq!(entries[3].members[1].declaration, "void (*call)(void *user, int a)");
        assert!(shown(&entries[5]).contains(
            ":::{c:function} k_status k_region_map(uint64_t bytes, struct k_region **out)\nMaps.\n"
        ));
    }

    #[test]
    fn names_have_the_layers_of_the_head() {
        let layers = layers(&head(HEADER));
        assert_eq!(layer(&layers, "k_bump_new"), "Bytes");
        assert_eq!(layer(&layers, "k_pool_options"), "All four");
        assert_eq!(layer(&layers, "k_key"), "General");
        assert!(rules(&head(HEADER)).contains("- Objects (k_region \\*)."));
    }
}
