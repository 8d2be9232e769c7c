//! Chains through a whole server: what is left of a prefix is its start, in memory and in a tier.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem_node::{
    NewValue, Node, NodeClient, NodeOptions, NodeReservation, ParentKey, ValueOptions,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Place, Tiered, memory};

/// Values of a chain, and bytes of a value.
const LENGTH: u32 = 16;
const LEN: usize = 30_000;

fn key(chain: u32, at: u32) -> [u8; 8] {
    (u64::from(chain) << 32 | u64::from(at)).to_be_bytes()
}

/// Stores values of a chain in one call, as many as there is space for. Evicts as much: the tier
/// has stored the next victims then, so it is never far behind, however slow its thread is.
fn store(client: &NodeClient, chain: u32, positions: std::ops::Range<u32>) {
    let (count, deadline) = (positions.len(), Instant::now() + Duration::from_secs(60));
    let reservations = loop {
        match client.reserve(&vec![LEN as u64; count]) {
            Ok(reservations) => break reservations,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    let value = |(at, mut reservation): (u32, NodeReservation)| {
        reservation.write(0, &vec![at as u8; LEN]).expect("it is valid");
        let parent = at.checked_sub(1).map(|before| ParentKey::new(key(chain, before)));
        let parent = parent.map(|parent| parent.expect("it is short"));
        let options = ValueOptions { parent, ..ValueOptions::default() };
        NewValue { key: key(chain, at), reservation, options }
    };
    let values: Vec<_> = positions.zip(reservations).map(value).collect();
    client.commit(values).expect("they are reserved");
    client.evict((LEN * count) as u64).expect("a call");
}

/// Returns the values that are in memory or in the tier, and those of them without their parent.
fn left(client: &NodeClient, chains: u32) -> (u32, u32) {
    let (mut left, mut dead) = (0, 0);
    for chain in 0..chains {
        let is_there = |at: u32| client.lookup(&[key(chain, at)]).expect("a call") == 1;
        let there: Vec<bool> = (0..LENGTH).map(is_there).collect();
        let usable = there.iter().take_while(|it| **it).count() as u32;
        let all = there.iter().filter(|it| **it).count() as u32;
        (left, dead) = (left + all, dead + all - usable);
    }
    (left, dead)
}

/// The chains grow in steps and are used key by key. Those whose start is lost are stored again,
/// from the first missing value on, as engines do. At most `max_dead` of 100 values are dead
/// meanwhile.
fn serve_chains(
    client: &NodeClient,
    random: &mut ChaCha8Rng,
    chains: u32,
    one_by_one: bool,
    max_dead: u32,
) {
    for step in 0..300 {
        // Some chains are used more than others.
        let chain = random.random_range(0..chains).min(random.random_range(0..chains));
        let keys: Vec<[u8; 8]> = (0..LENGTH).map(|at| key(chain, at)).collect();
        let mut pins = Vec::new();
        if one_by_one {
            for key in &keys {
                let pin = client.acquire(&[key]).expect("a call");
                if pin.hits() == 0 {
                    break;
                }
                pins.push(pin);
            }
        } else {
            let found = client.acquire_prefix(&keys).expect("a call");
            pins.extend(found.split().into_iter().flatten());
        }
        let mut at = pins.len() as u32;
        while !pins.is_empty() {
            // In no order.
            drop(pins.swap_remove(random.random_range(0..pins.len())));
        }
        while at < LENGTH {
            let end = (at + random.random_range(1..=4)).min(LENGTH);
            store(client, chain, at..end);
            at = end;
        }
        if step % 10 == 0 {
            // Meanwhile, too.
            let (left, dead) = left(client, chains);
            assert!(dead * 100 <= left * max_dead, "{dead} of {left} values are dead");
        }
    }
}

#[test]
fn what_is_left_of_a_prefix_in_a_tier_is_its_start() {
    let place = Place::new();
    let path = place.socket().with_extension("tier");
    let mut random = ChaCha8Rng::seed_from_u64(2);
    // The tier stores no parents: after a restart, the calls for a prefix show them. A value that
    // the disk evicts while its child is stored leaves a dead one, and the rest of its chain: where
    // the threads of the tier are slow, that is more than one of 60 chains. The next test says more
    // about the order.
    const MAX_DEAD: u32 = 6;
    for round in 0..3 {
        let options = kvmem_tier::DiskTierOptions {
            bytes: Some(24 << 20),
            ..kvmem_tier::DiskTierOptions::default()
        };
        let (disk, _) = kvmem_tier::DiskTier::open(&path, &options).expect("a file can be made");
        let node = Node::create(memory(4 << 20), NodeOptions::default()).expect("possible");
        let tiered = Tiered::start(Place::new(), node, Arc::new(disk));
        let client = tiered.client();
        let (before, dead) = left(&client, 60);
        assert!(
            dead * 100 <= before * MAX_DEAD,
            "{dead} of {before} values are dead after a restart"
        );
        serve_chains(&client, &mut random, 60, round == 0, MAX_DEAD);
        let (left, dead) = left(&client, 60);
        assert!(left > 300 && dead * 100 <= left * MAX_DEAD, "{dead} of {left} values are dead");
        drop(client);
        tiered.end();
    }
}

/// A client that fetches key by key uses the start of a chain before its end. The tier still evicts
/// the end first, after the memory that had the chain is gone.
#[test]
fn a_tier_that_outlives_the_memory_evicts_the_ends_of_fetched_chains_first() {
    let place = Place::new();
    let path = place.socket().with_extension("tier");
    let served = |serve: &dyn Fn(&NodeClient)| {
        // 16 chains have room below.
        let bytes = Some(8 << 20);
        let options =
            kvmem_tier::DiskTierOptions { bytes, ..kvmem_tier::DiskTierOptions::default() };
        let (disk, _) = kvmem_tier::DiskTier::open(&path, &options).expect("a file can be made");
        let node = Node::create(memory(4 << 20), NodeOptions::default()).expect("possible");
        let tiered = Tiered::start(Place::new(), node, Arc::new(disk));
        let client = tiered.client();
        serve(&client);
        drop(client);
        tiered.end();
    };
    served(&|client| {
        (0..3).for_each(|chain| store(client, chain, 0..LENGTH));
        // The tier has them then.
        client.evict(4 << 20).expect("a call");
        for chain in 0..3 {
            for at in 0..LENGTH {
                let pin = client.acquire(&[key(chain, at)]).expect("a call");
                assert_eq!(pin.hits(), 1, "value {at} of chain {chain}");
            }
        }
    });
    served(&|client| {
        let mut next = 3;
        // Until the tier has evicted a part of the first chains.
        while left(client, 3).0 == 3 * LENGTH {
            store(client, next, 0..1);
            // A call of the tier with many values evicts a quarter of its space at once.
            client.evict(4 << 20).expect("a call");
            next += 1;
        }
        let (left, dead) = left(client, 3);
        assert!(left > 0 && dead == 0, "{dead} of {left} values are dead");
    });
}
