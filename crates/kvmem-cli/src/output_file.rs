//! *Output file*: a file named by an option, which gets its content all at once or not at all.
//!
//! The content is staged in an unnamed file in the folder of the target. When it is complete it is
//! synced, linked under a temporary name that no file has, and renamed over the target. A run that
//! fails or is killed leaves the target as it was, and an unnamed file vanishes with its process.
//! A file system without unnamed files gets a file named `.kvmem-PID-N.part` instead; only a killed
//! run leaves one of these.
//!
//! - **Symbolic links** stay: the file at their end is replaced.
//! - **Mode and owner** are those of the file that is replaced, as far as this process may set
//!   them. Where the group cannot be restored, the group gets no right that others lack. Further
//!   hard links of the target still lead to the old content.
//! - **Devices, FIFOs and descriptors** such as `/dev/stdout` cannot be replaced. They are written
//!   directly.
//! - **A target that cannot be renamed over**, such as a file mounted into a container or one in a
//!   folder without write permission, is overwritten in place once the content is complete.
//! - **An input of the same run** is never an output: device and inode numbers are compared, which
//!   sees through names, symbolic links and hard links. Nor do two options get one file.

mod place;
mod rights;
mod staged;

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use self::place::Place;
use self::rights::Rights;
use self::staged::Staged;
use kvmem_trace::escape::shown;

/// An output file cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The run reads the same file.
    #[error(
        "{option} {}: this is {input}, and the output would replace it; name another file",
        shown(.path)
    )]
    IsInput {
        /// The option.
        option: &'static str,
        /// The file it names.
        path: PathBuf,
        /// The role of the file in this run.
        input: &'static str,
    },
    /// Another option of the run names the same file.
    #[error("{option} {}: {other} names the same file, and one would replace the other; name two \
             files", shown(.path))]
    Twice {
        /// The option.
        option: &'static str,
        /// The file it names.
        path: PathBuf,
        /// The other option.
        other: &'static str,
    },
    /// The file cannot be written.
    #[error(
        "{option}: cannot write {}: {source}; name a file that this user can write", shown(.path)
    )]
    Cannot {
        /// The option.
        option: &'static str,
        /// The file it names.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Identifies a file: device and inode.
type FileId = (u64, u64);

/// The output files of one run, and the inputs that they must not replace.
#[derive(Debug, Default)]
pub struct OutputFiles {
    inputs: Vec<(&'static str, FileId)>,
    targets: Vec<(&'static str, PathBuf)>,
}

impl OutputFiles {
    /// Returns the outputs of a run without inputs.
    pub fn new() -> OutputFiles {
        OutputFiles::default()
    }

    /// Protects an input of the run; `-` is standard input. `what` names it in messages: "the
    /// trace".
    pub fn protect(mut self, what: &'static str, path: &Path) -> OutputFiles {
        let found = match path == Path::new("-") {
            true => metadata_of(io::stdin().as_fd()),
            false => fs::metadata(path),
        };
        // An input that cannot be looked at cannot be replaced; opening it gives the error.
        self.inputs.extend(found.ok().and_then(|found| Some((what, regular(&found)?))));
        self
    }

    /// Opens the file that `option` names. Nothing is written to it before [`OutputFile::commit`],
    /// unless it is a device, a FIFO or a descriptor.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn open(&mut self, option: &'static str, path: &Path) -> Result<OutputFile, OutputError> {
        let place = Place::of(path).map_err(|source| cannot(option, path, source))?;
        let existing = match &place {
            Place::Direct(file) => Some(file),
            Place::File { existing, .. } => existing.as_ref().map(|(file, _)| file),
        };
        let id = existing.and_then(|file| regular(&file.metadata().ok()?));
        if let Some((input, _)) = self.inputs.iter().find(|(_, input)| Some(*input) == id) {
            return Err(OutputError::IsInput { option, path: path.to_owned(), input });
        }
        let file = match place {
            Place::Direct(file) => OutputFile { option, path: path.to_owned(), file, target: None },
            Place::File { path: target, existing } => {
                if let Some((other, _)) = self.targets.iter().find(|(_, taken)| *taken == target) {
                    return Err(OutputError::Twice { option, path: path.to_owned(), other });
                }
                self.targets.push((option, target.clone()));
                let staged = Staged::new(&target, existing.is_some());
                let (file, staged) = staged.map_err(|source| cannot(option, path, source))?;
                let target = Some(Target { path: target, existing, staged });
                OutputFile { option, path: path.to_owned(), file, target }
            }
        };
        Ok(file)
    }

    /// Fails if standard output is an input of the run, as in `replay t --json - >> t`.
    ///
    /// # Errors
    /// [`OutputError::IsInput`].
    pub fn check_stdout(&self, option: &'static str) -> Result<(), OutputError> {
        let id = metadata_of(io::stdout().as_fd()).ok().as_ref().and_then(regular);
        match self.inputs.iter().find(|(_, input)| Some(*input) == id) {
            Some((input, _)) => Err(OutputError::IsInput { option, path: "-".into(), input }),
            None => Ok(()),
        }
    }
}

/// A file that is being written. Dropped without [`commit`](Self::commit), it leaves no trace.
#[derive(Debug)]
pub struct OutputFile {
    option: &'static str,
    path: PathBuf,
    /// The file that the content is written to first.
    file: File,
    /// The place of the complete file; `None` if the content is written there directly.
    target: Option<Target>,
}

#[derive(Debug)]
struct Target {
    /// The path without symbolic links.
    path: PathBuf,
    existing: Option<(File, Rights)>,
    staged: Staged,
}

impl OutputFile {
    /// Puts the complete content in the place of the file that the option names.
    ///
    /// # Errors
    /// [`OutputError::Cannot`] if the system fails. The file is then unchanged, unless it had to be
    /// overwritten in place.
    pub fn commit(mut self) -> Result<(), OutputError> {
        let placed = match self.target.take() {
            None => self.file.flush(),
            Some(target) => target.commit(&mut self.file),
        };
        placed.map_err(|source| cannot(self.option, &self.path, source))
    }

    /// Returns the error for a failed write to this file.
    pub fn failed(&self, source: io::Error) -> OutputError {
        cannot(self.option, &self.path, source)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Target {
    fn commit(mut self, file: &mut File) -> io::Result<()> {
        if let Some((_, rights)) = self.existing {
            rights.give(file)?;
        }
        file.sync_data()?;
        let renamed = match &self.staged {
            Staged::OtherFolder => Err(io::ErrorKind::PermissionDenied.into()),
            _ => self.staged.rename(file, &self.path),
        };
        match (renamed, &mut self.existing) {
            // Renaming over the file failed, but it was opened for writing.
            (Err(_), Some((existing, _))) => overwrite(file, existing),
            (renamed, _) => renamed,
        }
    }
}

/// Copies all of `from` over `to`.
fn overwrite(from: &mut File, to: &mut File) -> io::Result<()> {
    from.rewind()?;
    to.rewind()?;
    let bytes = io::copy(&mut Read::by_ref(from), to)?;
    to.set_len(bytes)?;
    to.sync_data()
}

/// Identifies a regular file; `None` for anything that cannot be replaced.
fn regular(metadata: &Metadata) -> Option<FileId> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

fn metadata_of(stream: BorrowedFd<'_>) -> io::Result<Metadata> {
    File::from(stream.try_clone_to_owned()?).metadata()
}

fn cannot(option: &'static str, path: &Path, source: io::Error) -> OutputError {
    OutputError::Cannot { option, path: path.to_owned(), source }
}
