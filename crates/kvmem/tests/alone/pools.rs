//! Real hugepages: full, partial and empty pools, strict and not.
//!
//! The tests reserve pages if they may, and restore the pool afterwards; otherwise they print why
//! not and pass.

use std::fs;

use super::child::{again, passes, role};
use super::{MIB, alone};
use kvmem::arena::{
    ArenaError, Backing, Fallback, Ladder, Limit, Numa, PageSize, Populate, Region, RegionBuilder,
};

const HUGE: usize = 2 * MIB;

/// Returns the kernel's folder for a pool.
fn folder(page: PageSize) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page.bytes() >> 10)
}

/// A pool of one size, restored when this value is dropped. Processes that change the pool take
/// turns by a lock on the kernel's file.
pub(super) struct Pool {
    page: PageSize,
    before: String,
    _turn: fs::File,
}

impl Pool {
    /// Makes exactly `pages` pages free, or returns why it cannot.
    pub(super) fn with_free(page: PageSize, pages: u64) -> Result<Pool, String> {
        let read = |file: &str| {
            fs::read_to_string(format!("{}/{file}", folder(page)))
                .map_err(|error| error.to_string())
        };
        let number = |file: &str| {
            read(file).and_then(|text| text.trim().parse::<u64>().map_err(|e| e.to_string()))
        };
        let turn = fs::File::open(format!("{}/nr_hugepages", folder(page)))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| error.to_string())?;
        let before = read("nr_hugepages")?;
        let used = number("nr_hugepages")? - number("free_hugepages")? + number("resv_hugepages")?;
        if number("nr_overcommit_hugepages")? > 0 {
            return Err("the pool may grow by itself".to_owned());
        }
        let pool = Pool { page, before, _turn: turn };
        fs::write(format!("{}/nr_hugepages", folder(page)), (used + pages).to_string())
            .map_err(|error| format!("nr_hugepages cannot be written: {error}"))?;
        let free = number("free_hugepages")? - number("resv_hugepages")?;
        if free == pages {
            Ok(pool)
        } else {
            Err(format!("the kernel found {free} of {pages} pages"))
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // If the file could not be written, nothing has changed.
        let _ = fs::write(format!("{}/nr_hugepages", folder(self.page)), self.before.trim());
    }
}

fn free() -> u64 {
    free_of(PageSize::Huge2M)
}

fn free_of(page: PageSize) -> u64 {
    let number = |file| {
        fs::read_to_string(format!("{}/{file}", folder(page)))
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    number("free_hugepages") - number("resv_hugepages")
}

macro_rules! pool {
    ($pages:expr) => {
        pool!(PageSize::Huge2M, $pages)
    };
    ($page:expr, $pages:expr) => {
        match Pool::with_free($page, $pages) {
            Ok(pool) => pool,
            Err(reason) => return println!("skipped: {reason}"),
        }
    };
}

/// Returns a builder with the pool and then base pages, so the setting of THP does not matter.
fn huge(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::new([PageSize::Huge2M, PageSize::Base]))
}

#[test]
fn a_sufficient_pool_provides_all_pages() {
    let _alone = alone();
    let _pool = pool!(8);
    for backing in [Backing::Private, Backing::Shared] {
        let region =
            huge(16 * MIB).backing(backing).populate(Populate::Auto).map().expect("8 pages");
        let [part] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
        assert_eq!((part.obtained, part.resident_bytes), (PageSize::Huge2M, 16 << 20));
        assert!(part.fallbacks.is_empty());
        assert_eq!(region.base().addr().get() % HUGE, 0);
        assert!(part.huge_bytes.is_none_or(|huge| huge == 16 << 20), "{part:?}");
        assert_eq!(free(), 0);
        // SAFETY: no other code has this memory.
        unsafe { region.slice(..).expect("all of it").as_mut_bytes() }.fill(1);
        let error = region.discard(..HUGE).expect_err("a later touch could kill");
        assert_eq!(error, ArenaError::Pooled { range: 0..HUGE, page: PageSize::Huge2M });
        drop(region);
        assert_eq!(free(), 8, "returned to the pool");
    }
}

#[test]
fn mapped_pages_are_reserved_before_the_first_touch() {
    let _alone = alone();
    let _pool = pool!(4);
    let mut first = huge(8 * MIB).map().expect("4 pages");
    assert_eq!(first.receipt().resident_bytes(), 0);
    assert_eq!(free(), 0);
    // No page remains for the second region. It therefore uses none, and is not killed at its first
    // touch.
    let mut second = huge(8 * MIB).populate(Populate::Auto).map().expect("base pages");
    assert_eq!(second.receipt().bytes_on(PageSize::Base), 8 * MIB);
    for region in [&mut first, &mut second] {
        region.as_mut_bytes().expect("private memory").fill(5);
    }
}

#[test]
fn a_partial_pool_provides_its_pages_and_the_rest_falls_one_rung() {
    let _alone = alone();
    let _pool = pool!(3);
    let region =
        huge(10 * MIB + 1).populate(Populate::threads(2)).map().expect("3 pages and others");
    let [first, rest] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
    assert_eq!((first.range.clone(), first.obtained), (0..3 * HUGE, PageSize::Huge2M));
    assert_eq!((rest.range.clone(), rest.obtained), (3 * HUGE..region.len(), PageSize::Base));
    assert_eq!(
        rest.fallbacks,
        [Fallback::PoolShort { page: PageSize::Huge2M, wanted: 5, free: 3 }]
    );
    assert_eq!(rest.requested, PageSize::Huge2M);
    assert_eq!(region.receipt().resident_bytes(), region.len() as u64);
    assert_eq!(
        (region.page_at(0), region.page_at(3 * HUGE)),
        (Some(PageSize::Huge2M), Some(PageSize::Base))
    );
    // Ranges outside the pool can be discarded; a range that is partly of the pool cannot.
    region.discard(3 * HUGE..).expect("base pages");
    assert!(matches!(
        region.discard(2 * HUGE..4 * HUGE),
        Err(ArenaError::Pooled { range, .. }) if range == (2 * HUGE..3 * HUGE)
    ));
    drop(region);
    assert_eq!(free(), 3);

    // A file has one kind of pages: all of them are from the pool, or none.
    let region = huge(10 * MIB).backing(kvmem::arena::Backing::Shared).map().expect("base pages");
    let [part] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
    assert_eq!(part.obtained, PageSize::Base);
    assert_eq!(
        part.fallbacks,
        [Fallback::PoolShort { page: PageSize::Huge2M, wanted: 5, free: 3 }]
    );
    assert_eq!(free(), 3);
}

#[test]
fn strict_is_all_or_nothing() {
    let _alone = alone();
    let _pool = pool!(3);
    for backing in [Backing::Private, Backing::Shared] {
        let error = huge(8 * MIB).strict(true).backing(backing).map().expect_err("3 pages of 4");
        let ArenaError::NoPages { range, page, reason, limit } = &error else { panic!("{error}") };
        assert_eq!((range.end, *page), (8 * MIB, PageSize::Huge2M));
        assert_eq!(*reason, Fallback::PoolShort { page: PageSize::Huge2M, wanted: 4, free: 3 });
        assert!(matches!(limit, Some(Limit::Pool { .. })), "{error}");
        assert!(error.to_string().contains("nr_hugepages"), "{error}");
        assert_eq!(free(), 3, "nothing is kept");

        let region = huge(6 * MIB - 1).strict(true).backing(backing).map().expect("3 pages of 3");
        assert_eq!((region.len(), free()), (3 * HUGE, 0));
    }
}

#[test]
fn an_empty_pool_is_skipped_with_a_reason() {
    let _alone = alone();
    let _pool = pool!(0);
    let region = Region::builder(4 * MIB + 1).map().expect("ordinary memory");
    let receipt = region.receipt();
    assert_eq!(receipt.bytes_on(PageSize::Huge2M), 0);
    for part in &receipt.ranges {
        assert_eq!(
            part.fallbacks[0],
            Fallback::PoolShort { page: PageSize::Huge2M, wanted: 2, free: 0 }
        );
    }
    // The ladder has no lower rung: mapping returns an error, not fewer pages.
    let error = Region::builder(4 * MIB).ladder(PageSize::Huge2M).map().expect_err("no pages");
    assert!(matches!(error, ArenaError::NoPages { .. }), "{error}");
}

#[test]
fn pages_that_could_kill_a_forked_child_are_not_used() {
    let _alone = alone();
    let _pool = pool!(2);
    let region = huge(4 * MIB).dont_fork(false).map().expect("base pages");
    let [part] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
    assert_eq!(part.fallbacks, [Fallback::Inherited { page: PageSize::Huge2M }]);
    // Shared pages belong to the file and are not copied.
    let region = huge(4 * MIB)
        .dont_fork(false)
        .backing(kvmem::arena::Backing::Shared)
        .map()
        .expect("2 pages");
    assert_eq!(region.receipt().bytes_on(PageSize::Huge2M), 4 * MIB);
}

#[test]
fn bound_pages_are_resident_at_once() {
    let _alone = alone();
    let _pool = pool!(2);
    match huge(6 * MIB).numa(Numa::Bind(vec![0])).map() {
        Ok(region) => {
            let receipt = region.receipt();
            assert!(receipt.policy_verified);
            let on_pool = receipt.bytes_on(PageSize::Huge2M);
            assert_eq!(receipt.resident_bytes(), on_pool as u64, "{receipt}");
        }
        Err(error @ ArenaError::PolicyFailed { .. }) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn attached_files_of_hugepages_are_recognized() {
    let _alone = alone();
    let _pool = pool!(2);
    let region = huge(4 * MIB).backing(kvmem::arena::Backing::Shared).map().expect("2 pages");
    let fd = region.share().expect("a descriptor").expect("shared memory has one");
    let attached = Region::attach(fd, Some(4 * MIB)).expect("sealed memory");
    assert_eq!(attached.receipt().bytes_on(PageSize::Huge2M), 4 * MIB);
    // SAFETY: no other code has this memory.
    unsafe { region.slice(..).expect("all of it").as_mut_bytes() }.fill(8);
    // SAFETY: no process writes any more.
    assert!(unsafe { attached.bytes() }.iter().all(|byte| *byte == 8));
    drop(region);
    assert_eq!(free(), 0);
    drop(attached);
    assert_eq!(free(), 2);
}

#[test]
fn pages_of_a_gibibyte_then_of_two_mebibytes_then_others() {
    let _alone = alone();
    let _pool = pool!(2);
    let _large = pool!(PageSize::Huge1G, 1);
    const GIB: usize = 1 << 30;
    let ladder: Ladder = "1G,2M,thp,4k".parse().expect("kinds of pages");
    let region = Region::builder(GIB + 6 * MIB + 1)
        .ladder(ladder)
        .populate(Populate::Auto)
        .map()
        .expect("pages");
    assert_eq!(region.base().addr().get() % GIB, 0);
    let receipt = region.receipt();
    assert_eq!(
        (receipt.ranges[0].range.clone(), receipt.ranges[0].obtained),
        (0..GIB, PageSize::Huge1G)
    );
    assert_eq!(
        (receipt.ranges[1].range.clone(), receipt.ranges[1].obtained),
        (GIB..GIB + 4 * MIB, PageSize::Huge2M)
    );
    assert_eq!(receipt.ranges[1].fallbacks, [Fallback::Tail { page: PageSize::Huge1G }]);
    assert_eq!(
        receipt.ranges[2].fallbacks[..2],
        [
            Fallback::Tail { page: PageSize::Huge1G },
            Fallback::PoolShort { page: PageSize::Huge2M, wanted: 3, free: 2 }
        ]
    );
    assert_eq!(receipt.resident_bytes(), region.len() as u64, "{receipt}");
    assert_eq!((free_of(PageSize::Huge1G), free()), (0, 0));
    drop(region);
    assert_eq!((free_of(PageSize::Huge1G), free()), (1, 2));

    // If it is the only rung, the size is rounded up to its pages. In an ascending ladder its pages
    // do not fit behind smaller ones.
    let region = Region::builder(1).ladder(Ladder::only(PageSize::Huge1G)).map().expect("a page");
    assert_eq!(region.len(), GIB);
    drop(region);
    let ladder: Ladder = "2M,1G,4k".parse().expect("kinds of pages");
    let region = Region::builder(GIB + 4 * MIB).ladder(ladder).map().expect("2 pages and others");
    let rest = &region.receipt().ranges[1];
    assert_eq!((rest.range.start, rest.obtained), (4 * MIB, PageSize::Base));
    assert_eq!(rest.fallbacks[1], Fallback::Unaligned { page: PageSize::Huge1G });
}

/// A cgroup with a limit on the bytes of 2 MiB pages, if cgroups of version 2 count them.
struct Group {
    path: std::path::PathBuf,
    /// The controller that was enabled for it.
    control: std::path::PathBuf,
}

impl Group {
    fn new(bytes: usize) -> Result<Group, String> {
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let line = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .ok_or("no cgroup2 is mounted")?;
        let top = std::path::Path::new(line.split(' ').nth(4).ok_or("a strange line")?);
        let control = top.join("cgroup.subtree_control");
        let on = fs::read_to_string(&control).map_err(|error| error.to_string())?;
        if on.contains("hugetlb") {
            return Err("the hugetlb controller is in use".to_owned());
        }
        fs::write(&control, "+hugetlb")
            .map_err(|error| format!("{}: {error}", control.display()))?;
        let group = Group { path: top.join(format!("kvmem-huge-{}", std::process::id())), control };
        fs::create_dir(&group.path)
            .and_then(|()| fs::write(group.path.join("hugetlb.2MB.max"), bytes.to_string()))
            .map_err(|error| format!("{}: {error}", group.path.display()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group that could not be made need not be removed.
        let _ = fs::remove_dir(&self.path);
        let _ = fs::write(&self.control, "-hugetlb");
    }
}

#[test]
fn a_hugetlb_cgroup_is_read_before_its_pages_would_kill() {
    let _alone = alone();
    let test = "pools::a_hugetlb_cgroup_is_read_before_its_pages_would_kill";
    if let Some(path) = role() {
        fs::write(format!("{path}/cgroup.procs"), "0").expect("the parent could make the group");
        let mut region = huge(8 * MIB).map().expect("2 pages and others");
        let [first, rest] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
        assert_eq!((first.range.clone(), first.obtained), (0..4 * MIB, PageSize::Huge2M));
        assert_eq!(
            rest.fallbacks,
            [Fallback::CgroupShort { page: PageSize::Huge2M, wanted: 4, remaining: 2 }]
        );
        // Without the check the kernel would kill the process here.
        region.as_mut_bytes().expect("private memory").fill(1);
        return;
    }
    let _pool = pool!(4);
    let group = match Group::new(4 * MIB) {
        Ok(group) => group,
        Err(reason) => return println!("skipped: {reason}"),
    };
    passes(&mut again(test, group.path.to_str().expect("a plain path")));
}
