//! *Reference*: the pages that are generated from the code: the command, Rust, C, C++ and Python.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::folder::Folder;
use super::headers;
use super::rust::{FOLDER, Rustdoc, attribute};
use super::source::SCHEME;
use super::tool::Sphinx;
use crate::workspace::{cargo, target_folder};

/// A subcommand that starts a program of the Python package, which has its help.
const STARTED: &str = "serve-mooncake";

/// The help of the command or of a subcommand.
pub(super) struct Help {
    /// `kvmem`, then the names of the subcommands.
    pub(super) words: Vec<String>,
    pub(super) text: String,
}

/// Writes all generated pages. Returns the help of the command and of all subcommands.
pub(super) fn write(
    root: &Path,
    rustdoc: &Rustdoc,
    tool: &Sphinx,
    source: &mut Folder,
) -> Result<Vec<Help>> {
    source.write("reference/c.md", headers::c(root)?.as_bytes())?;
    source.write("reference/cpp.md", headers::cpp(root)?.as_bytes())?;
    source.write("reference/rust.md", rust(rustdoc)?.as_bytes())?;
    let helps = helps(root)?;
    source.write("reference/command.md", command(&helps).as_bytes())?;
    let program = root.join("docs/site/python_reference.py");
    let python = tool.output(&[program.as_os_str(), root.as_os_str()])?;
    source.write("reference/python.rst", python.as_bytes())?;
    Ok(helps)
}

/// The page of Rust: the modules of the library, with rustdoc's summaries.
fn rust(rustdoc: &Rustdoc) -> Result<String> {
    let file = rustdoc.folder.join("kvmem/index.html");
    let html = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let mut page = format!(
        "# Reference of Rust\n\n[Rustdoc's pages of the crate `kvmem`]({SCHEME}{FOLDER}/kvmem/\
         index.html) have every item, with errors, complexity and examples.\n\n| module | what it \
         has |\n|---|---|\n"
    );
    let mut modules = 0;
    for entry in html.split("<a class=\"mod\" ").skip(1) {
        let tag = entry.split('>').next().unwrap_or_default();
        let href = attribute(tag, "href").context("a module of rustdoc has no link")?;
        let name = href.trim_end_matches("/index.html");
        let summary = entry.split("<dd>").nth(1).and_then(|rest| rest.split("</dd>").next());
        let summary = text(summary.unwrap_or_default());
        page += &format!("| [`kvmem::{name}`]({SCHEME}{FOLDER}/kvmem/{href}) | {summary} |\n");
        modules += 1;
    }
    ensure!(modules >= 5, "{} lists {modules} modules: has rustdoc changed?", file.display());
    Ok(page)
}

/// HTML without its tags.
fn text(html: &str) -> String {
    let mut text = String::new();
    for (at, part) in html.split('<').enumerate() {
        text += if at == 0 { part } else { part.split_once('>').map_or("", |(_, rest)| rest) };
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    entities.iter().fold(text, |text, (entity, c)| text.replace(entity, c)).replace('|', "\\|")
}

/// The page of the command: the help of each subcommand.
fn command(helps: &[Help]) -> String {
    let mut page = "# Reference of the command\n\nThe help of `kvmem` and of each subcommand. \
                    [The page of the command](../docs/command.md) shows what they print.\n"
        .to_owned();
    for help in helps {
        page += &format!("\n## `{}`\n\n", help.words.join(" "));
        page += &formatted(&help.text, &help.words.join("-"));
    }
    page
}

/// Builds the command and asks for its help, and that of all subcommands.
fn helps(root: &Path) -> Result<Vec<Help>> {
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--locked", "--quiet", "--package", "kvmem-cli"]);
    let status = build.status().context("cannot run cargo")?;
    ensure!(status.success(), "the build of the command ended with {status}");
    let program = target_folder(root)?.join("debug/kvmem");
    let mut found = Vec::new();
    ask(&program, vec!["kvmem".to_owned()], &mut found)?;
    ensure!(found.len() > 5, "{} has {} subcommands", program.display(), found.len() - 1);
    Ok(found)
}

/// Adds the help of a subcommand, and of those below it.
fn ask(program: &Path, words: Vec<String>, found: &mut Vec<Help>) -> Result<()> {
    let mut help = Command::new(program);
    let output = help.args(&words[1..]).arg("--help").stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{} --help ended with {}", words.join(" "), output.status);
    let text = String::from_utf8(output.stdout)?;
    let below = names(&text);
    found.push(Help { words: words.clone(), text });
    for name in below.into_iter().filter(|name| name != STARTED) {
        ask(program, [words.clone(), vec![name]].concat(), found)?;
    }
    Ok(())
}

/// The subcommands that a help lists.
fn names(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty());
    // Descriptions that go on in the next line are indented further.
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// A help as Markdown: usage as code, options and subcommands as terms with descriptions.
fn formatted(help: &str, anchor: &str) -> String {
    let mut page = String::new();
    let mut lines = help.lines().peekable();
    let mut section = "";
    while let Some(line) = lines.next() {
        if let Some(usage) = line.strip_prefix("Usage:") {
            page += &format!("```text\n{}\n", usage.trim());
            while let Some(more) = lines.next_if(|line| line.starts_with(' ')) {
                page += &format!("{}\n", more.trim());
            }
            page += "```\n";
        } else if line.ends_with(':') && !line.starts_with(' ') {
            section = line.trim_end_matches(':');
            page += &format!("\n**{section}**\n\n");
        } else if line.starts_with(' ') && !section.is_empty() {
            let line = line.trim();
            let (term, description) = line.split_once("  ").unwrap_or((line, ""));
            let mut description = description.trim().to_owned();
            // Long texts follow on lines of their own, which are indented by 10 columns or more.
            while let Some(more) = lines
                .next_if(|line| line.starts_with("          ") && !line.trim().starts_with('-'))
            {
                description = format!("{description} {}", more.trim());
            }
            let linked = section == "Commands" && ![STARTED, "help"].contains(&term);
            let term =
                if linked { format!("[`{term}`](#{anchor}-{term})") } else { format!("`{term}`") };
            let description = plain(description.trim());
            let description = if description.is_empty() { "–".to_owned() } else { description };
            page += &format!("{term}\n: {description}\n\n");
        } else {
            page += &plain(line);
            page.push('\n');
        }
    }
    page
}

/// A text in which Markdown finds no markup.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        if "*_<[`\\".contains(c) {
            plain.push('\\');
        }
        plain.push(c);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = r#"Does it

Usage: k bench [OPTIONS]
       k bench <COMMAND>

Commands:
  arena  Memory
  help   Print this

Options:
      --seed <N>  Seed of *all*
  -v, --verbose
          Print the steps

          and more
  -h, --help  Print help
"#;

    #[test]
    fn subcommands_and_options_are_terms() {
        assert_eq!(names(HELP), ["arena"]);
        let page = formatted(HELP, "k-bench");
        assert!(page.contains("```text\nk bench [OPTIONS]\nk bench <COMMAND>\n```"), "{page}");
        assert!(page.contains("[`arena`](#k-bench-arena)\n: Memory\n"), "{page}");
        assert!(page.contains("`--seed <N>`\n: Seed of \\*all\\*\n"), "{page}");
        assert!(page.contains("`-v, --verbose`\n: Print the steps"), "{page}");
    }

    #[test]
    fn summaries_lose_their_tags() {
        assert_eq!(text("<em>Blocks</em>: a|b &amp; <code>c</code>"), "Blocks: a\\|b & c");
    }
}
