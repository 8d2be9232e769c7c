//! *Attack*: one run of the command in hostile surroundings, and the checks after it.
//!
//! A shell makes the surroundings: `ulimit`, redirections, a cgroup. It then executes the command,
//! which so is the child itself, the leader of its own process group.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::context::Chaos;
use super::machine::processes_of_group;

/// The time limit of a run: small work on a busy machine.
const SECONDS: u64 = 60;
/// Commands that the laboratory has, and `kvmem` has not.
const OF_LAB: [&str; 2] = ["bench", "replay"];
/// The time for which processes of a run may outlive it.
const GRACE: Duration = Duration::from_secs(1);
/// The documented statuses: success, failure, impossible request.
pub(super) const DOCUMENTED: &[i32] = &[0, 1, 2];
/// The statuses of a run that must fail.
pub(super) const FAILS: &[i32] = &[1, 2];
/// A user without any right.
pub(super) const NOBODY: &str = "65534";

impl Chaos {
    /// A run of `kvmem` with these arguments, or of `kvmem-lab` if the first one is a command that
    /// it alone has.
    pub(super) fn kvmem<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Attack<'_> {
        let arguments: Vec<OsString> =
            arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let of_lab = |first: &OsString| OF_LAB.iter().any(|name| first == name);
        let program = if arguments.first().is_some_and(of_lab) { "kvmem-lab" } else { "kvmem" };
        self.program(program, arguments)
    }

    /// A run of `kvmem-lab` with these arguments.
    pub(super) fn lab<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Attack<'_> {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.program("kvmem-lab", arguments.collect())
    }

    fn program(&self, program: &'static str, arguments: Vec<OsString>) -> Attack<'_> {
        Attack {
            chaos: self,
            program,
            arguments,
            prelude: String::new(),
            redirect: String::new(),
            prefix: Vec::new(),
            seconds: SECONDS,
            allowed: DOCUMENTED,
            says: Vec::new(),
            signal: None,
            before_exec: None,
        }
    }
}

/// The description of one run.
#[must_use = "nothing is run before `run`"]
pub(super) struct Attack<'a> {
    chaos: &'a Chaos,
    program: &'static str,
    arguments: Vec<OsString>,
    prelude: String,
    redirect: String,
    prefix: Vec<String>,
    seconds: u64,
    allowed: &'a [i32],
    says: Vec<String>,
    signal: Option<i32>,
    before_exec: Option<fn() -> std::io::Result<()>>,
}

impl<'a> Attack<'a> {
    /// Commands of the shell that make the surroundings, such as `ulimit -n 8`.
    pub(super) fn under(mut self, prelude: impl AsRef<str>) -> Attack<'a> {
        self.prelude += &format!("{} || exit 97; ", prelude.as_ref());
        self
    }

    /// Adds redirections, such as `>/dev/full`.
    pub(super) fn redirect(mut self, redirect: &str) -> Attack<'a> {
        self.redirect = redirect.to_owned();
        self
    }

    /// Runs it by a program that changes a setting and executes its arguments.
    pub(super) fn by(mut self, prefix: &[&str]) -> Attack<'a> {
        self.prefix.extend(prefix.iter().map(ToString::to_string));
        self
    }

    /// Runs it as a user without any right.
    pub(super) fn by_nobody(self) -> Attack<'a> {
        self.by(&["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
    }

    /// A function that the child calls before it executes; it may make only system calls.
    pub(super) fn before_exec(mut self, call: fn() -> std::io::Result<()>) -> Attack<'a> {
        self.before_exec = Some(call);
        self
    }

    /// The accepted statuses; the default is the documented ones.
    pub(super) fn ends(mut self, allowed: &'a [i32]) -> Attack<'a> {
        self.allowed = allowed;
        self
    }

    /// Also accepts an end by this signal.
    pub(super) fn or_signal(mut self, signal: i32) -> Attack<'a> {
        self.signal = Some(signal);
        self
    }

    /// A text that its error must contain, if it fails.
    pub(super) fn says<S: ToString>(mut self, words: impl IntoIterator<Item = S>) -> Attack<'a> {
        self.says.extend(words.into_iter().map(|word| word.to_string()));
        self
    }

    /// The time limit.
    pub(super) fn within(mut self, seconds: u64) -> Attack<'a> {
        self.seconds = seconds;
        self
    }

    /// Starts it.
    pub(super) fn start(self) -> Result<Running<'a>> {
        let number = self.chaos.runs.replace(self.chaos.runs.get() + 1);
        let (out, err) = (
            self.chaos.top.join(format!("{number}.out")),
            self.chaos.top.join(format!("{number}.err")),
        );
        let script = format!("{}exec \"$@\" {}", self.prelude, self.redirect);
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh"])
            .args(&self.prefix)
            .arg(self.chaos.top.join(self.program))
            .args(&self.arguments);
        command.current_dir(&self.chaos.folder).env("TMPDIR", self.chaos.top.join("tmp"));
        // A backtrace is slow, and a panic shows without it.
        command.env("RUST_BACKTRACE", "0").env_remove("KVMEM_LOG").process_group(0);
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        if let Some(call) = self.before_exec {
            // SAFETY: the function makes only system calls.
            unsafe { command.pre_exec(call) };
        }
        let told = format!(
            "`{}{}{} {}{}{}`",
            self.prelude.replace(" || exit 97", ""),
            self.prefix.iter().map(|word| format!("{word} ")).collect::<String>(),
            self.program,
            self.arguments
                .iter()
                .map(|word| shortened(&word.to_string_lossy()))
                .collect::<Vec<_>>()
                .join(" "),
            if self.redirect.is_empty() { "" } else { " " },
            self.redirect
        );
        let child = command.spawn().with_context(|| told.clone())?;
        Ok(Running { attack: self, child, told, out, err, start: Instant::now() })
    }

    /// Runs it and checks what must hold after every run.
    pub(super) fn run(self) -> Result<RunOutcome> {
        self.start()?.wait()
    }
}

/// Makes a text safe to show: without control characters, and not too long.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// A running attack.
pub(super) struct Running<'a> {
    attack: Attack<'a>,
    child: Child,
    told: String,
    out: PathBuf,
    err: PathBuf,
    start: Instant,
}

/// The end of a run.
pub(super) struct RunOutcome {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// The command line, for error messages.
    pub(super) told: String,
}

impl Running<'_> {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub(super) fn send(&self, signal: &str) -> Result<()> {
        kill(signal, &self.id().to_string())
    }

    /// Returns the standard output so far.
    pub(super) fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Returns the standard error so far.
    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns its processes that still run a moment after its end.
    fn left_behind(&self) -> Vec<u32> {
        let start = Instant::now();
        loop {
            let left = processes_of_group(self.id());
            if left.is_empty() || start.elapsed() > GRACE {
                return left;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end and checks what must hold after every run.
    pub(super) fn wait(mut self) -> Result<RunOutcome> {
        let (chaos, told) = (self.attack.chaos, self.told.clone());
        let limit = Duration::from_secs(self.attack.seconds);
        let mut late = false;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if self.start.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
                None => {
                    late = true;
                    kill("KILL", &format!("-{}", self.id()))?;
                    break self.child.wait()?;
                }
            }
        };
        let outcome = RunOutcome { status, stdout: self.stdout(), stderr: self.stderr(), told };
        if late {
            chaos.complain(format!(
                "{}: did not end within {} s",
                outcome.told, self.attack.seconds
            ));
        } else {
            for complaint in self.attack.judge(&outcome) {
                chaos.complain(format!("{}: {complaint}", outcome.told));
            }
        }
        let left = self.left_behind();
        if !left.is_empty() {
            chaos.complain(format!("{}: left processes: {left:?}", outcome.told));
            kill("KILL", &format!("-{}", self.id()))?;
        }
        for entry in fs::read_dir(chaos.top.join("tmp"))?.flatten() {
            // A killed process cannot clean up.
            if outcome.status.signal() != Some(libc::SIGKILL) {
                chaos.complain(format!(
                    "{}: left the file {}",
                    outcome.told,
                    entry.path().display()
                ));
            }
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        fs::remove_file(&self.out)?;
        fs::remove_file(&self.err)?;
        Ok(outcome)
    }
}

impl Attack<'_> {
    /// Returns the faults of an outcome.
    fn judge(&self, outcome: &RunOutcome) -> Vec<String> {
        let mut wrong = Vec::new();
        let both = [&outcome.stderr, &outcome.stdout];
        if both.iter().any(|text| text.contains("panicked at")) {
            let line = outcome.stderr.lines().find(|line| line.contains("panicked")).unwrap_or("");
            wrong.push(format!("panicked: {}", shortened(line)));
        }
        if let Some(raw) = both.iter().find_map(|text| text.chars().find(|one| steers(*one))) {
            wrong.push(format!("printed the control character {raw:?}"));
        }
        match (outcome.status.code(), outcome.status.signal()) {
            (Some(code), _) if self.allowed.contains(&code) => {}
            (_, Some(signal)) if self.signal == Some(signal) => {}
            // The status by which a shell reports a signal.
            (Some(code), _) if self.signal.is_some_and(|signal| code == 128 + signal) => {}
            _ => wrong.push(format!("{}, {}", outcome.status, shortened(&outcome.stderr))),
        }
        let is_closed = self.redirect.contains("2>");
        let failed = outcome.status.code().is_some_and(|code| FAILS.contains(&code));
        if failed && !is_closed && self.signal.is_none() {
            let said = |line: &str| {
                let begin = ["kvmem: ", "kvmem-lab: ", "error: "];
                begin.iter().any(|begin| line.starts_with(begin))
            };
            if !outcome.stderr.lines().any(said) {
                wrong.push(format!("failed without an error: {}", shortened(&outcome.stderr)));
            }
            for word in self.says.iter().filter(|word| !outcome.stderr.contains(&***word)) {
                let error = outcome.stderr.lines().find(|line| said(line)).unwrap_or("").to_owned();
                wrong.push(format!("the error does not say `{word}`: {error}"));
            }
        }
        wrong
    }
}

/// Whether a character controls a terminal, or the direction of text.
fn steers(one: char) -> bool {
    let is_direction = matches!(one, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || one.is_control() && !matches!(one, '\n' | '\t')
}

/// Sends a signal to a process, or to a group if the number is negative.
fn kill(signal: &str, target: &str) -> Result<()> {
    // The process may have ended meanwhile.
    Command::new("kill")
        .args(["-s", signal, "--", target])
        .stderr(Stdio::null())
        .status()
        .context("kill")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_known() {
        for one in ['\x1b', '\x07', '\r', '\u{9b}', '\u{202e}', '\0'] {
            assert!(steers(one), "{one:?}");
        }
        assert!(!"plain text,\n\twith ½ and …".chars().any(steers));
        assert_eq!(shortened("a\x1b[31m"), "a\\u{1b}[31m");
        assert_eq!(shortened(&"x".repeat(100)).chars().count(), 61);
    }
}
