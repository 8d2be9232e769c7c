//! The report of small concurrency runs: its JSON, its table, its progress.

use kvmem_bench::concurrency::{self, ContenderId, Options, Report, Scenario};

mod watch;

use watch::Watch;

#[test]
fn rows_are_reported_in_full() {
    let options = Options { quick: true, reps: Some(1), threads: vec![1, 2, 16], ..Options::default() };
    let mut watch = Watch::default();
    let report = concurrency::run(&options, &mut watch).unwrap();
    assert_eq!(report.rows.len(), Scenario::ALL.len() * ContenderId::ALL.len() * 3);
    assert_eq!((watch.steps.len(), watch.rows), (report.rows.len(), report.rows.len()));
    assert_eq!(watch.planned, watch.done);
    assert!(watch.steps.iter().any(|step| step == "cross-thread binned ×16"), "{:?}", watch.steps);

    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["suite"], "concurrency");
    for row in json["rows"].as_array().unwrap() {
        let mut keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["contender", "mops", "p50_ns", "p99_ns", "scenario", "threads"]);
        assert!(row["mops"].as_f64() > Some(0.0), "{row}");
        assert!(row["p50_ns"].as_f64() <= row["p99_ns"].as_f64(), "{row}");
    }
    // One goal for each of the five kinds of scenarios, twice, where two threads have two processors; and impossible requests.
    assert_eq!(report.goals.len(), if report.machine.cores >= 2 { 11 } else { 1 });
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);

    let table = report.to_string();
    for part in ["pair-3274752, 16 thread(s)", "high-water, 1 thread(s)", "binned", "mutex", "≥ 1.8", "≤ 10"]
    {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert!(table.ends_with('\n'));
}

#[test]
fn what_is_named_is_all_that_runs() {
    let options = Options {
        quick: true,
        reps: Some(2),
        scenarios: vec![Scenario::Impossible],
        contenders: vec![ContenderId::Mutex, ContenderId::Kvmem],
        threads: vec![3],
    };
    let report = concurrency::run(&options, &mut ()).unwrap();
    let rows: Vec<_> = report.rows.iter().map(|row| (row.scenario, row.contender, row.threads)).collect();
    let expected = [ContenderId::Kvmem, ContenderId::Mutex].map(|id| (Scenario::Impossible, id, 3));
    assert_eq!((rows.as_slice(), report.reps), (&expected[..], 2));
}

#[test]
fn names_lead_back_to_what_they_name() {
    for id in Scenario::ALL {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
    }
    for id in ContenderId::ALL {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
    }
    let error = "nothing".parse::<Scenario>().unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains("pair-3274752"), "{error}");
}
