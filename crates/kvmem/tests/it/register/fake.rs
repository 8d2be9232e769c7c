//! A registrar as a user of the library would write one: it keeps books, and fails when told to.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvmem::arena::{Errno, Region};
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

/// What a fake does wrong, by the number of the call, from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub register: Vec<u64>,
    /// From which call on, and how many.
    pub deregister: Vec<(u64, u64)>,
    pub panic_at: Option<u64>,
}

#[derive(Debug, Default)]
struct Books {
    live: BTreeMap<u64, (usize, usize)>,
    registered: u64,
    deregistered: u64,
    faults: Faults,
}

#[derive(Clone, Debug)]
pub(crate) struct Fake {
    limits: Limits,
    books: Arc<Mutex<Books>>,
    /// How many fakes are in a call now, and at most; shared by those made together.
    pub(crate) inside: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    pub(crate) takes: Duration,
    /// So many are to be in a call at once.
    pub(crate) meet: usize,
}

/// How long one waits for the others.
const PATIENCE: Duration = Duration::from_secs(10);

impl Fake {
    pub(crate) fn new(name: &str, limits: Limits) -> Fake {
        Fake {
            limits: Limits { device: name.to_owned(), ..limits },
            books: Arc::default(),
            inside: Arc::default(),
            most: Arc::default(),
            takes: Duration::ZERO,
            meet: 0,
        }
    }

    /// Some that count together how many are at work, with chunks of at most `max_bytes`.
    pub(crate) fn some(count: usize, max_bytes: u64) -> Vec<Fake> {
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        (0..count)
            .map(|number| {
                let limits = Limits { max_bytes, ..Limits::none("") };
                let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
                Fake { inside, most, ..Fake::new(&format!("fake:{number}"), limits) }
            })
            .collect()
    }

    pub(crate) fn taking(self, takes: Duration) -> Fake {
        Fake { takes, ..self }
    }

    /// Calls do not return before so many have been there at once, however late their threads come:
    /// what is to be seen is that they are called side by side, not how fast this machine is.
    /// One that waits in vain returns in the end.
    pub(crate) fn meeting(self, meet: usize) -> Fake {
        Fake { meet, ..self }
    }

    pub(crate) fn with(self, faults: Faults) -> Fake {
        self.books.lock().unwrap().faults = faults;
        self
    }

    pub(crate) fn live(&self) -> usize {
        self.books.lock().unwrap().live.len()
    }

    /// Registrations made, failed ones included.
    pub(crate) fn calls(&self) -> u64 {
        self.books.lock().unwrap().registered
    }

    /// Whether the live keys cover a region exactly.
    pub(crate) fn covers(&self, region: &Region) -> bool {
        let books = self.books.lock().unwrap();
        let mut ranges: Vec<(usize, usize)> = books.live.values().copied().collect();
        ranges.sort_unstable();
        let mut at = region.base().addr().get();
        ranges.iter().all(|(start, len)| std::mem::replace(&mut at, start + len) == *start)
            && at == region.base().addr().get() + region.len()
    }

    fn enter(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let began = Instant::now();
        while self.most.load(Ordering::SeqCst) < self.meet && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(100));
        }
        if !self.takes.is_zero() {
            std::thread::sleep(self.takes);
        }
    }
}

/// All of them as the library wants them.
pub(crate) fn registrars(fakes: &[Fake]) -> Vec<Arc<dyn Registrar>> {
    fakes.iter().map(|fake| Arc::new(fake.clone()) as Arc<dyn Registrar>).collect()
}

/// Keys that are live at any of them.
pub(crate) fn live(fakes: &[Fake]) -> usize {
    fakes.iter().map(Fake::live).sum()
}

impl Registrar for Fake {
    fn name(&self) -> &str {
        &self.limits.device
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        self.enter();
        let mut books = self.books.lock().unwrap();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        books.registered += 1;
        let nth = books.registered;
        if books.faults.panic_at == Some(nth) {
            drop(books);
            panic!("the fake was told to");
        }
        if books.faults.register.contains(&nth) {
            return Err(RegistrarError::new("fake_reg_mr", Errno::ENOMEM, "tell the fake not to"));
        }
        assert!(len as u64 <= self.limits.max_bytes, "{len} bytes are too many");
        books.live.insert(nth, (at.addr().get(), len));
        Ok(Key { handle: nth, lkey: nth, rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.enter();
        let mut books = self.books.lock().unwrap();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        books.deregistered += 1;
        let nth = books.deregistered;
        if books.faults.deregister.iter().any(|(from, times)| nth >= *from && nth - from < *times) {
            return Err(RegistrarError::new("fake_dereg_mr", Errno::EBUSY, "tell the fake not to"));
        }
        let known = books.live.remove(&key.handle);
        known.map(drop).ok_or_else(|| {
            RegistrarError::new("fake_dereg_mr", Errno::EINVAL, "that key is not out")
        })
    }
}
