//! Shared pools: another process attaches, reads and writes, and either process may be killed.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use kvmem::arena::{ArenaError, Backing};
use kvmem::pool::{Access, AttachedPool, BlockRef, Pool, PoolError};

use super::{MIB, small};
use crate::child;

const LEN: usize = 100_000;

/// Returns a command that runs a test again in its own process, with a descriptor as its input.
fn again(test: &str, fd: OwnedFd, words: &[u64]) -> Command {
    let mut command = child::again(&format!("pool::shared::{test}"), test);
    let words: Vec<String> = words.iter().map(u64::to_string).collect();
    command.env("KVMEM_TEST_WORDS", words.join(" ")).stdin(Stdio::from(fd));
    command
}

/// Returns the descriptor and the block that the parent passed, if this process is the child.
fn passed_to(test: &str) -> Option<(OwnedFd, BlockRef)> {
    child::role().filter(|child| child == test)?;
    let words = std::env::var("KVMEM_TEST_WORDS").ok()?;
    let bits: Vec<u64> = words.split(' ').map(|word| word.parse().expect("a number")).collect();
    let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    Some((fd, BlockRef::from_bits(bits.try_into().expect("three numbers"))))
}

fn shared() -> Pool {
    small(MIB).backing(Backing::Shared).build().expect("little memory")
}

/// Waits for a line that begins with `word`.
fn wait_for(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    lines.map_while(Result::ok).find(|line| line.starts_with(word)).expect("the child says so")
}

#[test]
fn a_second_process_reads_and_writes() {
    let test = "a_second_process_reads_and_writes";
    if let Some((fd, block)) = passed_to(test) {
        let pool = AttachedPool::attach(fd, Access::ReadWrite).expect("the parent's pool");
        // SAFETY: the parent only waits meanwhile.
        let bytes = unsafe { pool.bytes_mut(block) }.expect("its block");
        assert!(bytes.len() == LEN && bytes.iter().enumerate().all(|(n, byte)| *byte == n as u8));
        bytes.fill(0xcc);
        return;
    }
    let pool = shared();
    let _before = pool.allocate(12_345).expect("room");
    let mut block = pool.allocate(LEN).expect("room");
    for (n, byte) in block.bytes_mut().iter_mut().enumerate() {
        *byte = n as u8;
    }
    let bits = block.reference().expect("shared").to_bits();
    assert_eq!(bits, [pool.share_id().expect("shared"), block.offset(), LEN as u64]);
    // SAFETY: the child writes to the block while no slice of it exists.
    let fd = unsafe { pool.share() }.expect("a descriptor");
    let output = again(test, fd, &bits).output().expect("a child");
    assert!(output.status.success(), "{output:?}");
    assert!(block.bytes().iter().all(|byte| *byte == 0xcc));
}

#[test]
fn a_read_only_process_cannot_write() {
    let test = "a_read_only_process_cannot_write";
    if let Some((fd, block)) = passed_to(test) {
        let error = AttachedPool::attach(fd.try_clone().expect("a descriptor"), Access::ReadWrite)
            .unwrap_err();
        assert!(
            matches!(
                &error,
                PoolError::Memory(inner) if matches!(**inner, ArenaError::CallFailed { .. })
            ),
            "{error}"
        );
        let pool = AttachedPool::attach(fd, Access::ReadOnly).expect("the parent's pool");
        // SAFETY: no process writes.
        assert!(unsafe { pool.bytes(block) }.expect("its block").iter().all(|byte| *byte == 7));
        // SAFETY: the call returns an error and no slice.
        assert_eq!(unsafe { pool.bytes_mut(block) }.unwrap_err(), PoolError::ReadOnly);
        return;
    }
    let pool = shared();
    let mut block = pool.allocate(LEN).expect("room");
    block.bytes_mut().fill(7);
    let fd = pool.share_read_only().expect("a descriptor");
    let output =
        again(test, fd, &block.reference().expect("shared").to_bits()).output().expect("a child");
    assert!(output.status.success(), "{output:?}");
}

/// Runs `child` in a forked child of another user and returns its exit status. The child may only
/// make system calls.
fn as_nobody(child: impl FnOnce() -> i32) -> i32 {
    const NOBODY: u32 = 65534;
    // SAFETY: the child makes system calls and ends with _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: changes the user of the child; no other thread runs in it.
            let switched = unsafe {
                libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setgid(NOBODY) == 0
                    && libc::setuid(NOBODY) == 0
            };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if switched { child() } else { 99 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

/// Tries every way to write by a descriptor; returns 0 if none works, else the number of the way.
/// Makes only system calls.
fn write_by(fd: i32, path: &std::ffi::CStr) -> i32 {
    let byte = [0xffu8];
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: system calls whose arguments outlive them.
    unsafe {
        if libc::pwrite(fd, byte.as_ptr().cast(), 1, 0) != -1 {
            return 1;
        }
        if libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, fd, 0)
            != libc::MAP_FAILED
        {
            return 2;
        }
        if libc::open(path.as_ptr(), libc::O_RDWR) != -1
            || libc::open(path.as_ptr(), libc::O_WRONLY) != -1
        {
            return 3;
        }
        if libc::fchmod(fd, 0o777) != -1 {
            return 4;
        }
        let seen = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        if seen == libc::MAP_FAILED || *seen.cast::<u8>() != 7 {
            return 5;
        }
        if libc::mprotect(seen, 4096, access) != -1 {
            return 6;
        }
    }
    0
}

#[test]
fn a_process_of_another_user_cannot_open_it_for_writing() {
    use std::os::fd::AsRawFd;
    // SAFETY: returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped: a child of another user takes root");
    }
    let pool = shared();
    let mut block = pool.allocate(LEN).expect("room");
    block.bytes_mut().fill(7);
    assert_eq!(block.offset(), 0);
    let fd = pool.share_read_only().expect("a descriptor");
    let path =
        std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no zero");
    assert_eq!(as_nobody(|| write_by(fd.as_raw_fd(), &path)), 0);
    // The mode of the file was widened: the next descriptor still allows no writing.
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::fchmod(fd.as_raw_fd(), 0o666) }, 0);
    let fd = pool.share_read_only().expect("a descriptor");
    let path =
        std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no zero");
    assert_eq!(as_nobody(|| write_by(fd.as_raw_fd(), &path)), 0);
    assert!(block.bytes().iter().all(|byte| *byte == 7));
    // A descriptor shared for writing works for another user.
    // SAFETY: the child writes while no slice of the block exists.
    let fd = unsafe { pool.share() }.expect("a descriptor");
    assert_eq!(as_nobody(|| write_by(fd.as_raw_fd(), &path)), 1);
    assert_eq!(block.bytes()[0], 0xff);
}

#[test]
fn the_pool_goes_on_when_the_other_is_killed() {
    let test = "the_pool_goes_on_when_the_other_is_killed";
    if let Some((fd, block)) = passed_to(test) {
        let pool = AttachedPool::attach(fd, Access::ReadWrite).expect("the parent's pool");
        // SAFETY: the parent only waits meanwhile.
        unsafe { pool.bytes_mut(block) }.expect("its block").fill(9);
        println!("\nready");
        std::thread::sleep(std::time::Duration::from_secs(600));
        return;
    }
    let pool = shared();
    let block = pool.allocate(LEN).expect("room");
    // SAFETY: the child writes to the block while no slice of it exists.
    let fd = unsafe { pool.share() }.expect("a descriptor");
    let bits = block.reference().expect("shared").to_bits();
    let mut other = again(test, fd, &bits).stdout(Stdio::piped()).spawn().expect("a child");
    wait_for(&mut other, "ready");
    other.kill().expect("our child");
    other.wait().expect("our child");
    assert!(block.bytes().iter().all(|byte| *byte == 9));
    drop(block);
    let all = pool.allocate(MIB).expect("all of it");
    assert!(all.bytes().len() == MIB && pool.check().is_ok());
}

#[test]
fn the_other_goes_on_when_the_pool_is_killed() {
    let test = "the_other_goes_on_when_the_pool_is_killed";
    if child::role().is_some_and(|child| child == test) {
        let pool = shared();
        let mut block = pool.allocate(LEN).expect("room");
        block.bytes_mut().fill(5);
        let fd = pool.share_read_only().expect("a descriptor");
        use std::os::fd::AsRawFd;
        let [number, offset, len] = block.reference().expect("shared").to_bits();
        println!("\nready {} {number} {offset} {len}", fd.as_raw_fd());
        std::io::stdout().flush().expect("a pipe");
        std::thread::sleep(std::time::Duration::from_secs(600));
        return;
    }
    let null = OwnedFd::from(std::fs::File::open("/dev/null").expect("a device"));
    let mut owner = again(test, null, &[]).stdout(Stdio::piped()).spawn().expect("a child");
    let line = wait_for(&mut owner, "ready");
    let words: Vec<u64> =
        line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
    let path = format!("/proc/{}/fd/{}", owner.id(), words[0]);
    let fd = match std::fs::File::open(&path) {
        Ok(file) => OwnedFd::from(file),
        Err(why) => {
            owner.kill().expect("our child");
            owner.wait().expect("our child");
            return println!("skipped: {path}: {why}");
        }
    };
    let pool = AttachedPool::attach(fd, Access::ReadOnly).expect("the child's pool");
    owner.kill().expect("our child");
    owner.wait().expect("our child");
    let block = BlockRef::from_bits([words[1], words[2], words[3]]);
    // SAFETY: the only process that could write has ended.
    let bytes = unsafe { pool.bytes(block) }.expect("its block");
    assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == 5));
}

#[test]
fn references_are_checked() {
    let (one, two) = (shared(), shared());
    assert_ne!(one.share_id(), two.share_id());
    let block = one.allocate(10).expect("room");
    let here = AttachedPool::attach(one.share_read_only().expect("a descriptor"), Access::ReadOnly)
        .expect("ours");
    let there =
        AttachedPool::attach(two.share_read_only().expect("a descriptor"), Access::ReadOnly)
            .expect("ours");
    assert_eq!(
        (here.len(), here.access(), Some(here.share_id())),
        (MIB, Access::ReadOnly, one.share_id())
    );
    let good = block.reference().expect("shared");
    assert_eq!(
        block.sub(2..5).expect("within").reference().expect("shared"),
        BlockRef { offset: good.offset + 2, len: 3, ..good }
    );
    let bad = [
        BlockRef { offset: MIB as u64, len: 1, ..good },
        BlockRef { offset: u64::MAX, len: 2, ..good },
        BlockRef { offset: 1, len: u64::MAX, ..good },
    ];
    // SAFETY: no process writes.
    unsafe {
        assert_eq!(here.bytes(good).expect("its block").len(), 10);
        for bad in bad {
            assert!(matches!(here.bytes(bad), Err(PoolError::OutOfBounds { .. })), "{bad:?}");
        }
        let error = there.bytes(good).unwrap_err();
        assert_eq!(error, PoolError::Foreign { of: here.share_id(), here: there.share_id() });
    }
    let json = serde_json::to_string(&good).expect("plain data");
    assert_eq!(serde_json::from_str::<BlockRef>(&json).expect("the same reference"), good);
    let private = small(MIB).build().expect("little memory");
    assert_eq!(private.allocate(1).expect("room").reference(), Err(PoolError::Private));
    assert_eq!(private.share_read_only().unwrap_err(), PoolError::Private);
    assert_eq!(private.share_id(), None);
}

#[test]
fn the_size_cannot_be_changed() {
    let pool =
        small(MIB).max_size(4 * MIB).backing(Backing::Shared).build().expect("little memory");
    // SAFETY: no process writes by it.
    let file = std::fs::File::from(unsafe { pool.share() }.expect("a descriptor"));
    for len in [0, MIB as u64, 8 * MIB as u64] {
        assert_eq!(file.set_len(len).expect_err("sealed").raw_os_error(), Some(libc::EPERM));
    }
    // A process that attached before the growth can use the new bytes.
    let seen = AttachedPool::attach(file, Access::ReadOnly).expect("ours");
    pool.grow_to(4 * MIB as u64).expect("addresses are there");
    let mut all = pool.allocate(4 * MIB).expect("all of it");
    all.bytes_mut()[4 * MIB - 1] = 3;
    // SAFETY: no process writes any more.
    let bytes = unsafe { seen.bytes(all.reference().expect("shared")) }.expect("all of it");
    assert_eq!(bytes[4 * MIB - 1], 3);
}
