#![doc = include_str!("../docs/metrics.md")]

/// Returns a function that publishes the figures of a node to the current recorder of the
/// [`metrics`](https://docs.rs/metrics) facade, under the label `node`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also).
#[cfg(feature = "metrics")]
pub fn publisher(
    name: &str,
    observer: crate::server::NodeObserver,
) -> impl Fn() + Send + Sync + 'static {
    use kvmem::pool::observe::publish;

    let name = name.to_owned();
    move || {
        let stats = observer.stats();
        publish(&stats, &[("node", &name)]);
        for namespace in &stats.namespaces {
            publish(namespace, &[("node", &name), ("namespace", &namespace.name)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use kvmem::pool::observe::rows;

    use crate::node::{NamespaceStats, NodeStats};

    #[test]
    fn the_page_has_all_metrics_in_their_order() {
        let page = include_str!("../docs/metrics.md");
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(shown, [rows::<NodeStats>("–"), rows::<NamespaceStats>("–")].concat());
    }
}
