//! *Session* of kv-cache-tester: one JSON object with the requests of one user.
//!
//! ```json
//! {"id": "s1", "block_size": 64, "hash_id_scope": "local", "requests": [
//!   {"t": 0.0, "type": "s", "in": 200, "out": 9, "hash_ids": [1, 2, 3], "api_time": 1.5},
//!   {"t": 4.0, "type": "subagent", "requests": [
//!     {"t": 4.5, "type": "n", "in": 140, "out": 5, "hash_ids": [1, 4], "think_time": 0.2}]}]}
//! ```
//!
//! `t` is in seconds since the session began, also in a sub-agent. `in` and `out` are tokens, and
//! each of `hash_ids` is a block of `block_size` tokens. The ids are *local*: those of another
//! session are other blocks, while sub-agents share the ids of their session. With
//! `"hash_id_scope": "global"` all sessions share them. Further members are ignored. `t` already
//! contains what `api_time` and `think_time` tell apart.
//!
//! A request of an agent repeats all of its prompt before, and ids are handed out in order. Ids are
//! therefore held as a few runs instead of thousands of numbers.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::text::{check_seconds, check_tokens};

/// Tokens of a block in the published sessions.
pub const BLOCK_TOKENS: u64 = 64;

/// The most tokens of a block.
pub const BLOCK_TOKENS_MAX: u64 = 1 << 20;

/// Whom the ids of a session are known to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HashScope {
    /// The session and its sub-agents.
    Local,
    /// All sessions.
    Global,
}

/// Consecutive ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct HashRun {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// One request of a session.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SessionRequest {
    /// Seconds since the session began.
    pub(super) t: f64,
    pub(super) input_length: u64,
    pub(super) output_length: u64,
    pub(super) runs: Vec<HashRun>,
}

/// A session, with the requests of its sub-agents among its own, in the order of time.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Session {
    pub(super) block_tokens: u64,
    pub(super) scope: HashScope,
    pub(super) requests: Vec<SessionRequest>,
}

/// A session cannot be used.
#[derive(Debug)]
pub(super) enum SessionFault {
    /// It is no session.
    Malformed(String),
    /// A number is beyond its limit: the member, its value, the limit and the remedy.
    OutOfBounds(&'static str, String, u64, &'static str),
    /// The scope of the ids is unknown.
    Scope(String),
}

/// A session, as it is written.
#[derive(Deserialize)]
struct SessionText {
    block_size: u64,
    hash_id_scope: Option<String>,
    requests: Vec<EntryText>,
}

/// A request, or a sub-agent with requests of its own.
#[derive(Deserialize)]
struct EntryText {
    t: f64,
    #[serde(rename = "in", alias = "input_length")]
    input: Option<u64>,
    #[serde(rename = "out", alias = "output_length")]
    output: Option<u64>,
    #[serde(default)]
    hash_ids: HashRuns,
    requests: Option<Vec<EntryText>>,
}

/// The ids of a request.
#[derive(Default)]
struct HashRuns(Vec<HashRun>);

impl<'de> Deserialize<'de> for HashRuns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = HashRuns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of hash ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<HashRuns, A::Error> {
                let mut runs: Vec<HashRun> = Vec::new();
                while let Some(id) = ids.next_element::<u64>()? {
                    match runs.last_mut() {
                        Some(run) if run.last.checked_add(1) == Some(id) => run.last = id,
                        _ => runs.push(HashRun { first: id, last: id }),
                    }
                }
                runs.shrink_to_fit();
                Ok(HashRuns(runs))
            }
        }
        deserializer.deserialize_seq(Ids)
    }
}

impl Session {
    /// Reads a session from JSON.
    pub(super) fn read<'de, R: serde_json::de::Read<'de>>(
        json: &mut serde_json::Deserializer<R>,
    ) -> Result<Result<Session, SessionFault>, serde_json::Error> {
        SessionText::deserialize(json).map(Session::check)
    }

    fn check(text: SessionText) -> Result<Session, SessionFault> {
        let block_tokens = text.block_size;
        if block_tokens == 0 {
            return Err(SessionFault::Malformed("block_size is 0, at least 1 is needed".into()));
        }
        if block_tokens > BLOCK_TOKENS_MAX {
            let remedy = "write the tokens of a block";
            let value = block_tokens.to_string();
            return Err(SessionFault::OutOfBounds("block_size", value, BLOCK_TOKENS_MAX, remedy));
        }
        let scope = match text.hash_id_scope.as_deref() {
            None | Some("local") => HashScope::Local,
            Some("global") => HashScope::Global,
            Some(other) => return Err(SessionFault::Scope(other.to_owned())),
        };
        let mut requests = Vec::with_capacity(text.requests.len());
        flatten(text.requests, &mut requests)?;
        // The sort is stable: requests of one time stay in the order of the file.
        requests.sort_by(|one, other| one.t.total_cmp(&other.t));
        Ok(Session { block_tokens, scope, requests })
    }

    /// Returns the bytes that the session takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let requests = size_of_val(self.requests.as_slice());
        let runs: usize =
            self.requests.iter().map(|request| size_of_val(request.runs.as_slice())).sum();
        (requests + runs) as u64
    }

    /// Replaces the ids by `base` and the numbers that follow it, and returns how many there are.
    /// Equal ids get equal numbers, and neighbours stay neighbours.
    pub(super) fn renumber(&mut self, base: u64) -> u64 {
        let runs = |session: &Session| -> Vec<HashRun> {
            session.requests.iter().flat_map(|request| request.runs.iter().copied()).collect()
        };
        let mut sorted = runs(self);
        sorted.sort_unstable();
        // Disjoint runs that hold all ids, each with the number of its first.
        let mut known: Vec<(HashRun, u64)> = Vec::new();
        for run in sorted {
            match known.last_mut() {
                Some((before, _)) if run.first <= before.last => {
                    before.last = before.last.max(run.last);
                }
                _ => known.push((run, 0)),
            }
        }
        let mut ids = 0;
        for (run, number) in &mut known {
            *number = base + ids;
            ids += run.last - run.first + 1;
        }
        for run in self.requests.iter_mut().flat_map(|request| request.runs.iter_mut()) {
            let after = known.partition_point(|(other, _)| other.first <= run.first);
            // Each run lies within one of those that hold all ids.
            let Some((whole, number)) = after.checked_sub(1).map(|at| known[at]) else { continue };
            let (first, len) = (number + (run.first - whole.first), run.last - run.first);
            *run = HashRun { first, last: first + len };
        }
        ids
    }
}

/// Adds the requests of a session and of its sub-agents.
fn flatten(entries: Vec<EntryText>, into: &mut Vec<SessionRequest>) -> Result<(), SessionFault> {
    for entry in entries {
        let beyond = |field, value: String| {
            move |(limit, remedy)| SessionFault::OutOfBounds(field, value, limit, remedy)
        };
        check_seconds(entry.t).map_err(beyond("t", entry.t.to_string()))?;
        match (entry.requests, entry.input) {
            (Some(inner), _) => flatten(inner, into)?,
            (None, Some(input)) => into.push(SessionRequest {
                t: entry.t,
                input_length: check_tokens(input).map_err(beyond("in", input.to_string()))?,
                output_length: {
                    let output = entry.output.unwrap_or(0);
                    check_tokens(output).map_err(beyond("out", output.to_string()))?
                },
                runs: entry.hash_ids.0,
            }),
            (None, None) => {
                let fault = "a request has neither `in` nor `requests`";
                return Err(SessionFault::Malformed(fault.into()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(text: &str) -> Session {
        let mut json = serde_json::Deserializer::from_str(text);
        Session::read(&mut json).unwrap().unwrap()
    }

    fn ids(session: &Session) -> Vec<Vec<u64>> {
        let of = |request: &SessionRequest| {
            request.runs.iter().flat_map(|run| run.first..=run.last).collect()
        };
        session.requests.iter().map(of).collect()
    }

    #[test]
    fn sub_agents_are_sorted_in_by_time() {
        let session = session(
            r#"{"id": "s", "models": [], "block_size": 16, "requests": [
                {"t": 0.0, "type": "s", "in": 40, "out": 2, "hash_ids": [5, 6, 7]},
                {"t": 1.0, "type": "subagent", "requests": [
                    {"t": 3.0, "type": "n", "in": 9, "hash_ids": []},
                    {"t": 1.5, "type": "subagent", "requests": [
                        {"t": 1.5, "in": 17, "out": 1, "hash_ids": [5, 9]}]}]},
                {"t": 2.0, "type": "s", "in": 50, "out": 3, "hash_ids": [5, 6, 7, 100]}]}"#,
        );
        assert_eq!((session.block_tokens, session.scope), (16, HashScope::Local));
        let times: Vec<f64> = session.requests.iter().map(|request| request.t).collect();
        assert_eq!(times, [0.0, 1.5, 2.0, 3.0]);
        assert_eq!(ids(&session), [&[5, 6, 7][..], &[5, 9], &[5, 6, 7, 100], &[]]);
    }

    #[test]
    fn renumbered_ids_are_dense_and_equal_where_they_were() {
        let max = u64::MAX;
        let mut session = session(&format!(
            r#"{{"block_size": 1, "requests": [
                {{"t": 0, "in": 1, "hash_ids": [{max}, 4, 5, 6, 4, 2, {}]}},
                {{"t": 1, "in": 1, "hash_ids": [5, 6, 7, 9]}}]}}"#,
            max - 1
        ));
        assert_eq!(session.renumber(1000), 8);
        // 2, 4 to 7, 9 and the two largest.
        assert_eq!(
            ids(&session),
            [&[1007, 1001, 1002, 1003, 1001, 1000, 1006][..], &[1002, 1003, 1004, 1005]]
        );
    }

    #[test]
    fn what_no_session_has_is_a_fault() {
        let entry = |entry: &str| format!(r#"{{"block_size": 64, "requests": [{entry}]}}"#);
        for (text, expected) in [
            (r#"{"block_size": 0, "requests": []}"#.to_owned(), "block_size is 0"),
            (r#"{"block_size": 2097152, "requests": []}"#.to_owned(), "2097152"),
            (
                r#"{"block_size": 1, "hash_id_scope": "galaxy", "requests": []}"#.to_owned(),
                "galaxy",
            ),
            (entry(r#"{"t": 1}"#), "neither `in` nor `requests`"),
            (entry(r#"{"t": 1e300, "in": 1}"#), "\"t\""),
            (entry(r#"{"t": 1, "in": 67108865}"#), "\"in\", \"67108865\", 67108864"),
            (entry(r#"{"t": 1, "in": 1, "out": 67108865}"#), "\"out\""),
        ] {
            let mut json = serde_json::Deserializer::from_str(&text);
            let fault = Session::read(&mut json).unwrap().unwrap_err();
            assert!(format!("{fault:?}").contains(expected), "{fault:?}");
        }
        let deep = r#"{"t": 0, "requests": ["#.repeat(5000);
        let mut json = serde_json::Deserializer::from_str(&deep);
        assert!(Session::read(&mut json).is_err());
    }
}
