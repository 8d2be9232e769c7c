//! One file for each value, as engines keep them: written under a temporary name, renamed, and
//! deleted when it is too old.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use rustix::fs::{Advice, OFlags};

use super::Room;
use crate::bench::values::{Memory, ValueContender};

/// Threads with direct I/O, as vLLM's tier of files has for each direction.
const THREADS: usize = 16;

/// A directory of files.
pub(super) struct Files {
    dir: PathBuf,
    /// Whether transfers bypass the page cache.
    direct: bool,
    threads: usize,
    /// Files that have room.
    slots: u64,
}

impl Files {
    /// `direct` chooses direct I/O on several threads, if the file system has it.
    pub(super) fn new(room: Room<'_>, stride: usize, direct: bool) -> Files {
        let slots = room.bytes / stride as u64;
        let threads = if direct { THREADS } else { 1 };
        let mut files = Files { dir: room.dir.to_owned(), direct, threads, slots };
        files.direct = direct && files.open(&files.dir.join("probe"), true).is_ok();
        files
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<File> {
        let flags = if self.direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        options.read(!write).write(write).create(write).truncate(write);
        options.custom_flags(flags).open(path)
    }

    /// Direct I/O transfers whole blocks, so a file has the padding of its value.
    fn part(&self, memory: &Memory) -> usize {
        if self.direct { memory.stride } else { memory.len }
    }

    fn write(&self, number: u64, value: &[u8]) -> io::Result<()> {
        let (path, unfinished) = (self.path(number), self.dir.join(format!("{number}.tmp")));
        self.open(&unfinished, true)?.write_all(value)?;
        fs::rename(unfinished, path)?;
        match number.checked_sub(self.slots) {
            Some(oldest) => fs::remove_file(self.path(oldest)),
            None => Ok(()),
        }
    }

    fn read(&self, number: u64, room: &mut [u8]) -> io::Result<()> {
        self.open(&self.path(number), false)?.read_exact(room)
    }

    /// Runs `work` for each of `batch`, on all threads.
    fn each<T: Send>(
        &self,
        batch: impl Iterator<Item = T>,
        work: impl Fn(T) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        if self.threads == 1 {
            return batch.into_iter().try_for_each(work);
        }
        let batch: Vec<Mutex<Option<T>>> = batch.map(|one| Mutex::new(Some(one))).collect();
        let next = AtomicUsize::new(0);
        let run = || {
            // Relaxed: only the number is passed on; the locks order the rest.
            while let Some(one) = batch.get(next.fetch_add(1, Ordering::Relaxed)) {
                let one = one.lock().expect("no thread panics").take();
                one.map_or(Ok(()), &work)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })
    }
}

impl ValueContender for Files {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()> {
        let part = self.part(memory);
        let values = (first..).zip(memory.values(first));
        self.each(values, |(number, value)| self.write(number, &value[..part]))
            .context("write a file")?;
        if !self.direct {
            rustix::fs::syncfs(File::open(&self.dir)?)?;
        }
        Ok(())
    }

    fn before_fetch(&mut self, numbers: &[u64]) -> Result<()> {
        let forget = |&number: &u64| -> io::Result<()> {
            let file = File::open(self.path(number))?;
            Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
        };
        numbers.iter().try_for_each(forget).context("forget the pages of a file")
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        let part = self.part(memory);
        let rooms = numbers.iter().zip(memory.rooms());
        self.each(rooms, |(&number, room)| self.read(number, &mut room[..part]))
            .context("read a file")
    }
}
