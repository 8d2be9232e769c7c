//! *Programs beside*: contenders that are programs of other people's code.
//!
//! A program reads one line of JSON for each call from its standard input and answers each with one
//! line. An answer `{"error":"…"}` ends the run. Lines that do not begin with `{` are ignored. The
//! program ends at the end of its input. Each suite has calls of its own.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
    pub(crate) fn names<'a>(ours: &[&'a str], beside: &'a [Beside]) -> Result<Vec<&'a str>> {
        for Beside { name, .. } in beside {
            let taken = ours.contains(&&**name);
            ensure!(!taken, "{name}: this is a contender in this program: give yours another name");
        }
        Ok(ours.iter().copied().chain(beside.iter().map(|one| &*one.name)).collect())
    }
}

impl std::str::FromStr for Beside {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some((name, program)) if !name.is_empty() && !program.is_empty() => {
                Ok(Beside { name: name.to_owned(), program: program.into() })
            }
            _ => Err(anyhow!("{text:?} is no NAME=PROGRAM")),
        }
    }
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct BesideProgram {
    name: String,
    child: Child,
    calls: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl BesideProgram {
    /// Starts a program that is called `name` in errors.
    pub(crate) fn run(name: &str, program: &mut Command) -> Result<BesideProgram> {
        let child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            child.with_context(|| format!("{name}: {}", program.get_program().display()))?;
        let (calls, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("the output is a pipe"));
        Ok(BesideProgram { name: name.to_owned(), child, calls, answers })
    }

    /// Returns an error of this program.
    pub(crate) fn failed(&self, message: impl Display) -> Error {
        anyhow!("{}: {message}", self.name)
    }

    /// Sends a call, and waits for its answer.
    pub(crate) fn call<A: DeserializeOwned>(&mut self, call: &impl Serialize) -> Result<A> {
        let line = serde_json::to_string(call)?;
        let calls = self.calls.as_mut().expect("the input is open until the program is dropped");
        // A program that has ended says why in its answer, or not at all.
        let told = writeln!(calls, "{line}").and_then(|()| calls.flush());
        let answer = self.answer()?;
        told.map_err(|error| self.failed(error))?;
        Ok(answer)
    }

    /// Waits for the next answer.
    pub(crate) fn answer<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut answer = String::new();
        // Libraries print what they like; an answer is an object.
        while !answer.starts_with('{') {
            answer.clear();
            let read = self.answers.read_line(&mut answer).map_err(|error| self.failed(error))?;
            ensure!(read > 0, self.failed("it ended without an answer"));
        }
        let odd = |error| self.failed(format_args!("{error} in its answer {answer:?}"));
        let value: Value = serde_json::from_str(&answer).map_err(odd)?;
        match value["error"].as_str() {
            Some(error) => Err(self.failed(error)),
            None => serde_json::from_value(value).map_err(odd),
        }
    }

    /// Returns the number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program by SIGKILL, and waits for its end.
    pub(crate) fn kill(mut self) -> Result<()> {
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
