//! `kvmem serve` on hugepages. Needs root, and a pool that can be resized.

use std::fs;

use crate::pool::{Machine, PAGES, POOL};
use crate::serving::Place;

#[test]
fn values_survive_in_hugepages() {
    let Some(_machine) = Machine::take() else { return };
    fs::write(POOL, PAGES.to_string()).expect("root may");
    let place = Place::new();
    let server = place.serve_in("2M,thp,4k", "16MiB", &[]);
    let range = &server.report["receipt"]["ranges"][0];
    assert_eq!(range["obtained"], "2M", "{}", server.report);
    let client = place.client();
    for key in 0..100_u32 {
        client.insert(key.to_le_bytes(), &[key as u8; 100_000]).expect("there is space");
    }
    drop(client);
    server.kill();
    let server = place.serve_in("2M", "16MiB", &[]);
    assert_eq!(server.report["recovered"]["values"], 100);
    let client = place.client();
    for key in 0..100_u32 {
        let found = client.get(key.to_le_bytes()).expect("a call").expect("it is there");
        assert_eq!(found.bytes().expect("it is valid"), [key as u8; 100_000]);
    }
    drop(client);
    server.kill();
    // More than the pool has.
    let (status, errors) = place.fails_in("2M", "64GiB", &["--fresh"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("hugepages"), "{errors}");
}
