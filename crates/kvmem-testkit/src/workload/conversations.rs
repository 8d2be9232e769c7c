//! Requests of a server of several models to its KV cache.
//!
//! ```text
//!             shared by all that begin with it     only this conversation
//!            ├──────────────────────────────────┼───────────┬────────┬─────────┤
//!  a prompt   system prompt                       turn 1      turn 2   turn 3 …
//! ```
//!
//! A prompt is a sequence of *pages*; each is the KV cache of some tokens of a model. A request
//! contains all pages of a conversation so far and some new ones. The pages of the system prompt
//! and of earlier turns can be in the cache, the new ones cannot. Zipf's law selects the
//! conversation that continues among the active ones, the latest first, and the system prompt of a
//! new conversation. A conversation ends after its own number of turns, and a new one replaces it.
//!
//! A seed and a stream number determine everything. Streams share system prompts, but no
//! conversations.

use rand::RngExt;
use rand_distr::{Distribution, Zipf};

use super::{Rng, stream};

/// System prompts of a model.
const SYSTEM_PROMPTS: u64 = 24;
/// The exponent of Zipf's law: how steeply use falls with the rank.
const STEEPNESS: f64 = 1.1;
/// Pages of a system prompt.
const SYSTEM_PAGES: std::ops::RangeInclusive<u64> = 6..=24;
/// Pages that a turn adds.
const TURN_PAGES: std::ops::RangeInclusive<u64> = 2..=9;
/// Turns until a conversation ends.
const TURNS: std::ops::RangeInclusive<u32> = 3..=14;
/// One in this many requests begins a conversation, besides those that follow a finished one.
const BEGINS: u32 = 12;

/// A page: its model, its owner and its number. No two pages of a run are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Page(u64);

impl Page {
    /// The largest number of models.
    pub const MODELS: usize = 16;

    fn new(model: usize, owner: u64, number: u64) -> Page {
        Page((model as u64) << 60 | owner << 16 | number)
    }

    /// Returns a number that is unique among the pages of the run, below 2^64.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The model.
    pub model: usize,
    /// The pages of its prompt, from the first token on.
    pub pages: Vec<Page>,
}

/// An infinite sequence of requests.
#[derive(Clone, Debug)]
pub struct Conversations {
    rng: Rng,
    models: usize,
    /// Distinguishes the conversations of this stream from those of others.
    stream: u64,
    begun: u64,
    /// Active conversations, the latest first.
    under_way: Vec<Conversation>,
    at_once: usize,
    prompts: Zipf<f64>,
    ranks: Zipf<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    model: usize,
    system: u64,
    number: u64,
    pages: u64,
    turns_left: u32,
}

impl Conversations {
    /// Creates stream `number`, below 256, of `seed`, with 1 to 16 equally likely models and
    /// `at_once` active conversations.
    ///
    /// # Panics
    /// If `models` is 0 or exceeds [`Page::MODELS`], or if `at_once` is 0.
    #[must_use]
    pub fn new(seed: u64, number: u8, models: usize, at_once: usize) -> Conversations {
        assert!((1..=Page::MODELS).contains(&models), "{models} models");
        assert!(at_once > 0, "no conversations");
        let zipf = |ranks: usize| {
            Zipf::new(ranks as f64, STEEPNESS).expect("there are ranks, and a positive exponent")
        };
        Conversations {
            rng: stream(seed, u64::from(number)),
            models,
            stream: u64::from(number),
            begun: 0,
            under_way: Vec::with_capacity(at_once),
            at_once,
            prompts: zipf(SYSTEM_PROMPTS as usize),
            ranks: zipf(at_once),
        }
    }

    /// Adds a new conversation at the front.
    fn begin(&mut self) {
        let conversation = Conversation {
            model: self.rng.random_range(0..self.models),
            system: self.prompts.sample(&mut self.rng) as u64 - 1,
            number: self.begun,
            pages: 0,
            turns_left: self.rng.random_range(TURNS),
        };
        self.begun += 1;
        self.under_way.truncate(self.at_once - 1);
        self.under_way.insert(0, conversation);
    }

    /// Moves an active conversation to the front, or adds a new one there.
    fn choose(&mut self) {
        let rank = self.ranks.sample(&mut self.rng) as usize - 1;
        if rank >= self.under_way.len() || self.rng.random_ratio(1, BEGINS) {
            return self.begin();
        }
        let chosen = self.under_way.remove(rank);
        if chosen.turns_left == 0 {
            return self.begin();
        }
        self.under_way.insert(0, chosen);
    }
}

impl Iterator for Conversations {
    type Item = Request;

    /// Returns the next request; never `None`.
    fn next(&mut self) -> Option<Request> {
        self.choose();
        let turn = self.rng.random_range(TURN_PAGES);
        let now = &mut self.under_way[0];
        now.pages += turn;
        now.turns_left -= 1;
        // The length of a system prompt is drawn from its own number, so it is the same in all
        // streams.
        let length = stream(now.system, now.model as u64).random_range(SYSTEM_PAGES);
        let shared = (0..length).map(|page| Page::new(now.model, now.system, page));
        // The owner of a page has 44 bits. For a conversation the highest is set, and the next
        // eight are the stream.
        let owner = 1 << 43 | self.stream << 35 | now.number;
        let own = (0..now.pages).map(|page| Page::new(now.model, owner, page));
        Some(Request { model: now.model, pages: shared.chain(own).collect() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn some(seed: u64, stream: u8) -> Vec<Request> {
        Conversations::new(seed, stream, 3, 16).take(3000).collect()
    }

    #[test]
    fn the_same_seed_and_stream_ask_for_the_same() {
        assert_eq!(some(1, 0), some(1, 0));
        assert_ne!(some(1, 0), some(2, 0));
        assert_ne!(some(1, 0), some(1, 1));
    }

    #[test]
    fn a_page_belongs_to_one_place_of_one_model() {
        let mut places = HashMap::new();
        for request in [some(1, 0), some(1, 1)].concat() {
            assert!(request.model < 3);
            for (place, page) in request.pages.iter().enumerate() {
                assert_eq!(
                    *places.entry(*page).or_insert((request.model, place)),
                    (request.model, place)
                );
            }
            let distinct: HashSet<_> = request.pages.iter().collect();
            assert_eq!(distinct.len(), request.pages.len());
        }
    }

    #[test]
    fn prompts_are_used_again_and_grow() {
        let mut seen = HashSet::new();
        let (mut found, mut requested, mut grown) = (0, 0, 0);
        for request in some(1, 0) {
            let known = request.pages.iter().take_while(|page| seen.contains(*page)).count();
            // The unknown pages are at the end.
            assert!(
                request.pages[known..].iter().all(|page| !seen.contains(page)),
                "a prefix is known"
            );
            assert!(known < request.pages.len(), "each request adds something");
            grown += u64::from(known > *SYSTEM_PAGES.end() as usize);
            (found, requested) = (found + known, requested + request.pages.len());
            seen.extend(request.pages);
        }
        let share = found as f64 / requested as f64;
        assert!((0.7..0.95).contains(&share), "{share} of the pages are known");
        assert!(grown > 1000, "{grown} of 3000 requests go on with a conversation");
    }

    #[test]
    fn streams_share_system_prompts_and_nothing_else() {
        let pages = |stream| -> HashSet<Page> {
            some(7, stream).into_iter().flat_map(|r| r.pages).collect()
        };
        let (one, other) = (pages(0), pages(1));
        let shared: Vec<_> = one.intersection(&other).collect();
        assert!(!shared.is_empty());
        assert!(shared.iter().all(|page| (page.number() >> 16 & (1 << 43)) == 0), "{shared:?}");
    }
}
