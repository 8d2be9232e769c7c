//! *Header*: the declarations of the headers, for tests that cover all of them.

use std::fs;

/// A parameter of a function.
#[derive(Debug)]
pub(crate) struct Parameter {
    /// Its type as declared, without the name.
    pub(crate) of: String,
    /// Its name.
    pub(crate) name: String,
}

impl Parameter {
    /// Returns the type of object whose handle it is, if it is an input.
    pub(crate) fn object<'a>(&self, objects: &'a [String]) -> Option<&'a str> {
        let of = self.of.strip_prefix("const ").unwrap_or(&self.of);
        let name = of.strip_prefix("struct ").unwrap_or(of).strip_suffix(" *")?;
        objects.iter().map(String::as_str).find(|object| *object == name)
    }

    /// Returns whether it is a pointer.
    pub(crate) fn is_pointer(&self) -> bool {
        self.of.ends_with('*') || self.of.contains("(*")
    }
}

/// A declared function.
#[derive(Debug)]
pub(crate) struct Function {
    /// The comment above it.
    pub(crate) comment: String,
    /// Its return type.
    pub(crate) returns: String,
    /// Its name.
    pub(crate) name: String,
    /// Its parameters.
    pub(crate) parameters: Vec<Parameter>,
}

/// Returns all functions of the headers, and the names of all objects.
pub(crate) fn read() -> (Vec<Function>, Vec<String>) {
    let text: String = ["include/kvmem.h", "include/kvmem/testing.h"]
        .map(|path| super::crate_folder().join(path))
        .map(|path| fs::read_to_string(path).expect("the header can be read"))
        .concat();
    let objects = text
        .lines()
        .filter_map(|line| line.strip_prefix("typedef struct ")?.strip_suffix(';')?.split_once(' '))
        .filter(|(tag, name)| tag == name)
        .map(|(tag, _)| tag.to_owned())
        .collect();
    let mut functions = Vec::new();
    let (mut comment, mut declaration) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("///") {
            comment.push_str(said);
            continue;
        }
        declaration.push_str(line.trim());
        declaration.push(' ');
        if line.trim_end().ends_with(';') {
            functions.extend(function(&declaration, &comment));
        }
        if line.is_empty() || line.trim_end().ends_with([';', '{', '}']) {
            declaration.clear();
            comment.clear();
        }
    }
    (functions, objects)
}

/// Returns the members of a structure, type and name; none if the header does not define it.
pub(crate) fn members(of: &str) -> Vec<(String, String)> {
    let path = super::crate_folder().join("include/kvmem.h");
    let text = fs::read_to_string(path).expect("the header can be read");
    let start = format!("typedef struct {of} {{");
    let body = text.split(&start).nth(1).and_then(|rest| rest.split('}').next()).unwrap_or("");
    let line = |line: &str| {
        let (of, name) = line.trim().strip_suffix(';')?.rsplit_once(' ')?;
        Some((of.to_owned(), name.to_owned()))
    };
    body.lines().filter_map(line).collect()
}

/// Parses a declaration such as `kvmem_status kvmem_x(const struct kvmem_y *y, uint64_t n);`.
fn function(declaration: &str, comment: &str) -> Option<Function> {
    let (head, rest) = declaration.split_once('(')?;
    let (returns, name) = head.rsplit_once(' ')?;
    let stars = name.chars().take_while(|c| *c == '*').count();
    let name = name.trim_start_matches('*');
    if !name.starts_with("kvmem_") || returns.starts_with("typedef") {
        return None;
    }
    let inside = rest.trim_end().strip_suffix(");")?;
    let parameters =
        split(inside).iter().filter(|one| *one != "void").map(|one| parameter(one)).collect();
    let returns = format!("{returns}{}", " *".repeat(stars));
    Some(Function { comment: comment.to_owned(), returns, name: name.to_owned(), parameters })
}

/// Splits at commas outside of parentheses.
fn split(inside: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inside.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

fn parameter(text: &str) -> Parameter {
    if let Some((before, after)) = text.split_once("(*") {
        let (name, rest) = after.split_once(')').expect("a function is named in parentheses");
        return Parameter { of: format!("{before}(*){rest}"), name: name.to_owned() };
    }
    let at = text
        .rfind(|c: char| !c.is_alphanumeric() && c != '_')
        .expect("a type stands before a name");
    Parameter { of: text[..=at].trim().to_owned(), name: text[at + 1..].to_owned() }
}
