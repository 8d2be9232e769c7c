//! Subscribers know what the node holds, whatever happens in whatever order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::batch::{Batch, Medium};
use super::description::tests::of_block;
use super::index::{Announcement, Index};
use super::*;
use crate::node::Place;

/// Reads a value of MessagePack. Bytes become text in hexadecimal digits.
fn decode(bytes: &mut &[u8]) -> Value {
    fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(len);
        *bytes = rest;
        taken
    }
    fn number(bytes: &mut &[u8], width: usize) -> u64 {
        take(bytes, width).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
    let array = |bytes: &mut &[u8], len: u64| (0..len).map(|_| decode(bytes)).collect();
    let map = |bytes: &mut &[u8], len: u64| {
        let field = |_| (decode(bytes).as_str().expect("a name").to_owned(), decode(bytes));
        Value::Object((0..len).map(field).collect())
    };
    let text = |bytes: &mut &[u8], len: u64| {
        Value::from(std::str::from_utf8(take(bytes, len as usize)).expect("text"))
    };
    let tag = take(bytes, 1)[0];
    match tag {
        0..0x80 => tag.into(),
        0x80..0x90 => map(bytes, u64::from(tag & 0xF)),
        0x90..0xA0 => array(bytes, u64::from(tag & 0xF)),
        0xA0..0xC0 => text(bytes, u64::from(tag & 0x1F)),
        0xC0 => Value::Null,
        0xC2 | 0xC3 => (tag == 0xC3).into(),
        0xC4..=0xC6 => {
            let len = number(bytes, 1 << (tag - 0xC4));
            let hex = take(bytes, len as usize).iter().map(|byte| format!("{byte:02x}"));
            hex.collect::<String>().into()
        }
        0xCB => f64::from_bits(number(bytes, 8)).into(),
        0xCC..=0xCF => number(bytes, 1 << (tag - 0xCC)).into(),
        0xD3 => (number(bytes, 8) as i64).into(),
        0xD9..=0xDB => {
            let len = number(bytes, 1 << (tag - 0xD9));
            text(bytes, len)
        }
        0xDC | 0xDD => {
            let len = number(bytes, 2 << (tag - 0xDC));
            array(bytes, len)
        }
        0xDE | 0xDF => {
            let len = number(bytes, 2 << (tag - 0xDE));
            map(bytes, len)
        }
        _ => panic!("{tag:#x} is no tag that a batch has"),
    }
}

/// The index of a router: the media of each hash and group.
#[derive(Debug, Default, PartialEq)]
struct Router {
    blocks: BTreeMap<String, BTreeSet<String>>,
    /// Whether it began with everything.
    is_whole: bool,
    /// Blocks that others continue, and that are not known: they must not come now.
    missing: BTreeSet<String>,
    described: usize,
}

impl Router {
    fn take(&mut self, payload: &[u8]) {
        let mut rest = payload;
        let batch = decode(&mut rest);
        assert!(rest.is_empty() && batch[0].is_f64());
        for event in batch[1].as_array().expect("an array") {
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: &Value) {
        let medium = || event["medium"].as_str().expect("a medium").to_owned();
        let blocks = || event["block_hashes"].as_array().expect("an array").iter();
        match event["type"].as_str() {
            Some("AllBlocksCleared") => (self.blocks, self.is_whole) = (BTreeMap::new(), true),
            Some("BlockStored") => {
                assert_eq!(event["locality"], "LOCAL");
                let parent = event["parent_block_hash"].to_string();
                if self.blocks.get(&parent).is_none_or(BTreeSet::is_empty) {
                    self.missing.insert(parent);
                }
                self.described += usize::from(event["block_size"] != 0);
                for block in blocks() {
                    assert!(!self.missing.contains(&block.to_string()), "{event}");
                    self.blocks.entry(block.to_string()).or_default().insert(medium());
                }
            }
            Some("BlockRemoved") => {
                for block in blocks() {
                    let media = self.blocks.entry(block.to_string()).or_default();
                    assert!(media.remove(&medium()) || !self.is_whole, "{event}");
                }
            }
            _ => panic!("{event}"),
        }
    }

    /// Returns what it knows, in the form of what the node holds.
    fn knows(&self) -> BTreeMap<String, String> {
        let media = self.blocks.iter().filter(|(_, media)| !media.is_empty());
        media
            .map(|(block, media)| (block.clone(), Vec::from_iter(media.clone()).concat()))
            .collect()
    }
}

/// Returns the hash of a block: block 0 of a chain has no parent, each other one that before it.
fn hash_of(block: u8) -> [u8; 32] {
    [block + 1; 32]
}

fn key_of(block: u8) -> Vec<u8> {
    [&hash_of(block)[..], &[0; 4]].concat()
}

fn about(block: u8) -> Vec<u8> {
    let parent = (!block.is_multiple_of(8)).then(|| hash_of(block - 1));
    of_block(&hash_of(block), parent.as_ref().map(|it| &it[..]), &[u32::from(block); 4])
}

fn place(changes: &mut Changes, block: u8, place: Place) {
    changes.push(News::Placed(place), 3, &key_of(block), &[]);
}

fn describe(changes: &mut Changes, block: u8, place: Place) {
    let about = if place == Place::Memory { about(block) } else { Vec::new() };
    changes.push(News::Placed(place), 3, &[&key_of(block)[..], SUFFIX].concat(), &about);
}

/// Takes note of changes, and says them to a router.
fn publish(index: &mut Index, changes: &mut Changes, router: &mut Router) {
    index.take(changes);
    let mut batch = Batch::default();
    router.missing.clear();
    index.publish(&mut batch, |full| router.take(&full.take(1.0)));
    router.take(&batch.take(1.0));
}

/// Says everything to a router that knows nothing.
fn announced(index: &Index) -> Router {
    let (mut announcement, mut router, mut batches) =
        (Announcement::default(), Router::default(), 0);
    let expected = index.batches();
    while !announcement.is_over() {
        let mut batch = Batch::default();
        index.announce_some(&mut announcement, &mut batch);
        router.take(&batch.take(1.0));
        batches += 1;
    }
    assert_eq!(batches, expected);
    router
}

#[derive(Clone, Debug)]
enum Step {
    Place(u8, u8),
    Describe(u8, bool),
    /// Some events are lost, and the node lists what it has.
    Lose(Vec<(u8, u8)>),
    /// The tier drops some values, and lists what it has.
    Drop(Vec<u8>),
    Publish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = 0..24_u8;
    let step = prop_oneof![
        8 => (block.clone(), 0..3_u8).prop_map(|(block, place)| Step::Place(block, place)),
        4 => (block.clone(), any::<bool>()).prop_map(|(block, there)| Step::Describe(block, there)),
        1 => proptest::collection::vec((block.clone(), 0..3_u8), 0..12).prop_map(Step::Lose),
        1 => proptest::collection::vec(block, 0..12).prop_map(Step::Drop),
        3 => Just(Step::Publish),
    ];
    proptest::collection::vec(step, 0..60)
}

fn place_of(number: u8) -> Place {
    [Place::Nowhere, Place::Tier, Place::Memory][usize::from(number)]
}

proptest! {
    #[test]
    fn a_router_knows_what_the_node_holds(steps in steps()) {
        let mut index = Index::new(true);
        let (mut router, mut changes) = (Router::default(), Changes::default());
        // Where values and descriptions are.
        let (mut held, mut abouts) = (BTreeMap::new(), BTreeSet::new());
        for step in steps.into_iter().chain([Step::Publish]) {
            match step {
                Step::Place(block, to) => {
                    place(&mut changes, block, place_of(to));
                    held.insert(block, place_of(to));
                }
                Step::Describe(block, there) => {
                    if there {
                        describe(&mut changes, block, Place::Memory);
                        abouts.insert(block);
                    } else {
                        describe(&mut changes, block, Place::Nowhere);
                        abouts.remove(&block);
                    }
                }
                Step::Lose(lost) => {
                    held.extend(lost.into_iter().map(|(block, to)| (block, place_of(to))));
                    abouts.pop_first();
                    changes.push(News::Begin, 0, &[], &[]);
                    abouts.iter().for_each(|it| describe(&mut changes, *it, Place::Memory));
                    for (block, there) in held.iter().filter(|(_, it)| **it != Place::Nowhere) {
                        place(&mut changes, *block, *there);
                    }
                    changes.push(News::EndAll, 0, &[], &[]);
                }
                Step::Drop(dropped) => {
                    held.retain(|it, there| *there != Place::Tier || !dropped.contains(it));
                    changes.push(News::Begin, 0, &[], &[]);
                    for (block, _) in held.iter().filter(|(_, it)| **it == Place::Tier) {
                        place(&mut changes, *block, Place::Tier);
                    }
                    changes.push(News::EndTier, 0, &[], &[]);
                }
                Step::Publish => {
                    publish(&mut index, &mut changes, &mut router);
                    let hex = |block: &u8| format!("{:02x}", block + 1).repeat(32);
                    let name = |block: &u8| format!("\"{}\"", hex(block));
                    let medium = |it: &Place| match it {
                        Place::Memory => Some(Medium::Cpu.name()),
                        Place::Tier => Some(Medium::Storage.name()),
                        Place::Nowhere => None,
                    };
                    let there = held.iter().filter_map(|(block, it)| {
                        Some((name(block), medium(it)?.to_owned()))
                    });
                    let there: BTreeMap<String, String> = there.collect();
                    prop_assert_eq!(&router.knows(), &there);
                    prop_assert_eq!(announced(&index).knows(), there);
                }
            }
        }
    }
}

#[test]
fn a_description_that_comes_before_or_after_its_chunk_is_published() {
    for before in [true, false] {
        let mut index = Index::new(true);
        let (mut router, mut changes) = (Router::default(), Changes::default());
        let steps: [&dyn Fn(&mut Changes); 2] = [
            &|changes| (0..8).rev().for_each(|it| place(changes, it, Place::Memory)),
            &|changes| (0..8).for_each(|it| describe(changes, it, Place::Memory)),
        ];
        for step in [usize::from(before), usize::from(!before)] {
            steps[step](&mut changes);
            publish(&mut index, &mut changes, &mut router);
        }
        assert_eq!((router.described, announced(&index).described), (8, 8));
        // The description goes first, and is known still.
        (0..8).for_each(|it| describe(&mut changes, it, Place::Nowhere));
        (0..8).for_each(|it| place(&mut changes, it, Place::Tier));
        publish(&mut index, &mut changes, &mut router);
        assert_eq!(router.described, 16);
        (0..8).for_each(|it| place(&mut changes, it, Place::Nowhere));
        publish(&mut index, &mut changes, &mut router);
        assert!(router.knows().is_empty() && announced(&index).knows().is_empty());
    }
}

#[test]
fn events_have_the_fields_of_vllms() {
    let mut index = Index::new(false);
    let mut changes = Changes::default();
    describe(&mut changes, 1, Place::Memory);
    place(&mut changes, 1, Place::Memory);
    changes.push(News::Placed(Place::Tier), 3, b"text", &[]);
    index.take(&mut changes);
    let mut batch = Batch::default();
    index.publish(&mut batch, |_| panic!("it is short"));
    let number = u64::from_be_bytes([2; 8]);
    let parent = u64::from_be_bytes([1; 8]);
    let described = json!({
        "type": "BlockStored", "block_hashes": [number], "parent_block_hash": parent,
        "token_ids": [1, 1, 1, 1], "block_size": 4, "lora_id": null, "medium": "CPU",
        "lora_name": null, "extra_keys": [["salt", 3], null], "group_idx": 0,
        "kv_cache_spec_kind": "full", "locality": "LOCAL",
    });
    let plain = json!({
        "type": "BlockStored", "block_hashes": ["74657874"], "parent_block_hash": null,
        "token_ids": [], "block_size": 0, "lora_id": null, "medium": "STORAGE", "lora_name": null,
        "locality": "LOCAL",
    });
    let decoded = |batch: &mut Batch| decode(&mut &batch.take(2.5)[..]);
    assert_eq!(decoded(&mut batch), json!([2.5, [described, plain], null]));
    index.announce_some(&mut Announcement::default(), &mut batch);
    let cleared = json!({ "type": "AllBlocksCleared" });
    assert_eq!(decoded(&mut batch), json!([2.5, [cleared, described, plain], null]));
    place(&mut changes, 1, Place::Nowhere);
    index.take(&mut changes);
    index.publish(&mut batch, |_| panic!("it is short"));
    let removed = json!({
        "type": "BlockRemoved", "block_hashes": [number], "medium": "CPU", "group_idx": 0,
        "locality": "LOCAL",
    });
    assert_eq!(decoded(&mut batch), json!([2.5, [removed], null]));
}

/// A publisher without a server.
struct Alone {
    feed: Arc<Feed>,
    address: std::net::SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Alone {
    /// Starts one that lets this number of bytes wait for a peer.
    fn start(max_waiting: usize) -> Alone {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let feed = Arc::new(Feed::new().expect("an eventfd"));
        let topic = "kv".to_owned();
        let options = KvEventsOptions { topic, max_waiting, ..KvEventsOptions::default() };
        let thread = Some(start(&feed, listener, &options).expect("a thread"));
        Alone { feed, address, thread }
    }

    fn add(&self, fill: impl Fn(&mut Changes)) {
        while !self.feed.add(&fill) {
            std::thread::yield_now();
        }
    }

    fn place(&self, blocks: std::ops::Range<u32>, to: Place) {
        self.add(|changes| {
            for block in blocks.clone() {
                changes.push(News::Placed(to), 0, &block.to_be_bytes(), &[]);
            }
        });
    }

    fn peer(&self, kind: &[u8]) -> Wire {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let mut opening = zmtp::greeting().to_vec();
        let ready = [&b"\x05READY\x0BSocket-Type\0\0\0"[..], &[kind.len() as u8], kind].concat();
        opening.extend([4, ready.len() as u8]);
        opening.extend(ready);
        stream.write_all(&opening).expect("it reads");
        let mut wire = Wire { stream, last: None };
        let mut greeting = [0; 64];
        wire.stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(greeting, zmtp::greeting());
        assert_eq!(wire.frame().0, 4, "a command");
        wire
    }

    fn subscriber(&self, topic: &[u8]) -> Wire {
        let mut wire = self.peer(b"SUB");
        wire.say(&[&[1], topic].concat(), false);
        wire
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.feed.end();
        self.thread.take().expect("it runs").join().expect("no panic");
    }
}

/// The other end of a peer.
struct Wire {
    stream: TcpStream,
    /// The number of the last batch.
    last: Option<u64>,
}

impl Wire {
    fn say(&mut self, body: &[u8], more: bool) {
        let mut bytes = Vec::new();
        zmtp::push_frame(&mut bytes, body, more);
        self.stream.write_all(&bytes).expect("it reads");
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut flags = [0];
        self.stream.read_exact(&mut flags).expect("a frame");
        let len = if flags[0] & 2 == 0 {
            let mut len = [0];
            self.stream.read_exact(&mut len).expect("a length");
            len[0].into()
        } else {
            let mut len = [0; 8];
            self.stream.read_exact(&mut len).expect("a length");
            u64::from_be_bytes(len)
        };
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body).expect("a body");
        (flags[0], body)
    }

    /// Returns the next message: what comes before the number, the number, and the batch.
    fn message(&mut self) -> (Vec<u8>, u64, Vec<u8>) {
        let [(first, before), (second, number), (third, payload)] = [(); 3].map(|()| self.frame());
        assert_eq!((first & 1, second & 1, third & 1), (1, 1, 0));
        (before, u64::from_be_bytes(number.try_into().expect("8 bytes")), payload)
    }

    /// Hears batches until the router knows this number of blocks in memory and in the tier. No
    /// number is missing.
    fn hear(&mut self, router: &mut Router, blocks: [usize; 2]) {
        let count = |router: &Router| {
            let knows = router.knows();
            ["CPU", "STORAGE"].map(|medium| knows.values().filter(|it| *it == medium).count())
        };
        while count(router) != blocks {
            let (topic, number, payload) = self.message();
            assert_eq!(topic, b"kv");
            assert!(self.last.is_none_or(|last| number == last + 1));
            self.last = Some(number);
            router.take(&payload);
        }
    }

    /// Requests a replay, and returns its numbers and what a router knows from it.
    fn replay(&mut self, from: u64) -> (Vec<u64>, Router) {
        self.say(&[], true);
        self.say(&from.to_be_bytes(), false);
        let (mut numbers, mut router) = (Vec::new(), Router::default());
        loop {
            assert_eq!(self.frame(), (1, Vec::new()), "the delimiter");
            let (topic, number, payload) = self.message();
            if payload.is_empty() {
                assert_eq!((topic, number), (Vec::new(), u64::MAX));
                return (numbers, router);
            }
            assert_eq!(topic, b"kv");
            numbers.push(number);
            router.take(&payload);
        }
    }
}

fn consecutive(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

#[test]
fn late_subscribers_and_replays_know_everything() {
    let alone = Alone::start(1 << 26);
    let (mut early, mut early_knows) = (alone.subscriber(b""), Router::default());
    alone.place(0..3000, Place::Memory);
    early.hear(&mut early_knows, [3000, 0]);
    let (mut late, mut late_knows) = (alone.subscriber(b"k"), Router::default());
    late.hear(&mut late_knows, [3000, 0]);
    alone.place(0..1000, Place::Nowhere);
    alone.place(1000..1500, Place::Tier);
    early.hear(&mut early_knows, [1500, 500]);
    late.hear(&mut late_knows, [1500, 500]);
    assert_eq!(early_knows.knows(), late_knows.knows());
    // What was published since some number; and everything, with numbers that end before the next.
    let mut replayer = alone.peer(b"REQ");
    let last = early.last.expect("a number");
    let (numbers, _) = replayer.replay(last);
    assert_eq!((numbers.first(), consecutive(&numbers)), (Some(&last), true));
    let (numbers, everything) = replayer.replay(0);
    assert_eq!(everything.knows(), late_knows.knows());
    let ends = numbers.last().is_some_and(|number| *number >= last);
    assert!(consecutive(&numbers) && ends, "{numbers:?}");
    assert_eq!(replayer.replay(u64::MAX - 1).0, [0; 0]);
}

#[test]
fn a_slow_subscriber_is_disconnected_and_learns_everything_again() {
    let alone = Alone::start(1 << 20);
    let (mut quick, mut knows) = (alone.subscriber(b""), Router::default());
    let mut slow = alone.subscriber(b"");
    let first = slow.message().1;
    let keys: Vec<Vec<u8>> = (0..8_u8).map(|at| vec![at; 4000]).collect();
    // The sockets have some MiB.
    for round in 0..800 {
        let to = if round % 2 == 0 { Place::Memory } else { Place::Nowhere };
        alone.add(|changes| {
            keys.iter().for_each(|key| changes.push(News::Placed(to), 0, key, &[]));
        });
        quick.hear(&mut knows, if to == Place::Memory { [keys.len(), 0] } else { [0, 0] });
    }
    alone.place(0..10, Place::Memory);
    quick.hear(&mut knows, [10, 0]);
    let mut left = Vec::new();
    let ended = slow.stream.read_to_end(&mut left);
    assert!(!ended.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock));
    assert!(left.len() < 800 * 8 * 4000);
    let (mut again, mut knows_again) = (alone.subscriber(b""), Router::default());
    again.hear(&mut knows_again, [10, 0]);
    assert_eq!(knows_again.knows(), knows.knows());
    // The numbers say that something was missed.
    assert!(again.last.is_some_and(|last| last > first + 100));
}

#[test]
fn a_malformed_peer_hurts_itself_alone() {
    let alone = Alone::start(1 << 26);
    let (mut good, mut knows) = (alone.subscriber(b""), Router::default());
    let mut bad: Vec<TcpStream> = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 64], &zmtp::greeting()[..30], &[]] {
        let mut stream = TcpStream::connect(alone.address).expect("it listens");
        stream.write_all(bytes).expect("it reads");
        bad.push(stream);
    }
    for kind in [&b"SUB"[..], b"DEALER"] {
        let mut wire = alone.peer(kind);
        wire.stream.write_all(&[2, 1, 0, 0, 0, 0, 0, 0, 0]).expect("it reads");
        bad.push(wire.stream);
    }
    // More connections than there is place for.
    let many: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(alone.address).expect("it listens")).collect();
    let started = Instant::now();
    alone.place(0..100, Place::Memory);
    good.hear(&mut knows, [100, 0]);
    let (mut another, mut knows_too) = (alone.subscriber(b""), Router::default());
    another.hear(&mut knows_too, [100, 0]);
    assert!(started.elapsed() < Duration::from_secs(5));
    for at in [0, 1, 4, 5] {
        bad[at].set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
        let mut rest = Vec::new();
        let ended = bad[at].read_to_end(&mut rest);
        assert!(!ended.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock), "{at}");
    }
    drop(many);
}
