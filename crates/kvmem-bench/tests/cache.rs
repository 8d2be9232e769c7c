//! The report of small cache runs: its JSON, its table, its progress.

use kvmem_bench::cache::{self, ContenderId, Options, Report, Scenario};

mod watch;

use watch::Watch;

#[test]
fn rows_are_reported_in_full() {
    let options = Options { quick: true, reps: Some(1), ..Options::default() };
    let mut watch = Watch::default();
    let report = cache::run(&options, &mut watch).unwrap();
    assert_eq!(report.rows.len(), Scenario::ALL.len() * ContenderId::ALL.len() * 3);
    assert_eq!((watch.steps.len(), watch.rows), (report.rows.len(), report.rows.len()));
    assert_eq!(watch.planned, watch.done);
    assert!(watch.steps.iter().any(|step| step == "get-miss quick-cache ×4"), "{:?}", watch.steps);

    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["suite"], "cache");
    for row in json["rows"].as_array().unwrap() {
        let mut keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["contender", "mops", "ns", "scenario", "threads"]);
        assert!(row["mops"].as_f64() > Some(0.0) && row["ns"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(report.goals.len(), if report.machine.cores >= 2 { 2 } else { 1 });
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);

    let table = report.to_string();
    for part in ["get-hit, 1 thread(s)", "insert-evict, 4 thread(s)", "kvmem-scan", "quick-cache", "≤ 60"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert!(table.ends_with('\n'));
}

#[test]
fn what_is_named_is_all_that_runs() {
    let options = Options {
        quick: true,
        reps: Some(2),
        scenarios: vec![Scenario::GetMiss],
        contenders: vec![ContenderId::QuickCache, ContenderId::Kvmem],
        threads: vec![3],
    };
    let report = cache::run(&options, &mut ()).unwrap();
    let rows: Vec<_> = report.rows.iter().map(|row| (row.scenario, row.contender, row.threads)).collect();
    let expected = [ContenderId::Kvmem, ContenderId::QuickCache].map(|id| (Scenario::GetMiss, id, 3));
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
    assert!(error.contains("nothing") && error.contains("get-hit"), "{error}");
}
