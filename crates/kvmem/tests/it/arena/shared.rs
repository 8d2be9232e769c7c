//! Shared memory: attaching, seals, and the end of its processes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::process::{Command, Stdio};

use super::{MIB, base, ordinary, page};
use crate::child;
use kvmem::arena::{
    ArenaError, Backing, Call, Errno, Fallback, Numa, PageSize, Populate, ProgressOptions,
    ReadOnlyRegion, Region,
};

/// Runs the test again in another process, as a child.
fn again(test: &str) -> Command {
    child::again(&format!("arena::shared::{test}"), test)
}

fn is_child(test: &str) -> bool {
    child::role().is_some_and(|child| child == test)
}

#[test]
fn a_second_process_attaches_and_both_see_the_same() {
    let test = "a_second_process_attaches_and_both_see_the_same";
    const LEN: usize = 3 * MIB;
    if is_child(test) {
        let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
        let region = Region::attach(fd, Some(LEN)).expect("the parent's memory");
        assert_eq!(region.receipt().backing, Some(Backing::Shared));
        // SAFETY: the parent waits for this process.
        let bytes = unsafe { region.slice(..).expect("all of it").as_mut_bytes() };
        assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == n as u8));
        bytes.fill(0xcc);
        return;
    }
    let region =
        base(LEN).backing(Backing::Shared).populate(Populate::Auto).map().expect("little memory");
    // SAFETY: the child does not exist yet.
    let bytes = unsafe { region.slice(..).expect("all of it").as_mut_bytes() };
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = n as u8;
    }
    let fd = region.share().expect("a descriptor").expect("shared memory has one");
    let output = again(test).stdin(Stdio::from(fd)).output().expect("a child");
    assert!(output.status.success(), "{output:?}");
    // SAFETY: the child has ended.
    assert!(unsafe { region.bytes() }.iter().all(|byte| *byte == 0xcc));
}

#[test]
fn the_size_cannot_be_changed() {
    let mut region = ordinary(2 * MIB).backing(Backing::Shared).map().expect("little memory");
    assert!(matches!(region.as_mut_bytes(), Err(ArenaError::Shared)));
    let file = File::from(region.share().expect("a descriptor").expect("shared memory has one"));
    for len in [0, page() as u64, region.len() as u64 + 1, 1 << 30] {
        let error = file.set_len(len).expect_err("sealed");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
    // SAFETY: the call takes a number.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }, -1);
    assert_eq!(file.metadata().expect("a file").len(), region.len() as u64);
}

/// A kernel that knows files of memory that cannot be executed, as Linux since 6.3, makes such.
#[test]
fn no_process_can_execute_the_file() {
    const F_SEAL_EXEC: libc::c_int = 0x20;
    // SAFETY: the name ends with a zero.
    let known =
        unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL) };
    if known < 0 {
        println!("skipped: the kernel does not know MFD_NOEXEC_SEAL");
        return;
    }
    // SAFETY: the descriptor was made just now, and is not used any more.
    unsafe { libc::close(known) };
    let region = base(MIB).backing(Backing::Shared).map().expect("little memory");
    let file = region.share().expect("a descriptor").expect("shared memory has one");
    // SAFETY: the call takes no argument.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    assert_eq!(seals & F_SEAL_EXEC, F_SEAL_EXEC, "{seals:#x}");
}

/// Hardened kernels warn of files of memory that may be executed, or make none. The setting is one
/// of a PID namespace, so the child has one of its own.
#[test]
fn hardened_kernels_make_shared_memory() {
    let test = "hardened_kernels_make_shared_memory";
    if is_child(test) {
        let level = std::fs::read_to_string("/proc/sys/vm/memfd_noexec").expect("it was written");
        // SAFETY: the name ends with a zero.
        let plain = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_EXEC) };
        assert_eq!(plain < 0, level.trim() == "2", "the kernel makes files that may be executed");
        let region = base(MIB).backing(Backing::Shared).map().expect("little memory");
        let fd = region.share().expect("a descriptor").expect("shared memory has one");
        Region::attach(fd, Some(region.len())).expect("the same memory");
        return;
    }
    for level in ["0", "1", "2"] {
        let set = "echo $0 > /proc/sys/vm/memfd_noexec && exec \"$@\"";
        let namespace = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
        let is_possible =
            Command::new("unshare").args(namespace).args([set, level, "true"]).output();
        if !is_possible.is_ok_and(|it| it.status.success()) {
            return println!("skipped: it takes root and a kernel with `vm.memfd_noexec`");
        }
        let child = again(test);
        let mut wrapped = Command::new("unshare");
        wrapped.args(namespace).args([set, level]).arg(child.get_program()).args(child.get_args());
        wrapped.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
        child::passes(&mut wrapped);
    }
}

#[test]
fn only_sealed_memory_of_the_right_size_is_attached() {
    let memfd = |flags| {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | flags) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was made just now.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(MIB as u64).expect("a size");
        file
    };
    for (flags, had) in [(libc::MFD_ALLOW_SEALING, 0), (0, libc::F_SEAL_SEAL)] {
        let error = Region::attach(memfd(flags), None).expect_err("unsealed");
        let ArenaError::Unsealed { seals, wanted } = error else { panic!("{error}") };
        assert_eq!(
            (seals, wanted),
            (had, libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
        );
    }
    let plain = File::open("/proc/self/exe").expect("the file of this test");
    let error = Region::attach(plain, None).expect_err("not memory");
    assert!(matches!(error, ArenaError::NotMemory | ArenaError::Unsealed { .. }), "{error}");
    let (pipe, _) = std::io::pipe().expect("a pipe");
    assert_eq!(Region::attach(pipe, None).expect_err("not memory"), ArenaError::NotMemory);

    let region = base(MIB).backing(Backing::Shared).map().expect("little memory");
    let fd = || region.share().expect("a descriptor").expect("shared memory has one");
    let error = Region::attach(fd(), Some(2 * MIB)).expect_err("another size");
    assert_eq!(error, ArenaError::WrongSize { found: 1 << 20, expected: 2 << 20 });
    let attached = Region::attach(fd(), Some(MIB)).expect("sealed memory");
    // It is independent of the first region.
    drop(region);
    attached.populate(.., Populate::Auto, &Default::default()).expect("little memory");
    assert!(attached.is_resident(..).expect("measured"));
    assert!(base(MIB).map().expect("little memory").share().expect("no call").is_none());
}

#[test]
fn nothing_remains_after_a_kill() {
    let test = "nothing_remains_after_a_kill";
    const LEN: usize = 128 * MIB;
    if is_child(test) {
        let region = base(LEN)
            .backing(Backing::Shared)
            .populate(Populate::Auto)
            .map()
            .expect("little memory");
        println!("\nready {}", region.receipt().resident_bytes());
        // Until it is killed, or the parent died.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let shared_memory = || {
        let text = std::fs::read_to_string("/proc/meminfo").expect("a file of the kernel");
        let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).expect("a figure");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    };
    let mut child =
        again(test).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("ready"));
    assert_eq!(ready, Some(format!("ready {LEN}")));
    // A file with a name would remain. Other processes may have such files at the same time.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("our child");
    let files = maps.lines().filter(|line| line.contains("rw-s")).collect::<Vec<_>>();
    let has_a_name = |line: &&str| !line.ends_with("(deleted)");
    assert!(!files.is_empty() && !files.iter().any(has_a_name), "{files:?}");
    let with = shared_memory();
    child.kill().expect("a child of this process");
    child.wait().expect("a child of this process");
    // Other processes use shared memory meanwhile, but not that much for so long.
    let freed = (0..3000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        shared_memory() + (LEN as u64 / 2) < with
    });
    assert!(freed, "{with} bytes of shared memory with the child, {} without", shared_memory());
}

/// Returns whether shared memory can be collapsed here: since Linux 6.1, unless the setting is
/// `deny`.
fn can_collapse() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|number| number.parse().ok()).take(2).collect();
    let denied = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").contains("[deny]");
    let off =
        read("/proc/self/status").lines().any(|line| line.replace('\t', " ") == "THP_enabled: 0");
    numbers >= vec![6, 1] && !denied && !off
}

#[test]
fn populated_shared_memory_is_in_hugepages_whatever_the_setting() {
    if !can_collapse() {
        return println!("skipped: this kernel cannot collapse shared memory");
    }
    const LEN: usize = 40 * MIB;
    let region = ordinary(LEN)
        .backing(Backing::Shared)
        .populate(Populate::Auto)
        .map()
        .expect("little memory");
    let [part] = &region.receipt().ranges[..] else { panic!("{:?}", region.receipt()) };
    assert_eq!((part.obtained, part.resident_bytes), (PageSize::Thp, LEN as u64));
    if let Some(huge) = part.huge_bytes {
        // The kernel may have few free hugepages, which the receipt then says; but not none.
        let partial = [Fallback::ThpPartial { huge, wanted: LEN as u64 }];
        assert!(
            huge > 0 && part.fallbacks == if huge == LEN as u64 { &[][..] } else { &partial },
            "{part:?}"
        );
    }
    // A second mapping uses the hugepages too: a first touch maps 2 MiB.
    let attached = Region::attach(
        region.share().expect("a descriptor").expect("shared memory has one"),
        Some(LEN),
    )
    .expect("a file of this process");
    assert_eq!(attached.base().addr().get() % PageSize::Thp.bytes(), 0);
    attached.populate(.., Populate::threads(1), &ProgressOptions::new()).expect("it is there");
    let found = |region: &Region| region.residency(..).expect("measured").huge_bytes;
    assert_eq!(found(&attached), found(&region));
}

#[test]
fn collapsing_changes_no_byte_and_fills_discarded_ranges() {
    const LEN: usize = 12 * MIB;
    let region = ordinary(LEN)
        .backing(Backing::Shared)
        .populate(Populate::threads(1))
        .map()
        .expect("little memory");
    // SAFETY: no other code has this memory.
    let bytes = || unsafe { region.slice(..).expect("all of it").as_mut_bytes() };
    let pattern = |at: usize| (at / 4096) as u8 ^ at as u8;
    for (at, byte) in bytes().iter_mut().enumerate() {
        *byte = pattern(at);
    }
    // Holes within a hugepage, at its edge, and of a whole one.
    let holes = [MIB..MIB + 5 * page(), 4 * MIB - page()..4 * MIB, 6 * MIB..8 * MIB];
    for hole in &holes {
        region.discard(hole.clone()).expect("not in use");
    }
    for range in [3..LEN - 3, MIB..5 * MIB, 0..LEN] {
        region
            .populate(range, Populate::threads(2), &ProgressOptions::new())
            .expect("little memory");
    }
    assert!(region.is_resident(..).expect("measured"));
    for (at, byte) in bytes().iter().enumerate() {
        let wanted = if holes.iter().any(|hole| hole.contains(&at)) { 0 } else { pattern(at) };
        assert_eq!(*byte, wanted, "at {at}");
    }
}

#[test]
fn shared_memory_that_is_not_collapsed_says_so() {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .unwrap_or_default();
    if !setting.contains("[never]") {
        return println!("skipped: faults make hugepages of shared memory here");
    }
    let got = |region: &Region| region.receipt().ranges[0].obtained;
    // Not populated; populated, but interleaved over nodes; and smaller than a hugepage.
    let lazy = ordinary(4 * MIB).backing(Backing::Shared).map().expect("little memory");
    assert_eq!(got(&lazy), PageSize::Base);
    assert!(matches!(lazy.receipt().ranges[0].fallbacks[..], [Fallback::ThpOff { .. }]));
    match ordinary(4 * MIB)
        .backing(Backing::Shared)
        .numa(Numa::Interleave(vec![0]))
        .populate(Populate::Auto)
        .map()
    {
        Ok(dealt) => assert_eq!(got(&dealt), PageSize::Base),
        Err(ArenaError::PolicyFailed { .. }) => println!("no policies here"),
        Err(error) => panic!("{error}"),
    }
    let short = ordinary(MIB)
        .backing(Backing::Shared)
        .populate(Populate::Auto)
        .map()
        .expect("little memory");
    assert_eq!((got(&short), short.len()), (PageSize::Base, MIB));
}

#[test]
fn page_tables_of_aliases_are_filled() {
    const LEN: usize = 3 * MIB;
    let region =
        base(LEN).backing(Backing::Shared).populate(Populate::Auto).map().expect("little memory");
    let watch = ProgressOptions::new();
    assert_eq!(region.populate_aliases(Populate::Auto, &watch).expect("nothing else"), 0);
    // Map a part of it by the descriptor, like an engine.
    let fd = region.fd().expect("shared memory has one");
    let flags = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: the kernel chooses the address.
    let theirs = unsafe {
        libc::mmap(std::ptr::null_mut(), 2 * MIB, flags.0, flags.1, fd.as_raw_fd(), MIB as i64)
    };
    assert_ne!(theirs, libc::MAP_FAILED);
    // SAFETY: the kernel chooses the address.
    let copy = unsafe {
        libc::mmap(std::ptr::null_mut(), MIB, flags.0, libc::MAP_PRIVATE, fd.as_raw_fd(), 0)
    };
    assert_ne!(copy, libc::MAP_FAILED);
    let at = std::ptr::NonNull::new(theirs.cast::<u8>()).expect("an address");
    // SAFETY: the range is mapped until the end of this test, and no reference to it exists.
    let view = unsafe { Region::from_raw(at, 2 * MIB, ()) }.expect("a view");
    assert_eq!(view.residency(..).expect("measured").resident_bytes, 0);
    // For each part: the whole file is populated, but no private copy of it.
    let (left, right) = region.split_at(MIB).expect("within");
    for part in [&left, &right] {
        assert_eq!(part.populate_aliases(Populate::threads(2), &watch).expect("resident"), 2 << 20);
    }
    assert_eq!(view.residency(..).expect("measured").resident_bytes, 2 << 20);
    drop(view);
    // SAFETY: the range was mapped above.
    assert_eq!(unsafe { libc::munmap(theirs, 2 * MIB) | libc::munmap(copy, MIB) }, 0);
    let private = base(LEN).map().expect("little memory");
    assert_eq!(private.populate_aliases(Populate::Auto, &watch).expect("nothing to do"), 0);
}

#[test]
fn readers_only_denies_other_writers() {
    const LEN: usize = 4 * MIB;
    let builder =
        ordinary(LEN).backing(Backing::Shared).readers_only(true).populate(Populate::Auto);
    let region = match builder.map() {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    // SAFETY: no other code has this memory.
    let bytes = || unsafe { region.slice(..).expect("all of it").as_mut_bytes() };
    bytes().fill(1);
    // Not even root can, with a descriptor open for writing in this process.
    let fd = || region.share().expect("a descriptor").expect("shared memory has one");
    let error = Region::attach(fd(), Some(LEN)).expect_err("sealed");
    let ArenaError::CallFailed { call: Call::MapFile, errno: Errno::EPERM, .. } = &error else {
        panic!("{error}")
    };
    let path = format!("/proc/self/fd/{}", fd().as_raw_fd());
    let again = File::options().read(true).write(true).open(path);
    assert!(again.and_then(|file| std::os::unix::fs::FileExt::write_at(&file, &[2], 0)).is_err());
    assert!(matches!(region.discard(0..page()), Err(ArenaError::CallFailed { .. })));
    // The region's own mapping can still be populated and written, and readers see the writes.
    region.populate(.., Populate::threads(2), &ProgressOptions::new()).expect("it is there");
    bytes().fill(3);
    let fd = region.share_read_only().expect("a descriptor").expect("shared memory has one");
    let seen = ReadOnlyRegion::attach(fd, Some(LEN)).expect("for reading");
    // SAFETY: no code writes meanwhile.
    assert!(unsafe { seen.bytes(..) }.expect("all of it").iter().all(|byte| *byte == 3));
}
