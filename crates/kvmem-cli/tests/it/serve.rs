//! `kvmem serve` and its memory holder: servers, memory holders and clients are killed, and values
//! are found.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvmem_node::{
    ClientError, ConnectOptions, MemoryHolderClient, MemoryHolderError, NewValue, NodeClient,
};
use kvmem_tier::device::FileDevice;
use rustix::process::Signal;

use crate::command::{copied_to, run};
use crate::metrics::scrape;
use crate::serving::{Place, eventually, files, signal_process};

fn value(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed as usize * 31 + at % 253) as u8).collect()
}

fn insert(client: &NodeClient, keys: std::ops::Range<u32>) {
    for seed in keys {
        let value = value(seed, 5000 + seed as usize);
        client.insert(seed.to_le_bytes(), &value).expect("there is space");
    }
}

/// Checks the bytes of all values of these keys.
fn check(client: &NodeClient, keys: std::ops::Range<u32>) {
    for seed in keys {
        let found = client.get(seed.to_le_bytes()).expect("a call");
        let found = found.unwrap_or_else(|| panic!("value {seed} is gone"));
        let bytes = found.bytes().expect("it is valid");
        assert_eq!(bytes, value(seed, 5000 + seed as usize), "value {seed}");
    }
}

/// A client in a process of its own, which has three reservations and a pin until it is killed.
struct OtherClient(Child);

/// The socket of the server, for [`other_client`].
const OTHER: &str = "KVMEM_TEST_CHILD";

impl OtherClient {
    fn start(place: &Place) -> OtherClient {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "serve::other_client", "--ignored", "--nocapture"])
            .env(OTHER, place.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        assert!(stdout.lines().map_while(Result::ok).any(|line| line.contains("reserved")));
        OtherClient(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it is a child");
    }
}

#[test]
#[ignore = "a client for other tests, which start it and kill it"]
fn other_client() {
    let socket = std::env::var_os(OTHER).map(PathBuf::from).expect("a test has started it");
    // SAFETY: as the other clients of the tests.
    let client = unsafe { NodeClient::connect(socket, &ConnectOptions::default()) };
    let client = client.expect("the server answers");
    let _blocks = client.reserve(&[10_000; 3]).expect("there is space");
    let _pins = client.acquire(&[0_u32.to_le_bytes()]).expect("a call");
    println!("reserved");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn committed_values_survive_the_killed_server_and_calls_are_retried() {
    let place = Place::new();
    let server = place.serve("16MiB", &[]);
    assert!(server.report["recovered"].is_null(), "{}", server.report);
    assert_eq!(server.report["receipt"]["requested_bytes"], 16 << 20);
    assert!(server.text.contains("retained by process"), "{}", server.text);
    let client = place.client();
    insert(&client, 0..300);
    let pins = client.acquire(&[7_u32.to_le_bytes()]).expect("a call");
    let mut own = client.reserve(&[4096]).expect("there is space").remove(0);
    let other = OtherClient::start(&place);
    let dying = OtherClient::start(&place);
    assert_eq!(client.stats().expect("a call").reservations, 7);
    let base = client.memory().0;

    server.kill();
    dying.kill();
    assert!(place.socket().exists(), "the socket of a killed server stays, and is replaced");
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || check(&client, 0..300))
    };
    std::thread::sleep(Duration::from_millis(50));
    let server = place.serve("16MiB", &[]);
    let recovered = &server.report["recovered"];
    assert_eq!(recovered["values"], 300, "{recovered}");
    assert_eq!(recovered["freed_reservations"], 3, "those of the client that is gone");
    assert_eq!(
        (&recovered["orphaned_sessions"], &recovered["ended_sessions"]),
        (&2.into(), &1.into())
    );
    assert_eq!(recovered["damaged"], 0);
    assert!(server.text.contains("recovered 300 value(s)"), "{}", server.text);
    waiting.join().expect("calls wait for the next server, and find the values");

    // The mapping, the pin and the reservation are those of before.
    assert_eq!(client.memory().0, base);
    assert_eq!(pins.value(0).expect("it is pinned").bytes(), value(7, 5007));
    own.write(0, b"written to a reservation of the server before").expect("it fits");
    client.commit(vec![NewValue::new("late", own)]).expect("it is still reserved");
    assert!(client.get("late").expect("a call").is_some());
    assert_eq!(client.stats().expect("a call").reservations, 3);
    // A client that was killed loses what it had.
    other.kill();
    eventually("its reservations and pins end", || {
        let stats = client.stats().expect("a call");
        (stats.reservations, stats.pinned) == (0, 1)
    });
}

#[test]
fn acknowledged_values_survive_any_end_of_the_server() {
    // All values have space, and entries of the index.
    const OPTIONS: [&str; 2] = ["--max-blocks", "4000"];
    let place = Place::new();
    let server = place.serve("64MiB", &OPTIONS);
    let (stop, mut written) = (AtomicBool::new(false), Vec::new());
    let _server = std::thread::scope(|scope| {
        let mut server = server;
        let threads: Vec<_> = (0..2_u32)
            .map(|thread| {
                let (place, stop) = (&place, &stop);
                scope.spawn(move || {
                    let client = place.client();
                    let mut next = thread * 10_000;
                    while !stop.load(Ordering::Relaxed) && next % 10_000 < 1500 {
                        insert(&client, next..next + 1);
                        next += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    next
                })
            })
            .collect();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(80));
            if round % 2 == 0 {
                server.kill();
            } else {
                server.signal(Signal::TERM);
                let (status, errors) = server.wait();
                assert!(status.success(), "{status}: {errors}");
                assert!(errors.contains("stopped with "), "{errors}");
                assert!(!place.socket().exists(), "the socket goes with the server");
            }
            server = place.serve("64MiB", &OPTIONS);
            assert_eq!(server.report["recovered"]["damaged"], 0);
        }
        stop.store(true, Ordering::Relaxed);
        written.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
        server
    });
    let stats = place.client().stats().expect("a call");
    let all: u64 = (0..).zip(&written).map(|(thread, end)| u64::from(end - thread * 10_000)).sum();
    assert_eq!((stats.values, stats.reservations), (all, 0));
    let client = place.client();
    (0..).zip(written).for_each(|(thread, end)| check(&client, thread * 10_000..end));
}

#[test]
fn a_server_whose_memory_holder_ends_starts_another() {
    let place = Place::new();
    let mut server = place.serve("4MiB", &[]);
    insert(&place.client(), 0..50);
    let holder = place.holder().holder_pid();
    assert_eq!(server.report["holder_pid"], holder);
    signal_process(holder, Signal::KILL);
    eventually("another memory holder has the memory", || {
        let holder = kvmem_node::MemoryHolderClient::connect(place.holder_socket());
        holder.is_ok_and(|holder| {
            holder.list().is_ok_and(|names| {
                names.iter().any(|it| it.name == "node" && it.claimed_by == Some(server.pid()))
            })
        })
    });
    assert_ne!(place.holder().holder_pid(), holder);
    server.signal(Signal::TERM);
    let (_, errors) = server.wait();
    assert!(
        errors.contains("the memory holder has ended, and another one has the memory"),
        "{errors}"
    );
    let server = place.serve("4MiB", &[]);
    assert_eq!(server.report["recovered"]["values"], 50);
    check(&place.client(), 0..50);
}

#[test]
fn without_server_and_memory_holder_the_memory_is_gone_and_the_next_server_says_so() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    let client = place.client();
    insert(&client, 0..5);
    let pins = client.acquire(&[0_u32.to_le_bytes()]).expect("a call");
    let holder = place.holder().holder_pid();
    server.kill();
    signal_process(holder, Signal::KILL);
    let server = place.serve("4MiB", &[]);
    assert!(server.report["recovered"].is_null());
    let error = client.get("key").expect_err("the client has the memory of before");
    assert!(matches!(error, ClientError::MemoryReplaced), "{error}");
    assert_eq!(pins.value(0).expect("it was pinned").bytes(), value(0, 5000));
    assert_eq!(place.client().stats().expect("a call").values, 0);
    let errors = server.kill();
    assert!(errors.contains("the server before was killed, and its memory is gone"), "{errors}");
}

#[test]
fn nothing_keeps_values_if_nothing_is_to() {
    let place = Place::new();
    let mut server = place.serve("4MiB", &["--retain", "none"]);
    assert_eq!(server.report["retained_by"], "none");
    insert(&place.client(), 0..5);
    assert!(!place.holder_socket().exists());
    server.signal(Signal::INT);
    let (status, errors) = server.wait();
    assert!(status.success() && errors.contains("the values end with it"), "{status} {errors}");
    let server = place.serve("4MiB", &["--retain", "none"]);
    assert_eq!(place.client().stats().expect("a call").values, 0);
    assert_eq!(server.kill(), "");
    // The socket of the killed server is replaced.
    let server = place.serve("4MiB", &["--retain", "none"]);
    assert_eq!(server.kill(), "");
}

#[test]
fn a_second_server_is_an_error() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    for by in ["holder", "none"] {
        let (status, errors) = place.fails("4MiB", &["--retain", by]);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.contains("a server answers at") && errors.contains("--socket"), "{errors}");
    }
    // A server that is stopped answers nobody, and has the memory still.
    server.signal(Signal::STOP);
    fs::rename(place.socket(), place.folder().join("moved")).expect("a file");
    let (status, errors) = place.fails("4MiB", &[]);
    assert_eq!(status, Some(2), "{errors}");
    let expected = format!("process {} serves the memory of", server.pid());
    assert!(errors.contains(&expected), "{errors}");
    server.signal(Signal::CONT);
    drop(server);
}

#[test]
fn of_several_servers_that_start_at_once_one_serves() {
    for by in ["holder", "none"] {
        start_several(&Place::new(), by);
    }
}

fn start_several(place: &Place, by: &str) {
    place.serve("4MiB", &["--retain", by]).kill();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
        command.args(place.options("4MiB", &["--retain", by])).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started")
    };
    let mut servers: Vec<Child> = (0..4).map(|_| start()).collect();
    eventually("all but one end", || {
        let running = |server: &mut Child| server.try_wait().expect("a child").is_none();
        servers.iter_mut().map(running).filter(|runs| *runs).count() == 1
    });
    eventually("one serves", || place.operator("stat", &[]).status.success());
    for server in &mut servers {
        let ended = server.try_wait().expect("a child");
        assert!(ended.is_none_or(|status| status.code() == Some(2)), "{ended:?}");
        let _ = server.kill();
        server.wait().expect("a child");
    }
}

#[test]
fn a_damaged_index_stops_the_server_and_can_be_set_aside() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    insert(&place.client(), 0..5);
    server.kill();
    let holder = place.holder();
    let damage = |at: u64, bytes: &[u8]| {
        let [_, index, _] = files(&holder);
        File::from(index).write_all_at(bytes, at).expect("it can be written");
    };
    // The version and the magic number of the header.
    let [_, index, _] = files(&holder);
    let mut version = [0];
    File::from(index).read_exact_at(&mut version, 8).expect("it has a header");
    for (at, bytes, expected) in [
        (8, &[99][..], "the index has version 99"),
        (0, b"other", "the file is no index of a node"),
    ] {
        damage(at, bytes);
        let (status, errors) = place.fails("4MiB", &[]);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.contains(expected) && errors.contains("--set-aside"), "{errors}");
        assert_eq!(holder.list().expect("a call")[0].name, "node", "it is retained");
    }

    let server = place.serve("8MiB", &["--set-aside"]);
    assert!(server.report["recovered"].is_null());
    insert(&place.client(), 0..3);
    let mut names: Vec<String> =
        holder.list().expect("a call").into_iter().map(|it| it.name).collect();
    names.sort();
    assert_eq!(names, ["node", "node-aside-1"]);
    assert!(server.kill().contains("is retained as node-aside-1"));
    // What was set aside is as it was: whole again, it is recovered.
    let [_, index, _] =
        holder.get("node-aside-1").expect("it is retained").try_into().expect("three");
    let index = File::from(index);
    index.write_all_at(b"KVMNODE\0", 0).expect("it can be written");
    index.write_all_at(&version, 8).expect("it can be written");
    holder.rename("node", "newer").expect("no server runs");
    holder.rename("node-aside-1", "node").expect("no server runs");
    let server = place.serve("4MiB", &[]);
    assert_eq!(server.report["recovered"]["values"], 5);
    check(&place.client(), 0..5);
}

#[test]
fn what_is_no_node_is_not_touched() {
    let place = Place::new();
    drop(place.serve("4MiB", &[]));
    let holder = place.holder();
    let [memory, ..] = files(&holder);
    holder.forget("node").expect("no server runs");
    use std::os::fd::AsFd;
    holder.put("node", &[memory.as_fd()]).expect("it has none");
    let (status, errors) = place.fails("4MiB", &[]);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("1 descriptor(s) are retained instead of"), "{errors}");
    // The memory file three times: its bytes are no index.
    holder.forget("node").expect("no server runs");
    holder.put("node", &[memory.as_fd(), memory.as_fd(), memory.as_fd()]).expect("it has none");
    let (status, errors) = place.fails("4MiB", &[]);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("the file is no index of a node"), "{errors}");
    let server = place.serve("4MiB", &["--fresh"]);
    assert_eq!(holder.list().expect("a call").len(), 1);
    drop(server);
}

#[test]
fn recovered_memory_becomes_as_large_as_the_option_says() {
    let place = Place::new();
    place.serve("4MiB", &[]).kill();
    let server = place.serve("8MiB", &[]);
    assert!(!server.report["recovered"].is_null());
    assert_eq!(server.report["memory_bytes"], 8 << 20);
    let errors = server.kill();
    assert!(errors.contains("becomes 8.00 MiB"), "{errors}");
    let server = place.serve("8MiB", &["--fresh"]);
    assert!(server.report["recovered"].is_null());
    assert_eq!(server.kill(), "");
    let retained = place.holder().list().expect("a call");
    assert_eq!((retained.len(), retained[0].bytes >> 20), (1, 8));
}

#[test]
fn quotas_and_leases_are_those_of_the_options() {
    let place = Place::new();
    let options = ["--quota", "small=20KiB,pins=1", "--lease", "100ms", "--align", "64"];
    let _server = place.serve("4MiB", &options);
    let namespace = "small".to_owned();
    let small = place.client_of(&ConnectOptions { namespace, ..ConnectOptions::default() });
    let small = small.expect("the server answers");
    let error = small.reserve(&[20_481]).map(drop).expect_err("over the limit");
    assert!(error.to_string().contains("the limit is 20480"), "{error}");
    let blocks = small.reserve(&[100, 100]).expect("within the limit");
    assert_eq!((blocks.len(), small.stats().expect("a call").reserved_bytes), (2, 256));
    let observing = place.client();
    eventually("the reservations of a silent client are lost", || {
        observing.stats().expect("a call").fenced_total == 2
    });
    let error = small.commit(
        ["a", "b"].into_iter().zip(blocks).map(|(key, block)| NewValue::new(key, block)).collect(),
    );
    assert!(error.is_err_and(|error| error.to_string().contains("silent")));
}

#[test]
fn several_disks_below_the_memory_share_the_values() {
    let place = Place::new();
    // Paths with commas and colons are paths.
    let files = ["a,1GiB", "b:c", "d,"].map(|name| {
        place.folder().join(name).into_os_string().into_string().expect("a plain path")
    });
    let new: Vec<String> = files.iter().map(|file| format!("disk:{file},32MiB")).collect();
    let options: Vec<&str> = new.iter().flat_map(|tier| ["--tier", tier]).collect();
    let server = place.serve("4MiB", &[&options[..], &["--metrics", "127.0.0.1:0"]].concat());
    assert_eq!(server.report["tiers"], serde_json::json!(files));
    let address: SocketAddr = server.report["metrics"].as_str().expect("text").parse().unwrap();
    let client = place.client();
    for seed in 0..900_u32 {
        client.insert(seed.to_le_bytes(), &value(seed, 8192)).expect("there is space");
        eventually("values are stored ahead", || {
            let stats = client.stats().expect("a call");
            stats.tier_stored_total + 320 >= stats.committed_total
        });
    }
    assert!(found_pages(&client) >= 580, "what was stored is found");
    let page = scrape(address);
    for file in &files {
        let line = page
            .lines()
            .find(|line| line.starts_with("kvmem_tier_entries{") && line.contains(file))
            .unwrap_or_else(|| panic!("{file}: {page}"));
        let values: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(values > 100.0, "each file has its share: {line}");
    }
    drop(client);
    // A server that ends writes a checkpoint.
    let mut server = server;
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());
    for file in &files {
        let device = FileDevice::open_read_only(file.as_ref(), 1).expect("a file");
        let contents = kvmem_tier::inspect(&device).expect("a tier").contents.expect("an index");
        let counts = (contents.journal_changes, contents.unverified_values());
        assert_eq!(counts, (0, 0), "{file} with {} values", contents.entries.len());
    }
    // In another order, by servers with other memory.
    let found: Vec<String> = files.iter().rev().map(|file| format!("disk:{file},")).collect();
    let options: Vec<&str> = found.iter().flat_map(|tier| ["--tier", tier]).collect();
    let server = place.serve("4MiB", &[&options[..], &["--fresh"]].concat());
    assert!(server.report["tier_values"].as_u64().expect("a number") >= 580, "{}", server.report);
    assert!(found_pages(&place.client()) >= 580, "what was stored is found");
    drop(server);
    let twice = [options[0], options[1], options[0], options[1]];
    let (status, errors) = place.fails("4MiB", &[&twice[..], &["--fresh"]].concat());
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("is named twice"), "{errors}");
}

/// A killed server may have a disk open for as long as the disk writes. The next one waits, says
/// so, and ends with the status after which a service manager starts it again.
#[test]
fn a_server_waits_for_a_disk_that_another_process_has_open() {
    let place = Place::new();
    let file = place.folder().join("tier");
    let tier = format!("disk:{},16MiB", file.to_str().expect("a plain path"));
    let opened = kvmem_tier::DiskTierOptions { bytes: Some(16 << 20), ..Default::default() };
    let (holder, _) = kvmem_tier::DiskTier::open(&file, &opened).expect("a file");
    let (status, errors) = place.fails("4MiB", &["--tier", &tier, "--tier-wait", "5"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("waits for up to 5 s") && errors.contains("open already"), "{errors}");
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(4));
        drop(holder);
    });
    let server = place.serve("4MiB", &["--tier", &tier]);
    assert!(ends.is_finished(), "it waited");
    assert_eq!(server.report["tier_values"], 0);
    ends.join().expect("it slept");
}

#[test]
fn a_tier_is_made_of_something_else_only_by_option() {
    let place = Place::new();
    let file = place.folder().join("other");
    std::fs::write(&file, vec![7; 16 << 20]).expect("a file");
    let tier = format!("disk:{}", file.to_str().expect("a plain path"));
    let (status, errors) = place.fails("4MiB", &["--tier", &tier]);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("(--tier-format)"), "{errors}");
    let options = ["--tier", &tier, "--tier-format"];
    let server = place.serve("4MiB", &options);
    insert(&place.client(), 0..900);
    eventually("something is stored", || {
        place.client().stats().expect("a call").tier_stored_total > 0
    });
    drop(server);
    // The tier that is there now is retained.
    let server = place.serve("4MiB", &[&options[..], &["--fresh"]].concat());
    assert!(server.report["tier_values"].as_u64().expect("a number") > 0, "{}", server.report);
}

#[test]
fn a_tier_in_the_spelling_of_before_is_an_error_that_names_the_new_one() {
    let place = Place::new();
    for options in
        [&["--tier", "/nvme/kv"][..], &["--tier", "disk:"], &["--tier", "disk:/nvme/kv,64MiX"]]
    {
        let (status, errors) = place.fails("4MiB", options);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.contains("disk:/nvme/kv"), "{errors}");
    }
}

/// Returns how many values of two pages there are, and checks their bytes.
fn found_pages(client: &NodeClient) -> usize {
    let is_found = |seed: &u32| {
        let found = client.get(seed.to_le_bytes()).expect("a call");
        let check = |found: kvmem_node::NodePin| {
            assert_eq!(found.bytes().expect("it is valid"), value(*seed, 8192));
        };
        found.map(check).is_some()
    };
    (0..900).filter(is_found).count()
}

/// Returns the files of shared memory with names, of which kvmem has none.
fn shared_names() -> Vec<String> {
    let all = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = all.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("kvmem")).collect()
}

#[test]
fn nothing_is_left_behind() {
    let place = Place::new();
    let mut server = place.serve("4MiB", &[]);
    insert(&place.client(), 0..5);
    assert_eq!(shared_names(), [""; 0]);
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());
    let holder = place.holder().holder_pid();
    let socket = place.holder_socket();
    let socket = socket.to_str().expect("a plain path");
    let run = |option| run("holder", &[option, "--socket", socket]);
    let listed = String::from_utf8(run("--list").stdout).expect("text");
    assert!(listed.contains("node ") && listed.contains("4."), "{listed}");
    assert!(run("--stop").status.success());
    eventually("the memory holder ends", || !PathBuf::from(format!("/proc/{holder}")).exists());
    let mut left: Vec<_> = fs::read_dir(place.folder()).expect("a folder").flatten().collect();
    left.retain(|file| file.file_name() != "report.json");
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(shared_names(), [""; 0]);
    let stopped = run("--list");
    let errors = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(2));
    assert!(errors.contains("no memory holder answers"), "{errors}");
}

#[test]
fn a_memory_holder_server() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    let holder = place.holder().holder_pid();
    let stat = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let fields = stat.rsplit_once(") ").expect("a command").1.to_owned();
        let fields: Vec<u32> =
            fields.split(' ').skip(1).take(3).map(|it| it.parse().expect("a number")).collect();
        (fields[0], fields[1], fields[2])
    };
    let (parent, group, session) = stat(holder);
    assert_ne!(parent, server.pid(), "the server need not wait for it");
    assert_eq!((group, session), (holder, holder), "it has a session of its own");
    for number in 0..3 {
        let target = fs::read_link(format!("/proc/{holder}/fd/{number}")).expect("it is open");
        assert_eq!(target, PathBuf::from("/dev/null"));
    }
    // It maps neither of the files that it holds.
    let maps = fs::read_to_string(format!("/proc/{holder}/maps")).expect("it runs");
    assert!(!maps.contains("/memfd:"), "{maps}");
    let socket = place.holder_socket();
    let stopped = run("holder", &["--stop", "--socket", socket.to_str().expect("a plain path")]);
    let errors = String::from_utf8_lossy(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(2));
    assert!(errors.contains(&format!("process {} uses node", server.pid())), "{errors}");
}

/// Returns the command as another user runs it.
fn of_other_user(place: &Place, user: u32, group: u32) -> Command {
    let command = copied_to(place.folder());
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o755)).expect("a folder");
    let mut run = Command::new(&command);
    run.current_dir("/").stdin(Stdio::null()).uid(user).gid(group);
    run
}

/// Runs the command as another user; `None` if nothing can be.
fn as_other_user(place: &Place, group: u32, args: &[&str]) -> Option<std::process::Output> {
    match of_other_user(place, 65534, group).args(args).output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: nothing can be run as another user: {error}");
            None
        }
    }
}

#[test]
fn other_users_need_the_group_and_are_no_operators() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    let path = place.socket().into_os_string().into_string().expect("a plain path");
    let Some(output) = as_other_user(&place, 4242, &["stat", "--socket", &path]) else { return };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("Permission denied"), "{errors}");
    // Not even if the mode of the sockets is changed: the kernel says which user it is.
    let holder = format!("{path}.holder");
    for file in [&path, &holder] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("a file");
    }
    for args in [&["stat", "--socket", &path][..], &["holder", "--list", "--socket", &holder]] {
        let output = as_other_user(&place, 4242, args).expect("as before");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let says = if args[0] == "stat" { "user 65534 may not connect" } else { "answers at" };
        assert!(errors.contains(says) && !errors.contains("denied"), "{errors}");
    }
    server.kill();
    let _server = place.serve("4MiB", &["--allow-group", "4242"]);
    let output = as_other_user(&place, 4242, &["stat", "--socket", &path]).expect("as before");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for args in [&["ls"][..], &["drop", "--all"], &["evict", "1"]] {
        let output = as_other_user(&place, 4242, &[args, &["--socket", &path]].concat());
        let output = output.expect("as before");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("only the server's own user"), "{errors}");
    }
}

#[test]
fn options_name_the_users_that_may_read_write_and_operate() {
    let place = Place::new();
    let options = [
        "--allow-group=4242:ro",
        "--namespace=chat=@4243",
        "--namespace=chat=@4242:ro",
        "--operator=65533",
    ];
    let _server = place.serve("4MiB", &options);
    let path = place.socket().into_os_string().into_string().expect("a plain path");
    let run = |user, group, args: &[&str]| {
        let args = [args, &["--socket", &path]].concat();
        of_other_user(&place, user, group).args(args).output()
    };
    let stat = match run(65534, 4242, &["stat"]) {
        Ok(stat) => stat,
        Err(error) => return println!("skipped: nothing can be run as another user: {error}"),
    };
    assert!(stat.status.success(), "{}", String::from_utf8_lossy(&stat.stderr));
    // A user that may use a namespace with a rule cannot use the others, such as the nameless one.
    let denied = run(65534, 4243, &["stat"]).expect("as before");
    let errors = String::from_utf8_lossy(&denied.stderr);
    assert_eq!(denied.status.code(), Some(2), "{errors}");
    assert!(errors.contains("user 65534 may not use namespace \"\""), "{errors}");
    for (user, status, says) in [(65534, 2, "only the server's own user"), (65533, 0, "")] {
        let output = run(user, 4242, &["drop", "--all"]).expect("as before");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.contains(says), "{errors}");
    }
}

#[test]
fn the_commands_trust_servers_of_named_users_only() {
    let place = Place::new();
    let _server = place.serve("4MiB", &[]);
    let own = rustix::process::geteuid().as_raw();
    let trusts = |users: &str| place.operator("stat", &["--server-users", users]);
    assert!(trusts(&format!("7,{own}")).status.success());
    let output = trusts("7,8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(&format!("user {own} listens at")), "{errors}");
    assert!(errors.contains("7, 8") && errors.contains("server_users"), "{errors}");
}

#[test]
fn a_memory_holder_trusted() {
    let place = Place::new();
    let mut command = of_other_user(&place, 65534, 65534);
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o777)).expect("a folder");
    let holder = place.holder_socket().into_os_string().into_string().expect("a plain path");
    let spawned = command
        .args(["holder", "--idle", "30s", "--socket", &holder])
        .stderr(Stdio::null())
        .spawn();
    let mut foreign = match spawned {
        Ok(foreign) => foreign,
        Err(error) => {
            println!("skipped: nothing can be run as another user: {error}");
            return;
        }
    };
    let foreign_memory_holder = |error: &MemoryHolderError| {
        matches!(error, MemoryHolderError::ForeignHolder { uid: 65534, .. })
    };
    eventually("it listens", || {
        MemoryHolderClient::connect(&holder).is_err_and(|error| foreign_memory_holder(&error))
    });
    let (status, errors) = place.fails("4MiB", &[]);
    foreign.kill().expect("it runs");
    foreign.wait().expect("a child");
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("user 65534 listens at"), "{errors}");
}

#[test]
fn memory_that_cannot_be_served_is_not_retained() {
    let place = Place::new();
    // Nothing can be bound to the path, and no server answers there.
    fs::write(place.socket(), "a file").expect("the path is free");
    let (status, errors) = place.fails("4MiB", &[]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("is no socket"), "{errors}");
    assert_eq!(fs::read_to_string(place.socket()).expect("it is there"), "a file");
    eventually("the memory holder ends, too", || !place.holder_socket().exists());
}

#[test]
fn invalid_options_of_a_server_end_with_status_2() {
    let place = Place::new();
    let long = "x".repeat(200);
    for (size, more, expected) in [
        ("0", &[][..], "0 bytes"),
        ("4MiB", &["--align", "3"], "align is 3"),
        ("4MiB", &["--boundary", "3MiB"], "boundary is 3145728"),
        ("4MiB", &["--boundary", "2KiB"], "boundary is 2048"),
        ("4MiB", &["--max-blocks", "0"], "--max-blocks"),
        ("4MiB", &["--max-blocks", "4294967295"], "max_blocks"),
        ("4MiB", &["--lease", "60"], "such as 60s"),
        ("4MiB", &["--lease", "1ms"], "100ms to 24h"),
        ("4MiB", &["--quota", "chat"], "NAME=BYTES"),
        ("4MiB", &["--quota", "chat=1,share=0"], "shares are 1 to"),
        ("4MiB", &["--allow-group", "no such group"], "/etc/group has no such group"),
        ("4MiB", &["--allow-group", "4242:rw"], "say 4242:ro"),
        ("4MiB", &["--allow-group", "7", "--allow-group", "7:ro"], "group 7 is both"),
        ("4MiB", &["--namespace", "chat"], "NAME=@GROUP"),
        ("4MiB", &["--namespace", "chat=no such user"], "/etc/passwd has no such user"),
        ("4MiB", &["--namespace", "chat=@no such group"], "/etc/group has no such group"),
        ("4MiB", &["--operator", "4294967295"], "/etc/passwd has no such user"),
        ("4MiB", &["--retain", "systemd"], "NOTIFY_SOCKET is not set"),
        ("4MiB", &["--retain", "disk"], "holder"),
        ("4MiB", &["--fresh", "--set-aside"], "--set-aside"),
        ("4MiB", &["--metrics", "0.0.0.0:0"], "--metrics-anywhere"),
        ("4MiB", &["--kv-events", "tcp://*:0"], "add --kv-events-anywhere"),
        ("4MiB", &["--kv-events", "tcp://192.0.2.1:5557", "--kv-events-anywhere"], "192.0.2.1"),
        ("4MiB", &["--socket", "/no/such/folder/n"], "--socket"),
        ("4MiB", &["--json", "/no/such/folder/r.json"], "/no/such/folder"),
    ] {
        let (status, errors) = place.fails(size, more);
        assert_eq!(status, Some(2), "{more:?}: {errors}");
        assert!(errors.contains(expected), "{more:?}: {errors}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_kvmem"))
        .args(["serve", "--size", "4MiB", "--pages", "4k", "--socket"])
        .arg(place.folder().join(long))
        .output()
        .expect("it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("socket"), "{errors}");
    // More memory than any machine has: the preflight says why, before anything is mapped.
    let (status, errors) = place.fails("64TiB", &["--retain", "none"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("this machine cannot give 64 TiB"), "{errors}");
}

/// A server without free descriptors rejects clients, with an error that says so. Those that it
/// has stay, and it takes as many as the user's limit allows, whatever the soft limit is.
#[test]
fn a_server_without_descriptors_rejects_clients() {
    let place = Place::new();
    let mut command = Command::new("sh");
    let limited = "ulimit -Sn 20 && ulimit -Hn 80 && exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_kvmem")]);
    let server = place.serve_by(command, "8MiB", &["--retain", "none"]);
    let options = ConnectOptions { retry_for: Duration::ZERO, ..ConnectOptions::default() };
    let mut clients = Vec::new();
    let error = loop {
        match place.client_of(&options) {
            Ok(client) => {
                let block = client.reserve(&[4096]).expect("there is space");
                clients.push((client, block));
            }
            Err(error) => break error,
        }
        assert!(clients.len() < 80, "each client takes a descriptor at least");
    };
    // A server of 20 descriptors has place for fewer.
    assert!(clients.len() >= 12, "{}: {error}", clients.len());
    let stats = clients[0].0.stats().expect("a call");
    assert_eq!(stats.reservations as usize, clients.len(), "{error}");
    let left = clients.len() - 1;
    let (client, block) = clients.swap_remove(0);
    drop(block);
    drop(client);
    eventually("its place is free", || place.client_of(&options).is_ok());
    let stats = clients[0].0.stats().expect("a call");
    assert_eq!(stats.reservations as usize, left);
    server.kill();
}

#[test]
fn a_restart_with_another_size_keeps_what_was_used_last() {
    let place = Place::new();
    let server = place.serve("4MiB", &[]);
    let client = place.client();
    insert(&client, 0..400);
    server.kill();
    // The clients of before stay connected, and their values are where they were.
    let server = place.serve("1MiB", &[]);
    assert_eq!(server.report["recovered"]["values"], 400);
    let stats = || client.stats().expect("a call");
    eventually("the memory becomes smaller", || stats().capacity == 1 << 20);
    assert!(stats().values > 100, "{:?}", stats());
    check(&client, 400 - stats().values as u32..400);
    server.kill();
    let server = place.serve("16MiB", &[]);
    let errors = client.stats().expect_err("the file is longer than what it has mapped");
    assert!(matches!(errors, ClientError::MemoryReplaced), "{errors}");
    drop(client);
    let client = place.client();
    let stats = || client.stats().expect("a call");
    eventually("the memory becomes larger", || stats().capacity == 16 << 20);
    check(&client, 400 - stats().values as u32..400);
    insert(&client, 400..1400);
    check(&client, 400..1400);
    drop(server);
}

/// Kills servers at random instants while the memory changes its size.
#[test]
fn a_server_that_is_killed_while_the_memory_changes_its_size_loses_no_byte() {
    let rounds = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok());
    let place = Place::new();
    let client = ConnectOptions { checksums: true, verify: true, ..ConnectOptions::default() };
    let mut stored = 0;
    for round in 0..rounds.unwrap_or(12_u32) {
        let size = ["6MiB", "3MiB", "12MiB"][round as usize % 3];
        let server = place.serve(size, &["--max", "12MiB"]);
        let client = place.client_of(&client).expect("it answers");
        insert(&client, stored..stored + 700);
        stored += 700;
        let pins = client.acquire(&[(stored - 50).to_le_bytes()]).expect("a call");
        let operator = client.as_operator();
        let resizing = std::thread::spawn(move || operator.resize(2 << 20));
        std::thread::sleep(Duration::from_micros(u64::from(round * 397 % 9000)));
        server.kill();
        assert!(pins.value(0).is_some());
        drop(pins);
        let server = place.serve(size, &["--max", "12MiB"]);
        assert_eq!(server.report["recovered"]["damaged"], 0);
        let _ = resizing.join().expect("it is answered by the next server");
        let client = place.client();
        // The last values are there, and each value that is there has its bytes.
        check(&client, stored - 100..stored);
        for seed in stored - 700..stored {
            if let Some(found) = client.get(seed.to_le_bytes()).expect("a call") {
                let bytes = found.bytes().expect("it is valid");
                assert_eq!(bytes, value(seed, 5000 + seed as usize), "value {seed}");
            }
        }
        server.kill();
    }
}
