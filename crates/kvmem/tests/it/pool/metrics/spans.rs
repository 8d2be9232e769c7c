//! Spans: the steps of setting up have spans, nested in each other.

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

/// A span or an event.
#[derive(Clone, Debug)]
struct Logged {
    level: Level,
    /// The names of the enclosing spans, innermost first; a span begins with its own name.
    path: Vec<&'static str>,
    fields: BTreeMap<String, String>,
}

/// A layer that keeps all spans and events.
#[derive(Clone, Default)]
struct Witness {
    spans: Arc<Mutex<Vec<Logged>>>,
    events: Arc<Mutex<Vec<Logged>>>,
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

fn lock(list: &Mutex<Vec<Logged>>) -> MutexGuard<'_, Vec<Logged>> {
    list.lock().expect("no panic")
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Witness {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let path = context.span_scope(id).expect("it is there").map(|span| span.name()).collect();
        lock(&self.spans).push(Logged {
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
        lock(&self.events).push(Logged {
            level: *event.metadata().level(),
            path,
            fields: fields.0,
        });
    }
}

/// Further subscribers. If the process has only one, the first thread that reaches an event decides
/// for all threads whether the event is enabled. That thread may belong to another test, without a
/// subscriber. With several subscribers each of them is consulted.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Registry::default())));

impl Witness {
    /// Runs `run`; collects spans and events of this thread and of threads that work for it.
    fn of<T>(run: impl FnOnce() -> T) -> (Witness, T) {
        LazyLock::force(&OTHERS);
        let witness = Witness::default();
        let subscriber = Registry::default().with(witness.clone());
        let done = tracing::subscriber::with_default(subscriber, run);
        (witness, done)
    }

    /// Returns the path and the level of each span of this name.
    fn paths(&self, name: &str) -> Vec<(String, Level)> {
        let spans = lock(&self.spans);
        let found = spans.iter().filter(|span| span.path[0] == name);
        found.map(|span| (span.path.join(" < "), span.level)).collect()
    }

    /// Returns the events at `WARN` with this message.
    fn warnings(&self, message: &str) -> Vec<Logged> {
        let events = lock(&self.events);
        let found = events.iter().filter(|event| event.level == Level::WARN);
        found.filter(|event| event.fields["message"] == message).cloned().collect()
    }
}

#[test]
fn the_spans_of_building_are_nested() {
    let fakes = Fake::some(2, 512 << 10);
    let builder =
        small(4 * MIB).name("kv").populate(Populate::threads(2)).registrars(registrars(&fakes));
    let (witness, pool) = Witness::of(|| builder.build().expect("little memory"));
    assert_eq!(witness.paths("build"), [("build".to_owned(), Level::INFO)]);
    assert_eq!(witness.paths("map"), [("map < build".to_owned(), Level::INFO)]);
    let populate = ("populate < register < build".to_owned(), Level::INFO);
    assert_eq!(witness.paths("populate"), [populate]);
    assert_eq!(witness.paths("register"), [("register < build".to_owned(), Level::INFO)]);
    // Spans of other threads are nested too.
    let ranges = witness.paths("populate_range");
    assert!(!ranges.is_empty());
    let range = ("populate_range < populate < register < build".to_owned(), Level::DEBUG);
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
fn growing_shrinking_attaching_and_preflight_have_spans() {
    let builder = small(MIB).max_size(2 * MIB).boundary(512 << 10).backing(Backing::Shared);
    let pool = builder.build().expect("little memory");
    let (witness, _) = Witness::of(|| {
        pool.grow_to(2 * MIB as u64).expect("within the maximum size");
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
fn allocating_blocks_makes_no_spans() {
    let pool = small(MIB).build().expect("little memory");
    let (witness, _) = Witness::of(|| {
        let held: Vec<_> = (1..100).map(|size| pool.allocate(size * 10)).collect();
        drop(held);
        assert!(pool.allocate(2 * MIB).is_err());
        pool.figures()
    });
    assert_eq!((lock(&witness.spans).len(), lock(&witness.events).len()), (0, 0));
}

#[test]
fn failed_and_quarantined_ranges_are_logged() {
    for in_background in [false, true] {
        let mut fakes = Fake::some(2, 128 << 10);
        fakes[1] = fakes[1].clone().with(Faults { register: vec![2, 3], ..Faults::default() });
        let builder =
            small(MIB).registrars(registrars(&fakes)).quarantine(true).in_background(in_background);
        let (witness, _) = Witness::of(|| {
            let pool = builder.build().expect("most of it");
            pool.wait_ready(u64::MAX, std::time::Duration::from_secs(60));
            let bad = pool.allocate(500).expect("room");
            pool.quarantine_block(bad, "the NIC says so");
        });
        // Warnings of the background thread are nested too.
        let failed = witness.warnings("not registered");
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed.iter().all(|logged| logged.fields["registrar"] == "fake:1"), "{failed:?}");
        assert!(failed.iter().all(|logged| logged.path == ["ready", "build"]), "{failed:?}");
        let kept = witness.warnings("quarantine");
        let causes: Vec<_> = kept.iter().map(|logged| logged.fields["cause"].as_str()).collect();
        assert_eq!(causes, ["not registered", "not registered", "quarantined by the caller"]);
    }
}

#[test]
fn a_skipped_rung_is_logged() {
    let builder = small(MIB).ladder(Ladder::new([PageSize::Huge1G, PageSize::Base]));
    let (witness, report) = Witness::of(|| builder.build().expect("little memory").report());
    let passed: usize = report.receipt.ranges.iter().map(|range| range.fallbacks.len()).sum();
    assert!(passed > 0, "1 MiB is no page of 1 GiB: {}", report.receipt);
    let logged = witness.warnings("a rung of the ladder was passed");
    assert_eq!(logged.len(), passed);
    assert!(logged.iter().all(|logged| !logged.fields["reason"].is_empty()));
}
