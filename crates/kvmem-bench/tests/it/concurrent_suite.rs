//! Checks that apply to the reports of all concurrent suites.

use std::fmt::Debug;

use kvmem_bench::concurrent_suite::ConcurrentRow;
use kvmem_bench::suite::{Report, Suite};

use crate::suite::{Watch, check_rows};

/// Checks that all rows are in the report, that each has these keys and a rate, and that the table
/// has these parts.
pub(crate) fn is_reported_in_full<S>(
    report: &Report<S>,
    watch: &Watch,
    keys: &[&str],
    parts: &[&str],
) where
    S: Suite<Row: ConcurrentRow> + PartialEq + Debug,
{
    assert_eq!(watch.steps.len(), report.rows.len());
    let json = check_rows(report, watch, keys);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["mops"].as_f64() > Some(0.0), "{row}");
    }
    let table = report.to_string();
    for part in parts {
        assert!(table.contains(part), "{part} in\n{table}");
    }
}

/// Returns scenario, contender and threads of each row.
pub(crate) fn ran<S, R: ConcurrentRow>(report: &Report<S>) -> Vec<(R::Scenario, R::Contender, u32)>
where
    S: Suite<Row = R>,
{
    report.rows.iter().map(|row| (row.scenario(), row.contender(), row.threads())).collect()
}
