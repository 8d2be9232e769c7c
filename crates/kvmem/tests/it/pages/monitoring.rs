//! `docs/how-to/monitoring.md`: its alarms use metrics that there are.

/// The page of all metrics, which a test compares with the library.
const METRICS: &str = include_str!("../../../docs/metrics.md");

const PAGE: &str = include_str!("../../../../../docs/how-to/monitoring.md");

#[test]
fn alarms_name_metrics() {
    let (_, alarms) = PAGE.split_once("## Alarms").expect("the section is there");
    let words = alarms.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let names: Vec<&str> = words.filter(|word| word.starts_with("kvmem_")).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(METRICS.contains(&format!("| `{name}` |")), "there is no metric {name}");
    }
}
