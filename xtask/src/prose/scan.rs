//! *Scan*: which part of a file is code, which is a comment, and which is documentation.
//!
//! The scanner knows comments, strings and characters of each language, and nothing else. Code is
//! kept with strings and comments blanked out, at the same lines and columns.

/// A language that the rules know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    /// Rust, C and C++: `//` and `/* */`.
    Slashes,
    /// Python and TOML: `#` and, in Python, strings of three quotes.
    Hash,
    Markdown,
}

impl Language {
    /// The language of a file, by the ending of its name.
    pub(super) fn of(path: &str) -> Option<Language> {
        match path.rsplit_once('.')?.1 {
            "rs" | "h" | "hpp" | "c" | "cpp" => Some(Language::Slashes),
            "py" | "pyi" | "toml" => Some(Language::Hash),
            "md" => Some(Language::Markdown),
            _ => None,
        }
    }
}

/// A file, scanned.
pub(super) struct Text {
    whole: String,
    /// The same, with everything but code blanked out.
    code: String,
    language: Language,
    /// For each line of Markdown, what kind of line it is.
    kinds: Vec<LineKind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Prose,
    /// In a fenced block of a program's output.
    Output,
    /// In a fenced block of code, or the fence itself.
    Code,
}

impl Text {
    pub(super) fn new(text: &str, language: Language) -> Text {
        let code = match language {
            Language::Slashes => blank(text, slashes),
            Language::Hash => blank(text, hash),
            Language::Markdown => String::new(),
        };
        let kinds = if language == Language::Markdown { fences(text.lines()) } else { Vec::new() };
        Text { whole: text.to_owned(), code, language, kinds }
    }

    /// Every line with its number, from 1 on.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.whole.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// Whether a line is prose, where a leading `|` makes a table.
    pub(super) fn prose_at(&self, number: usize) -> bool {
        match self.language {
            Language::Markdown => self.kinds[number - 1] == LineKind::Prose,
            Language::Slashes | Language::Hash => {
                self.code.lines().nth(number - 1).is_none_or(|code| code.trim().is_empty())
            }
        }
    }

    /// Whether a line of Markdown shows a program's output.
    pub(super) fn output_at(&self, number: usize) -> bool {
        self.language == Language::Markdown && self.kinds[number - 1] == LineKind::Output
    }

    /// The code, with comments and strings blanked out.
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    /// Every identifier of the code, with the number of its line.
    pub(super) fn identifiers(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().flat_map(|(at, line)| {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            words.filter(|word| !word.is_empty()).map(move |word| (at + 1, word))
        })
    }

    /// The lines of documentation, without what marks them, with their numbers. A gap between two
    /// pieces of documentation is an empty line.
    pub(super) fn documentation(&self) -> Vec<(usize, &str)> {
        let mut found = Vec::new();
        let mut gap = false;
        for (number, line) in self.lines() {
            let doc = match self.language {
                Language::Markdown => {
                    (self.kinds[number - 1] == LineKind::Prose).then(|| line.trim())
                }
                Language::Slashes => {
                    let line = line.trim_start();
                    let marks = ["///", "//!", " *", "* "];
                    let mark = marks.iter().find(|mark| line.starts_with(**mark));
                    mark.map(|mark| line[mark.len()..].trim())
                }
                Language::Hash => None,
            };
            match doc {
                Some(doc) => {
                    if gap {
                        found.push((number, ""));
                    }
                    gap = false;
                    found.push((number, doc));
                }
                None => gap = true,
            }
        }
        found
    }
}

/// What each line of a Markdown text is.
fn fences<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<LineKind> {
    let mut inside = None;
    lines
        .map(|line| {
            let fence = line.trim_start().strip_prefix("```");
            match (fence, inside) {
                (Some(word), None) => {
                    let output = matches!(word.trim(), "text" | "");
                    inside = Some(if output { LineKind::Output } else { LineKind::Code });
                    LineKind::Code
                }
                (Some(_), Some(_)) => {
                    inside = None;
                    LineKind::Code
                }
                (None, Some(kind)) => kind,
                (None, None) => LineKind::Prose,
            }
        })
        .collect()
}

/// Blanks out what `skip` takes for no code. `skip` says how many bytes at the beginning of the
/// rest are a comment or a string, 0 for none.
fn blank(text: &str, skip: fn(&str, Option<char>) -> usize) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = None;
    while let Some(first) = rest.chars().next() {
        match skip(rest, before) {
            0 => {
                code.push(first);
                before = Some(first);
                rest = &rest[first.len_utf8()..];
            }
            bytes => {
                let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
                code.extend(rest[..bytes].chars().map(blank));
                before = Some(' ');
                rest = &rest[bytes..];
            }
        }
    }
    code
}

/// Comments, strings and characters of Rust, C and C++.
fn slashes(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |at| at + 2);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !in_word && let Some(raw) = rest.strip_prefix('r').or_else(|| rest.strip_prefix("br")) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", &raw[..hashes]);
            let head = rest.len() - raw.len() + hashes + 1;
            return rest[head..].find(&end).map_or(rest.len(), |at| head + at + end.len());
        }
    }
    match rest.as_bytes()[0] {
        b'"' => quoted(rest, '"'),
        // A character, or the name of a lifetime; C++ has `'` in numbers.
        b'\'' if !in_word => {
            let mut chars = rest[1..].chars();
            match (chars.next(), chars.next()) {
                (Some('\\'), _) => quoted(rest, '\''),
                (Some(c), Some('\'')) => 1 + c.len_utf8() + 1,
                _ => 0,
            }
        }
        _ => 0,
    }
}

/// Comments and strings of Python and TOML.
fn hash(rest: &str, _: Option<char>) -> usize {
    for quotes in ["\"\"\"", "'''"] {
        if let Some(inner) = rest.strip_prefix(quotes) {
            return inner.find(quotes).map_or(rest.len(), |at| 3 + at + 3);
        }
    }
    match rest.as_bytes()[0] {
        b'#' => rest.find('\n').unwrap_or(rest.len()),
        b'"' => quoted(rest, '"'),
        b'\'' => quoted(rest, '\''),
        _ => 0,
    }
}

/// Bytes of the string that begins here, with its quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let text = "let a = \"b // \\\" c\"; // d\n/* e\n f */ let g = r#\"h \" i\"#;\n\
                    let j: &'k str = 'l';\n";
        let text = Text::new(text, Language::Slashes);
        let words: Vec<_> = text.identifiers().collect();
        let code = [(1, "let"), (1, "a"), (3, "let"), (3, "g")];
        assert_eq!(words[..2], code[..2]);
        let names: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
        assert_eq!(names, ["let", "a", "let", "g", "let", "j", "k", "str"]);
        assert_eq!(text.code().lines().count(), 4);
    }

    #[test]
    fn python_has_strings_over_lines() {
        let text = Text::new("a = '''b\nc''' # d\ne = \"f\"\n", Language::Hash);
        assert_eq!(text.identifiers().collect::<Vec<_>>(), [(1, "a"), (3, "e")]);
    }

    #[test]
    fn documentation_is_what_is_marked_so() {
        let text = Text::new("/// A.\n// b\nfn c() {}\n//! D.\n", Language::Slashes);
        assert_eq!(text.documentation(), [(1, "A."), (4, ""), (4, "D.")]);
        let text = Text::new("A.\n```text\nb\n```\nC.\n", Language::Markdown);
        assert_eq!(text.documentation(), [(1, "A."), (5, ""), (5, "C.")]);
    }
}
