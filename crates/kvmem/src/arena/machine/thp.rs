//! *Transparent hugepages*: the settings under which the kernel uses them.

use super::files::MachineFiles;
use super::files::Read;
use super::parse;
use crate::arena::PageSize;

/// The folder of the settings.
pub(crate) const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
/// The setting for private memory.
pub(crate) const PRIVATE: &str = "enabled";
/// The setting for shared memory.
pub(crate) const SHARED: &str = "shmem_enabled";

/// Returns the selected word of the common setting `file`.
pub(crate) fn common(files: &MachineFiles, file: &str) -> Read<String> {
    files.value(&format!("{FOLDER}/{file}"), parse::selected)
}

/// Returns the selected word of a setting for hugepages of the usual size, and its file. Since
/// Linux 6.8 each size has its own setting, which can refer to the common one.
pub(crate) fn effective(files: &MachineFiles, file: &str) -> Read<(String, String)> {
    let own = format!("{FOLDER}/hugepages-{}kB/{file}", PageSize::Thp.bytes() >> 10);
    match files.value_if_exists(&own, parse::selected)? {
        Some(word) if word != "inherit" => Ok((word, own)),
        _ => Ok((common(files, file)?, format!("{FOLDER}/{file}"))),
    }
}

/// Returns whether a process with this `/proc/self/status` has disabled hugepages for itself.
/// Kernels before 5.0 do not report it.
pub(crate) fn disabled_for_process(status: &str) -> bool {
    parse::field(status, "THP_enabled").and_then(parse::number) == Some(0)
}

/// Returns the setting that makes the kernel ignore the advice to use transparent hugepages, if
/// there is one. `file` is [`PRIVATE`] or [`SHARED`].
pub(crate) fn disabled_by(file: &str) -> Option<String> {
    let files = MachineFiles::here();
    let status = files.text("/proc/self/status").unwrap_or_default();
    if disabled_for_process(&status) {
        return Some("prctl(PR_SET_THP_DISABLE) of this process".to_owned());
    }
    match effective(&files, file) {
        Ok((word, path)) => matches!(&*word, "never" | "deny").then(|| format!("{path} is never")),
        Err(_) => Some(format!("{FOLDER}/{file} cannot be read")),
    }
}
