//! Traces: requests whose blocks are numbered from 0.

use std::collections::HashMap;
use std::path::Path;

use super::HitsError;

/// The requested chains of blocks.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The name.
    pub name: String,
    /// The chains.
    pub requests: Vec<Vec<u32>>,
    /// Number of distinct blocks.
    pub distinct: u64,
    /// Number of blocks in all chains.
    pub requested: u64,
}

impl Trace {
    /// Creates a trace from chains of arbitrarily named blocks.
    #[must_use]
    pub fn new(name: &str, requests: Vec<Vec<u64>>) -> Trace {
        let mut numbers = HashMap::new();
        let mut number = |block| {
            let next = numbers.len() as u32;
            *numbers.entry(block).or_insert(next)
        };
        let requests: Vec<Vec<u32>> = requests
            .into_iter()
            .map(|chain| chain.into_iter().map(&mut number).collect())
            .collect();
        let requested = requests.iter().map(|chain| chain.len() as u64).sum();
        Trace { name: name.to_owned(), requests, distinct: numbers.len() as u64, requested }
    }

    /// Reads at most `max_requests` requests from a file with one JSON object per line, whose
    /// `hash_ids` name the blocks.
    ///
    /// # Errors
    /// [`HitsError::Trace`] if the file cannot be read or a line is invalid.
    pub fn read(path: &Path, max_requests: Option<usize>) -> Result<Trace, HitsError> {
        let fail = |why: String| HitsError::Trace { path: path.display().to_string(), why };
        #[derive(serde::Deserialize)]
        struct Line {
            hash_ids: Vec<u64>,
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let requests = lines
            .take(max_requests.unwrap_or(usize::MAX))
            .map(|(number, line)| {
                let line = serde_json::from_str::<Line>(line);
                line.map(|line| line.hash_ids)
                    .map_err(|error| fail(format!("line {}: {error}", number + 1)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if requests.iter().all(Vec::is_empty) {
            return Err(fail("it contains no request".to_owned()));
        }
        let name = path
            .file_stem()
            .map_or_else(|| "trace".to_owned(), |stem| stem.to_string_lossy().into_owned());
        Ok(Trace::new(&name, requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_and_an_invalid_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        std::fs::write(&path, "{\"hash_ids\": [7, 9]}\n\n{\"hash_ids\": [7, 8], \"other\": 1}\n")
            .unwrap();
        let trace = Trace::read(&path, None).unwrap();
        assert_eq!((trace.name.as_str(), trace.distinct, trace.requested), ("some", 3, 4));
        assert_eq!(trace.requests, [[0, 1], [0, 2]]);
        assert_eq!(Trace::read(&path, Some(1)).unwrap().requested, 2);
        std::fs::write(&path, "{\"hash_ids\": 7}\n").unwrap();
        assert!(Trace::read(&path, None).unwrap_err().to_string().contains("line 1"));
        std::fs::write(&path, "\n").unwrap();
        assert!(Trace::read(&path, None).unwrap_err().to_string().contains("no request"));
        drop(folder);
        assert!(Trace::read(&path, None).is_err());
    }
}
