//! *Output*: results, progress, and failures with their exit status.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::output_file::{OutputError, OutputFile, OutputFiles};
use kvmem_trace::escape::escaped;

/// A failure of the command.
///
/// The exit status is 2 if the request cannot be carried out (bad options, unreadable input), and 1
/// if it was carried out and went wrong.
#[derive(Debug)]
pub struct Failure {
    message: String,
    exit_status: u8,
}

impl Failure {
    /// The request cannot be carried out: status 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure { message: message.to_string(), exit_status: 2 }
    }

    /// A failure with this status.
    pub fn new(message: impl fmt::Display, exit_status: u8) -> Self {
        Failure { message: message.to_string(), exit_status }
    }

    /// Returns the status that the process ends with.
    pub fn exit_status(&self) -> u8 {
        self.exit_status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        Failure::usage(error)
    }
}

/// The destination of JSON, opened before any work, so a bad path costs no time.
pub enum JsonSink {
    /// No JSON was requested.
    None,
    /// Standard output, which then carries nothing else.
    Stdout,
    /// A file.
    File(OutputFile),
}

impl JsonSink {
    /// Opens the destination that `--json` names: none, `-`, or a file, which is unchanged until
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// The file cannot be written, or another output goes there.
    pub fn open(files: &mut OutputFiles, path: Option<&Path>) -> Result<Self, OutputError> {
        match path {
            None => Ok(JsonSink::None),
            Some(path) if path == Path::new("-") => {
                files.check_stdout("--json")?;
                Ok(JsonSink::Stdout)
            }
            Some(path) => files.open("--json", path).map(JsonSink::File),
        }
    }

    /// Writes `text` to standard output unless JSON goes there, and `value` as JSON if it was
    /// requested.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(self, text: impl fmt::Display, value: &impl Serialize) -> Result<(), Failure> {
        let json = || {
            let json =
                serde_json::to_string_pretty(value).map_err(|error| Failure::new(error, 1))?;
            Ok::<_, Failure>(json + "\n")
        };
        match self {
            JsonSink::None => print(text),
            // JSON strings escape control characters by themselves.
            JsonSink::Stdout => to_stdout(&json()?).map(drop),
            JsonSink::File(file) => {
                complete(file, &json()?)?;
                print(text)
            }
        }
    }
}

/// Writes the whole content of a file and commits it.
///
/// # Errors
/// It cannot be written.
fn complete(mut file: OutputFile, content: &str) -> Result<(), Failure> {
    let written = file.write_all(content.as_bytes()).map_err(|error| file.failed(error));
    written.and_then(|()| file.commit()).map_err(|error| Failure::new(error, 1))
}

/// Prints to standard output. A closed pipe (`| head`) is no failure.
///
/// # Errors
/// It cannot be written to.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    to_stdout(&escaped(text)).map(drop)
}

/// Writes to standard output. Returns whether its reader is there.
///
/// # Errors
/// It cannot be written to.
pub(crate) fn to_stdout(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let is_read = !matches!(&written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
    wrote(written).map(|()| is_read)
}

/// Prints clap's text: help, version, or an error about the arguments. Returns the exit status.
///
/// # Errors
/// A help or version text cannot be written to standard output.
pub fn print_clap(error: &clap::Error) -> Result<u8, Failure> {
    if error.use_stderr() {
        // Coloured, unless the text contains arguments that must be escaped.
        let plain = error.render().to_string();
        let safe = escaped(&plain);
        if safe == plain {
            let _ = error.print();
        } else {
            print_raw(&safe);
        }
    } else {
        wrote(error.print().and_then(|()| io::stdout().flush()))?;
    }
    Ok(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn wrote(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot write to standard output: {error}"), 1))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard error. If that is full or closed, the line is lost.
pub fn print_message(line: impl fmt::Display) {
    print_raw(&(escaped(line) + "\n"));
}

fn print_raw(text: &str) {
    // One call, because lines of several threads must not mix. There is no other place to report
    // its error.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Standard error for a log: never fails, even if nothing can be written.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        print_raw(&escaped(String::from_utf8_lossy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a progress bar on standard error, drawn ten times a second; invisible without a terminal.
pub fn progress_bar(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    if !bar.is_hidden() {
        tick(&bar);
    }
    bar
}

/// Redraws the bar from a thread of its own. Without a thread the bar is drawn on progress only;
/// `enable_steady_tick` would panic.
fn tick(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let _ = thread::Builder::new().name("kvmem-bar".into()).spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(250));
            match bar.upgrade() {
                Some(bar) if !bar.is_finished() => bar.tick(),
                _ => break,
            }
        }
    });
}
