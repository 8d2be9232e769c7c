//! *Memory*: the machine's memory, as `/proc/meminfo` reports it.

use crate::sys;

/// Returns the sum of some lines of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(lines: &[&str]) -> Option<u64> {
    let text = sys::read_text("/proc/meminfo").ok()?;
    let mut sum = 0;
    for wanted in lines {
        let line = text.lines().find_map(|line| line.strip_prefix(wanted))?;
        sum += line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    }
    Some(sum)
}
