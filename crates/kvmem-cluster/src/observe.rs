#![doc = include_str!("../docs/metrics.md")]

/// Returns a function that publishes the figures of the cluster of a node to the current recorder
/// of the [`metrics`](https://docs.rs/metrics) facade, under the label `node`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also).
#[cfg(feature = "metrics")]
pub fn publisher(
    name: &str,
    cluster: &std::sync::Arc<crate::ClusterTier>,
) -> impl Fn() + Send + Sync + 'static {
    let (name, cluster) = (name.to_owned(), std::sync::Arc::clone(cluster));
    move || kvmem::pool::observe::publish(&cluster.stats(), &[("node", &name)])
}

#[cfg(test)]
mod tests {
    use crate::ClusterStats;

    #[test]
    fn the_page_has_all_metrics_in_their_order() {
        let page = include_str!("../docs/metrics.md");
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(shown, kvmem::pool::observe::rows::<ClusterStats>(""));
    }
}
