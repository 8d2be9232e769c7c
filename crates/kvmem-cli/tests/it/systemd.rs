//! `kvmem serve --retain systemd`, with the test in the place of systemd: it reads the
//! notifications, holds the descriptors, and starts the server again with them.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketType, bind, listen, recvmsg, socket,
};
use rustix::process::Signal;

use crate::serving::Place;

/// The socket of notifications, and what the server has stored.
struct Manager {
    path: PathBuf,
    notifications: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
    /// Duplicates for the next server, which are inherited.
    passing: Vec<OwnedFd>,
}

impl Manager {
    fn new(place: &Place) -> Manager {
        let path = place.folder().join("notify");
        let notifications = UnixDatagram::bind(&path).expect("the path is free");
        let patience = Some(Duration::from_secs(60));
        notifications.set_read_timeout(patience).expect("a time");
        Manager { path, notifications, store: Vec::new(), passing: Vec::new() }
    }

    /// Does what one notification says, as systemd does. Returns its lines.
    fn notified(&mut self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.notifications, &mut parts, &mut ancillary, flags);
        let len = received.expect("a notification").bytes;
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let text = String::from_utf8(bytes[..len].to_vec()).expect("text");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        if lines.iter().any(|line| line == "FDSTORE=1") {
            assert_eq!(descriptors.len(), 1);
            assert!(lines.iter().any(|line| line == "FDPOLL=0"), "{lines:?}");
            let name = name.expect("a name").to_owned();
            self.store.extend(descriptors.into_iter().map(|descriptor| (name.clone(), descriptor)));
        } else if lines.iter().any(|line| line == "FDSTOREREMOVE=1") {
            let name = name.expect("a name");
            self.store.retain(|(stored, _)| stored != name);
        }
        lines
    }

    /// Does what notifications say until one has this line. Returns all lines.
    fn until(&mut self, wanted: &str) -> Vec<String> {
        let mut all = Vec::new();
        while !all.iter().any(|line: &String| line.starts_with(wanted)) {
            all.extend(self.notified());
        }
        all
    }

    fn names(&self) -> Vec<&str> {
        self.store.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Returns a command that passes on what is stored, and sockets, as the manager does.
    fn command(&mut self, sockets: &[&OwnedFd], watchdog: Option<Duration>) -> Command {
        let stored = self.store.iter().map(|(name, descriptor)| (name.as_str(), descriptor));
        let sockets = sockets.iter().map(|socket| ("kvmem-serve.socket", *socket));
        let mut redirections = String::new();
        let (mut names, mut passing) = (Vec::new(), Vec::new());
        for (at, (name, descriptor)) in sockets.chain(stored).enumerate() {
            // A number that the passed ones do not overwrite.
            let passed = rustix::io::fcntl_dupfd_cloexec(descriptor, 20).expect("it is open");
            rustix::io::fcntl_setfd(&passed, FdFlags::empty()).expect("it is open");
            redirections += &format!(" {}>&{1} {1}>&-", at + 3, passed.as_raw_fd());
            passing.push(passed);
            names.push(name);
        }
        self.passing = passing;
        let listen = match names.len() {
            0 => String::new(),
            len => format!("LISTEN_PID=$$ LISTEN_FDS={len} LISTEN_FDNAMES={}", names.join(":")),
        };
        let script = format!("export WATCHDOG_PID=$$ {listen}; exec \"$0\" \"$@\"{redirections}");
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_kvmem")]);
        command.env("NOTIFY_SOCKET", &self.path);
        if let Some(watchdog) = watchdog {
            command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        }
        command
    }

    /// Closes the duplicates that a server has inherited.
    fn passed(&mut self) {
        self.passing.clear();
    }
}

const SYSTEMD: [&str; 2] = ["--retain", "systemd"];

#[test]
fn systemd_keeps_the_values() {
    let place = Place::new();
    let mut manager = Manager::new(&place);
    let command = manager.command(&[], Some(Duration::from_secs(4)));
    let server = place.serve_by(command, "4MiB", &SYSTEMD);
    assert_eq!(server.report["retained_by"], "systemd");
    let lines = manager.until("READY=1");
    assert!(
        lines.iter().any(|line| line.starts_with("STATUS=making memory resident")),
        "{lines:?}"
    );
    assert_eq!(manager.names(), ["kvmem-memory", "kvmem-index", "kvmem-sessions"]);
    let mut lines = manager.until("WATCHDOG=1");
    if !lines.iter().any(|line| line.starts_with("STATUS=")) {
        lines.extend(manager.until("STATUS="));
    }
    assert!(lines.iter().any(|line| line.contains("of 4.00 MiB in use")), "{lines:?}");
    assert!(!place.holder_socket().exists(), "no memory holder is started");
    place.client().insert("key", b"value").expect("there is space");
    server.kill();

    let mut server = place.serve_by(manager.command(&[], None), "4MiB", &SYSTEMD);
    manager.passed();
    assert_eq!(server.report["recovered"]["values"], 1);
    manager.until("READY=1");
    assert_eq!(manager.names().len(), 3, "they are not stored again");
    assert!(place.client().get("key").expect("a call").is_some());
    server.signal(Signal::TERM);
    manager.until("STOPPING=1");
    assert!(server.wait().0.success());

    let server =
        place.serve_by(manager.command(&[], None), "8MiB", &["--retain", "systemd", "--set-aside"]);
    manager.passed();
    manager.until("READY=1");
    let mut names = manager.names();
    names.sort_unstable();
    let all = ["index", "index-aside", "memory", "memory-aside", "sessions", "sessions-aside"];
    assert_eq!(names, all.map(|name| format!("kvmem-{name}")));
    assert!(server.kill().contains("kvmem-memory-aside"));
    // The server after it finds the newer memory, whatever else is passed.
    let server = place.serve_by(manager.command(&[], None), "8MiB", &SYSTEMD);
    manager.passed();
    assert_eq!(server.report["recovered"]["values"], 0);
    drop(server);

    // One of the three files alone is no memory of a node.
    manager.store.retain(|(name, _)| name == "kvmem-memory");
    let mut command = manager.command(&[], None);
    let failed = command.args(place.options("8MiB", &SYSTEMD)).output().expect("it can be started");
    let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--set-aside") && errors.contains("--fresh"), "{errors}");
}

#[test]
fn systemd_passes_the_socket() {
    let place = Place::new();
    let mut manager = Manager::new(&place);
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(place.socket()).expect("a short path");
    bind(&listener, &address).expect("the path is free");
    listen(&listener, 16).expect("it is bound");
    // A client that comes before the server waits.
    let early = std::thread::scope(|scope| {
        let early = scope.spawn(|| place.client());
        std::thread::sleep(Duration::from_millis(20));
        let server = place.serve_by(manager.command(&[&listener], None), "4MiB", &SYSTEMD);
        let client = early.join().expect("no panic");
        (server, client)
    });
    let (mut server, client) = early;
    manager.until("READY=1");
    client.insert("key", b"value").expect("there is space");
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());
    assert!(place.socket().exists(), "the socket is systemd's");
    let server = place.serve_by(manager.command(&[&listener], None), "4MiB", &SYSTEMD);
    manager.passed();
    assert_eq!(server.report["recovered"]["values"], 1);
    assert!(client.get("key").expect("a call").is_some());
    drop(server);

    // A socket of bytes is none of packets.
    let wrong = std::os::unix::net::UnixListener::bind(place.folder().join("wrong"));
    let wrong = OwnedFd::from(wrong.expect("the path is free"));
    let mut command = manager.command(&[&wrong], None);
    let failed = command.args(place.options("4MiB", &SYSTEMD)).output().expect("it can be started");
    let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{errors}");
    assert!(errors.contains("ListenSequentialPacket="), "{errors}");
}

#[test]
fn a_unit_without_a_store_is_reported() {
    let place = Place::new();
    let mut manager = Manager::new(&place);
    let mut command = manager.command(&[], None);
    let failed = command.env("FDSTORE", "1").args(place.options("4MiB", &SYSTEMD)).output();
    let failed = failed.expect("it can be started");
    let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{errors}");
    assert!(errors.contains("FileDescriptorStoreMax is 1"), "{errors}");
}
