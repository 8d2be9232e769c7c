//! *Serving*: a server of three models that has its KV cache in the pool for some seconds.
//!
//! Two threads take requests of conversations, each from its own stream, and look every page up in
//! one [`KvCache`]. A page in the cache is read and its checksum verified. A missing page is
//! written, and others are evicted for it. Each page is one or two objects of the sizes of the
//! model's published configuration, so several odd sizes share the pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvmem::cache::{KvCache, KvCacheError, KvCacheStats};
use kvmem::pool::Pool;

use super::printer::Going;
use crate::workload::latency::{Latency, LatencyFigures, timed};
use crate::workload::model::Model;
use crate::workload::object::ObjectId;
use crate::workload::payload::{Payloads, mix};

/// The models.
const MODELS: [Model; 3] = [Model::Glm51Dsa, Model::DeepseekV3, Model::Llama31_8b];
/// Tokens of a page, as in engines; small pools get the shorter pages.
const PAGE_TOKENS: [u64; 5] = [16, 8, 4, 2, 1];
/// Mean number of pages that a pool should hold.
const PAGES: u64 = 2000;
/// Pages after which a conversation ends, system prompts of a model, and the pages of each.
const CONVERSATION: u64 = 64;
const SYSTEM_PROMPTS: u64 = 24;
const SYSTEM_PAGES: u64 = 16;
/// Serving threads.
const THREADS: u64 = 2;
/// Requested bytes, as a multiple of the pool's.
const ROUNDS: u64 = 64;

/// The workload and its result.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Tokens of a page.
    pub(super) page_tokens: u64,
    /// Whether the clock ended it before all requests were served.
    pub(super) cut_short: bool,
    pub(super) requests: u64,
    pub(super) written_bytes: u64,
    /// Bytes read and verified.
    pub(super) verified_bytes: u64,
    /// Seconds of the workload.
    pub(super) seconds: f64,
    /// The figures of the cache at the end, in objects.
    pub(super) stats: KvCacheStats,
    /// Time to reserve an object, evictions included.
    pub(super) room: Option<LatencyFigures>,
    /// The faults that were found.
    pub(super) mismatches: Vec<String>,
}

/// Returns the tokens of a page, and the mean bytes of a page of all models: the longest pages of
/// which a pool of this size holds [`PAGES`], or the shortest ones.
fn layout(pool_bytes: u64) -> (u64, u64) {
    let per_token =
        MODELS.iter().flat_map(|model| model.bytes_per_token()).sum::<u64>() / MODELS.len() as u64;
    let fits = |tokens: &u64| pool_bytes / (per_token * tokens) >= PAGES;
    let page_tokens = PAGE_TOKENS.into_iter().find(fits).unwrap_or(1);
    (page_tokens, per_token * page_tokens)
}

/// Returns the object sizes of each model's page in a pool of this size.
pub(super) fn objects(pool_bytes: u64) -> Vec<Vec<u64>> {
    let (tokens, _) = layout(pool_bytes);
    let sizes = |model: &Model| model.bytes_per_token().iter().map(|it| it * tokens).collect();
    MODELS.iter().map(sizes).collect()
}

/// An infinite sequence of requests: the model, and the pages of the prompt by number. No two pages
/// of a run have the same number.
///
/// A prompt is the pages of a system prompt, which conversations share, and those of one
/// conversation, which grows with each request. The requests choose the conversation that continues
/// and the system prompt of a new one by Zipf's law.
struct Requests {
    random: u64,
    /// Distinguishes the conversations of this stream from those of others.
    stream: u64,
    begun: u64,
    /// The model, the system prompt, the number and the own pages of the active conversations, the
    /// latest first.
    active: Vec<[u64; 4]>,
    at_once: usize,
}

impl Requests {
    fn new(stream: u64, at_once: usize) -> Requests {
        Requests { random: stream << 32, stream, begun: 0, active: Vec::new(), at_once }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random) % end
    }

    /// Returns a rank below `ranks`. Rank n is n times as rare as the first one.
    fn rank(&mut self, ranks: u64) -> u64 {
        let share = self.below(1 << 32) as f64 / f64::from(u32::MAX);
        (((ranks + 1) as f64).powf(share) as u64 - 1).min(ranks - 1)
    }
}

impl Iterator for Requests {
    type Item = (usize, Vec<u64>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.active.len() < self.at_once || self.below(12) == 0 {
            let model = self.below(MODELS.len() as u64);
            let system = self.rank(SYSTEM_PROMPTS);
            self.active.truncate(self.at_once - 1);
            self.active.insert(0, [model, system, self.begun, 0]);
            self.begun += 1;
        }
        let at = self.rank(self.active.len() as u64) as usize;
        let [model, system, number, mut pages] = self.active.remove(at);
        pages += 2 + self.below(8);
        if pages < CONVERSATION {
            self.active.insert(0, [model, system, number, pages]);
        }
        let own = SYSTEM_PROMPTS + (number << 8 | self.stream);
        let page = |owner: u64, page: u64| model << 60 | owner << 16 | page;
        let shared = (0..SYSTEM_PAGES).map(|number| page(system, number));
        Some((model as usize, shared.chain((0..pages).map(|number| page(own, number))).collect()))
    }
}

/// The state that both threads share.
struct Shared<'a> {
    cache: KvCache<(u64, u32)>,
    /// For each model: the object sizes of a page, and their payloads.
    objects: Vec<(Vec<u64>, Payloads)>,
    requested: AtomicU64,
    end: u64,
    start: Instant,
    longest: Duration,
    room: Mutex<Latency>,
    going: &'a Going,
}

/// Serves from `pool` for at most `longest`, and then empties it.
pub(super) fn serve(pool: &Pool, longest: Duration) -> Served {
    let capacity = pool.capacity();
    let (page_tokens, page_bytes) = layout(capacity);
    let going = Going::new("serving", Some(ROUNDS * capacity));
    let shared = Shared::new(pool, longest, &going);
    // All conversations together are some three times as large as the pool.
    let at_once = (6 * capacity / page_bytes / CONVERSATION / THREADS).clamp(4, 256) as usize;
    let parts: Vec<Served> = std::thread::scope(|scope| {
        let shared = &shared;
        let work = |stream| move || shared.work(Requests::new(stream, at_once));
        // Without a second thread this one works alone.
        let start = |stream| std::thread::Builder::new().spawn_scoped(scope, work(stream)).ok();
        let others: Vec<_> = (1..THREADS).filter_map(start).collect();
        let first = work(0)();
        let panicked = |_| Served {
            mismatches: vec!["a thread that served has panicked".to_owned()],
            ..Served::default()
        };
        let others = others.into_iter().map(|it| it.join().unwrap_or_else(panicked));
        [first].into_iter().chain(others).collect()
    });
    let seconds = shared.start.elapsed().as_secs_f64();
    let Shared { cache, requested, end, room, .. } = shared;
    let room = room.into_inner().unwrap_or_else(PoisonError::into_inner).figures();
    let (stats, cut_short) = (cache.stats(), requested.into_inner() < end);
    let mut served =
        Served { page_tokens, cut_short, seconds, stats, room: Some(room), ..Served::default() };
    for part in parts {
        served.requests += part.requests;
        served.written_bytes += part.written_bytes;
        served.verified_bytes += part.verified_bytes;
        served.mismatches.extend(part.mismatches);
    }
    served.mismatches.extend(cache.check().err().map(|error| error.to_string()));
    cache.clear_in_memory();
    served.mismatches.extend(pool.check().err().map(|error| error.to_string()));
    let live = pool.metrics().live;
    if live > 0 {
        served.mismatches.push(format!("{live} blocks are in use although the cache is empty"));
    }
    served
}

impl<'a> Shared<'a> {
    fn new(pool: &Pool, longest: Duration, going: &'a Going) -> Self {
        let with_payloads = |sizes: Vec<u64>| (sizes.clone(), Payloads::new(&sizes));
        Shared {
            cache: KvCache::new(pool),
            objects: objects(pool.capacity()).into_iter().map(with_payloads).collect(),
            requested: AtomicU64::new(0),
            end: ROUNDS * pool.capacity(),
            start: Instant::now(),
            longest,
            room: Mutex::new(Latency::new()),
            going,
        }
    }

    /// Serves requests until all bytes are requested, the time is over, or a fault is found.
    fn work(&self, requests: Requests) -> Served {
        let mut part = Served::default();
        for (model, pages) in requests {
            for page in pages {
                (0..self.objects[model].0.len() as u32)
                    .for_each(|number| self.object(model, (page, number), &mut part));
            }
            part.requests += 1;
            // Relaxed: the figure orders nothing else.
            let requested = self.requested.load(Ordering::Relaxed);
            // Whichever limit is nearer.
            let time = self.start.elapsed();
            let by_time = time.as_secs_f64() / self.longest.as_secs_f64() * self.end as f64;
            let done = requested.max(by_time as u64).min(self.end);
            self.going.at(done, format!("{:.0} % found", 100.0 * self.cache.stats().hit_rate()));
            if done == self.end || !part.mismatches.is_empty() {
                break;
            }
        }
        part
    }

    /// Looks one object up and verifies it, or writes it.
    fn object(&self, model: usize, key: (u64, u32), part: &mut Served) {
        let (sizes, payloads) = &self.objects[model];
        let id = ObjectId { block: key.0, number: key.1 };
        let bytes = sizes[key.1 as usize];
        if let Some(found) = self.cache.get(&key) {
            if payloads.verify(id, &found).is_ok() {
                part.verified_bytes += bytes;
            } else {
                let range = found.block().range();
                part.mismatches.push(format!(
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
                    part.written_bytes += bytes;
                }
                // Every page is being read or written for a moment: the pool has few pages.
                Err(KvCacheError::NothingToEvict { .. }) => {}
                Err(error) => part.mismatches.push(error.to_string()),
            }
        }
        // Relaxed: the figure orders nothing else.
        self.requested.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kvmem::arena::PageSize;

    use super::*;

    #[test]
    fn streams_repeat_their_pages_and_share_system_prompts() {
        let pages = |stream| -> Vec<u64> {
            Requests::new(stream, 20).take(500).flat_map(|it| it.1).collect()
        };
        assert_eq!(pages(0), pages(0));
        let [one, other] = [0, 1].map(|stream| pages(stream).into_iter().collect::<HashSet<u64>>());
        assert!(one.len() < pages(0).len() / 2, "pages are requested again");
        let owner = |page: &u64| page >> 16 & 0xfff_ffff_ffff;
        let mut both = one.intersection(&other).peekable();
        assert!(both.peek().is_some() && both.all(|page| owner(page) < SYSTEM_PROMPTS));
    }

    #[test]
    fn a_pool_holds_many_pages_of_all_models() {
        assert_eq!([16 << 20, 1 << 30, 64 << 30].map(|bytes| layout(bytes).0), [1, 4, 16]);
        assert_eq!(
            objects(1 << 30),
            [vec![4 * 51_168, 4 * 10_288], vec![4 * 70_272], vec![4 * 131_072]]
        );
    }

    #[test]
    fn bytes_that_were_overwritten_are_noticed() {
        let pool = Pool::builder(16 << 20).ladder(PageSize::Base).build().expect("16 MiB");
        let going = Going::new("a test", None);
        let shared = Shared::new(&pool, Duration::from_secs(1), &going);
        let (page, [first, second]) = (7, [51_168, 10_288]);
        let mut part = Served::default();
        let look = |key, part: &mut Served| shared.object(0, key, part);
        look((page, 0), &mut part);
        look((page, 0), &mut part);
        assert_eq!(
            (part.written_bytes, part.verified_bytes, part.mismatches.len()),
            (first, first, 0)
        );
        // The other object's bytes under this one's key, and truncated ones.
        let found = shared.cache.get(&(page, 0)).expect("it is in the cache").to_vec();
        for (key, len, mismatches) in [((page, 1), second as usize, 1), ((page, 0), 4000, 2)] {
            shared.cache.insert(key, &found[..len]).expect("room");
            look(key, &mut part);
            assert_eq!((part.verified_bytes, part.mismatches.len()), (first, mismatches));
        }
    }

    #[test]
    fn what_is_served_is_what_was_written() {
        let pool = Pool::builder(16 << 20).ladder(PageSize::Base).build().expect("16 MiB");
        // Longer each time, until a busy machine has served enough.
        let mut longer = (0..8).map(|doublings| {
            let served = serve(&pool, Duration::from_millis(500 << doublings));
            assert_eq!(served.mismatches, [""; 0]);
            served
        });
        let enough = longer.find(|served| {
            let is_used = served.stats.evictions > 0 && served.stats.hits > 0;
            is_used && served.verified_bytes > 0 && served.written_bytes > 16 << 20
        });
        let served = enough.expect("it serves some objects a second");
        assert_eq!(Some(served.stats.insertions), served.room.map(|room| room.count));
        assert!((8 << 20..=16 << 20).contains(&served.stats.bytes), "{served:?}");
        assert_eq!(pool.metrics().allocated, 0, "all of the memory is free again");
    }
}
