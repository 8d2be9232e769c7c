//! Forked children, with the memory and without it.

use super::{backing, base, ordinary, page};
use crate::child::forked;
use kvmem::arena::{Populate, Region};

/// Returns 0 if the first page is mapped in this process, 1 if not.
fn absent(region: &Region) -> i32 {
    let mut answer = 0u8;
    // SAFETY: the call reports on one page, and the vector has one byte.
    i32::from(unsafe { libc::mincore(region.base().as_ptr().cast(), page(), &mut answer) } != 0)
}

#[test]
fn children_inherit_a_region_only_on_request() {
    for shared in [false, true] {
        let builder = ordinary(8 * page()).backing(backing(shared)).populate(Populate::threads(1));
        let region = builder.clone().map().expect("little memory");
        assert_eq!(absent(&region), 0);
        assert_eq!(forked(|| absent(&region)), 1, "shared: {shared}");
        let region = builder.dont_fork(false).map().expect("little memory");
        assert_eq!(forked(|| absent(&region)), 0, "shared: {shared}");
    }
}

#[test]
fn an_inherited_region_is_a_copy_or_shared() {
    for shared in [false, true] {
        let region =
            base(page()).backing(backing(shared)).dont_fork(false).map().expect("little memory");
        let byte = region.base();
        // SAFETY: no other code has this memory.
        unsafe { byte.write_volatile(1) };
        let seen = forked(|| {
            // SAFETY: the child has inherited it.
            unsafe {
                let seen = byte.read_volatile();
                byte.write_volatile(2);
                i32::from(seen)
            }
        });
        assert_eq!(seen, 1);
        // SAFETY: the child has ended.
        assert_eq!(unsafe { byte.read_volatile() }, if shared { 2 } else { 1 });
    }
}

#[test]
fn a_child_that_drops_the_region_unmaps_nothing() {
    let region = base(page()).map().expect("little memory");
    let at = region.base();
    let status = forked(|| {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is mapped there in the child.
        let own = unsafe { libc::mmap(at.as_ptr().cast(), page(), protection, flags, -1, 0) };
        if own != at.as_ptr().cast() {
            return 2;
        }
        // SAFETY: the child ends with _exit, so the value is dropped once in this process.
        drop(unsafe { std::ptr::read(&region) });
        absent_at(own)
    });
    assert_eq!(status, 0);
    drop(region);
}

fn absent_at(at: *mut libc::c_void) -> i32 {
    let mut answer = 0u8;
    // SAFETY: the call reports on one page, and the vector has one byte.
    i32::from(unsafe { libc::mincore(at, page(), &mut answer) } != 0)
}

#[test]
fn core_dumps_omit_a_region_by_default() {
    let flags = |region: &Region| {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("this process's maps");
        let start = format!("{:x}-", region.base().addr());
        let block = smaps.split_once(&start).map(|(_, after)| after).expect("a mapping of its own");
        let line = block.lines().find_map(|line| line.strip_prefix("VmFlags:")).expect("flags");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let builder = base(3 * page()).guard_pages(true);
    let kept = flags(&builder.clone().map().expect("little memory"));
    assert!(kept.contains(&"dd".to_owned()) && kept.contains(&"dc".to_owned()), "{kept:?}");
    let dumped = flags(&builder.dont_dump(false).dont_fork(false).map().expect("little memory"));
    assert!(!dumped.contains(&"dd".to_owned()) && !dumped.contains(&"dc".to_owned()), "{dumped:?}");
}
