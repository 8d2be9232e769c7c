//! Checks that apply to the reports of all suites, and a receiver of progress.

use std::error::Error;
use std::fmt::Debug;
use std::str::FromStr;

use kvmem_bench::progress::Progress;
use kvmem_bench::suite::{Named, Report, Suite};
use serde::Serialize;
use serde_json::Value;

/// A receiver of progress that records its calls, for any suite.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) planned: u64,
    pub(crate) done: u64,
    pub(crate) steps: Vec<String>,
    pub(crate) rows: usize,
}

impl<R> Progress<R> for Watch {
    fn begin(&mut self, units: u64) {
        self.planned = units;
    }

    fn step(&mut self, what: &str) {
        self.steps.push(what.to_owned());
    }

    fn advance(&mut self, units: u64) {
        self.done += units;
    }

    fn row(&mut self, _row: &R) {
        self.rows += 1;
    }
}

/// Checks that all work was announced, that all rows were watched, that each row has exactly these
/// keys, and that JSON parses back to the report. Returns the JSON.
pub(crate) fn check_rows<S>(report: &Report<S>, watch: &Watch, keys: &[&str]) -> Value
where
    S: Suite + PartialEq + Debug,
{
    assert_eq!((watch.planned, watch.rows), (watch.done, report.rows.len()));
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["suite"], S::NAME);
    for row in json["rows"].as_array().unwrap() {
        let mut found: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, keys);
    }
    assert_eq!(serde_json::from_value::<Report<S>>(json.clone()).unwrap(), *report);
    assert!(report.to_string().ends_with('\n'));
    json
}

/// Checks that names are the same on the command line and in JSON and parse back, and that the
/// error for an unknown name lists the valid ones.
pub(crate) fn check_names<N>()
where
    N: Named + Debug + Serialize + FromStr<Err: Error + PartialEq>,
{
    for id in N::ALL {
        assert_eq!(id.name(), id.to_string());
        assert_eq!(id.to_string().parse(), Ok(*id));
        assert_eq!(serde_json::to_string(id).unwrap(), format!("\"{id}\""));
    }
    let error = "nothing".parse::<N>().unwrap_err().to_string();
    let all = N::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    assert!(error.contains("nothing") && error.ends_with(&all), "{error}");
}
