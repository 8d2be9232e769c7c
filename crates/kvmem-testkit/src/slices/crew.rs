//! *Crew*: threads that do what they are told, one at a time.

use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};

use super::op::SEATS;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, by their seats.
#[derive(Default)]
pub(super) struct Crew {
    seats: [Option<Worker>; SEATS as usize],
}

struct Worker {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start() -> Result<Worker> {
        let (jobs, told) = mpsc::channel::<Job>();
        let thread = Builder::new()
            .name("seat".into())
            .spawn(move || told.into_iter().for_each(|job| job()))?;
        Ok(Worker { jobs, thread })
    }

    /// Waits until the thread is gone, with all that its end does.
    fn end(self) -> Result<()> {
        drop(self.jobs);
        self.thread.join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text =
                text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of no text");
            anyhow!("a thread panicked: {text}")
        })
    }
}

impl Crew {
    /// Has the thread on a seat, a new one if none is there, do something, and waits for it.
    pub(super) fn have<T: Send + 'static>(
        &mut self,
        seat: u8,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let seat = &mut self.seats[usize::from(seat)];
        if seat.is_none() {
            *seat = Some(Worker::start()?);
        }
        let worker = seat.as_ref().context("there is one now")?;
        let (answer, answered) = mpsc::sync_channel(1);
        // What the work holds is gone before it is answered for.
        let job = move || {
            let done = work();
            let _ = answer.send(done);
        };
        let sent = worker.jobs.send(Box::new(job));
        if let (Ok(()), Ok(done)) = (sent, answered.recv()) {
            return Ok(done);
        }
        let worker = seat.take().context("it was there")?;
        Err(worker.end().err().unwrap_or_else(|| anyhow!("a thread went away")))
    }

    /// Ends the thread on a seat, if there is one.
    pub(super) fn end(&mut self, seat: u8) -> Result<bool> {
        match self.seats[usize::from(seat)].take() {
            Some(worker) => worker.end().map(|()| true),
            None => Ok(false),
        }
    }

    /// How many threads there are.
    pub(super) fn working(&self) -> usize {
        self.seats.iter().flatten().count()
    }
}
