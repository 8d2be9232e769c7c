//! *Programs beside*: contenders that are programs of other people's code.
//!
//! A program reads one line of JSON for each call from its standard input and answers each with one
//! line. An answer `{"error":"…"}` ends the run. Lines that do not begin with `{` are ignored. The
//! program ends at the end of its input. Each suite has calls of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A contender that is a program of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Its name in the report.
    pub name: String,
    /// The program, without arguments.
    pub program: PathBuf,
}

impl Beside {
    /// Returns the names of a suite's own contenders and of the programs.
    ///
    /// # Errors
    /// A program has the name of one of `ours`.
    pub(crate) fn names<'a>(
        ours: &[&'a str],
        beside: &'a [Beside],
    ) -> Result<Vec<&'a str>, BesideError> {
        if let Some(Beside { name, .. }) = beside.iter().find(|one| ours.contains(&&*one.name)) {
            let message = "this is a contender in this program: give yours another name";
            return Err(BesideError { name: name.clone(), message: message.to_owned() });
        }
        Ok(ours.iter().copied().chain(beside.iter().map(|one| &*one.name)).collect())
    }
}

/// The text is no `NAME=PROGRAM`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no NAME=PROGRAM")]
pub struct NoBesideError(pub String);

impl std::str::FromStr for Beside {
    type Err = NoBesideError;

    fn from_str(text: &str) -> Result<Self, NoBesideError> {
        match text.split_once('=') {
            Some((name, program)) if !name.is_empty() && !program.is_empty() => {
                Ok(Beside { name: name.to_owned(), program: program.into() })
            }
            _ => Err(NoBesideError(text.to_owned())),
        }
    }
}

/// A program that takes part failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct BesideError {
    /// Its name.
    pub name: String,
    /// What it said.
    pub message: String,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct BesideProgram {
    name: String,
    child: Child,
    calls: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Why a call failed, if the program says so.
#[derive(Deserialize)]
struct SaidError {
    error: Option<String>,
}

impl BesideProgram {
    /// Starts a contender.
    pub(crate) fn start(beside: &Beside) -> Result<BesideProgram, BesideError> {
        BesideProgram::run(&beside.name, &mut Command::new(&beside.program))
    }

    /// Starts a program that is called `name` in errors.
    pub(crate) fn run(name: &str, program: &mut Command) -> Result<BesideProgram, BesideError> {
        let failed = |message| BesideError { name: name.to_owned(), message };
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{}: {error}", program.get_program().display())))?;
        let (calls, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("the output is a pipe"));
        Ok(BesideProgram { name: name.to_owned(), child, calls, answers })
    }

    /// Returns an error of this program.
    pub(crate) fn failed(&self, message: impl ToString) -> BesideError {
        BesideError { name: self.name.clone(), message: message.to_string() }
    }

    /// Sends a call, and waits for its answer.
    pub(crate) fn call<A: DeserializeOwned>(
        &mut self,
        call: &impl Serialize,
    ) -> Result<A, BesideError> {
        let line = serde_json::to_string(call).expect("a call has only numbers and text");
        let calls = self.calls.as_mut().expect("the input is open until the program is dropped");
        // A program that has ended says why in its answer, or not at all.
        let told = writeln!(calls, "{line}").and_then(|()| calls.flush());
        let answer = self.answer()?;
        told.map_err(|error| self.failed(error))?;
        Ok(answer)
    }

    /// Waits for the next answer.
    pub(crate) fn answer<A: DeserializeOwned>(&mut self) -> Result<A, BesideError> {
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
        let odd = |error| self.failed(format_args!("{error} in its answer {answer:?}"));
        let value: Value = serde_json::from_str(&answer).map_err(odd)?;
        if let Ok(SaidError { error: Some(error) }) = SaidError::deserialize(&value) {
            return Err(self.failed(error));
        }
        serde_json::from_value(value).map_err(odd)
    }

    /// Ends the program by SIGKILL, and waits for its end.
    pub(crate) fn kill(mut self) -> Result<(), BesideError> {
        let killed = self.child.kill().and_then(|()| self.child.wait().map(drop));
        killed.map_err(|error| self.failed(error))
    }
}

impl Drop for BesideProgram {
    fn drop(&mut self) {
        // The end of its input ends the program.
        self.calls = None;
        let _ = self.child.wait();
    }
}
