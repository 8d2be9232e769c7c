//! Slabs under a whole program: this one.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;

use kvmem::slab::SliceGlobal;

#[global_allocator]
static HEAP: SliceGlobal = SliceGlobal::new();

#[test]
fn collections_threads_and_strings() {
    let (sender, receiver) = mpsc::channel();
    let workers: Vec<_> = (0..8u64)
        .map(|seed| {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut tree = BTreeMap::new();
                for key in 0..5000 {
                    tree.insert(key * (seed + 1) % 7919, format!("{seed}:{key}").repeat(key as usize % 40));
                }
                sender.send(tree).unwrap();
            })
        })
        .collect();
    drop(sender);
    let mut all: HashMap<u64, Vec<String>> = HashMap::new();
    for tree in receiver {
        for (key, text) in tree {
            all.entry(key).or_default().push(text);
        }
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all.len() > 5000);
    HEAP.slices().expect("the program has allocated before").trim();
    for texts in all.values() {
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let (seed, rest) = text.split_once(':').unwrap();
            assert!(
                seed.parse::<u64>().unwrap() < 8 && rest.starts_with(|digit: char| digit.is_ascii_digit())
            );
        }
    }
}

#[test]
fn threads_come_and_go() {
    for round in 0..200 {
        let worker = thread::spawn(move || vec![round; 1 + round % 3000]);
        assert_eq!(worker.join().unwrap().len(), 1 + round % 3000);
    }
    let caches = HEAP.slices().unwrap();
    caches.trim();
    let stats = caches.stats();
    assert!(stats.slab_bytes < 64 << 20, "{}", stats.slab_bytes);
}

#[test]
fn every_layout() {
    for size in (1..600).chain([1000, 4096, 8192, 8193, 100_000]) {
        for align in [1, 2, 8, 16, 32, 64, 128, 4096] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layout is not of no bytes; the block is used within its size and freed once, with what it has then.
            unsafe {
                let block = HEAP.alloc_zeroed(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts_mut(block, size);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
                let grown_bytes = size * 3 + 1;
                let grown = HEAP.realloc(block, layout, grown_bytes);
                assert!(!grown.is_null() && grown.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts(grown, size);
                assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
                let layout = Layout::from_size_align(grown_bytes, align).unwrap();
                let shrunk = HEAP.realloc(grown, layout, 1);
                assert_eq!(*shrunk, 0);
                HEAP.dealloc(shrunk, Layout::from_size_align(1, align).unwrap());
            }
        }
    }
}
