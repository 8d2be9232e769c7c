//! Models of a ring: what is received is what was sent, in order, and no side sleeps while the
//! other has something for it.
//!
//! Without the fences, or with a relaxed store of the tail, they fail. loom lets no load return a
//! value that is stored later, so the Release of the head is argued and not checked.
//!
//! The memory is on the heap. A doorbell is a counter under a lock, as an eventfd is.

#[cfg(all(loom, not(shuttle)))]
use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
#[cfg(shuttle)]
use shuttle::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::{Consumer, HeapRing, Producer};

/// Checks all orders with at most three preemptions.
#[cfg(not(shuttle))]
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Checks random orders: 1500 of each kind, unless `KVMEM_TEST_ROUNDS` names another number.
#[cfg(shuttle)]
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    let orders = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok());
    let orders = orders.unwrap_or(1500);
    shuttle::check_random(run.clone(), orders);
    shuttle::check_pct(run, orders, 4);
}

/// What wakes one side: rung before or after it goes to sleep.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Waits for the doorbell. The checkers find a wait without an end.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[derive(Default)]
struct Doorbells {
    of_consumer: Doorbell,
    of_producer: Doorbell,
}

fn send(producer: &mut Producer, bells: &Doorbells, message: &[u8]) {
    while !producer.try_send(message).unwrap() {
        if producer.prepare_to_sleep(message.len()).unwrap() {
            bells.of_producer.wait();
        }
    }
    if producer.bell_is_due() {
        bells.of_consumer.ring();
    }
}

fn receive(consumer: &mut Consumer, bells: &Doorbells) -> Vec<u8> {
    let mut into = Vec::new();
    while !consumer.try_receive(&mut into).unwrap() {
        if consumer.prepare_to_sleep().unwrap() {
            bells.of_consumer.wait();
        }
    }
    if consumer.bell_is_due() {
        bells.of_producer.ring();
    }
    into
}

/// Sends messages of these lengths through a ring, and checks what comes out.
fn pass(words: usize, lens: &'static [usize]) {
    check(move || {
        let (mut producer, mut consumer) = HeapRing::new(words).ends();
        let bells = Arc::new(Doorbells::default());
        let message = |number: usize| vec![number as u8 + 1; lens[number]];
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || {
                (0..lens.len()).for_each(|it| send(&mut producer, &bells, &message(it)));
            })
        };
        for number in 0..lens.len() {
            assert_eq!(receive(&mut consumer, &bells), message(number));
        }
        assert!(!consumer.has_message().unwrap());
        sender.join().unwrap();
    });
}

/// The ring never gets full: the consumer alone sleeps.
#[test]
fn a_sleeping_consumer_is_woken() {
    pass(8, &[8, 3]);
}

/// The second message waits for the space of the first, at the end of the area: both sides sleep.
#[test]
fn a_producer_waits_for_space() {
    pass(2, &[8, 5]);
}

/// Messages go on at the start of the area, and words are used again.
#[test]
fn words_are_used_again() {
    #[cfg(not(shuttle))]
    pass(4, &[9, 8, 16]);
    #[cfg(shuttle)]
    pass(4, &[9, 0, 8, 24, 1, 16, 23, 0, 0, 8]);
}
