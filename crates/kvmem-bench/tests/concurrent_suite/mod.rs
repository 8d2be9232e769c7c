//! Checks that apply to the reports of all concurrent suites.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use kvmem_bench::concurrent_suite::{Named, SuiteReport, SuiteRow};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::watch::Watch;

/// Checks that all watched rows are in the report, that each has these keys and a rate, that JSON
/// parses back to the report, and that the table has these parts.
pub(crate) fn is_reported_in_full<R>(
    report: &SuiteReport<R>,
    watch: &Watch,
    keys: &[&str],
    parts: &[&str],
) where
    R: SuiteRow + Serialize + DeserializeOwned + PartialEq + Debug,
{
    assert_eq!((watch.steps.len(), watch.rows), (report.rows.len(), report.rows.len()));
    assert_eq!(watch.planned, watch.done);

    let json = serde_json::to_value(report).unwrap();
    for row in json["rows"].as_array().unwrap() {
        let mut found: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, keys);
        assert!(row["mops"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(serde_json::from_value::<SuiteReport<R>>(json).unwrap(), *report);

    let table = report.to_string();
    for part in parts {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert!(table.ends_with('\n'));
}

/// Returns scenario, contender and threads of each row.
pub(crate) fn ran<R: SuiteRow>(report: &SuiteReport<R>) -> Vec<(R::Scenario, R::Contender, u32)> {
    report.rows.iter().map(|row| (row.scenario(), row.contender(), row.threads())).collect()
}

/// Checks that names are the same on the command line and in JSON and parse back, and that the
/// error for an unknown name lists the valid ones.
pub(crate) fn check_names<N>()
where
    N: Named + Display + Debug + Serialize + FromStr<Err: Error + PartialEq>,
{
    for id in N::ALL {
        assert_eq!(id.to_string().parse(), Ok(*id));
        assert_eq!(serde_json::to_string(id).unwrap(), format!("\"{id}\""));
    }
    let error = "nothing".parse::<N>().unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains(&N::ALL[0].to_string()), "{error}");
}
