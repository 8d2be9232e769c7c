//! Ring of a node: messages, and stores of a hostile process anywhere in the memory of the ring.
//! Without such stores the ring is a queue. With them every call ends with a message of a possible
//! length, or with an error.
#![cfg_attr(fuzzing, no_main)]

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use kvmem_node::ring::{HeapRing, RingField};

const WORDS: usize = 32;
/// The most bytes of a message.
const LIMIT: usize = (WORDS - 1) * 8;
/// Bytes of a step: what is done, a small number, and a value.
const STEP: usize = 10;

fn value_of(step: &[u8]) -> u64 {
    u64::from_le_bytes(step[2..STEP].try_into().expect("eight bytes"))
}

fn field_of(number: u8) -> RingField {
    match number {
        0..32 => RingField::Tail,
        32..64 => RingField::Head,
        64..72 => RingField::ConsumerSleeps,
        72..80 => RingField::ProducerSleeps,
        other => RingField::Word(other.into()),
    }
}

/// Runs the steps that the bytes encode.
fn target(bytes: &[u8]) -> Result<()> {
    let ring = HeapRing::new(WORDS);
    let (mut producer, mut consumer) = ring.ends();
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut hostile, mut damaged) = (false, false);
    let mut into = Vec::new();
    for step in bytes.chunks_exact(STEP) {
        let (number, value) = (step[1], value_of(step));
        match step[0] % 8 {
            0..=2 => {
                let message = vec![number; value as usize % (LIMIT + 2)];
                match producer.try_send(&message) {
                    Ok(true) => queue.push_back(message),
                    Ok(false) => {}
                    Err(_) => ensure!(hostile || message.len() > LIMIT, "a ring is damaged"),
                }
            }
            3 | 4 => match consumer.try_receive(&mut into) {
                Ok(true) if hostile => ensure!(into.len() <= LIMIT, "{} bytes", into.len()),
                Ok(received) if !hostile => {
                    let first = queue.pop_front();
                    ensure!(received == first.is_some(), "a message is lost or made up");
                    ensure!(!received || first.as_ref() == Some(&into), "another message");
                }
                Ok(_) => {}
                Err(_) => {
                    ensure!(hostile, "a ring is damaged");
                    damaged = true;
                }
            },
            5 => {
                let sleeps = consumer.prepare_to_sleep();
                ensure!(hostile || sleeps == Ok(queue.is_empty()), "{sleeps:?}");
                let _ = producer.bell_is_due();
            }
            6 => {
                let sleeps = producer.prepare_to_sleep(value as usize % (LIMIT + 1));
                ensure!(hostile || sleeps.is_ok(), "{sleeps:?}");
                let _ = consumer.bell_is_due();
            }
            _ => {
                hostile = true;
                ring.store(field_of(number), value);
            }
        }
    }
    // A consumer that goes on after damage stays within the ring, too.
    for _ in 0..WORDS {
        let received = consumer.try_receive(&mut into);
        ensure!(into.len() <= LIMIT, "{} bytes", into.len());
        ensure!(hostile || received.is_ok() && !damaged, "{received:?}");
    }
    Ok(())
}

/// Returns inputs that fill the ring, go around its end, and damage each word.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let step = |what: u8, number: u8, value: u64| {
        let mut step = vec![what, number];
        step.extend(value.to_le_bytes());
        step
    };
    let named = |name: &str, steps: &[Vec<u8>]| (name.to_owned(), steps.concat());
    let around: Vec<Vec<u8>> = (0..40)
        .flat_map(|number| [step(0, number, 40 + u64::from(number)), step(3, 0, 0)])
        .collect();
    vec![
        named("around", &around),
        named("full", &[step(0, 1, LIMIT as u64), step(0, 2, 0), step(6, 0, 8), step(3, 0, 0)]),
        named("sleeps", &[step(5, 0, 0), step(0, 1, 8), step(5, 0, 0), step(3, 0, 0)]),
        named("tail", &[step(7, 0, 33), step(3, 0, 0), step(7, 0, 5), step(3, 0, 0)]),
        named("head", &[step(0, 1, 240), step(7, 32, 99), step(0, 1, 8), step(6, 0, 8)]),
        named("length", &[step(0, 1, 8), step(7, 96, 17), step(3, 0, 0), step(7, 96, u64::MAX)]),
        named("flags", &[step(7, 64, 7), step(0, 1, 1), step(7, 72, 9), step(5, 0, 0)]),
    ]
}

kvmem_fuzz::run!(target, corpus);
