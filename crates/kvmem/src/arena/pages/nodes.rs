//! *Nodes*: a set of NUMA nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of nodes, displayed in the kernel's format: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(pub Vec<u32>);

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for run in self.0.chunk_by(|a, b| a + 1 == *b) {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [from, .., to] => write!(f, "{comma}{from}-{to}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// Parses the kernel's text.
    pub(crate) fn parse(text: &str) -> Option<Nodes> {
        let mut nodes = Vec::new();
        for run in text.trim().split(',').filter(|run| !run.is_empty()) {
            let (from, to) = run.split_once('-').unwrap_or((run, run));
            // No kernel has more nodes than this, so a strange text cannot make a huge list.
            nodes.extend(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?.min(1023));
        }
        Some(Nodes(nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_parse_what_they_display() {
        for text in ["0", "0-3", "0-1,4,6-7"] {
            assert_eq!(Nodes::parse(text).map(|nodes| nodes.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Nodes::parse("0-4294967295").map(|nodes| nodes.0.len()), Some(1024));
        assert_eq!(Nodes::parse("x"), None);
        assert_eq!(Nodes::parse("\n"), Some(Nodes(vec![])));
    }
}
