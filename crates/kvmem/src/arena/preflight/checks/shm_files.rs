//! *Files of engines*: memory in `/dev/shm` that belongs to inference engines, and to no process
//! any more. An engine that is killed leaves it behind; it then counts as used until it is removed.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use crate::arena::machine::Read;
use crate::arena::machine::shm_files::{EngineFile, FileUse, engine_files};

/// The number of files that a reason lists.
const LISTED: usize = 4;
/// The number of files that a fix removes.
const REMOVED: usize = 64;

pub(super) fn checks(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    checks.push(Check::or_unknown("shm.files", None, leftovers(facts)));
}

fn leftovers(facts: &Facts<'_>) -> Read<Check> {
    let files = engine_files(facts.files)?;
    let of = |usage: fn(&EngineFile) -> bool| files.iter().filter(|file| usage(file)).collect();
    let unused: Vec<&EngineFile> = of(|file| file.usage == FileUse::Unused);
    let unknown: Vec<&EngineFile> = of(|file| file.usage == FileUse::Unknown);
    if !unused.is_empty() {
        let why = format!("no process uses these files of engines any more: {}", list(&unused));
        return Ok(check(&unused).judge(Verdict::Warn, why).fix(removal(&unused)));
    }
    if !unknown.is_empty() {
        let why = format!(
            "no visible process uses these files of engines, but not all processes are visible, \
             so they may be in use: {}",
            list(&unknown)
        );
        let path = unknown[0].path().escape_default().to_string();
        return Ok(check(&unknown).judge(Verdict::Warn, why).fix(format!(
            "look for users outside of the container, as root, with fuser -v {path}, and remove \
             the files if there are none"
        )));
    }
    let files: Vec<&EngineFile> = files.iter().collect();
    let why = match files.as_slice() {
        [] => "engines have left no files in /dev/shm".to_owned(),
        _ => format!("processes use all files of engines in /dev/shm: {}", list(&files)),
    };
    Ok(check(&files).judge(Verdict::Ok, why))
}

fn check(files: &[&EngineFile]) -> Check {
    let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    Check::new("shm.files", Value::Bytes(bytes))
}

/// Lists the largest files with their makers, sizes and owners.
fn list(files: &[&EngineFile]) -> String {
    let one = |file: &&EngineFile| {
        let EngineFile { name, maker, bytes, user, usage } = file;
        let name = name.escape_default();
        let size = human_bytes(*bytes);
        match usage {
            FileUse::By(process) => format!("{name} ({maker}, {size}, process {process})"),
            _ => format!("{name} ({maker}, {size}, user {user})"),
        }
    };
    let mut listed: Vec<String> = files.iter().take(LISTED).map(one).collect();
    if files.len() > LISTED {
        listed.push(format!("{} more", files.len() - LISTED));
    }
    listed.join(", ")
}

/// Returns a command that removes the files. Names that a shell would not take literally are left
/// to the reader.
fn removal(files: &[&EngineFile]) -> String {
    let plain = files.iter().filter(|file| file.has_plain_name()).take(REMOVED);
    let paths: Vec<String> = plain.map(|file| file.path()).collect();
    match paths.is_empty() {
        true => "remove the files with these names in /dev/shm".to_owned(),
        false => format!("rm -f {}", paths.join(" ")),
    }
}
