//! A contender that is a program of its own: the head of [`tier`](crate::tier) has its protocol.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::{PassTime, Room};
use crate::tier::{Beside, TierMeasureError};

/// A program that takes part.
pub(in crate::tier) struct BesideContender {
    name: String,
    child: Child,
    calls: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What it is told.
#[derive(Serialize)]
#[serde(tag = "call", rename_all = "lowercase")]
enum Call<'a> {
    Open { dir: &'a str, bytes: u64, value_bytes: u64, depth: u32 },
    Store { first: u64, count: u64 },
    Fetch { numbers: &'a [u64] },
}

/// What it says.
#[derive(Deserialize)]
struct Answer {
    error: Option<String>,
    seconds: Option<f64>,
    cpu_seconds: Option<f64>,
}

impl BesideContender {
    /// Starts the program for values of one length.
    pub(in crate::tier) fn new(
        beside: &Beside,
        room: Room<'_>,
        value_bytes: u64,
    ) -> Result<BesideContender, TierMeasureError> {
        let failed =
            |message: String| TierMeasureError::Beside { name: beside.name.clone(), message };
        let mut child = Command::new(&beside.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{}: {error}", beside.program.display())))?;
        let (calls, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("the output is a pipe"));
        let mut contender = BesideContender { name: beside.name.clone(), child, calls, answers };
        let dir = room.dir.to_str().ok_or_else(|| failed("the directory is no UTF-8".into()))?;
        let Room { bytes, depth, .. } = room;
        contender.call(&Call::Open { dir, bytes, value_bytes, depth })?;
        Ok(contender)
    }

    pub(in crate::tier) fn store(
        &mut self,
        first: u64,
        count: u64,
    ) -> Result<PassTime, TierMeasureError> {
        let answer = self.call(&Call::Store { first, count })?;
        self.time(&answer)
    }

    pub(in crate::tier) fn fetch(&mut self, numbers: &[u64]) -> Result<PassTime, TierMeasureError> {
        let answer = self.call(&Call::Fetch { numbers })?;
        self.time(&answer)
    }

    fn failed(&self, message: impl ToString) -> TierMeasureError {
        TierMeasureError::Beside { name: self.name.clone(), message: message.to_string() }
    }

    fn time(&self, answer: &Answer) -> Result<PassTime, TierMeasureError> {
        let (Some(seconds), Some(cpu_seconds)) = (answer.seconds, answer.cpu_seconds) else {
            return Err(self.failed("it answered without `seconds` and `cpu_seconds`"));
        };
        Ok(PassTime { seconds, cpu_seconds })
    }

    fn call(&mut self, call: &Call<'_>) -> Result<Answer, TierMeasureError> {
        let line = serde_json::to_string(call).expect("a call has only numbers and text");
        let calls = self.calls.as_mut().expect("the input is open until the contender is dropped");
        // A program that has ended says why in its answer, or not at all.
        let told = writeln!(calls, "{line}").and_then(|()| calls.flush());
        let mut answer = String::new();
        // Libraries print what they like; an answer is an object.
        while !answer.starts_with('{') {
            answer.clear();
            match self.answers.read_line(&mut answer) {
                Ok(0) => return Err(self.failed("it ended without an answer")),
                Ok(_) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        told.map_err(|error| self.failed(error))?;
        let answer: Answer = serde_json::from_str(&answer)
            .map_err(|error| self.failed(format_args!("{error} in its answer {answer:?}")))?;
        match answer.error {
            Some(error) => Err(self.failed(error)),
            None => Ok(answer),
        }
    }
}

impl Drop for BesideContender {
    fn drop(&mut self) {
        // The end of its input ends the program.
        self.calls = None;
        let _ = self.child.wait();
    }
}
