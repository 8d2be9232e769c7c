//! Spans: the steps of setting up are seen, each within the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use kvmem::arena::preflight::{Machine, Requirements};
use kvmem::arena::{Backing, Ladder, PageSize, Populate};
use kvmem::pool::{Access, AttachedPool};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::small;
use crate::pool::MIB;
use crate::register::fake::{Fake, Faults, registrars};

/// Something that was said.
#[derive(Clone, Debug)]
struct Said {
    level: Level,
    /// The names of the spans that it lies in, innermost first; of a span, its own before them.
    path: Vec<&'static str>,
    fields: BTreeMap<String, String>,
}

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Witness {
    spans: Arc<Mutex<Vec<Said>>>,
    events: Arc<Mutex<Vec<Said>>>,
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

fn lock(list: &Mutex<Vec<Said>>) -> MutexGuard<'_, Vec<Said>> {
    list.lock().expect("no panic")
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Witness {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let path = context.span_scope(id).expect("it is there").map(|span| span.name()).collect();
        lock(&self.spans).push(Said {
            level: *attributes.metadata().level(),
            path,
            fields: fields.0,
        });
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let scope = context.event_scope(event);
        let path = scope.map_or_else(Vec::new, |scope| scope.map(|span| span.name()).collect());
        lock(&self.events).push(Said { level: *event.metadata().level(), path, fields: fields.0 });
    }
}

/// With one subscriber alone, whether an event is wanted is asked of the thread that comes to it
/// first, once for all threads. That may be one of another test, without a subscriber. With several
/// all are asked.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Registry::default())));

impl Witness {
    /// Sees what this thread does, and those that do a part of it.
    fn of<T>(run: impl FnOnce() -> T) -> (Witness, T) {
        LazyLock::force(&OTHERS);
        let witness = Witness::default();
        let subscriber = Registry::default().with(witness.clone());
        let done = tracing::subscriber::with_default(subscriber, run);
        (witness, done)
    }

    /// Where spans of this name were, and their level.
    fn paths(&self, name: &str) -> Vec<(String, Level)> {
        let spans = lock(&self.spans);
        let found = spans.iter().filter(|span| span.path[0] == name);
        found.map(|span| (span.path.join(" < "), span.level)).collect()
    }

    /// What was said at `WARN`: where, and the fields.
    fn warnings(&self, message: &str) -> Vec<Said> {
        let events = lock(&self.events);
        let found = events.iter().filter(|event| event.level == Level::WARN);
        found.filter(|event| event.fields["message"] == message).cloned().collect()
    }
}

#[test]
fn the_steps_of_building_are_within_each_other() {
    let fakes = Fake::some(2, 512 << 10);
    let builder =
        small(4 * MIB).name("kv").populate(Populate::threads(2)).registrars(registrars(&fakes));
    let (witness, pool) = Witness::of(|| builder.build().expect("little memory").0);
    assert_eq!(witness.paths("build"), [("build".to_owned(), Level::INFO)]);
    assert_eq!(witness.paths("map"), [("map < build".to_owned(), Level::INFO)]);
    assert_eq!(witness.paths("populate"), [("populate < map < build".to_owned(), Level::INFO)]);
    assert_eq!(witness.paths("register"), [("register < build".to_owned(), Level::INFO)]);
    // Also where another thread has done it.
    let ranges = witness.paths("populate_range");
    assert!(!ranges.is_empty());
    let range = ("populate_range < populate < map < build".to_owned(), Level::DEBUG);
    assert!(ranges.iter().all(|found| *found == range), "{ranges:?}");
    let chunks = witness.paths("register_chunk");
    assert_eq!(chunks.len(), 2 * 8, "{chunks:?}");
    let chunk = ("register_chunk < register < build".to_owned(), Level::DEBUG);
    assert!(chunks.iter().all(|found| *found == chunk), "{chunks:?}");
    let spans = lock(&witness.spans);
    let build = &spans.iter().find(|span| span.path == ["build"]).expect("seen above").fields;
    assert_eq!((build["pool"].as_str(), build["registrars"].as_str()), ("kv", "2"));
    drop((spans, pool));
    assert_eq!(lock(&witness.events).len(), 0, "nothing went wrong");
}

#[test]
fn growing_shrinking_attaching_and_asking_are_steps() {
    let builder = small(MIB).max_size(2 * MIB).boundary(512 << 10).backing(Backing::Shared);
    let (pool, _) = builder.build().expect("little memory");
    let (witness, _) = Witness::of(|| {
        pool.grow_to(2 * MIB as u64).expect("as much as it may be");
        pool.shrink().expect("nothing is in use");
        let fd = pool.share_read_only().expect("it is shared");
        AttachedPool::attach(fd, Access::ReadOnly).expect("it is a pool");
        Machine::here().preflight(&Requirements::new(1 << 20, PageSize::Base).expect("a size"))
    });
    for step in ["grow", "shrink", "attach", "preflight"] {
        assert_eq!(witness.paths(step), [(step.to_owned(), Level::INFO)]);
    }
    assert_eq!(witness.paths("populate")[0].0, "populate < grow");
}

#[test]
fn no_step_is_where_blocks_are_allocated() {
    let (pool, _) = small(MIB).build().expect("little memory");
    let (witness, _) = Witness::of(|| {
        let held: Vec<_> = (1..100).map(|size| pool.allocate(size * 10)).collect();
        drop(held);
        assert!(pool.allocate(2 * MIB).is_err());
        pool.figures()
    });
    assert_eq!((lock(&witness.spans).len(), lock(&witness.events).len()), (0, 0));
}

#[test]
fn what_fails_and_is_kept_from_use_is_said() {
    for in_background in [false, true] {
        let mut fakes = Fake::some(2, 128 << 10);
        fakes[1] = fakes[1].clone().with(Faults { register: vec![2, 3], ..Faults::default() });
        let builder =
            small(MIB).registrars(registrars(&fakes)).quarantine(true).in_background(in_background);
        let (witness, _) = Witness::of(|| {
            let (pool, _) = builder.build().expect("most of it");
            pool.wait_ready(u64::MAX, std::time::Duration::from_secs(60));
            let bad = pool.allocate(500).expect("room");
            pool.quarantine_block(bad, "the NIC says so");
        });
        // Also where a thread in the background says it.
        let failed = witness.warnings("not registered");
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed.iter().all(|said| said.fields["registrar"] == "fake:1"), "{failed:?}");
        assert!(failed.iter().all(|said| said.path == ["ready", "build"]), "{failed:?}");
        let kept = witness.warnings("quarantine");
        let causes: Vec<_> = kept.iter().map(|said| said.fields["cause"].as_str()).collect();
        assert_eq!(causes, ["not registered", "not registered", "condemned"]);
    }
}

#[test]
fn a_rung_that_was_passed_is_said() {
    let builder = small(MIB).ladder(Ladder::new([PageSize::Huge1G, PageSize::Base]));
    let (witness, report) = Witness::of(|| builder.build().expect("little memory").1);
    let passed: usize = report.receipt.ranges.iter().map(|range| range.fallbacks.len()).sum();
    assert!(passed > 0, "1 MiB is no page of 1 GiB: {}", report.receipt);
    let said = witness.warnings("a rung of the ladder was passed");
    assert_eq!(said.len(), passed);
    assert!(said.iter().all(|said| !said.fields["reason"].is_empty()));
}
