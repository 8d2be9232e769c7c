//! *Conversations*: requests of a server of several models to its KV cache.
//!
//! A prompt is the pages of a system prompt, which conversations share, and those of the turns of
//! one conversation. A request contains all pages of a conversation so far and some new ones.
//! Zipf's law selects the conversation that continues, the latest first, and the system prompt of a
//! new one. A seed and a stream number determine everything.

use std::ops::RangeInclusive;

/// System prompts of a model.
const SYSTEM_PROMPTS: usize = 24;
/// The exponent of Zipf's law: how steeply use falls with the rank.
const STEEPNESS: f64 = 1.1;
/// Pages of a system prompt.
const SYSTEM_PAGES: RangeInclusive<u64> = 6..=24;
/// Pages that a turn adds.
const TURN_PAGES: RangeInclusive<u64> = 2..=9;
/// Turns until a conversation ends.
const TURNS: RangeInclusive<u64> = 3..=14;
/// One in this many requests begins a conversation, besides those that follow a finished one.
const BEGINS: u64 = 12;

/// A page: its model, its owner and its number. No two pages of a run are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Page(u64);

impl Page {
    fn new(model: usize, owner: u64, number: u64) -> Page {
        Page((model as u64) << 60 | owner << 16 | number)
    }

    /// Returns a number that is unique among the pages of the run.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// The model.
    pub(super) model: usize,
    /// The pages of its prompt, from the first token on.
    pub(super) pages: Vec<Page>,
}

/// An infinite sequence of requests.
#[derive(Clone, Debug)]
pub(super) struct Conversations {
    random: SplitMix,
    models: usize,
    /// Distinguishes the conversations of this stream from those of others.
    stream: u64,
    begun: u64,
    /// Active conversations, the latest first.
    active: Vec<Conversation>,
    at_once: usize,
    prompts: Zipf,
    ranks: Zipf,
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    model: usize,
    system: u64,
    number: u64,
    pages: u64,
    turns_left: u64,
}

impl Conversations {
    /// Creates the stream `number` of `seed`, with equally likely models and `at_once` active
    /// conversations.
    pub(super) fn new(seed: u64, number: u8, models: usize, at_once: usize) -> Conversations {
        let stream = u64::from(number);
        Conversations {
            random: SplitMix(seed ^ stream << 32),
            models,
            stream,
            begun: 0,
            active: Vec::with_capacity(at_once),
            at_once,
            prompts: Zipf::new(SYSTEM_PROMPTS),
            ranks: Zipf::new(at_once),
        }
    }

    /// Adds a new conversation at the front, in place of the last one if there are enough.
    fn begin(&mut self) {
        let random = &mut self.random;
        let conversation = Conversation {
            model: random.of(0..=self.models as u64 - 1) as usize,
            system: self.prompts.rank(random) as u64,
            number: self.begun,
            pages: 0,
            turns_left: random.of(TURNS),
        };
        self.begun += 1;
        self.active.truncate(self.at_once - 1);
        self.active.insert(0, conversation);
    }

    /// Returns the pages of a conversation: those of its system prompt, and its own.
    fn pages(&self, conversation: Conversation) -> Vec<Page> {
        let Conversation { model, system, number, pages, .. } = conversation;
        // The length belongs to the prompt, whatever conversation begins with it.
        let shared = SplitMix(system << 8 | model as u64).of(SYSTEM_PAGES);
        let own = SYSTEM_PROMPTS as u64 + (number << 8 | self.stream);
        let shared = (0..shared).map(|page| Page::new(model, system, page));
        shared.chain((0..pages).map(|page| Page::new(model, own, page))).collect()
    }
}

impl Iterator for Conversations {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.active.len() < self.at_once || self.random.of(0..=BEGINS - 1) == 0 {
            self.begin();
        }
        let at = self.ranks.rank(&mut self.random).min(self.active.len() - 1);
        let mut conversation = self.active.remove(at);
        conversation.pages += self.random.of(TURN_PAGES);
        conversation.turns_left -= 1;
        if conversation.turns_left > 0 {
            self.active.insert(0, conversation);
        }
        Some(Request { model: conversation.model, pages: self.pages(conversation) })
    }
}

/// Ranks by Zipf's law.
#[derive(Clone, Debug)]
struct Zipf {
    /// The sum of the weights up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(ranks: usize) -> Zipf {
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-STEEPNESS));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Zipf { sums: sums.collect() }
    }

    fn rank(&self, random: &mut SplitMix) -> usize {
        let whole = self.sums.last().copied().unwrap_or(0.0);
        let at = random.next() as f64 / u64::MAX as f64 * whole;
        self.sums.partition_point(|sum| *sum < at).min(self.sums.len() - 1)
    }
}

/// The generator SplitMix64: fast, and the same on every machine.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number of a short range.
    fn of(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn a_request_has_all_pages_so_far_and_new_ones() {
        let mut longest: HashMap<Page, Vec<Page>> = HashMap::new();
        let mut repeated = 0;
        let mut systems = HashSet::new();
        for Request { model, pages } in Conversations::new(7, 0, 3, 20).take(2000) {
            assert!(model < 3 && pages.iter().collect::<HashSet<_>>().len() == pages.len());
            systems.insert(pages[0]);
            let own = *pages.iter().find(|page| page.0 >> 16 & 0xfff_ffff >= 24).expect("a turn");
            if let Some(before) = longest.insert(own, pages.clone()) {
                assert!(pages.starts_with(&before) && pages.len() > before.len());
                repeated += 1;
            }
        }
        assert!(repeated > 1000, "{repeated} requests continue a conversation");
        assert!(systems.len() > 24, "{} system prompts", systems.len());
    }

    #[test]
    fn streams_are_the_same_every_time_and_share_system_prompts() {
        let pages = |number| -> Vec<Page> {
            Conversations::new(7, number, 3, 20).take(500).flat_map(|it| it.pages).collect()
        };
        assert_eq!(pages(0), pages(0));
        let (one, other): (HashSet<Page>, HashSet<Page>) =
            (pages(0).into_iter().collect(), pages(1).into_iter().collect());
        let is_shared = |page: &&Page| page.0 >> 16 & 0xfff_ffff < SYSTEM_PROMPTS as u64;
        let both: Vec<&Page> = one.intersection(&other).collect();
        assert!(!both.is_empty() && both.iter().all(is_shared));
    }
}
