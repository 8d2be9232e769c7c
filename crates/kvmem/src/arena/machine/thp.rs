//! *Transparent hugepages*: the settings under which the kernel uses them.

use crate::arena::PageSize;
use crate::sys;

/// The setting for private memory.
pub(crate) const PRIVATE: &str = "enabled";
/// The setting for shared memory.
pub(crate) const SHARED: &str = "shmem_enabled";

/// Returns the setting that makes the kernel ignore the advice to use transparent hugepages, if
/// there is one. `file` is [`PRIVATE`] or [`SHARED`].
pub(crate) fn disabled_by(file: &str) -> Option<String> {
    let status = sys::read_text("/proc/self/status").unwrap_or_default();
    if status
        .lines()
        .any(|line| line.strip_prefix("THP_enabled:").is_some_and(|on| on.trim() == "0"))
    {
        return Some("prctl(PR_SET_THP_DISABLE) of this process".to_owned());
    }
    let folder = "/sys/kernel/mm/transparent_hugepage";
    // Since Linux 6.8 each hugepage size has its own setting, which can refer to the common one.
    let own = format!("{folder}/hugepages-{}kB/{file}", PageSize::Thp.bytes() >> 10);
    for path in [own, format!("{folder}/{file}")] {
        match sys::read_text(&path) {
            Ok(text) if text.contains("[inherit]") => {}
            Ok(text) if text.contains("[never]") || text.contains("[deny]") => {
                return Some(format!("{path} is never"));
            }
            Ok(_) => return None,
            Err(_) => {}
        }
    }
    Some(format!("{folder}/{file} cannot be read"))
}
