//! The verbs of a cache, by the table of all languages: what they return, and which calls of the
//! lower tier they make.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem_testkit::counting_tier::CountingTier;

use super::{one_shard, pool};

const TABLE: &str = include_str!("../../data/cache_verbs.txt");
const PLACES: [&str; 4] = ["memory", "tier", "both", "missing"];
const KEY: u64 = 7;

/// Calls a verb; returns the number of values found, removed or counted, if the verb returns it.
fn call(cache: &KvCache<u64>, verb: &str) -> Option<u64> {
    let all = |found: Vec<Option<_>>| Some(found.iter().flatten().count() as u64);
    let one = |found: Option<_>| Some(u64::from(found.is_some()));
    match verb {
        "get" => one(cache.get(&KEY)),
        "get_in_memory" => one(cache.get_in_memory(&KEY)),
        "get_batch" => all(cache.get_batch(&[KEY])),
        "get_batch_until" => {
            all(cache.get_batch_until(&[KEY], Instant::now() + Duration::from_secs(60)))
        }
        "start_fetch" => all(cache.start_fetch(&[KEY]).wait()),
        "contains" => Some(cache.contains(&KEY).into()),
        "contains_in_memory" => Some(cache.contains_in_memory(&KEY).into()),
        "len" => Some(cache.len()),
        "len_in_memory" => Some(cache.len_in_memory()),
        "remove" => one(cache.remove(&KEY).unwrap()),
        "remove_in_memory" => one(cache.remove_in_memory(&KEY)),
        verb => {
            match verb {
                "clear" => cache.clear().unwrap(),
                "clear_in_memory" => cache.clear_in_memory(),
                "insert" => cache.insert(KEY, b"another").unwrap(),
                "evict_to" => assert_eq!(cache.evict_to(0), 0),
                "prefetch" => cache.prefetch(&[KEY]),
                other => panic!("the table has an unknown verb: {other}"),
            }
            None
        }
    }
}

#[test]
fn verbs_return_and_call_what_the_table_says() {
    let pool = pool(1 << 20);
    for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words.len(), 9, "{row}");
        for (place, cell) in PLACES.into_iter().zip(words[1..].chunks(2)) {
            let tier = Arc::new(CountingTier::default());
            let cache = one_shard(&pool, |builder| builder.lower_tier(Arc::clone(&tier) as _));
            if place != "missing" {
                cache.insert(KEY, b"value").unwrap();
            }
            if place == "tier" || place == "both" {
                cache.evict_to(0);
            }
            if place == "both" {
                assert!(cache.get(&KEY).is_some());
            }
            tier.take_calls();
            let returned = call(&cache, words[0]);
            let calls = tier.take_calls();
            let answer = returned.unwrap_or_else(|| cache.len()).to_string();
            assert_eq!([&answer, &calls], [cell[0], cell[1]], "{} of {place}", words[0]);
        }
    }
}
