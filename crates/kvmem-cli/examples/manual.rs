//! Writes the manual pages, of a given date, and the completions of the command into a folder:
//!
//! ```text
//! man1/kvmem.1  man1/kvmem-bench.1 …          one page for each subcommand
//! completions/bash/kvmem  completions/zsh/_kvmem  completions/fish/kvmem.fish
//! ```
//!
//! Both are made from the same description of options that the command parses with. They are an
//! example of the crate, so that the command itself is built without their generators.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use kvmem_cli::args::Args;

/// The name of the command, which the completions are for.
const COMMAND: &str = "kvmem";

/// The section that clap does not know of, in roff.
const EXIT_STATUS: &str = ".SH \"EXIT STATUS\"
.TP
\\fB0\\fR
The request was carried out.
.TP
\\fB1\\fR
The request was carried out and went wrong.
.TP
\\fB2\\fR
The request cannot be carried out: options, limits, or input that cannot be read.
";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, date] = arguments.as_slice() else {
        return Err(format!("FOLDER and DATE are needed, {arguments:?} were given").into());
    };
    let folder = PathBuf::from(folder);

    let pages = folder.join("man1");
    fs::create_dir_all(&pages)?;
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, date, &pages)?;

    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let folder = folder.join("completions").join(name);
        fs::create_dir_all(&folder)?;
        clap_complete::generate_to(shell, &mut Args::command(), COMMAND, &folder)?;
    }
    // By the name under which bash-completion looks for it.
    fs::rename(folder.join("completions/bash/kvmem.bash"), folder.join("completions/bash/kvmem"))?;
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(command: &clap::Command, date: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    for subcommand in command.get_subcommands().filter(|each| !each.is_hide_set()) {
        write_pages(subcommand, date, folder)?;
    }
    let source = format!("{COMMAND} {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date(date).source(source).manual("kvmem manual");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = ascii(&String::from_utf8(page)?);
    fs::write(folder.join(man.get_filename()), page + EXIT_STATUS)?;
    Ok(())
}

/// Replaces characters that are not ASCII by their names in roff, which a formatter understands
/// whatever the locale.
fn ascii(page: &str) -> String {
    page.chars()
        .map(|char| match char.is_ascii() {
            true => char.to_string(),
            false => format!("\\[u{:04X}]", u32::from(char)),
        })
        .collect()
}
