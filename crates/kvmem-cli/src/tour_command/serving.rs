//! *Serving*: a server of three models that keeps its KV cache in the pool for some seconds.
//!
//! Two threads take requests from [`Conversations`], each from its own stream, and look every page
//! up in one [`KvCache`]. A held page is read and its checksum verified. A missing page is written,
//! and others are evicted for it. Each page is one or two objects of the sizes of the model's
//! published configuration, so several odd sizes share the pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::cache::{KvCacheError, KvCacheStats};
use kvmem::pool::Pool;

use super::conversations::{Conversations, Page};
use super::telling::Going;
use crate::workload::latency::{Latency, LatencyFigures, timed};
use crate::workload::model::Model;
use crate::workload::object::ObjectId;
use crate::workload::payload::Payloads;

/// The models.
pub(super) const MODELS: [Model; 3] = [Model::Glm51Dsa, Model::DeepseekV3, Model::Llama31_8b];
/// Tokens of a page, as in engines; small pools get the shorter pages.
const PAGE_TOKENS: [u64; 5] = [16, 8, 4, 2, 1];
/// Mean number of pages that a pool should hold.
const PAGES: u64 = 2000;
/// Approximate pages of a conversation.
const CONVERSATION: u64 = 40;
/// Serving threads.
pub(super) const THREADS: usize = 2;
/// Requested bytes, as a multiple of the pool's.
const ROUNDS: u64 = 64;
const SEED: u64 = 20_250_718;

/// The workload and its result.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// Tokens of a page.
    pub(super) page_tokens: u64,
    /// Whether the clock ended it before all requests were served.
    pub(super) cut_short: bool,
    /// Requests.
    pub(super) requests: u64,
    /// Bytes written.
    pub(super) written_bytes: u64,
    /// Bytes read and verified.
    pub(super) verified_bytes: u64,
    /// Seconds of the workload.
    pub(super) seconds: f64,
    /// The figures of the cache, in objects.
    pub(super) stats: KvCacheStats,
    /// Time to reserve an object, evictions included.
    pub(super) room: LatencyFigures,
    /// Mean utilization since the first eviction.
    pub(super) utilization: Option<f64>,
    /// The faults that were found.
    pub(super) wrong: Vec<String>,
}

/// The pages of a pool of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    page_tokens: u64,
    /// Mean bytes of a page over all models.
    page_bytes: u64,
}

impl Layout {
    /// Returns the longest pages of which the pool holds enough, or the shortest.
    pub(super) fn of(pool_bytes: u64) -> Layout {
        let per_token = MODELS.iter().flat_map(|model| model.bytes_per_token()).sum::<u64>()
            / MODELS.len() as u64;
        let fits = |tokens: &u64| pool_bytes / (per_token * tokens) >= PAGES;
        let page_tokens = PAGE_TOKENS.into_iter().find(fits).unwrap_or(1);
        Layout { page_tokens, page_bytes: per_token * page_tokens }
    }

    /// Returns the object sizes of each model's page.
    pub(super) fn objects(self) -> Vec<Vec<u64>> {
        let sizes = |model: &Model| {
            model.bytes_per_token().iter().map(|bytes| bytes * self.page_tokens).collect()
        };
        MODELS.iter().map(sizes).collect()
    }
}

/// The state that both threads share.
struct Shared<'a> {
    cache: KvCache<(Page, u32)>,
    /// For each model: the object sizes of a page, and their payloads.
    objects: Vec<(Vec<u64>, Payloads)>,
    requested: AtomicU64,
    end: u64,
    start: Instant,
    longest: Duration,
    utilization: Mutex<Utilization>,
    room: Mutex<Latency>,
    going: &'a Going,
}

/// How full the pool is, since the first eviction.
#[derive(Default)]
struct Utilization {
    sum: f64,
    looks: u32,
}

impl Utilization {
    fn look(&mut self, cache: &KvCache<(Page, u32)>) {
        if cache.stats().evictions > 0 {
            let bytes = cache.stats().bytes;
            self.sum += bytes as f64 / cache.pool().capacity() as f64;
            self.looks += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.sum / f64::from(self.looks))
    }
}

/// The result of one thread.
#[derive(Default)]
struct Part {
    requests: u64,
    written: u64,
    verified: u64,
    wrong: Vec<String>,
}

/// Serves from `pool` for at most `time`, and then empties it.
pub(super) fn serve(pool: &Pool, longest: Duration) -> Served {
    let capacity = pool.capacity();
    let layout = Layout::of(capacity);
    let going = Going::new("serving", Some(ROUNDS * capacity));
    let shared = Shared::new(pool, layout, longest, &going);
    // All conversations together are some three times as large as the pool.
    let at_once =
        (3 * capacity / layout.page_bytes / CONVERSATION / THREADS as u64).clamp(4, 256) as usize;
    let requests = |number: usize| Conversations::new(SEED, number as u8, MODELS.len(), at_once);
    let parts: Vec<Part> = std::thread::scope(|scope| {
        let shared = &shared;
        // Without a second thread this one works alone.
        let others: Vec<_> = (1..THREADS)
            .filter_map(|number| {
                let requests = requests(number);
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || shared.work(requests, false))
                    .ok()
            })
            .collect();
        let first = shared.work(requests(0), true);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|_| Part::panicked()));
        [first].into_iter().chain(others).collect()
    });
    let seconds = shared.start.elapsed().as_secs_f64();
    let Shared { cache, requested, end, utilization, room, .. } = shared;
    let mut utilization = utilization.into_inner().unwrap_or_else(PoisonError::into_inner);
    let room = room.into_inner().unwrap_or_else(PoisonError::into_inner);
    utilization.look(&cache);
    let mut served = Served {
        page_tokens: layout.page_tokens,
        cut_short: requested.into_inner() < end,
        requests: 0,
        written_bytes: 0,
        verified_bytes: 0,
        seconds,
        stats: cache.stats(),
        room: room.figures(),
        utilization: utilization.mean(),
        wrong: Vec::new(),
    };
    for part in parts {
        served.requests += part.requests;
        served.written_bytes += part.written;
        served.verified_bytes += part.verified;
        served.wrong.extend(part.wrong);
    }
    served.wrong.extend(cache.check().err().map(|error| error.to_string()));
    cache.clear_in_memory();
    served.wrong.extend(pool.check().err().map(|error| error.to_string()));
    let left = pool.metrics().live;
    if left > 0 {
        served.wrong.push(format!("{left} blocks are in use although the cache is empty"));
    }
    served
}

impl<'a> Shared<'a> {
    fn new(pool: &Pool, layout: Layout, longest: Duration, going: &'a Going) -> Self {
        let capacity = pool.capacity();
        Shared {
            cache: KvCache::new(pool),
            objects: layout
                .objects()
                .into_iter()
                .map(|sizes| (sizes.clone(), Payloads::new(&sizes)))
                .collect(),
            requested: AtomicU64::new(0),
            end: ROUNDS * capacity,
            start: Instant::now(),
            longest,
            utilization: Mutex::default(),
            room: Mutex::new(Latency::new()),
            going,
        }
    }

    /// Serves requests until all bytes are requested, the time is over, or a fault is found.
    fn work(&self, requests: Conversations, looks: bool) -> Part {
        let mut part = Part::default();
        for request in requests {
            for page in request.pages {
                for number in 0..self.objects[request.model].0.len() as u32 {
                    self.object(request.model, (page, number), &mut part);
                }
            }
            part.requests += 1;
            // Relaxed: the figure orders nothing else.
            let requested = self.requested.load(Ordering::Relaxed);
            if looks {
                self.look(requested);
            }
            if requested >= self.end
                || self.start.elapsed() > self.longest
                || !part.wrong.is_empty()
            {
                break;
            }
        }
        part
    }

    /// Looks one object up and verifies it, or writes it.
    fn object(&self, model: usize, key: (Page, u32), part: &mut Part) {
        let (sizes, payloads) = &self.objects[model];
        let id = ObjectId { block: key.0.number(), number: key.1 };
        let bytes = sizes[key.1 as usize];
        if let Some(found) = self.cache.get(&key) {
            if payloads.verify(id, &found).is_ok() {
                part.verified += bytes;
            } else {
                let range = found.block().range();
                part.wrong.push(format!(
                    "the bytes at {range:?} of the pool differ from those that were written"
                ));
            }
        } else {
            let (room, took) = timed(|| self.cache.reserve(key, bytes as usize));
            match room {
                Ok(mut room) => {
                    self.room.lock().unwrap_or_else(PoisonError::into_inner).record(took);
                    payloads.write(id, room.bytes_mut());
                    drop(room.commit());
                    part.written += bytes;
                }
                // Every page is being read or written for a moment: the pool has few pages.
                Err(KvCacheError::NothingToEvict { .. }) => {}
                Err(error) => part.wrong.push(error.to_string()),
            }
        }
        // Relaxed: the figure orders nothing else.
        self.requested.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Updates the progress, and looks how full the pool is.
    fn look(&self, requested: u64) {
        // Whichever limit is nearer.
        let by_time =
            self.start.elapsed().as_secs_f64() / self.longest.as_secs_f64() * self.end as f64;
        let done = requested.max(by_time as u64).min(self.end);
        self.going.at(done, format!("{:.0} % found", 100.0 * self.cache.stats().hit_rate()));
        let mut utilization = self.utilization.lock().unwrap_or_else(PoisonError::into_inner);
        utilization.look(&self.cache);
    }
}

impl Part {
    fn panicked() -> Part {
        Part { wrong: vec!["a thread that served has panicked".to_owned()], ..Part::default() }
    }
}

impl Served {
    /// Returns the GB a second written and verified.
    pub(super) fn gb_per_s(&self) -> f64 {
        (self.written_bytes + self.verified_bytes) as f64 / 1e9 / self.seconds.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use kvmem::arena::PageSize;

    use super::*;

    #[test]
    fn a_pool_holds_many_pages_of_all_models() {
        assert_eq!(Layout::of(1 << 30).page_tokens, 4);
        assert_eq!(Layout::of(16 << 20).page_tokens, 1);
        assert_eq!(Layout::of(64 << 30).page_tokens, 16);
        let objects = Layout::of(1 << 30).objects();
        assert_eq!(objects, [vec![4 * 51_168, 4 * 10_288], vec![4 * 70_272], vec![4 * 131_072]]);
    }

    #[test]
    fn bytes_that_were_overwritten_are_noticed() {
        let pool = Pool::builder(16 << 20).ladder(PageSize::Base).build().expect("16 MiB");
        let going = Going::new("a test", None);
        let shared =
            Shared::new(&pool, Layout::of(pool.capacity()), Duration::from_secs(1), &going);
        let mut requests = Conversations::new(SEED, 0, MODELS.len(), 4);
        let request = requests.find(|request| request.model == 0).expect("requests do not end");
        let (page, [first, second]) = (request.pages[0], [51_168, 10_288]);
        let mut part = Part::default();
        let look = |key, part: &mut Part| shared.object(0, key, part);
        look((page, 0), &mut part);
        look((page, 0), &mut part);
        assert_eq!((part.written, part.verified, part.wrong.len()), (first, first, 0));
        // The other object's bytes under this one's key.
        let held = shared.cache.get(&(page, 0)).expect("it is held").to_vec();
        shared.cache.insert((page, 1), &held[..second as usize]).expect("room");
        look((page, 1), &mut part);
        assert_eq!((part.verified, part.wrong.len()), (first, 1), "{:?}", part.wrong);
        // Truncated.
        shared.cache.insert((page, 0), &held[..4000]).expect("room");
        look((page, 0), &mut part);
        assert_eq!((part.verified, part.wrong.len()), (first, 2), "{:?}", part.wrong);
    }

    #[test]
    fn what_is_served_is_what_was_written() {
        let pool = Pool::builder(16 << 20).ladder(PageSize::Base).build().expect("16 MiB");
        // Longer each time, until a busy machine has served enough.
        let mut longer = (0..8).map(|doublings| {
            let served = serve(&pool, Duration::from_millis(500 << doublings));
            assert_eq!(served.wrong, [""; 0]);
            served
        });
        let enough = longer.find(|served| {
            let is_used = served.stats.evictions > 0 && served.stats.hits > 0;
            is_used && served.verified_bytes > 0 && served.written_bytes > 16 << 20
        });
        let served = enough.expect("it serves some objects a second");
        let stats = served.stats;
        assert_eq!(stats.insertions, served.room.count);
        assert!(served.utilization.is_some_and(|share| (0.5..=1.0).contains(&share)), "{served:?}");
        assert_eq!(pool.metrics().allocated, 0, "all of it is given back");
    }
}
