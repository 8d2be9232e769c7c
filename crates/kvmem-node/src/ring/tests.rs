//! A ring compared with a queue, and with another side that stores any words.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{BadRing, Consumer, HeapRing, Producer, RingField};

const WORDS: usize = 16;

/// The most bytes of a message in a ring of `WORDS` words.
const LIMIT: usize = (WORDS - 1) * 8;

fn ring() -> (HeapRing, Producer, Consumer) {
    let ring = HeapRing::new(WORDS);
    let (producer, consumer) = ring.ends();
    (ring, producer, consumer)
}

fn words(message: &[u8]) -> usize {
    1 + message.len().div_ceil(8)
}

proptest! {
    /// Every message comes out once, whole and in order; space is found exactly if there is some.
    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec((any::<bool>(), 0..=LIMIT), 1..400)) {
        let (_, mut producer, mut consumer) = ring();
        let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
        let mut into = Vec::new();
        for (number, (sends, len)) in steps.into_iter().enumerate() {
            if sends {
                let message: Vec<u8> = (0..len).map(|at| (number * 7 + at) as u8).collect();
                let used: usize = queue.iter().map(|it| words(it)).sum();
                let fits = used + words(&message) <= WORDS;
                prop_assert_eq!(producer.try_send(&message), Ok(fits));
                if fits {
                    queue.push_back(message);
                } else {
                    prop_assert_eq!(producer.prepare_to_sleep(len), Ok(true));
                }
            } else {
                prop_assert_eq!(consumer.has_message(), Ok(!queue.is_empty()));
                prop_assert_eq!(consumer.prepare_to_sleep(), Ok(queue.is_empty()));
                let received = consumer.try_receive(&mut into);
                prop_assert_eq!(received, Ok(!queue.is_empty()));
                if let Some(message) = queue.pop_front() {
                    prop_assert_eq!(&into, &message);
                }
            }
        }
    }
}

#[test]
fn a_sleeper_is_woken_once() {
    let (_, mut producer, mut consumer) = ring();
    let mut into = Vec::new();
    assert!(producer.try_send(b"first").is_ok() && !producer.bell_is_due());
    assert_eq!(consumer.prepare_to_sleep(), Ok(false));
    assert!(!producer.bell_is_due(), "the consumer has stayed awake");
    assert_eq!(consumer.try_receive(&mut into), Ok(true));
    assert_eq!(consumer.prepare_to_sleep(), Ok(true));
    assert_eq!(producer.try_send(&[0; LIMIT - 8]), Ok(true));
    assert!(producer.bell_is_due() && !producer.bell_is_due());

    assert_eq!(producer.try_send(&[0; 8]), Ok(false));
    assert!(!consumer.bell_is_due());
    assert_eq!(producer.prepare_to_sleep(8), Ok(true));
    assert_eq!(consumer.try_receive(&mut into), Ok(true));
    assert!(consumer.bell_is_due() && !consumer.bell_is_due());
    assert_eq!(producer.prepare_to_sleep(8), Ok(false));
    assert!(!consumer.bell_is_due(), "there was space");
}

#[test]
fn positions_and_lengths_of_a_hostile_process_are_errors() {
    let mut into = Vec::new();
    let (shared, mut producer, mut consumer) = ring();
    let too_long = BadRing::TooLong { len: LIMIT + 1, limit: LIMIT };
    assert_eq!(producer.try_send(&[0; LIMIT + 1]), Err(too_long));
    producer.try_send(b"message").expect("it is whole");
    shared.store(RingField::Tail, 17);
    let tail = BadRing::Position { whose: "tail", position: 17, from: 0, to: 16 };
    assert_eq!(consumer.try_receive(&mut into), Err(tail));
    // Back again.
    shared.store(RingField::Tail, 2);
    assert_eq!(consumer.try_receive(&mut into), Ok(true));
    shared.store(RingField::Tail, 1);
    let tail = BadRing::Position { whose: "tail", position: 1, from: 2, to: 18 };
    assert_eq!(consumer.try_receive(&mut into), Err(tail));

    let (shared, mut producer, mut consumer) = ring();
    producer.try_send(b"message").expect("it is whole");
    for (length, limit) in [(9, 8), (u64::MAX, 8), (LIMIT as u64, 8)] {
        shared.store(RingField::Word(0), length);
        let error = BadRing::Length { len: length, limit };
        assert_eq!(consumer.try_receive(&mut into), Err(error));
    }
    shared.store(RingField::Word(0), 3);
    assert_eq!((consumer.try_receive(&mut into), &into[..]), (Ok(true), &b"mes"[..]));

    let (shared, mut producer, _) = ring();
    producer.try_send(&[1; LIMIT]).expect("it is whole");
    for position in [17, u64::MAX] {
        shared.store(RingField::Head, position);
        let head = BadRing::Position { whose: "head", position, from: 0, to: 16 };
        assert_eq!(producer.try_send(b"more"), Err(head));
        assert_eq!(producer.prepare_to_sleep(4), Err(head));
    }
}

/// Two threads, and messages of all lengths around the end of the area.
#[test]
fn messages_pass_between_threads() {
    const MESSAGES: usize = 20_000;
    let (_, mut producer, mut consumer) = ring();
    let message = |number: usize| vec![number as u8; number % (LIMIT + 1)];
    let sender = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            while !producer.try_send(&message(number)).expect("nobody is hostile") {
                std::thread::yield_now();
            }
        }
    });
    let mut into = Vec::new();
    for number in 0..MESSAGES {
        while !consumer.try_receive(&mut into).expect("nobody is hostile") {
            std::thread::yield_now();
        }
        assert_eq!(into, message(number), "message {number}");
    }
    sender.join().expect("no panic");
}
