//! What leaves the command: results, progress, and failures with their exit status.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvmem_report::Page;
use serde::Serialize;

/// Why the command failed.
///
/// The exit status is 2 when what was asked for cannot be done (bad options, unreadable input), and 1 when it was
/// done and went wrong.
#[derive(Debug)]
pub struct Failure {
    message: String,
    exit_status: u8,
}

impl Failure {
    /// What was asked for cannot be done.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Failure { message: message.to_string(), exit_status: 2 }
    }

    /// A failure with a status of its own.
    pub(crate) fn new(message: impl fmt::Display, exit_status: u8) -> Self {
        Failure { message: message.to_string(), exit_status }
    }

    /// The status the process should end with.
    pub fn exit_status(&self) -> u8 {
        self.exit_status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A place for JSON, opened before any work is done, so that a bad path costs no time.
pub(crate) enum JsonSink {
    /// Nobody asked for JSON.
    None,
    /// Standard output, which then carries nothing else.
    Stdout,
    /// A file.
    File(std::fs::File, String),
}

impl JsonSink {
    /// Opens what `--json` named: nothing, `-`, or a file, which is emptied.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(JsonSink::None),
            Some(path) if path == Path::new("-") => Ok(JsonSink::Stdout),
            Some(path) => match std::fs::File::create(path) {
                Ok(file) => Ok(JsonSink::File(file, path.display().to_string())),
                Err(error) => Err(Failure::usage(format_args!("cannot write {}: {error}", path.display()))),
            },
        }
    }

    /// Writes `text` for people unless standard output is taken by JSON, and `value` as JSON where it was asked for.
    pub(crate) fn write(self, text: impl fmt::Display, value: &impl Serialize) -> Result<(), Failure> {
        let json = || serde_json::to_string_pretty(value).map_err(|error| Failure::new(error, 1));
        match self {
            JsonSink::None => print(text),
            JsonSink::Stdout => print(format_args!("{}\n", json()?)),
            JsonSink::File(mut file, name) => {
                let written = writeln!(file, "{}", json()?).and_then(|()| file.flush());
                written.map_err(|error| Failure::new(format_args!("cannot write {name}: {error}"), 1))?;
                print(text)
            }
        }
    }
}

/// A place for a page, opened before any work is done.
pub(crate) struct HtmlSink(Option<(std::fs::File, String)>);

impl HtmlSink {
    /// Opens what `--html` named, if anything: a file, which is emptied.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(HtmlSink(None)) };
        let name = path.display().to_string();
        match std::fs::File::create(path) {
            Ok(file) => Ok(HtmlSink(Some((file, name)))),
            Err(error) => Err(Failure::usage(format_args!("cannot write {name}: {error}"))),
        }
    }

    /// Opens a file of this name in the current folder, or else in that for temporary files, under a name that nobody has. Also: the
    /// absolute path of the file, and why it is not in the current folder.
    ///
    /// # Errors
    /// Why there can be none in either.
    pub(crate) fn open_somewhere(name: &str) -> Result<(Self, PathBuf, Option<io::Error>), io::Error> {
        let sink = |file, path: &Path| HtmlSink(Some((file, path.display().to_string())));
        let here = Path::new(name);
        let why = match std::fs::File::create(here) {
            Ok(file) => {
                let path = std::path::absolute(here)?;
                return Ok((sink(file, &path), path, None));
            }
            Err(why) => why,
        };
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, "html"));
        let path = std::env::temp_dir().join(format!("{stem}-{}.{ending}", std::process::id()));
        // Others may write there too: a file that is there is somebody's.
        let file = std::fs::File::create_new(&path)?;
        Ok((sink(file, &path), path, Some(why)))
    }

    /// Writes the page, which is drawn only if somebody asked for it.
    pub(crate) fn write(self, page: impl FnOnce() -> Page) -> Result<(), Failure> {
        let Some((mut file, name)) = self.0 else { return Ok(()) };
        let written = file.write_all(page().to_string().as_bytes()).and_then(|()| file.flush());
        written.map_err(|error| Failure::new(format_args!("cannot write {name}: {error}"), 1))
    }
}

/// Prints to standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot write to standard output: {error}"), 1))
        }
        _ => Ok(()),
    }
}

/// A progress bar on standard error, drawn ten times a second; nothing when that is not a terminal.
pub(crate) fn progress_bar(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    bar
}
