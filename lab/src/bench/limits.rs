//! *Limits*: what the machine leaves to a benchmark, as preflight reads it.

use std::sync::OnceLock;

use kvmem::arena::PageSize;
use kvmem::arena::preflight::{Machine, Report, Requirements, Value, Verdict};

/// Returns preflight's report on a little memory in transparent hugepages.
fn report() -> Report {
    let little = Requirements::new(2 << 20, PageSize::Thp);
    Machine::here().preflight(&little.expect("a size of whole pages"))
}

/// Returns the bytes that can be made resident now without evicting anything: the machine's
/// available memory, or less if a control group allows less. `None` if the machine does not report
/// it.
pub fn available_bytes() -> Option<u64> {
    let report = report();
    let bytes = |name| match report.check(name)?.value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    bytes("cgroup.memory.max").into_iter().chain(bytes("memory.available")).min()
}

/// Returns whether the system backs memory with transparent hugepages by default.
pub fn thp_always() -> bool {
    static ALWAYS: OnceLock<bool> = OnceLock::new();
    let always = Value::Text("always".to_owned());
    *ALWAYS.get_or_init(|| report().check("thp.enabled").is_some_and(|check| check.value == always))
}

/// Returns why transparent hugepages are unavailable, if they are.
pub fn thp_missing() -> Option<String> {
    let report = report();
    let check = report.check("thp.enabled")?;
    let fix = check.fix.as_ref().map(|fix| format!(": {fix}")).unwrap_or_default();
    (check.verdict != Verdict::Ok).then(|| format!("{}{fix}", check.why))
}

/// Returns why the machine's pool of hugepages of 2 MiB has less than `bytes` free, if it has.
pub fn hugepages_missing(bytes: u64) -> Option<String> {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let (free, need) = (text.trim().parse::<u64>().unwrap_or(0), bytes.div_ceil(2 << 20));
    (free < need).then(|| {
        format!("{free} of {need} hugepages of 2 MiB are free: sysctl vm.nr_hugepages={need}")
    })
}
