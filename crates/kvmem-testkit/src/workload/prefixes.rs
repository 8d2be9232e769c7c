//! Several kinds of requests to a prefix cache.
//!
//! A request is a chain of blocks, named from the first token on. A name stands for a block and all
//! blocks before it: two requests that share a name share everything before it. A cached block is
//! useful only if all blocks before it are cached.
//!
//! | kind | requests |
//! |---|---|
//! | [`Prefixes::Conversations`] | many turns over shared system prompts; each turn repeats all earlier ones |
//! | [`Prefixes::Scans`] | the same, interspersed with prompts of many blocks that are never repeated |
//! | [`Prefixes::Agents`] | loops of agents: the same tools, a context that grows step by step, in turn; some steps go back |
//! | [`Prefixes::Documents`] | questions about documents: Zipf's law selects the document, the question is new |
//!
//! The kind, a seed and a number of requests determine everything.

use rand::RngExt;
use rand_distr::{Distribution, Zipf};

use super::{Rng, stream};

/// A kind of requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Prefixes {
    /// Conversations over shared system prompts.
    Conversations,
    /// Conversations, and long prompts that are never repeated.
    Scans,
    /// Loops of agents with growing contexts.
    Agents,
    /// Questions about documents.
    Documents,
}

/// Models of conversations, and system prompts of a model.
const MODELS: usize = 2;
const SYSTEM_PROMPTS: usize = 24;
/// The exponent of Zipf's law: how steeply use falls with the rank.
const STEEPNESS: f64 = 1.1;
/// Blocks of a system prompt, and those that a turn adds.
const SYSTEM_BLOCKS: std::ops::RangeInclusive<u64> = 6..=24;
const TURN_BLOCKS: std::ops::RangeInclusive<u64> = 2..=9;
/// Turns until a conversation ends.
const TURNS: std::ops::RangeInclusive<u32> = 3..=14;
/// One in this many requests begins a conversation, besides those that follow a finished one.
const BEGINS: u32 = 12;
/// Active conversations.
const AT_ONCE: usize = 192;
/// One in this many requests is a scan.
const SCAN_EVERY: u32 = 4;
/// Blocks of a scan.
const SCAN_BLOCKS: std::ops::RangeInclusive<u64> = 32..=160;
/// Active agents.
const AGENTS: usize = 48;
/// Blocks of an agent's instructions and tools; agents of one kind share them.
const TOOL_BLOCKS: std::ops::RangeInclusive<u64> = 8..=24;
/// Kinds of agents.
const TOOLS: u64 = 6;
/// Steps of a task.
const STEPS: std::ops::RangeInclusive<u32> = 10..=60;
/// Blocks that a step adds.
const STEP_BLOCKS: std::ops::RangeInclusive<u64> = 1..=4;
/// Documents.
const DOCUMENTS: u64 = 3000;
/// Blocks of a document.
const DOCUMENT_BLOCKS: std::ops::RangeInclusive<u64> = 4..=60;
/// Blocks of a question.
const QUESTION_BLOCKS: std::ops::RangeInclusive<u64> = 1..=3;
/// The instructions before each document.
const HEADER_BLOCKS: u64 = 4;

impl Prefixes {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Conversations, Self::Scans, Self::Agents, Self::Documents];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Conversations => "conversations",
            Self::Scans => "scans",
            Self::Agents => "agents",
            Self::Documents => "documents",
        }
    }

    /// Returns the chains of `requests` requests.
    #[must_use]
    pub fn requests(self, seed: u64, requests: usize) -> Vec<Vec<u64>> {
        let rng = stream(seed, 200);
        match self {
            Self::Conversations => conversations(seed).take(requests).collect(),
            Self::Scans => scans(rng, seed, requests),
            Self::Agents => agents(rng, requests),
            Self::Documents => documents(rng, requests),
        }
    }
}

/// Conversations of a server of several models, without end.
///
/// ```text
///             shared by all that begin with it     only this conversation
///            ├──────────────────────────────────┼───────────┬────────┬─────────┤
///  a prompt   system prompt                       turn 1      turn 2   turn 3 …
/// ```
///
/// A request has all blocks of a conversation so far and some new ones. Zipf's law selects the
/// conversation that continues among the active ones, the latest first, and the system prompt of a
/// new conversation. A conversation ends after its own number of turns, and a new one replaces it.
struct Conversations {
    rng: Rng,
    begun: u64,
    /// Active conversations, the latest first.
    under_way: Vec<Conversation>,
    prompts: Zipf<f64>,
    ranks: Zipf<f64>,
}

#[derive(Clone, Copy)]
struct Conversation {
    model: u64,
    system: u64,
    number: u64,
    blocks: u64,
    turns_left: u32,
}

fn conversations(seed: u64) -> Conversations {
    let zipf = |ranks: usize| {
        Zipf::new(ranks as f64, STEEPNESS).expect("there are ranks, and a positive exponent")
    };
    let (prompts, ranks) = (zipf(SYSTEM_PROMPTS), zipf(AT_ONCE));
    Conversations { rng: stream(seed, 0), begun: 0, under_way: Vec::new(), prompts, ranks }
}

impl Conversations {
    /// Adds a new conversation at the front.
    fn begin(&mut self) {
        let conversation = Conversation {
            model: self.rng.random_range(0..MODELS) as u64,
            system: self.prompts.sample(&mut self.rng) as u64 - 1,
            number: self.begun,
            blocks: 0,
            turns_left: self.rng.random_range(TURNS),
        };
        self.begun += 1;
        self.under_way.truncate(AT_ONCE - 1);
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
    type Item = Vec<u64>;

    /// Returns the next request; never `None`.
    fn next(&mut self) -> Option<Vec<u64>> {
        self.choose();
        let turn = self.rng.random_range(TURN_BLOCKS);
        let now = &mut self.under_way[0];
        now.blocks += turn;
        now.turns_left -= 1;
        // Drawn from the number of the system prompt, so it is the same in all conversations.
        let length = stream(now.system, now.model).random_range(SYSTEM_BLOCKS);
        let name = |owner: u64, place: u64| now.model << 60 | owner << 16 | place;
        let own = (0..now.blocks).map(|place| name(1 << 43 | now.number, place));
        Some((0..length).map(|place| name(now.system, place)).chain(own).collect())
    }
}

/// Returns a block name, distinct from all pages of conversations, for `owner`, below 2^40, and a
/// place in its chain.
fn name(owner: u64, place: u64) -> u64 {
    0xF << 60 | owner << 20 | place
}

fn scans(mut rng: Rng, seed: u64, requests: usize) -> Vec<Vec<u64>> {
    let mut talk = conversations(seed);
    let mut scans = 0;
    let mut next = || {
        if !rng.random_ratio(1, SCAN_EVERY) {
            return talk.next().unwrap_or_default();
        }
        scans += 1;
        (0..rng.random_range(SCAN_BLOCKS)).map(|place| name(scans, place)).collect()
    };
    (0..requests).map(|_| next()).collect()
}

struct Agent {
    chain: Vec<u64>,
    steps_left: u32,
}

fn agents(mut rng: Rng, requests: usize) -> Vec<Vec<u64>> {
    let begin = |rng: &mut Rng| {
        let tools = rng.random_range(0..TOOLS);
        let length = stream(tools, 201).random_range(TOOL_BLOCKS);
        let chain = (0..length).map(|place| name(tools, place)).collect();
        Agent { chain, steps_left: rng.random_range(STEPS) }
    };
    let mut at_work: Vec<Agent> = (0..AGENTS).map(|_| begin(&mut rng)).collect();
    let mut chains = Vec::with_capacity(requests);
    for (turn, fresh) in (0..requests).zip(TOOLS + 1..) {
        // Mostly in turn; some agents wait for their tools.
        let at = if rng.random_ratio(3, 4) { turn % AGENTS } else { rng.random_range(0..AGENTS) };
        if at_work[at].steps_left == 0 {
            at_work[at] = begin(&mut rng);
        }
        let agent = &mut at_work[at];
        agent.steps_left -= 1;
        if rng.random_ratio(1, 12) {
            // The agent takes some blocks back.
            let back = agent.chain.len().saturating_sub(rng.random_range(1..=12)).max(8);
            agent.chain.truncate(back);
        }
        let more = rng.random_range(STEP_BLOCKS);
        agent.chain.extend((0..more).map(|place| name(fresh, place)));
        chains.push(agent.chain.clone());
    }
    chains
}

fn documents(mut rng: Rng, requests: usize) -> Vec<Vec<u64>> {
    let ranks = Zipf::new(DOCUMENTS as f64, 0.9).expect("there are ranks, and a positive exponent");
    let mut chains = Vec::with_capacity(requests);
    for number in 0..requests as u64 {
        let document = ranks.sample(&mut rng) as u64;
        let length = stream(document, 202).random_range(DOCUMENT_BLOCKS);
        let question = rng.random_range(QUESTION_BLOCKS);
        let header = (0..HEADER_BLOCKS).map(|place| name(0, place));
        let body = (0..length).map(|place| name(document, place));
        let own = (0..question).map(|place| name(1 << 30 | number, place));
        chains.push(header.chain(body).chain(own).collect());
    }
    chains
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn the_seed_determines_the_chains_and_a_name_its_prefix() {
        for kind in Prefixes::ALL {
            let chains = kind.requests(1, 1500);
            assert_eq!(chains, kind.requests(1, 1500), "{}", kind.name());
            assert_ne!(chains, kind.requests(2, 1500), "{}", kind.name());
            let mut before = HashMap::new();
            let (mut found, mut all) = (0, 0);
            for chain in &chains {
                let mut parent = None;
                for &block in chain {
                    all += 1;
                    match before.insert(block, parent) {
                        Some(known) => {
                            found += 1;
                            assert_eq!(known, parent, "{}: {block:#x}", kind.name());
                        }
                        None => assert_ne!(Some(block), parent),
                    }
                    parent = Some(block);
                }
                assert_eq!(chain.iter().collect::<HashSet<_>>().len(), chain.len());
            }
            let share = f64::from(found) / f64::from(all);
            assert!(
                (0.2..0.98).contains(&share),
                "{}: {share} of the blocks are known",
                kind.name()
            );
        }
    }
}
