//! *Memory*: the machine's memory, as `/proc/meminfo` reports it.

use super::files::MachineFiles;
use super::parse;

/// Returns the sum of some fields of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(fields: &[&str]) -> Option<u64> {
    let text = MachineFiles::here().text("/proc/meminfo").ok()?;
    fields.iter().map(|field| parse::field_bytes(&text, field)).sum()
}
