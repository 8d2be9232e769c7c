use std::cell::Cell;

use super::*;

/// A pool whose loans are not mapped yet: what it has beyond `used` is free.
struct FakePool {
    total: Cell<u64>,
    used: u64,
    most: u64,
}

impl FakePool {
    fn new(total: u64, used: u64) -> FakePool {
        FakePool { total: Cell::new(total), used, most: u64::MAX }
    }
}

impl Pool for FakePool {
    fn total(&self) -> Result<u64, String> {
        Ok(self.total.get())
    }

    fn free(&self) -> Result<u64, String> {
        Ok(self.total.get() - self.used)
    }

    fn resize(&self, pages: u64) -> Result<(), String> {
        self.total.set(pages.min(self.most));
        Ok(())
    }
}

/// A ledger of its own for each test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("kvmem-ledger-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        Place(path)
    }

    fn borrow(&self, pool: &FakePool, loan: &Borrower, most: u64) -> Result<(), String> {
        Locked::open(&self.0, true).unwrap().borrow(pool, loan, most)
    }

    fn give_back(&self, pool: &FakePool, loan: &Borrower) -> Option<Restored> {
        Locked::open(&self.0, false).unwrap().give_back(pool, |other| other == loan).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn alive(loan: u32, pages: u64) -> Borrower {
    let process = std::process::id();
    Borrower { process, start: start_of(process).unwrap(), loan, pages }
}

/// A loan of a process that has ended.
fn dead(pages: u64) -> Borrower {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let process = child.id();
    let start = start_of(process).unwrap_or(1);
    child.wait().unwrap();
    Borrower { process, start, loan: 0, pages }
}

#[test]
fn loans_add_up_and_the_last_restores() {
    let (place, pool) = (Place::new("add"), FakePool::new(10, 4));
    let (one, two) = (alive(1, 8), alive(2, 100));
    // Six are free: two are lacking.
    place.borrow(&pool, &one, 1000).unwrap();
    assert_eq!(pool.total.get(), 12);
    assert_eq!(lent(&place.0), 2);
    place.borrow(&pool, &two, 1000).unwrap();
    assert_eq!(pool.total.get(), 112, "what the first has not mapped yet is its own");
    assert_eq!(place.give_back(&pool, &one), None);
    assert_eq!(pool.total.get(), 104);
    assert!(place.0.exists());
    place.give_back(&pool, &two);
    assert_eq!((pool.total.get(), place.0.exists(), lent(&place.0)), (10, false, 0));
    place.give_back(&pool, &two);
    assert_eq!((pool.total.get(), place.0.exists()), (10, false), "twice is once");
}

#[test]
fn what_a_killed_run_left_is_settled() {
    let (place, pool) = (Place::new("killed"), FakePool::new(3, 3));
    let gone = dead(50);
    place.borrow(&pool, &gone, 1000).unwrap();
    assert_eq!(pool.total.get(), 53);
    // Another run goes on meanwhile: it keeps its own.
    let other = alive(1, 5);
    place.borrow(&pool, &other, 1000).unwrap();
    assert_eq!(pool.total.get(), 8);
    place.borrow(&pool, &gone, 1000).unwrap();
    let restored = place.give_back(&pool, &other);
    assert_eq!(restored, Some(Restored { found: 58, pages: 8, left_by: vec![gone.process] }));
    assert_eq!((pool.total.get(), place.0.exists()), (3, false));
}

#[test]
fn a_process_with_the_number_of_one_that_ended_is_another() {
    let (place, pool) = (Place::new("number"), FakePool::new(0, 0));
    let mut before = alive(1, 7);
    before.start -= 1;
    place.borrow(&pool, &before, 1000).unwrap();
    assert_eq!(pool.total.get(), 7);
    let recovered = Locked::open(&place.0, false).unwrap().give_back(&pool, |_| false).unwrap();
    assert_eq!(recovered.map(|restored| restored.pages), Some(0));
    assert!(!place.0.exists());
}

#[test]
fn what_cannot_be_had_changes_nothing() {
    let (place, pool) = (Place::new("refused"), FakePool { most: 20, ..FakePool::new(10, 10) });
    let reason = place.borrow(&pool, &alive(1, 6), 5).unwrap_err();
    assert!(reason.contains("6 hugepages") && reason.contains("available"), "{reason}");
    assert_eq!((pool.total.get(), place.0.exists()), (10, false));
    let reason = place.borrow(&pool, &alive(1, 30), 1000).unwrap_err();
    assert!(reason.contains("only 10 of 30"), "{reason}");
    assert_eq!((pool.total.get(), place.0.exists()), (10, false));
    // Nor anything of a run that has some.
    let some = alive(2, 4);
    place.borrow(&pool, &some, 1000).unwrap();
    place.borrow(&pool, &alive(1, 30), 1000).unwrap_err();
    assert_eq!(pool.total.get(), 14);
    place.give_back(&pool, &some);
    assert_eq!((pool.total.get(), place.0.exists()), (10, false));
}

#[test]
fn a_size_that_somebody_else_has_set_stays() {
    for set in [2, 500] {
        let (place, pool) = (Place::new("set"), FakePool::new(10, 0));
        let loan = alive(1, 100);
        place.borrow(&pool, &loan, 1000).unwrap();
        pool.total.set(set);
        place.give_back(&pool, &loan);
        assert_eq!((pool.total.get(), place.0.exists()), (set, false));
    }
}

#[test]
fn a_ledger_of_before_the_machine_was_started_says_nothing() {
    let (place, pool) = (Place::new("boot"), FakePool::new(40, 0));
    let ledger =
        Ledger { boot: "another".into(), before: 1, spare: 0, goal: 40, borrowers: vec![dead(39)] };
    assert_eq!(Ledger::parse(&ledger.text()), Some(ledger.clone()));
    fs::write(&place.0, ledger.text()).unwrap();
    assert_eq!(lent(&place.0), 0);
    assert_eq!(place.give_back(&pool, &dead(39)), None);
    assert_eq!((pool.total.get(), place.0.exists()), (40, false));
}

#[test]
fn a_damaged_ledger_is_told() {
    for text in ["x", "before 1\n", "boot a\nborrower 1 2\n", "boot a\nbefore -1"] {
        let place = Place::new("damaged");
        fs::write(&place.0, text).unwrap();
        let reason = Locked::open(&place.0, true).err().unwrap();
        assert!(reason.contains("is damaged"), "{text:?}: {reason}");
    }
}

#[test]
fn a_ledger_has_an_end() {
    let (place, pool) = (Place::new("end"), FakePool::new(0, 0));
    let refused = (0..).find_map(|loan| {
        place.borrow(&pool, &alive(loan, 1), 1000).err().map(|error| (loan, error))
    });
    let (loans, reason) = refused.unwrap();
    assert!(loans > 50 && reason.contains("too many runs"), "{loans}: {reason}");
    assert_eq!(pool.total.get(), u64::from(loans), "the others keep theirs");
}
