//! Faults of other systems that their users reported: what a server and its clients do instead.
//!
//! `docs/faults.md` lists the reports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvmem_node::{ConnectOptions, NodeClient};
use rustix::process::Signal;

use crate::serving::{Place, eventually, signal_process};

/// The socket of the server, for the tests that are processes of others.
const SOCKET: &str = "KVMEM_TEST_CHILD";
/// Clients of a process.
const CLIENTS: usize = 50;

/// A process with clients, which is killed with the test.
struct Clients(Child);

impl Clients {
    fn start(place: &Place, test: &str) -> Clients {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("reported::{test}"), "--ignored", "--nocapture"])
            .env(SOCKET, place.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        assert!(stdout.lines().map_while(Result::ok).any(|line| line.contains("connected")));
        Clients(child)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects clients, says so, and waits until the process is killed.
fn connect(clients: usize, rings: bool) {
    let socket = std::env::var_os(SOCKET).map(PathBuf::from).expect("a test has started it");
    let options = ConnectOptions { rings, ..ConnectOptions::default() };
    // SAFETY: as the other clients of the tests.
    let connect = |_| unsafe { NodeClient::connect(&socket, &options) }.expect("a server");
    let clients: Vec<NodeClient> = (0..clients).map(connect).collect();
    clients[0].insert("key", b"value").expect("there is space");
    let _pins: Vec<_> = clients.iter().map(|it| it.acquire(&["key"]).expect("a call")).collect();
    println!("connected");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
#[ignore = "clients for another test, which starts and kills them"]
fn many_clients() {
    connect(CLIENTS, false);
}

#[test]
#[ignore = "clients for another test, which starts them"]
fn idle_clients() {
    connect(4, true);
}

/// Clients that are killed leave no descriptor, and those that are stopped leave places for others.
#[test]
fn half_open_clients_leave_room_for_others() {
    let rounds = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds: usize = rounds.unwrap_or(6);
    let place = Place::new();
    let server = place.serve("8MiB", &["--retain", "none", "--lease", "1s"]);
    let client = place.client();
    let folder = format!("/proc/{}/fd", server.pid());
    let descriptors = || fs::read_dir(&folder).expect("the server runs").count();
    let before = descriptors();
    let stopped: Vec<Clients> = (0..2)
        .map(|_| {
            let clients = Clients::start(&place, "many_clients");
            signal_process(clients.0.id(), Signal::STOP);
            clients
        })
        .collect();
    for _ in 0..rounds {
        drop(Clients::start(&place, "many_clients"));
        let new = place.client();
        assert_eq!(new.lookup(&["key"]).expect("a call"), 1);
    }
    assert!(descriptors() > before);
    drop(stopped);
    eventually("no descriptor is left", || descriptors() <= before);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.sessions, stats.pinned), (1, 0));
    server.kill();
}

/// Returns the time that the threads of a process have run.
fn time_on_processors(pid: u32) -> Option<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        sum += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(sum))
}

/// A server with a tier, and clients with rings that hold pins, need no processor while nothing is
/// asked of them. The time that they run is counted, whatever else the machine does.
#[test]
fn an_idle_server_and_its_clients_use_no_processor() {
    let place = Place::new();
    let tier = format!("disk:{},64MiB", place.folder().join("tier").display());
    let server = place.serve("8MiB", &["--retain", "none", "--tier", &tier]);
    let clients = Clients::start(&place, "idle_clients");
    let both = [server.pid(), clients.0.id()];
    let Some(_) = time_on_processors(both[0]) else {
        return println!("skipped: the kernel counts no times of threads");
    };
    // What comes right after the connection ends first.
    std::thread::sleep(Duration::from_secs(1));
    let (before, started) = (both.map(time_on_processors), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (after, took) = (both.map(time_on_processors), started.elapsed());
    for ((before, after), who) in before.iter().zip(after).zip(["server", "clients"]) {
        let ran = after.expect("it runs").saturating_sub(before.expect("it runs"));
        println!("{who}: {ran:?} of {took:?}");
        assert!(ran < took * 3 / 1000, "{who}: {ran:?} of {took:?}");
    }
    server.kill();
}
