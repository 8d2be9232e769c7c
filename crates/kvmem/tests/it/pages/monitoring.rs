//! `docs/how-to/monitoring.md`: its alarms use metrics that there are.

/// The pages of all metrics, which tests compare with the library and with the server of a node.
const METRICS: [&str; 2] = [
    include_str!("../../../docs/metrics.md"),
    include_str!("../../../../kvmem-node/docs/metrics.md"),
];

const PAGE: &str = include_str!("../../../../../docs/how-to/monitoring.md");

#[test]
fn alarms_name_metrics() {
    let (_, alarms) = PAGE.split_once("## Alarms").expect("the section is there");
    let words = alarms.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let names: Vec<&str> = words.filter(|word| word.starts_with("kvmem_")).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let row = format!("| `{name}` |");
        let is_listed = METRICS.iter().any(|page| page.contains(&row));
        assert!(is_listed, "there is no metric {name}");
    }
}
