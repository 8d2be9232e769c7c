//! *HTML*: where a page of plots goes.

use std::path::Path;

use kvmem_cli::Failure;
use kvmem_cli::output::complete;
use kvmem_cli::output_file::{OutputError, OutputFile, OutputFiles};
use kvmem_report::Page;

/// The destination of a page, opened before any work.
pub(crate) struct HtmlSink(Option<OutputFile>);

impl HtmlSink {
    /// Opens the file that `--html` names, if any. It is unchanged until
    /// [`write`](Self::write).
    pub(crate) fn open(files: &mut OutputFiles, path: Option<&Path>) -> Result<Self, OutputError> {
        path.map(|path| files.open("--html", path)).transpose().map(HtmlSink)
    }

    /// Draws and writes the page, if one was requested.
    pub(crate) fn write(self, page: impl FnOnce() -> Page) -> Result<(), Failure> {
        let Some(file) = self.0 else { return Ok(()) };
        complete(file, &page().to_string())
    }
}
