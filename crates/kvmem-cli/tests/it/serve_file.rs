//! `kvmem serve --memory-file`: everything is killed, and the values are in the file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvmem_node::NewValue;
use rustix::process::Signal;

use crate::serving::{Place, eventually, signal_process};

/// A name on a tmpfs for the memory of one test. All files there go with the test.
struct MemoryPath(PathBuf);

impl MemoryPath {
    fn new(place: &Place) -> MemoryPath {
        let name = place.folder().file_name().expect("a folder").to_str().expect("plain");
        // No name of kvmem's own: another test looks for those.
        let folder = PathBuf::from(format!("/dev/shm/memory-of-{name}").replace("kvmem", "node"));
        fs::create_dir_all(&folder).expect("/dev/shm is a tmpfs, which this user may write to");
        MemoryPath(folder.join("memory"))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("plain")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.parent().expect("a folder")).expect("it is there");
        let mut names: Vec<String> = entries
            .map(|it| it.expect("readable").file_name().into_string().expect("plain"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for MemoryPath {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().expect("a folder"));
    }
}

#[test]
fn values_survive_when_every_process_is_killed() {
    let place = Place::new();
    let path = MemoryPath::new(&place);
    let options = ["--memory-file", path.text()];
    let server = place.serve("16MiB", &options);
    assert_eq!(server.report["kept_by"], "file");
    assert_eq!(server.report["memory_file"], path.text());
    assert_eq!(server.report["receipt"]["requested_bytes"], 16 << 20);
    assert!(server.text.contains(&format!("kept in {}", path.text())), "{}", server.text);
    assert!(!place.keeper_socket().exists(), "no process keeps the file");
    let client = place.client();
    for key in 0..200_u32 {
        client.insert(key.to_le_bytes(), &[key as u8; 5000]).expect("there is space");
    }
    let pins = client.acquire(&[7_u32.to_le_bytes()]).expect("a call");
    let mut own = client.reserve(&[4096]).expect("there is space").remove(0);
    let base = client.memory().0;
    server.kill();
    let server = place.serve("16MiB", &options);
    let recovered = &server.report["recovered"];
    assert_eq!((&recovered["values"], &recovered["damaged"]), (&200.into(), &0.into()));
    // The client has its mapping, its pin and its reservation.
    assert_eq!(client.memory().0, base);
    assert_eq!(pins.value(0).expect("it is pinned").bytes(), [7; 5000]);
    own.write(0, b"late").expect("it fits");
    client.commit(vec![NewValue::new("late", own)]).expect("it is still reserved");
    drop((pins, client));
    server.kill();
    // Nobody has the memory now, except the file system.
    let server = place.serve("16MiB", &options);
    assert_eq!(server.report["recovered"]["values"], 201);
    let client = place.client();
    for key in 0..200_u32 {
        let found = client.get(key.to_le_bytes()).expect("a call").expect("it is there");
        assert_eq!(found.bytes().expect("it is valid"), [key as u8; 5000]);
    }
    drop(client);
    // A server that ends by itself leaves the file, too.
    server.signal(Signal::TERM);
    let mut server = server;
    let (status, errors) = server.wait();
    assert!(status.success() && errors.contains("201 value(s), kept in"), "{errors}");
    assert_eq!(path.names(), ["memory", "memory.index", "memory.lock", "memory.sessions"]);
    for name in path.names() {
        let mode = fs::metadata(path.0.with_file_name(&name)).expect("it is there");
        assert_eq!(mode.permissions().mode() & 0o7777, 0o600, "{name}");
    }
}

#[test]
fn what_cannot_be_used_stays_until_the_operator_says_so() {
    let place = Place::new();
    let path = MemoryPath::new(&place);
    let options = ["--memory-file", path.text()];
    let server = place.serve("16MiB", &options);
    place.client().insert("key", b"value").expect("there is space");

    // Another server, on another socket.
    let other = Place::new();
    let (status, errors) = other.fails("16MiB", &options);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("another server uses") && errors.contains("memory"), "{errors}");
    server.kill();

    let (status, errors) = place.fails("32MiB", &options);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("has 16777216 bytes instead of the requested 33554432"), "{errors}");
    assert!(errors.contains("--set-aside") && errors.contains("--fresh"), "{errors}");
    let server = place.serve("16MiB", &options);
    assert_eq!(server.report["recovered"]["values"], 1);
    server.kill();

    let index = path.0.with_file_name("memory.index");
    let mut bytes = fs::read(&index).expect("it is there");
    bytes[..8].copy_from_slice(b"foreign!");
    fs::write(&index, &bytes).expect("it can be written");
    let (status, errors) = place.fails("16MiB", &options);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("was not changed") && errors.contains("--set-aside"), "{errors}");
    assert_eq!(fs::read(&index).expect("it is there"), bytes);
    let server = place.serve("16MiB", &[&options[..], &["--set-aside"]].concat());
    assert!(server.report["recovered"].is_null());
    let errors = server.kill();
    assert!(errors.contains("memory.aside-1"), "{errors}");
    assert_eq!(
        fs::read(path.0.with_file_name("memory.aside-1.index")).expect("it is there"),
        bytes
    );
    let server = place.serve("32MiB", &[&options[..], &["--fresh"]].concat());
    assert_eq!(server.report["receipt"]["requested_bytes"], 32 << 20);
    server.kill();

    // An index alone is of no use. It is kept aside.
    fs::remove_file(&path.0).expect("it is there");
    let server = place.serve("16MiB", &options);
    assert!(server.kill().contains("memory.aside-2"));
    assert!(path.names().contains(&"memory.aside-2.index".to_owned()));
}

#[test]
fn options_that_do_not_fit_are_told() {
    let place = Place::new();
    let path = MemoryPath::new(&place);
    let fails = |size: &str, more: &[&str]| {
        let (status, errors) = place.fails(size, more);
        assert!(matches!(status, Some(1 | 2)), "{status:?} {errors}");
        errors
    };
    let on_disk = place.folder().join("memory");
    if !fs::read_to_string("/proc/mounts").is_ok_and(|it| it.contains(" /tmp tmpfs ")) {
        let errors = fails("16MiB", &["--memory-file", on_disk.to_str().expect("plain")]);
        assert!(errors.contains("which is not memory") && errors.contains("/dev/shm"), "{errors}");
    }
    for keep in ["keeper", "systemd"] {
        let errors = fails("16MiB", &["--memory-file", path.text(), "--keep", keep]);
        assert!(errors.contains("leave --keep out"), "{errors}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.args(["serve", "--size", "16MiB", "--pages", "2M", "--memory-file", path.text()]);
    let output = command.arg("--socket").arg(place.socket()).output().expect("it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--pages 2M") && errors.contains("thp, 4k"), "{errors}");
    let errors = fails("1EiB", &["--memory-file", path.text()]);
    assert!(errors.contains("cannot"), "{errors}");
    assert_eq!(path.names(), ["memory.lock"]);
}

/// A server that is killed while it populates leaves no memory behind.
#[test]
fn half_made_memory_has_no_name() {
    let place = Place::new();
    let path = MemoryPath::new(&place);
    let size = "512MiB";
    for wait in [10, 40, 120] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
        command.args(place.options(size, &["--memory-file", path.text()]));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        std::thread::sleep(Duration::from_millis(wait));
        signal_process(child.id(), Signal::KILL);
        child.wait().expect("it is a child");
        let names = path.names();
        let whole = ["memory", "memory.index", "memory.lock", "memory.sessions"];
        let memory = "memory".to_owned();
        assert!(!names.contains(&memory) || names == whole, "{names:?}");
        if names == whole {
            // It was too fast.
            break;
        }
    }
    let server = place.serve("16MiB", &["--memory-file", path.text(), "--fresh"]);
    eventually("it serves", || place.client().stats().is_ok());
    drop(server);
}
