use std::cell::Cell;

use tempfile::TempPath;

use super::*;

/// A pool whose loans are not mapped yet: all pages beyond `used` are free.
struct FakePool {
    total: Cell<u64>,
    used: u64,
    max_pages: u64,
}

impl FakePool {
    fn new(total: u64, used: u64) -> FakePool {
        FakePool { total: Cell::new(total), used, max_pages: u64::MAX }
    }
}

impl HugepagePool for FakePool {
    fn total(&self) -> Result<u64, String> {
        Ok(self.total.get())
    }

    fn free(&self) -> Result<u64, String> {
        Ok(self.total.get() - self.used)
    }

    fn resize(&self, pages: u64) -> Result<(), String> {
        self.total.set(pages.min(self.max_pages));
        Ok(())
    }
}

/// A loan file for one test.
struct TestFile(TempPath);

impl TestFile {
    fn new(name: &str) -> TestFile {
        let unmade = tempfile::Builder::new().prefix(name).make(|_| Ok(()));
        TestFile(unmade.unwrap().into_temp_path())
    }

    fn borrow(&self, pool: &FakePool, loan: &Loan, max_pages: u64) -> Result<(), String> {
        LockedLoans::open(&self.0, true).unwrap().borrow(pool, loan, max_pages)
    }

    fn give_back(&self, pool: &FakePool, loan: &Loan) -> Option<Restored> {
        LockedLoans::open(&self.0, false).unwrap().give_back(pool, |other| other == loan).unwrap()
    }
}

fn alive(number: u32, pages: u64) -> Loan {
    let process = std::process::id();
    Loan { process, start: start_of(process).unwrap(), number, pages }
}

/// A loan of a process that has ended.
fn dead(pages: u64) -> Loan {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let process = child.id();
    let start = start_of(process).unwrap_or(1);
    child.wait().unwrap();
    Loan { process, start, number: 0, pages }
}

#[test]
fn loans_add_up_and_the_last_restores() {
    let (file, pool) = (TestFile::new("add"), FakePool::new(10, 4));
    let (one, two) = (alive(1, 8), alive(2, 100));
    // Six are free: two are missing.
    file.borrow(&pool, &one, 1000).unwrap();
    assert_eq!(pool.total.get(), 12);
    assert_eq!(lent_pages(&file.0), 2);
    file.borrow(&pool, &two, 1000).unwrap();
    assert_eq!(pool.total.get(), 112, "the first loan keeps the pages it has not mapped yet");
    assert_eq!(file.give_back(&pool, &one), None);
    assert_eq!(pool.total.get(), 104);
    assert!(file.0.exists());
    file.give_back(&pool, &two);
    assert_eq!((pool.total.get(), file.0.exists(), lent_pages(&file.0)), (10, false, 0));
    file.give_back(&pool, &two);
    assert_eq!((pool.total.get(), file.0.exists()), (10, false), "returning twice has no effect");
}

#[test]
fn the_loans_of_a_killed_run_are_returned() {
    let (file, pool) = (TestFile::new("killed"), FakePool::new(3, 3));
    let gone = dead(50);
    file.borrow(&pool, &gone, 1000).unwrap();
    assert_eq!(pool.total.get(), 53);
    // Another run continues meanwhile and keeps its own pages.
    let other = alive(1, 5);
    file.borrow(&pool, &other, 1000).unwrap();
    assert_eq!(pool.total.get(), 8);
    file.borrow(&pool, &gone, 1000).unwrap();
    let restored = file.give_back(&pool, &other);
    assert_eq!(restored, Some(Restored { found: 58, pages: 8, left_by: vec![gone.process] }));
    assert_eq!((pool.total.get(), file.0.exists()), (3, false));
}

#[test]
fn a_reused_process_number_is_another_process() {
    let (file, pool) = (TestFile::new("number"), FakePool::new(0, 0));
    let mut before = alive(1, 7);
    before.start -= 1;
    file.borrow(&pool, &before, 1000).unwrap();
    assert_eq!(pool.total.get(), 7);
    let recovered = LockedLoans::open(&file.0, false).unwrap().give_back(&pool, |_| false).unwrap();
    assert_eq!(recovered.map(|restored| restored.pages), Some(0));
    assert!(!file.0.exists());
}

#[test]
fn a_failed_loan_changes_nothing() {
    let (file, pool) =
        (TestFile::new("failed"), FakePool { max_pages: 20, ..FakePool::new(10, 10) });
    let reason = file.borrow(&pool, &alive(1, 6), 5).unwrap_err();
    assert!(reason.contains("6 hugepages") && reason.contains("available"), "{reason}");
    assert_eq!((pool.total.get(), file.0.exists()), (10, false));
    let reason = file.borrow(&pool, &alive(1, 30), 1000).unwrap_err();
    assert!(reason.contains("only 10 of 30"), "{reason}");
    assert_eq!((pool.total.get(), file.0.exists()), (10, false));
    // Neither does it change the other loans of a run.
    let some = alive(2, 4);
    file.borrow(&pool, &some, 1000).unwrap();
    file.borrow(&pool, &alive(1, 30), 1000).unwrap_err();
    assert_eq!(pool.total.get(), 14);
    file.give_back(&pool, &some);
    assert_eq!((pool.total.get(), file.0.exists()), (10, false));
}

#[test]
fn a_size_that_another_process_has_set_stays() {
    for set in [2, 500] {
        let (file, pool) = (TestFile::new("set"), FakePool::new(10, 0));
        let loan = alive(1, 100);
        file.borrow(&pool, &loan, 1000).unwrap();
        pool.total.set(set);
        file.give_back(&pool, &loan);
        assert_eq!((pool.total.get(), file.0.exists()), (set, false));
    }
}

#[test]
fn loans_of_an_earlier_boot_have_ended() {
    let (file, pool) = (TestFile::new("boot"), FakePool::new(40, 0));
    let loans =
        Loans { boot: "another".into(), before: 1, spare: 0, goal: 40, loans: vec![dead(39)] };
    assert_eq!(Loans::parse(&loans.text()), Some(loans.clone()));
    fs::write(&file.0, loans.text()).unwrap();
    assert_eq!(lent_pages(&file.0), 0);
    assert_eq!(file.give_back(&pool, &dead(39)), None);
    assert_eq!((pool.total.get(), file.0.exists()), (40, false));
}

#[test]
fn a_damaged_file_is_an_error() {
    for text in ["x", "before 1\n", "boot a\nborrower 1 2\n", "boot a\nbefore -1"] {
        let file = TestFile::new("damaged");
        fs::write(&file.0, text).unwrap();
        let reason = LockedLoans::open(&file.0, true).err().unwrap();
        assert!(reason.contains("is damaged"), "{text:?}: {reason}");
    }
}

#[test]
fn the_size_of_the_file_is_limited() {
    let (file, pool) = (TestFile::new("end"), FakePool::new(0, 0));
    let failed = (0..).find_map(|number| {
        file.borrow(&pool, &alive(number, 1), 1000).err().map(|error| (number, error))
    });
    let (loans, reason) = failed.unwrap();
    assert!(loans > 50 && reason.contains("too many runs"), "{loans}: {reason}");
    assert_eq!(pool.total.get(), u64::from(loans), "the other loans keep theirs");
}
