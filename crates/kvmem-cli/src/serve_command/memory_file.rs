//! *Memory file*: memory under a name, which outlives all processes.

use std::path::Path;

use kvmem::arena::Ladder;
use kvmem_node::{MemoryFile, MemoryFileError, Node, NodeError};

use super::{Made, failure, map, node_options};
use crate::args::{KeepBy, ServeArgs};
use crate::output::{Failure, tell};
use kvmem_trace::escape::shown;

/// Recovers the memory in the file that `--memory-file` names, or makes it.
pub(super) fn make(args: &ServeArgs, path: &Path) -> Result<Made, Failure> {
    if args.keep_by() != KeepBy::None {
        return Err(Failure::usage(
            "--memory-file: the file outlives all processes, and none keeps it: leave --keep out",
        ));
    }
    let file = MemoryFile::open(path).map_err(|error| failure(error.into()))?;
    // An index without its memory is of no use, and its name is needed.
    if args.set_aside || !file.has_memory() {
        if let Some(aside) = file.set_aside().map_err(|error| failure(error.into()))? {
            tell(format_args!("kvmem: what the server before left is kept as {}", shown(&aside)));
        }
    } else if args.fresh {
        file.remove().map_err(|error| failure(error.into()))?;
    } else {
        return recover(args, file);
    }
    let (node, receipt) = map(args, Some(file))?;
    Ok(Made { node, recovered: None, receipt: Some(receipt) })
}

fn recover(args: &ServeArgs, file: MemoryFile) -> Result<Made, Failure> {
    let path = file.path().to_owned();
    match Node::recover_in(file, args.size, node_options(args)) {
        Ok((node, report)) => Ok(Made { node, recovered: Some(report), receipt: None }),
        Err(NodeError::MemoryFile(error @ MemoryFileError::Size { .. })) => {
            Err(Failure::usage(format_args!(
                "{error}: give the --size that it has, or start with --set-aside to keep it under \
                 another name, or with --fresh to drop it"
            )))
        }
        Err(
            error @ (NodeError::BadIndex(_)
            | NodeError::Memory(_)
            | NodeError::MemoryFile(MemoryFileError::Foreign { .. })),
        ) => Err(Failure::usage(format_args!(
            "--memory-file {} cannot be used, and was not changed: {error}; start with --set-aside \
             to keep it under another name, or with --fresh to drop it",
            shown(&path)
        ))),
        Err(error) => Err(failure(error)),
    }
}

/// Removes the file that this process has made.
pub(super) fn forget(path: &Path) -> Result<(), Failure> {
    let removed = MemoryFile::open(path).and_then(|file| file.remove());
    removed.map_err(|error| failure(error.into()))
}

/// Returns those of the kinds of pages that the file system has.
pub(super) fn pages(args: &ServeArgs, file: &MemoryFile) -> Result<Ladder, Failure> {
    let mut rungs = args.pages.rungs.clone();
    rungs.retain(|page| file.pages().contains(page));
    if rungs.is_empty() {
        let there: Vec<String> = file.pages().iter().map(ToString::to_string).collect();
        return Err(Failure::usage(format_args!(
            "--pages {}: the file system of {} has other pages: add one of {}",
            args.pages,
            shown(file.path()),
            there.join(", ")
        )));
    }
    Ok(Ladder::new(rungs).strict(args.pages.strict))
}
