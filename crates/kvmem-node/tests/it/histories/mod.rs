//! Random histories of a whole node, compared with a model of it.
//!
//! Several clients, by sockets and by rings, in several namespaces, call a server that is replaced
//! again and again over the memory that is retained. One thread makes all calls, one after the
//! other, so the [`model`] knows the answer to each: it learns from the events which values were
//! evicted, and judges whether they were the right ones.
//!
//! `KVMEM_TEST_ROUNDS` is the number of histories, and `KVMEM_TEST_SEED` the seed of the first one.

mod calls;
mod client;
mod model;
mod world;

use world::World;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

#[test]
fn a_node_does_what_its_model_does() {
    let (first, rounds) = (number("KVMEM_TEST_SEED"), number("KVMEM_TEST_ROUNDS"));
    let first = first.unwrap_or(0);
    let rounds = rounds.unwrap_or(30);
    let mut done = client::Done::default();
    for seed in first..first + rounds {
        done += World::new(seed).run();
    }
    println!("{rounds} histories: {done:?}");
    if first == 0 && rounds >= 30 {
        done.check_each();
    }
}
