//! `kvmem ls`: the values, the clients, or the last misses.

use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;
use kvmem_node::{Listed, Miss, NodeClient, SessionListed};
use serde::Serialize;

use super::{connect, failure, name_of};
use crate::args::LsArgs;
use crate::output::{Failure, JsonSink};
use crate::output_file::OutputFiles;

/// Values of one message.
const PAGE: u32 = 512;

/// Prints the list.
pub(crate) fn run(args: &LsArgs) -> Result<(), Failure> {
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let client = connect(&args.server)?;
    if args.sessions {
        let own = std::process::id();
        let mut sessions = client.as_operator().sessions().map_err(failure)?;
        sessions.retain(|session| session.pid != own);
        let list = SessionList { sessions };
        json.write(&list, &list)
    } else if args.misses {
        let mut misses = client.as_operator().misses(PAGE).map_err(failure)?;
        misses.retain(|it| args.namespace.as_ref().is_none_or(|name| it.namespace == *name));
        misses.truncate(args.limit as usize);
        let misses = misses.into_iter().map(ListedMiss::new).collect();
        let list = MissList { misses };
        json.write(&list, &list)
    } else {
        let list = values(args, &client)?;
        json.write(&list, &list)
    }
}

fn values(args: &LsArgs, client: &NodeClient) -> Result<ValueList, Failure> {
    let (mut values, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let (page, next) = client.as_operator().list(at, PAGE).map_err(failure)?;
        let wanted = page
            .into_iter()
            .filter(|it| args.namespace.as_ref().is_none_or(|name| it.namespace == *name));
        for value in wanted {
            if values.len() as u64 == args.limit {
                return Ok(ValueList { values, more: true });
            }
            values.push(ListedValue::new(value));
        }
        from = next;
    }
    Ok(ValueList { values, more: false })
}

#[derive(Serialize)]
struct ValueList {
    values: Vec<ListedValue>,
    /// Whether there are more than were requested.
    more: bool,
}

/// A value, with its key in hexadecimal digits.
#[derive(Serialize)]
struct ListedValue {
    namespace: String,
    key: String,
    bytes: u64,
    pins: u32,
    priority: u8,
    idle_ms: u64,
}

impl ListedValue {
    fn new(value: Listed) -> ListedValue {
        let Listed { namespace, key, len, pins, priority, idle_ms } = value;
        ListedValue { namespace, key: hexadecimal(&key), bytes: len, pins, priority, idle_ms }
    }
}

impl fmt::Display for ValueList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.values.iter().map(|value| value.namespace.chars().count());
        let keys = self.values.iter().map(|value| value.key.len());
        let (name_width, key_width) = (names.max().unwrap_or(0).max(9), keys.max().unwrap_or(0));
        let key_width = key_width.max(3);
        writeln!(
            f,
            "{:<name_width$}  {:<key_width$}  {:>12}  {:>5}  {:>8}  {:>10}",
            "namespace", "key", "bytes", "pins", "priority", "idle"
        )?;
        for ListedValue { namespace, key, bytes, pins, priority, idle_ms } in &self.values {
            let (namespace, idle) = (name_of(namespace), seconds(*idle_ms));
            writeln!(
                f,
                "{namespace:<name_width$}  {key:<key_width$}  {bytes:>12}  {pins:>5}  \
                 {priority:>8}  {idle:>10}"
            )?;
        }
        let count = HumanCount(self.values.len() as u64);
        let more = if self.more { ", and there are more: --limit" } else { "" };
        writeln!(f, "{count} value(s){more}")
    }
}

/// Returns a key in hexadecimal digits.
fn hexadecimal(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Serialize)]
struct MissList {
    misses: Vec<ListedMiss>,
}

/// A miss, with its key in hexadecimal digits.
#[derive(Serialize)]
struct ListedMiss {
    namespace: String,
    key: String,
    reason: &'static str,
    ago_ms: u64,
    gone_s: Option<u32>,
    evicted_for: Option<String>,
    priority: Option<u8>,
}

impl ListedMiss {
    fn new(miss: Miss) -> ListedMiss {
        let Miss { namespace, key, reason, ago_ms, gone_s, evicted_for, priority } = miss;
        let (key, reason) = (hexadecimal(&key), reason.name());
        ListedMiss { namespace, key, reason, ago_ms, gone_s, evicted_for, priority }
    }
}

impl fmt::Display for MissList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&ListedMiss) -> &str, least: usize| {
            self.misses.iter().map(|it| text(it).chars().count()).max().unwrap_or(0).max(least)
        };
        let (names, keys) = (width(|it| &it.namespace, 9), width(|it| &it.key, 3));
        writeln!(
            f,
            "{:<names$}  {:<keys$}  {:>10}  {:<12}  {:>10}  {:>8}  for namespace",
            "namespace", "key", "ago", "reason", "gone", "priority"
        )?;
        for ListedMiss { namespace, key, reason, ago_ms, gone_s, evicted_for, priority } in
            &self.misses
        {
            let (namespace, ago) = (name_of(namespace), seconds(*ago_ms));
            let gone = gone_s.map_or("-".to_owned(), |gone| format!("{gone} s"));
            let priority = priority.map_or("-".to_owned(), |priority| priority.to_string());
            let of = name_of(evicted_for.as_deref().unwrap_or(""));
            writeln!(
                f,
                "{namespace:<names$}  {key:<keys$}  {ago:>10}  {reason:<12}  {gone:>10}  \
                 {priority:>8}  {of}"
            )?;
        }
        writeln!(f, "{} miss(es)", HumanCount(self.misses.len() as u64))
    }
}

#[derive(Serialize)]
struct SessionList {
    sessions: Vec<SessionListed>,
}

impl fmt::Display for SessionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.sessions.iter().map(|session| session.namespace.chars().count());
        let name_width = names.max().unwrap_or(0).max(9);
        writeln!(
            f,
            "{:>10}  {:<name_width$}  {:>10}  {:>12}  {:<9}  {:>10}",
            "process", "namespace", "pins", "reservations", "connected", "silent"
        )?;
        for session in &self.sessions {
            let SessionListed { pid, namespace, pins, reservations, connected, silent_ms } =
                session;
            let pid = if *pid == 0 { "-".to_owned() } else { pid.to_string() };
            let (connected, silent) = match connected {
                true => ("yes", seconds(*silent_ms)),
                false => ("no", "-".to_owned()),
            };
            let namespace = name_of(namespace);
            writeln!(
                f,
                "{pid:>10}  {namespace:<name_width$}  {pins:>10}  {reservations:>12}  \
                 {connected:<9}  {silent:>10}"
            )?;
        }
        writeln!(f, "{} client(s)", HumanCount(self.sessions.len() as u64))
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", Duration::from_millis(ms).as_secs_f64())
}
