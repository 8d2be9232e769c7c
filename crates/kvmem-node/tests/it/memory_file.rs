//! Memory under a name: what is found again, what is refused, and what is left behind.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use kvmem::arena::{ArenaError, Ladder, Limit, PageSize, Populate, Region, RegionBuilder};
use kvmem_node::{
    BadIndex, ConnectOptions, MemoryFile, MemoryFileError, Node, NodeError, NodeOptions,
    ServerOptions,
};

use crate::support::{self, Running, connect_with};

const BYTES: usize = 4 << 20;

/// A folder on a tmpfs, which goes with the test.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Memory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/memory-of-test-{}-{number}", std::process::id());
        fs::create_dir_all(&path).expect("/dev/shm is a tmpfs, which this user may write to");
        Memory(path.into())
    }

    fn path(&self) -> PathBuf {
        self.0.join("memory")
    }

    fn file(&self) -> Result<MemoryFile, MemoryFileError> {
        MemoryFile::open(&self.path())
    }

    fn create(&self) -> Node {
        Node::create_in(self.file().expect("a tmpfs"), builder(BYTES), NodeOptions::default())
            .expect("there is space")
    }

    fn recover(&self, bytes: usize) -> Result<u64, NodeError> {
        let file = self.file()?;
        let (node, report) = Node::recover_in(file, bytes as u64, NodeOptions::default())?;
        assert_eq!((node.len() as u64, report.damaged), (report.values, 0));
        Ok(report.values)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there");
        let mut names: Vec<String> = entries
            .map(|it| it.expect("readable").file_name().into_string().expect("plain"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn builder(bytes: usize) -> RegionBuilder {
    Region::builder(bytes).ladder(PageSize::Base)
}

/// Serves a node, stores a value under each key, and lets the server end.
fn insert(node: Node, keys: &[&str]) {
    let place = support::Place::new();
    let _running = Running::start(node, &place.socket(), ServerOptions::default());
    let client = connect_with(&place.socket(), &ConnectOptions::default());
    for key in keys {
        client.insert(key, key.repeat(1000).as_bytes()).expect("there is space");
    }
    let options = ConnectOptions { read_only: true, ..ConnectOptions::default() };
    let reader = connect_with(&place.socket(), &options);
    let found = reader.acquire(keys).expect("a call");
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(found.value(at).expect("it is there").bytes(), key.repeat(1000).as_bytes());
    }
}

#[test]
fn values_are_found_again_without_any_process() {
    let memory = Memory::new();
    insert(memory.create(), &["first", "second"]);
    assert_eq!(memory.names(), ["memory", "memory.index", "memory.lock", "memory.sessions"]);
    for name in memory.names() {
        let found = fs::metadata(memory.0.join(&name)).expect("it is there");
        assert_eq!(found.mode() & 0o7777, 0o600, "{name}");
    }
    assert_eq!(memory.recover(BYTES).expect("it is whole"), 2);
    let (node, _) =
        Node::recover_in(memory.file().expect("free"), BYTES as u64, NodeOptions::default())
            .expect("it is whole");
    insert(node, &["first", "second", "third"]);
    assert_eq!(memory.recover(BYTES).expect("it is whole"), 3);
}

#[test]
fn every_page_is_there_before_the_name_is() {
    let memory = Memory::new();
    let node = Node::create_in(
        memory.file().expect("a tmpfs"),
        builder(BYTES).populate(Populate::None),
        NodeOptions::default(),
    )
    .expect("there is space");
    for (name, bytes) in [("memory", BYTES as u64), ("memory.index", 192 << 10)] {
        let found = fs::metadata(memory.0.join(name)).expect("it is there");
        assert!(found.blocks() * 512 >= bytes, "{name} has {} blocks", found.blocks());
    }
    drop(node);
}

#[test]
fn one_server_at_a_time_uses_a_file() {
    let memory = Memory::new();
    let node = memory.create();
    assert!(matches!(memory.file(), Err(MemoryFileError::InUse { .. })));
    drop(node);
    assert_eq!(memory.recover(BYTES).expect("it is free"), 0);
    // A client that lives on has the memory, and not the lock.
    let place = support::Place::new();
    let (node, _) =
        Node::recover_in(memory.file().expect("free"), BYTES as u64, NodeOptions::default())
            .expect("it is whole");
    let running = Running::start(node, &place.socket(), ServerOptions::default());
    let client = connect_with(&place.socket(), &ConnectOptions::default());
    client.insert("key", b"value").expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    drop(running);
    assert_eq!(memory.recover(BYTES).expect("it is free"), 1);
    assert_eq!(pins.value(0).expect("it was found").bytes(), b"value");
}

#[test]
fn another_size_is_an_error() {
    let memory = Memory::new();
    insert(memory.create(), &["key"]);
    for requested in [BYTES / 2, BYTES + 4096, 2 * BYTES] {
        let error = memory.recover(requested).expect_err("another size");
        let NodeError::MemoryFile(MemoryFileError::Size { found, requested: told, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!((found, told), (BYTES as u64, requested as u64));
    }
    // The memory has whole pages.
    assert_eq!(memory.recover(BYTES - 100).expect("the same pages"), 1);
}

#[test]
fn what_no_node_has_made_stays_as_it_is() {
    let memory = Memory::new();
    let path = memory.path();
    let foreign = |what: &str| {
        let error = memory.recover(BYTES).expect_err(what);
        assert!(
            matches!(error, NodeError::MemoryFile(MemoryFileError::Foreign { .. })),
            "{what}: {error}"
        );
        let file = memory.file().expect("a tmpfs");
        let error = Node::create_in(file, builder(BYTES), NodeOptions::default());
        assert!(error.is_err(), "{what}");
    };
    fs::write(&path, "a letter").expect("it can be written");
    foreign("a file without an index");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "a letter");
    fs::remove_file(&path).expect("it is there");
    fs::create_dir(&path).expect("it is free");
    assert!(memory.recover(BYTES).is_err());
    fs::remove_dir(&path).expect("it is empty");
    symlink("/dev/null", &path).expect("it is free");
    foreign("a link");
    fs::remove_file(&path).expect("it is there");

    // An index that is damaged, cut, or that of another memory file.
    insert(memory.create(), &["key"]);
    let index = memory.0.join("memory.index");
    let whole = fs::read(&index).expect("it is there");
    let write = |at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(&index).expect("it is there");
        file.write_all_at(bytes, at).expect("it can be written");
    };
    let bad = |what: &str| {
        let before = fs::read(&index).expect("it is there");
        let error = memory.recover(BYTES).expect_err(what);
        assert_eq!(fs::read(&index).expect("it is there"), before, "{what}");
        let NodeError::BadIndex(error) = error else { panic!("{what}: {error}") };
        error
    };
    write(0, b"foreign!");
    assert!(matches!(bad("another kind"), BadIndex::Foreign { .. }));
    write(0, &whole[..8]);
    write(24, &[1]);
    assert!(matches!(bad("a damaged header"), BadIndex::HeaderChecksum));
    write(24, &whole[24..25]);
    let file = File::options().write(true).open(&index).expect("it is there");
    file.set_len(65_536).expect("it can be cut");
    assert!(matches!(bad("a cut index"), BadIndex::Length { .. }));
    file.set_len(0).expect("it can be cut");
    assert!(matches!(bad("an empty index"), BadIndex::Length { .. }));
    fs::write(&index, &whole).expect("it can be written");
    assert_eq!(memory.recover(BYTES).expect("it is whole again"), 1);
    // Without the session file of this memory, nothing tells which clients live.
    let sessions = memory.0.join("memory.sessions");
    fs::rename(&sessions, memory.0.join("away")).expect("it is there");
    let error = memory.recover(BYTES).expect_err("there is no session file");
    assert!(error.to_string().contains("its clients may live"), "{error}");
    fs::copy(memory.0.join("away"), &sessions).expect("there is space");
    assert!(matches!(bad("a copy of the sessions"), BadIndex::OtherSessionFile { .. }));
    File::options().write(true).open(&sessions).and_then(|it| it.set_len(0)).expect("it is there");
    assert!(matches!(bad("no sessions"), BadIndex::SessionFileLength { got: 0, .. }));
    fs::rename(memory.0.join("away"), &sessions).expect("it is there");
    assert_eq!(memory.recover(BYTES).expect("it is whole again"), 1);
    // A copy of the memory is another file.
    let copy = memory.0.join("copy");
    fs::copy(memory.path(), &copy).expect("there is space");
    fs::rename(&copy, memory.path()).expect("it is there");
    assert!(matches!(bad("a copy"), BadIndex::OtherMemory { .. }));
}

#[test]
fn memory_that_is_set_aside_can_be_used_there() {
    let memory = Memory::new();
    for round in 1..=2 {
        insert(memory.create(), &["key"]);
        let aside = memory.file().expect("free").set_aside().expect("it can be renamed");
        assert_eq!(aside, Some(memory.0.join(format!("memory.aside-{round}"))));
        assert!(!memory.file().expect("free").has_memory());
    }
    assert_eq!(memory.file().expect("free").set_aside().expect("nothing to do"), None);
    let file = MemoryFile::open(&memory.0.join("memory.aside-1")).expect("free");
    let (node, report) =
        Node::recover_in(file, BYTES as u64, NodeOptions::default()).expect("it is whole");
    assert_eq!(report.values, 1);
    drop(node);
    insert(memory.create(), &["key"]);
    memory.file().expect("free").remove().expect("it can be removed");
    assert!(!memory.names().iter().any(|name| name == "memory" || name == "memory.index"));
}

#[test]
fn other_file_systems_and_folders_are_told() {
    let place = support::Place::new();
    let on_disk = place.socket();
    match MemoryFile::open(&on_disk) {
        Err(MemoryFileError::NotMemory { path, kind }) => {
            assert!(path == on_disk && kind != 0);
        }
        Ok(_) => println!("skipped in part: {} is on a tmpfs", on_disk.display()),
        Err(error) => panic!("{error}"),
    }
    for path in ["/dev/shm/kvmem-no-such-folder/memory", "/dev/shm/..", "/"] {
        let error = MemoryFile::open(Path::new(path)).expect_err(path);
        assert!(matches!(error, MemoryFileError::Call { .. }), "{path}: {error}");
    }
    let error = MemoryFile::open(Path::new("/proc/memory")).expect_err("no memory");
    assert!(matches!(error, MemoryFileError::NotMemory { kind: 0x9fa0, .. }), "{error}");
}

#[test]
fn files_of_other_users_are_not_opened() {
    let memory = Memory::new();
    drop(memory.create());
    if rustix::process::getuid().as_raw() != 0 {
        return println!("skipped: only root gives a file to another user");
    }
    for name in ["memory", "memory.index", "memory.lock", "memory.sessions"] {
        let path = memory.0.join(name);
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("root may");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("root may");
        let error = memory.recover(BYTES).expect_err(name);
        assert!(
            matches!(
                error,
                NodeError::MemoryFile(MemoryFileError::Owner { uid: 65_534, own: 0, .. })
            ),
            "{name}: {error}"
        );
        std::os::unix::fs::chown(&path, Some(0), None).expect("root may");
    }
    assert_eq!(memory.recover(BYTES).expect("they are its own again"), 0);
}

/// A file system that goes with the test.
struct Mount(PathBuf);

impl Mount {
    fn new(kind: &str, options: &str) -> Result<Mount, String> {
        let memory = Memory::new();
        let path = memory.0.clone();
        std::mem::forget(memory);
        let made = Mount(path);
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", options, kind]).arg(&made.0);
        let output = mount.output().map_err(|error| format!("mount: {error}"))?;
        match output.status.success() {
            true => Ok(made),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A child of another test, which has not executed its program yet, may have a file open.
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.0).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_small_file_system_is_told_before_anything_is_populated() {
    let mount = match Mount::new("tmpfs", "size=6m,mode=0700") {
        Ok(mount) => mount,
        Err(why) => return println!("skipped: no tmpfs can be mounted here: {why}"),
    };
    let path = mount.0.join("memory");
    let open = || MemoryFile::open(&path).expect("a tmpfs");
    let create = |bytes| Node::create_in(open(), builder(bytes), NodeOptions::default());
    let error = create(8 << 20).expect_err("too small");
    let NodeError::Memory(ArenaError::NoHeadroom { need, limit }) = &error else {
        panic!("{error}")
    };
    let Limit::FileSystem { total, free } = limit else { panic!("{error}") };
    assert!(*need == 8 << 20 && *total == 6 << 20 && *free < *total, "{error}");
    assert!(error.to_string().contains("size="), "{error}");
    // Nothing is left, and what fits is made.
    assert_eq!(fs::read_dir(&mount.0).expect("it is there").count(), 1, "the lock alone");
    drop(create(5 << 20).expect("it fits"));
    // The file system is full now, and the file is complete.
    assert!(fs::write(mount.0.join("more"), vec![1; 2 << 20]).is_err());
    let (node, _) = Node::recover_in(open(), 5 << 20, NodeOptions::default()).expect("it is whole");
    insert(node, &["key"; 1]);
}

#[test]
fn the_pages_are_those_of_the_file_system() {
    let memory = Memory::new();
    let file = memory.file().expect("a tmpfs");
    assert_eq!(file.pages(), [PageSize::Thp, PageSize::Base]);
    let memory_pages =
        Region::builder(BYTES).ladder(Ladder::new([PageSize::Huge2M, PageSize::Base]));
    let node =
        Node::create_in(file, memory_pages, NodeOptions::default()).expect("it has base pages");
    let ranges = &node.memory_receipt().ranges;
    assert!(ranges.len() == 1 && ranges[0].obtained == PageSize::Base, "{ranges:?}");
    assert!(ranges[0].fallbacks[0].to_string().contains("has no 2M pages"), "{ranges:?}");
    drop(node);
    memory.file().expect("free").remove().expect("it can be removed");
    let strict = Region::builder(BYTES).ladder(PageSize::Huge2M);
    let error = Node::create_in(memory.file().expect("free"), strict, NodeOptions::default());
    assert!(matches!(error, Err(NodeError::Memory(ArenaError::NoPages { .. }))), "{error:?}");
    assert_eq!(memory.names(), ["memory.lock"]);
}
