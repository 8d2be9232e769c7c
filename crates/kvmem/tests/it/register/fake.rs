//! A registrar as a user of the library would write one. It records its keys and has injected
//! faults.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kvmem::arena::{Errno, Region};
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

/// The faults of a fake, by the number of the call, from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub register: Vec<u64>,
    /// The first call that fails, and how many fail.
    pub deregister: Vec<(u64, u64)>,
    pub panic_at: Option<u64>,
}

#[derive(Debug, Default)]
struct FakeState {
    live: BTreeMap<u64, (usize, usize)>,
    registered: u64,
    deregistered: u64,
    faults: Faults,
}

#[derive(Clone, Debug)]
pub(crate) struct Fake {
    limits: Limits,
    state: Arc<Mutex<FakeState>>,
    /// How many fakes are in a call now, and at most; shared by fakes that are created together.
    pub(crate) inside: Arc<AtomicUsize>,
    pub(crate) max_inside: Arc<AtomicUsize>,
    pub(crate) takes: Duration,
    /// How many fakes must be in a call at once before calls return.
    pub(crate) meet: usize,
    gate: Option<Gate>,
}

/// How long a fake waits for the others, or at a gate. Only a fault takes as long.
const LIMIT: Duration = Duration::from_secs(120);

/// Lets some calls of the fakes pass, and holds the others until it is opened: what a test does
/// meanwhile happens in the middle of the work, however busy the machine is.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// How many more calls pass.
    left: Arc<(Mutex<usize>, Condvar)>,
}

impl Gate {
    pub(crate) fn after(calls: usize) -> Gate {
        Gate { left: Arc::new((Mutex::new(calls), Condvar::new())) }
    }

    /// Lets all calls pass.
    pub(crate) fn open(&self) {
        *self.left.0.lock().unwrap() = usize::MAX;
        self.left.1.notify_all();
    }

    fn pass(&self) {
        let (left, changed) = (&self.left.0, &self.left.1);
        let waited = changed.wait_timeout_while(left.lock().unwrap(), LIMIT, |left| *left == 0);
        let (mut left, _) = waited.unwrap();
        *left = left.saturating_sub(usize::from(*left < usize::MAX));
    }
}

impl Fake {
    pub(crate) fn new(name: &str, limits: Limits) -> Fake {
        Fake {
            limits: Limits { device: name.to_owned(), ..limits },
            state: Arc::default(),
            inside: Arc::default(),
            max_inside: Arc::default(),
            takes: Duration::ZERO,
            meet: 0,
            gate: None,
        }
    }

    /// Creates fakes that share a count of concurrent calls, with chunks of at most `max_bytes`.
    pub(crate) fn some(count: usize, max_bytes: u64) -> Vec<Fake> {
        let (inside, max_inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        (0..count)
            .map(|number| {
                let limits = Limits { max_bytes, ..Limits::none("") };
                let (inside, max_inside) = (Arc::clone(&inside), Arc::clone(&max_inside));
                Fake { inside, max_inside, ..Fake::new(&format!("fake:{number}"), limits) }
            })
            .collect()
    }

    pub(crate) fn taking(self, takes: Duration) -> Fake {
        Fake { takes, ..self }
    }

    /// Makes calls wait until `meet` fakes have been in a call at once, however late their threads
    /// come. Tests check concurrency, not the speed of the machine. A call that waits too long
    /// returns.
    pub(crate) fn meeting(self, meet: usize) -> Fake {
        Fake { meet, ..self }
    }

    pub(crate) fn behind(self, gate: &Gate) -> Fake {
        Fake { gate: Some(gate.clone()), ..self }
    }

    pub(crate) fn with(self, faults: Faults) -> Fake {
        self.state.lock().unwrap().faults = faults;
        self
    }

    pub(crate) fn live(&self) -> usize {
        self.state.lock().unwrap().live.len()
    }

    /// Returns the number of registering calls, failed ones included.
    pub(crate) fn calls(&self) -> u64 {
        self.state.lock().unwrap().registered
    }

    /// Returns whether the live keys cover a region exactly.
    pub(crate) fn covers(&self, region: &Region) -> bool {
        let state = self.state.lock().unwrap();
        let mut ranges: Vec<(usize, usize)> = state.live.values().copied().collect();
        ranges.sort_unstable();
        let mut at = region.base().addr().get();
        ranges.iter().all(|(start, len)| std::mem::replace(&mut at, start + len) == *start)
            && at == region.base().addr().get() + region.len()
    }

    fn enter(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_inside.fetch_max(inside, Ordering::SeqCst);
        let began = Instant::now();
        while self.max_inside.load(Ordering::SeqCst) < self.meet && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_micros(100));
        }
        if let Some(gate) = &self.gate {
            gate.pass();
        }
        if !self.takes.is_zero() {
            std::thread::sleep(self.takes);
        }
    }
}

/// Returns the fakes as registrars.
pub(crate) fn registrars(fakes: &[Fake]) -> Vec<Arc<dyn Registrar>> {
    fakes.iter().map(|fake| Arc::new(fake.clone()) as Arc<dyn Registrar>).collect()
}

/// Returns the number of live keys of all fakes.
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
        let mut state = self.state.lock().unwrap();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        state.registered += 1;
        let nth = state.registered;
        if state.faults.panic_at == Some(nth) {
            drop(state);
            panic!("an injected panic");
        }
        if state.faults.register.contains(&nth) {
            return Err(RegistrarError::new("fake_reg_mr", Errno::ENOMEM, "remove the fault"));
        }
        assert!(len as u64 <= self.limits.max_bytes, "{len} bytes are too many");
        state.live.insert(nth, (at.addr().get(), len));
        Ok(Key { handle: nth, lkey: nth, rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.enter();
        let mut state = self.state.lock().unwrap();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        state.deregistered += 1;
        let nth = state.deregistered;
        if state.faults.deregister.iter().any(|(from, times)| nth >= *from && nth - from < *times) {
            return Err(RegistrarError::new("fake_dereg_mr", Errno::EBUSY, "remove the fault"));
        }
        let known = state.live.remove(&key.handle);
        known.map(drop).ok_or_else(|| {
            RegistrarError::new("fake_dereg_mr", Errno::EINVAL, "the key is not live")
        })
    }
}
