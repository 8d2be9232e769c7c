//! *C++*: the public declarations of the headers, without the bodies of functions, private members
//! and the namespace `detail`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Headers that are no part of the interface.
const INTERNAL: [&str; 2] = ["handle.hpp", "testing.hpp"];

/// Returns the page of C++.
pub(in super::super) fn cpp(root: &Path) -> Result<String> {
    let folder = root.join("crates/kvmem-capi/include/kvmem");
    let mut headers: Vec<_> = std::fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    headers.retain(|header| {
        let name = header.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".hpp") && !INTERNAL.contains(&&*name)
    });
    headers.sort();
    let mut page =
        "# Reference of C++\n\nThe public declarations of `kvmem.hpp` and of the headers \
                    that it includes, in the namespace `kvmem`. [The page on \
                    C++](../crates/kvmem-capi/docs/cpp.md) explains how they are used.\n"
            .to_owned();
    let mut types = 0;
    for header in headers {
        let text = std::fs::read_to_string(&header)?;
        let name = header.file_name().unwrap_or_default().to_string_lossy();
        page += &format!("\n## `kvmem/{name}`\n\n{}\n", head(&text));
        let mut small = Vec::new();
        for declaration in declarations(&text) {
            match type_name(&declaration) {
                Some(type_name) => {
                    page += &code(&std::mem::take(&mut small));
                    let (comment, code_of_type) = divided(&declaration);
                    page += &format!(
                        "\n### `{type_name}`\n\n{comment}{}",
                        code(&[code_of_type.to_owned()])
                    );
                    types += 1;
                }
                None => small.push(declaration),
            }
        }
        page += &code(&small);
    }
    ensure!(types > 15, "the headers of C++ have only {types} types: are they whole?");
    Ok(page)
}

fn code(declarations: &[String]) -> String {
    if declarations.is_empty() {
        return String::new();
    }
    format!("\n```cpp\n{}\n```\n", declarations.join("\n\n"))
}

/// The comment at the top of a header.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    lines.map(|line| line.trim_start().to_owned() + "\n").collect()
}

/// The comment of a declaration, and the rest.
fn divided(declaration: &str) -> (String, &str) {
    let is_comment = |line: &&str| line.starts_with("///");
    let lines: Vec<&str> = declaration.split_inclusive('\n').take_while(is_comment).collect();
    let code = &declaration[lines.iter().map(|line| line.len()).sum()..];
    (lines.iter().map(|line| line[3..].trim_start()).collect(), code)
}

/// The name of a class, structure or enumeration that is defined.
fn type_name(declaration: &str) -> Option<String> {
    let (_, code) = divided(declaration);
    let first = code.split('{').next().filter(|first| first.len() < code.len())?;
    let mut words = without_template(first)
        .split_whitespace()
        .skip_while(|word| !["class", "struct", "enum"].contains(word));
    words.next()?;
    let name = words.find(|word| *word != "class")?;
    Some(name.trim_end_matches(':').to_owned())
}

/// A declaration without its `template <…>`.
fn without_template(declaration: &str) -> &str {
    let mut depth = 0;
    if !declaration.starts_with("template") {
        return declaration;
    }
    let closing = declaration.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == '>' && depth == 0
    });
    closing.map_or(declaration, |at| &declaration[at + 1..])
}

/// What an open brace belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// `namespace kvmem`: its declarations are shown.
    Shown,
    /// `namespace detail`, a body of a function, or a private type.
    Hidden,
    /// A class or structure.
    Type { is_public: bool },
    /// Braces within a declaration: an initial value, an enumeration.
    Inline,
}

/// The public declarations of a header, each with its comment, in order.
fn declarations(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut scopes: Vec<Scope> = Vec::new();
    let mut statement = String::new();
    // The declaration of each open type, without what is private.
    let mut types: Vec<String> = Vec::new();
    let mut parentheses = 0;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with('#') || (trimmed.starts_with("//") && !trimmed.starts_with("///")) {
            continue;
        }
        if trimmed.starts_with("///") {
            statement += &format!("{trimmed}\n");
            continue;
        }
        if parentheses > 0 {
            // Parameters that go on in another line stay indented.
            statement.push_str("    ");
        }
        for c in trimmed.chars() {
            match c {
                '(' => parentheses += 1,
                ')' => parentheses -= 1,
                _ => {}
            }
            if parentheses > 0 || (c != '{' && c != '}' && c != ';' && c != ':') {
                statement.push(c);
                continue;
            }
            let visible = is_visible(&scopes);
            match c {
                '{' => {
                    let scope = opened(&statement, &scopes);
                    match scope {
                        Scope::Inline => statement.push('{'),
                        Scope::Type { is_public } => {
                            let access = if is_public { "" } else { "\npublic:" };
                            types.push(format!("{} {{{access}", statement.trim_end()));
                        }
                        Scope::Hidden if visible && is_function(&statement) => {
                            emit(&declared(&statement), &mut types, &mut found);
                        }
                        _ => {}
                    }
                    if scope != Scope::Inline {
                        statement.clear();
                    }
                    scopes.push(scope);
                }
                '}' => match scopes.pop() {
                    Some(Scope::Inline) => statement.push('}'),
                    Some(Scope::Type { .. }) => {
                        let whole = types.pop().unwrap_or_default() + "\n}";
                        statement = whole;
                    }
                    _ => statement.clear(),
                },
                ';' if scopes.last() == Some(&Scope::Inline) => statement.push(';'),
                ';' => {
                    let text = statement.trim();
                    if visible && !text.is_empty() && !text.starts_with("friend") {
                        emit(text, &mut types, &mut found);
                    }
                    statement.clear();
                }
                _ => match (statement.trim(), scopes.last_mut()) {
                    ("public" | "private" | "protected", Some(Scope::Type { is_public })) => {
                        *is_public = statement.trim() == "public";
                        statement.clear();
                    }
                    _ => statement.push(':'),
                },
            }
        }
        if !statement.is_empty() && !statement.ends_with('\n') {
            statement.push('\n');
        }
    }
    found
}

/// Adds a declaration to the innermost open type, or to the result.
fn emit(declaration: &str, types: &mut [String], found: &mut Vec<String>) {
    match types.last_mut() {
        Some(open) => {
            // Documented members stand apart.
            let gap = if declaration.starts_with("///") && !open.ends_with(['{', ':']) {
                "\n"
            } else {
                ""
            };
            open.push_str(gap);
            for line in format!("{declaration};").lines() {
                open.push_str(&format!("\n    {line}"));
            }
        }
        None => found.push(format!("{declaration};")),
    }
}

fn is_visible(scopes: &[Scope]) -> bool {
    !scopes.is_empty()
        && scopes.iter().all(|scope| {
            matches!(scope, Scope::Shown | Scope::Inline | Scope::Type { is_public: true })
        })
}

fn opened(statement: &str, scopes: &[Scope]) -> Scope {
    let (_, code) = divided(statement);
    let code = code.trim();
    let word = |word: &str| code.split_whitespace().any(|each| each == word);
    if code.starts_with("namespace") {
        let hidden = code.contains("detail") || code.trim() == "namespace";
        return if hidden { Scope::Hidden } else { Scope::Shown };
    }
    if !is_visible(scopes) {
        return Scope::Hidden;
    }
    if code.starts_with("enum") || code.ends_with('=') {
        return Scope::Inline;
    }
    // The parameters of a template may say `class`, too.
    let is_type = (word("class") || word("struct")) && !code.contains('(');
    match is_type {
        true => Scope::Type { is_public: word("struct") },
        false if is_function(statement) => Scope::Hidden,
        false => Scope::Inline,
    }
}

fn is_function(statement: &str) -> bool {
    divided(statement).1.contains('(')
}

/// A function without the initial values of members, which follow its parameters.
fn declared(statement: &str) -> String {
    let code_at = statement.len() - divided(statement).1.len();
    let code = &statement[code_at..];
    let (mut depth, mut closed) = (0, false);
    let end = code.char_indices().position(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        closed |= c == ')' && depth == 0;
        let is_single = !code[at + 1..].starts_with(':') && !code[..at].ends_with(':');
        c == ':' && closed && depth == 0 && is_single
    });
    let code: String = code.chars().take(end.unwrap_or(usize::MAX)).collect();
    format!("{}{}", &statement[..code_at], code.trim()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"// Pool: x.
#include <a>
namespace k {

/// Info.
using Info = k_info;

/// How.
enum class How : int { any = 0, bind = 1 };

namespace detail {
inline int f() { return 1; }
}

/// A pool.
class Pool {
public:
    /// Makes it.
    explicit Pool(int bytes,
                  const Options &o = {})
        : pool_(new P(bytes)) {
        check(pool_);
    }
    /// O(1): finds it.
    std::size_t find(int a) const { return check(a); }
    int size() const { return 1; }
    std::optional<int> limit = {};

private:
    int pool_;
    void take() { pool_ = 1; }
};

} // namespace k
"#;

    #[test]
    fn bodies_and_private_members_are_taken_out() {
        let found = declarations(HEADER);
        let expected = [
            "/// Info.\nusing Info = k_info;",
            "/// How.\nenum class How : int { any = 0, bind = 1 };",
            r#"/// A pool.
class Pool {
public:
    /// Makes it.
    explicit Pool(int bytes,
        const Options &o = {});

    /// O(1): finds it.
    std::size_t find(int a) const;
    int size() const;
    std::optional<int> limit = {};
};"#,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn types_have_names() {
        assert_eq!(type_name("/// A.\nclass Pool final {\n};").as_deref(), Some("Pool"));
        assert_eq!(type_name("enum class How : int { a };").as_deref(), Some("How"));
        assert_eq!(type_name("template <class T>\nstruct Span {\n};").as_deref(), Some("Span"));
        assert_eq!(type_name("using A = B;"), None);
    }
}
