//! Threads that execute commands, one at a time.

use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};

use super::op::SEATS;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, by seat number.
#[derive(Default)]
pub(super) struct Workers {
    seats: [Option<Worker>; SEATS as usize],
}

struct Worker {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start() -> Result<Worker> {
        let (jobs, received) = mpsc::channel::<Job>();
        let thread = Builder::new()
            .name("seat".into())
            .spawn(move || received.into_iter().for_each(|job| job()))?;
        Ok(Worker { jobs, thread })
    }

    /// Waits until the thread has ended, including its destructors.
    fn end(self) -> Result<()> {
        drop(self.jobs);
        self.thread.join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text =
                text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without text");
            anyhow!("a thread panicked: {text}")
        })
    }
}

impl Workers {
    /// Runs `work` on the thread of a seat and waits for it; starts the thread if there is none.
    pub(super) fn run_on<T: Send + 'static>(
        &mut self,
        seat: u8,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let seat = &mut self.seats[usize::from(seat)];
        if seat.is_none() {
            *seat = Some(Worker::start()?);
        }
        let worker = seat.as_ref().context("it was started above")?;
        let (answer, answered) = mpsc::sync_channel(1);
        // The captures of `work` are dropped before the answer is sent.
        let job = move || {
            let done = work();
            let _ = answer.send(done);
        };
        let sent = worker.jobs.send(Box::new(job));
        if let (Ok(()), Ok(done)) = (sent, answered.recv()) {
            return Ok(done);
        }
        let worker = seat.take().context("it was there")?;
        Err(worker.end().err().unwrap_or_else(|| anyhow!("a thread ended early")))
    }

    /// Ends the thread of a seat. Returns whether there was one.
    pub(super) fn end(&mut self, seat: u8) -> Result<bool> {
        match self.seats[usize::from(seat)].take() {
            Some(worker) => worker.end().map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the number of running threads.
    pub(super) fn running(&self) -> usize {
        self.seats.iter().flatten().count()
    }
}
