//! A server gives memory back to its neighbours in a cgroup, before the kernel ends one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kvmem_node::{ConnectOptions, NodeClient};

use crate::serving::{Place, eventually};

const MIB: u64 = 1 << 20;

/// The limit of the cgroup, the memory of the server, and what the neighbour takes: in MiB, as many
/// times as `KVMEM_TEST_SCALE` says.
const LIMIT: u64 = 256;
const SIZE: u64 = 160;
const TAKEN: u64 = 120;

fn number_in(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

fn scale() -> u64 {
    number_in("KVMEM_TEST_SCALE", 1)
}

/// A cgroup of this test, with a limit of memory. Its processes have ended when it is dropped.
struct Group {
    folder: PathBuf,
    unified: bool,
}

impl Group {
    /// Makes a cgroup below that of this process, if this user may.
    fn new() -> Option<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let below = |line: &str, unified: bool| {
            let path = line.rsplit(':').next()?.trim_start_matches('/').to_owned();
            let root = if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
            let name = format!("kvmem-test-{}", std::process::id());
            let folder = Path::new(root).join(path).join(name);
            fs::create_dir(&folder).ok()?;
            let limit = if unified { "memory.max" } else { "memory.limit_in_bytes" };
            let group = Group { folder, unified };
            fs::write(group.folder.join(limit), (LIMIT * scale() * MIB).to_string()).ok()?;
            Some(group)
        };
        let of_v1 = groups.lines().find(|line| line.contains(":memory:"));
        let of_v2 = groups.lines().find(|line| line.starts_with("0::"));
        of_v1.and_then(|line| below(line, false)).or_else(|| below(of_v2?, true))
    }

    /// Returns a command whose process, and what it starts, are in the cgroup.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let procs = self.folder.join("cgroup.procs");
        let enter = "echo $$ > \"$1\" && shift && exec \"$@\"";
        command.args(["-c", enter, "sh"]).arg(procs).arg(program);
        command
    }

    fn number(&self, file: &str, key: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(file)).expect("the kernel has it");
        let value = match key {
            "" => Some(text.trim()),
            key => text.lines().find_map(|line| line.strip_prefix(key).map(str::trim)),
        };
        value.and_then(|value| value.parse().ok()).expect("a number")
    }

    fn used(&self) -> u64 {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        self.number(file, "")
    }

    fn killed(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        self.number(file, "oom_kill ")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The number of times that the neighbour takes memory.
const TIMES: &str = "KVMEM_TEST_WORDS";

fn start_neighbour(group: &Group, times: u64) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = group.command(&program);
    command
        .args(["--exact", "pressure::neighbour", "--ignored", "--nocapture"])
        .env(TIMES, times.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().expect("it can be started")
}

/// Takes its memory within a second, and gives it back.
#[test]
#[ignore = "a neighbour for another test, which starts it"]
fn neighbour() {
    for _ in 0..number_in(TIMES, 0) {
        let mut taken = Vec::new();
        for _ in 0..TAKEN / 2 {
            taken.push(vec![1_u8; (2 * scale() * MIB) as usize]);
            thread::sleep(Duration::from_millis(16));
        }
        assert!(taken.iter().all(|part| part[part.len() - 1] == 1));
    }
}

fn stats(client: &NodeClient) -> (u64, u64) {
    let stats = client.stats().expect("a call");
    (stats.capacity, stats.pressure_total)
}

#[test]
fn a_neighbour_gets_memory_before_the_kernel_ends_a_process() {
    let Some(group) = Group::new() else {
        eprintln!("not tested: this user makes no cgroups");
        return;
    };
    let (times, size) = (number_in("KVMEM_TEST_ROUNDS", 3), SIZE * scale() * MIB);
    let place = Place::new();
    let command = group.command(Path::new(env!("CARGO_BIN_EXE_kvmem")));
    let server = place.serve_by(command, &format!("{size}"), &["--min", "32MiB"]);
    let options = ConnectOptions { checksums: true, verify: true, ..ConnectOptions::default() };
    let client = place.client_of(&options).expect("it answers");
    let fill = || {
        (0..SIZE).for_each(|key| {
            let value = vec![key as u8; scale() as usize * 1_000_000];
            client.insert(key.to_le_bytes(), &value).expect("there is space");
        });
    };
    fill();
    // Others may use the machine, too.
    eventually("there is no pressure", || stats(&client).0 == size);
    assert!(group.used() > size / 16 * 15);
    let mut neighbour = start_neighbour(&group, times);
    let mut least = u64::MAX;
    while neighbour.try_wait().expect("it is a child").is_none() {
        least = least.min(stats(&client).0);
        client.insert("key", b"others are served meanwhile").expect("there is space");
        thread::sleep(Duration::from_millis(2));
    }
    let ended = neighbour.wait().expect("it is a child");
    assert!(ended.success(), "{ended:?}");
    assert!(least < size / 8 * 7, "{least}");
    let began = Instant::now();
    eventually("the memory has its size again", || stats(&client).0 == size);
    let seconds = began.elapsed().as_secs_f64();
    let (_, pressed) = stats(&client);
    println!("given back {pressed} times, least size {least}, at size again after {seconds:.1} s");
    assert!(seconds < 5.0, "{seconds}");
    assert_eq!(group.killed(), 0, "the kernel has ended a process");
    fill();
    for key in (0..SIZE).rev().take(100) {
        let found = client.get(key.to_le_bytes()).expect("a call").expect("it was stored last");
        assert!(found.bytes().expect("it is pinned").iter().all(|byte| *byte == key as u8));
    }
    drop(server);
}
