//! *Devtools*: a Chromium without a window, driven by the DevTools protocol.
//!
//! The browser reads commands from descriptor 3 and writes answers and events to descriptor 4, each
//! one JSON object that ends with a NUL. A shell puts the two pipes of a child process there, so
//! neither a port nor a library is needed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Programs to look for.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Nothing of the browser's own: no window, no graphics card, no talk with its maker. It has no
/// sandbox, which not all containers allow: it opens pages of this repository only.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// A browser that answers later than this is stuck.
const LIMIT: Duration = Duration::from_secs(60);

/// A running browser with one open tab.
pub(super) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// Events that came while an answer was awaited.
    events: VecDeque<Value>,
    last_id: u64,
    session: Option<String>,
}

impl Browser {
    /// Starts a browser with a new profile; `None` if there is none.
    pub(super) fn start(profile: &Path) -> Result<Option<Browser>> {
        let Some(program) =
            PROGRAMS.into_iter().find(|program| crate::setup::works(program, &["--version"]))
        else {
            return Ok(None);
        };
        let _ = std::fs::remove_dir_all(profile);
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", program]);
        shell.args(FLAGS).arg(format!("--user-data-dir={}", profile.display()));
        // A process group of its own, so that all its processes end together.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().context("cannot run sh")?;
        let commands = child.stdin.take().context("the browser has no input")?;
        let answers = child.stdout.take().context("the browser has no output")?;
        let (send, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { break };
                if send.send(message).is_err() {
                    break;
                }
            }
        });
        let events = VecDeque::new();
        let mut browser = Browser { child, commands, messages, events, last_id: 0, session: None };
        let tab = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(Some(browser))
    }

    /// Makes a call and returns its result.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&command)?;
        bytes.push(0);
        self.commands.write_all(&bytes).context("the browser has ended")?;
        self.commands.flush()?;
        let start = Instant::now();
        loop {
            let message = self.message(start, method)?;
            if message["id"] != json!(id) {
                self.events.push_back(message);
                continue;
            }
            if let Some(error) = message.get("error") {
                bail!("{method} failed: {error}");
            }
            return Ok(message["result"].clone());
        }
    }

    /// Waits for an event, and drops those before it unless `keep` wants them.
    pub(super) fn wait(&mut self, event: &str, mut keep: impl FnMut(&Value)) -> Result<()> {
        let start = Instant::now();
        loop {
            let message = match self.events.pop_front() {
                Some(message) => message,
                None => self.message(start, event)?,
            };
            keep(&message);
            if message["method"] == json!(event) {
                return Ok(());
            }
        }
    }

    /// Hands out the events so far.
    pub(super) fn drain(&mut self, mut keep: impl FnMut(&Value)) {
        self.events.extend(self.messages.try_iter());
        self.events.drain(..).for_each(|event| keep(&event));
    }

    /// Runs a script in the tab and returns its value.
    pub(super) fn evaluate(&mut self, script: &str) -> Result<Value> {
        let params = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params)?;
        if let Some(exception) = result.get("exceptionDetails") {
            bail!("a script failed in the browser: {exception}");
        }
        Ok(result["result"]["value"].clone())
    }

    fn message(&mut self, start: Instant, awaited: &str) -> Result<Value> {
        let left = LIMIT.saturating_sub(start.elapsed());
        match self.messages.recv_timeout(left) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the browser has not answered {awaited} within {LIMIT:?}")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the browser has ended before {awaited}"),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}
