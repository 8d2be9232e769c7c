//! *Printer*: the output of the tour: numbered steps, their results, what is missing, and progress.
//!
//! Results go to standard output, in lines of at most [`WIDTH`] columns. Progress goes to standard
//! error: a bar on a terminal, otherwise a line every few seconds, which shows in a log that the
//! tour goes on.

use std::fmt;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvmem::arena::preflight::Value;

use crate::output::{Failure, print, print_message, progress_bar};

/// Columns of a line.
pub(super) const WIDTH: usize = 100;
/// The indentation of everything but the steps' titles.
const INDENT: usize = 4;
/// Remedies that are printed, at most.
const REMEDIES: usize = 2;
/// Columns of the names of findings.
const NAME: usize = 12;
/// Columns before a row of figures.
const ROW: usize = 32;
/// Time between two lines of progress in a log.
const BETWEEN: Duration = Duration::from_secs(4);

/// Formats bytes: `1 GiB`, `21.5 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    Value::Bytes(bytes).to_string()
}

/// Something that the machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// Its name.
    pub(super) what: String,
    /// Why it matters.
    pub(super) why: String,
    /// The remedies, one each.
    pub(super) remedies: Vec<String>,
}

impl Missing {
    pub(super) fn new(what: &str, why: impl Into<String>, remedies: &[&str]) -> Missing {
        let remedies = remedies.iter().map(|&remedy| remedy.to_owned()).collect();
        Missing { what: what.to_owned(), why: why.into(), remedies }
    }
}

/// Prints the steps of the tour.
pub(super) struct Printer {
    step: u32,
    steps: u32,
    remarks: u32,
}

impl Printer {
    /// Begins a tour of this many steps.
    pub(super) fn new(steps: u32) -> Printer {
        Printer { step: 0, steps, remarks: 0 }
    }

    /// Begins the next step.
    pub(super) fn step(&mut self, title: &str) -> Result<(), Failure> {
        self.step += 1;
        print(format_args!("\n{}/{} {title}\n", self.step, self.steps))
    }

    /// Prints a result behind its name.
    pub(super) fn found(&self, name: &str, text: impl fmt::Display) -> Result<(), Failure> {
        let head = format!("{:INDENT$}{name:<NAME$}", "");
        print(wrap(&head, INDENT + NAME, text.to_string().split_whitespace()))
    }

    /// Prints two figures behind their title. The line breaks between them.
    pub(super) fn row(&self, what: &str, [one, other]: [String; 2]) -> Result<(), Failure> {
        let head = format!("{:INDENT$}{what:<ROW$}", "");
        print(wrap(&head, INDENT + ROW, [&*format!("{one} ·"), &other]))
    }

    /// Prints what is missing, why it matters, and the remedies.
    pub(super) fn missing(&mut self, missing: &Missing) -> Result<(), Failure> {
        self.remark("missing", missing)
    }

    /// Prints a warning: the tour goes on, with worse results.
    pub(super) fn warning(&mut self, missing: &Missing) -> Result<(), Failure> {
        self.remark("warning", missing)
    }

    fn remark(&mut self, kind: &str, missing: &Missing) -> Result<(), Failure> {
        self.remarks += 1;
        let Missing { what, why, remedies } = missing;
        self.found(kind, format_args!("{what}: {why}"))?;
        for (at, remedy) in remedies.iter().take(REMEDIES).enumerate() {
            self.found(if at == 0 { "  remedy" } else { "      or" }, remedy)?;
        }
        Ok(())
    }

    /// Returns the number of missing things and warnings.
    pub(super) fn remarks(&self) -> u32 {
        self.remarks
    }
}

/// Wraps `pieces` at [`WIDTH`] columns. The first line begins with `head`, the others with `indent`
/// spaces.
fn wrap<'a>(head: &str, indent: usize, pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut lines = head.to_owned();
    let mut column = head.chars().count();
    let mut begun = false;
    for piece in pieces {
        let width = piece.chars().count();
        if begun && column + 1 + width > WIDTH {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if begun {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(piece);
        column += width;
        begun = true;
    }
    lines.truncate(lines.trim_end().len());
    lines.push('\n');
    lines
}

/// The progress of one piece of work. Ends when it is dropped.
pub(super) struct Going {
    bar: ProgressBar,
    what: String,
    /// The time of the last line, without a terminal.
    lines: Option<Mutex<Instant>>,
}

impl Going {
    /// Begins work of this many units, if known.
    pub(super) fn new(what: &str, units: Option<u64>) -> Going {
        let bar = progress_bar(
            units,
            "    {prefix} {elapsed_precise} {wide_bar} {percent:>3} % {msg:36!}",
        );
        bar.set_prefix(what.to_owned());
        let lines = (!std::io::stderr().is_terminal()).then(|| Mutex::new(Instant::now()));
        Going { bar, what: what.to_owned(), lines }
    }

    /// Sets the number of units.
    pub(super) fn of(&self, units: u64) {
        self.bar.set_length(units);
    }

    /// Sets the units done, and the message.
    pub(super) fn at(&self, units: u64, message: String) {
        self.bar.set_position(units);
        self.say(message);
    }

    /// Adds units to those done.
    pub(super) fn further(&self, units: u64) {
        self.bar.inc(units);
        self.say(String::new());
    }

    /// Sets the message.
    fn say(&self, message: String) {
        if let Some(last) = &self.lines {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= BETWEEN {
                *last = Instant::now();
                let percent = 100 * self.bar.position() / self.bar.length().unwrap_or(0).max(1);
                let between = if message.is_empty() { "" } else { ", " };
                print_message(format_args!("    … {} {percent} %{between}{message}", self.what));
            }
        } else if !message.is_empty() {
            self.bar.set_message(message);
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_longer_than_they_may_be() {
        let text = "word ".repeat(60);
        let wrapped = wrap("    name    ", 12, text.split_whitespace());
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(
            lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= WIDTH),
            "{wrapped}"
        );
        assert!(lines[0].starts_with("    name    word word"));
        assert!(lines[1..].iter().all(|line| line.starts_with("            word")), "{wrapped}");
        assert_eq!(wrapped.matches("word").count(), 60);
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_is_not_broken() {
        let path = "/a".repeat(100);
        assert_eq!(wrap("    page  ", 4, [path.as_str()]), format!("    page  {path}\n"));
        assert_eq!(wrap("    page  ", 4, []), "    page\n");
    }
}
