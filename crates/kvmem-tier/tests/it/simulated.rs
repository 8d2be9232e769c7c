//! A simulated disk: it can lose, tear and falsify what is written, and stop at any moment.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvmem_testkit::random::Random;
use kvmem_tier::DiskTier;
use kvmem_tier::device::{Device, Read, Write};

/// Bytes that a disk writes whole.
const SECTOR: usize = 512;

/// A disk. Clones are the same disk: a tier on one can be opened again after it has ended.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Mutex<Platter>>);

struct Platter {
    /// The bytes that a reader gets.
    current: Vec<u8>,
    /// The bytes that a power cut leaves, without the writes in `unsynced`.
    durable: Vec<u8>,
    /// Writes since then, in their order.
    unsynced: Vec<(u64, Vec<u8>)>,
    /// How many of them a sync that has begun makes durable.
    syncing: Option<usize>,
    new: bool,
    /// Operations until the process ends; the one at zero is torn, and all after it fail.
    until_end: u64,
    /// Each read or write fails with a probability of 1 / `failing`; with 0 none fails.
    failing: u64,
    /// The same for reads alone.
    failing_reads: u64,
    /// Each read or write has a fault with a probability of 1 / `faults`: an error, a short count,
    /// a flipped bit of what is read, or a delay. With 0 none has.
    faults: u64,
    /// The next reads of which a bit of the memory flips.
    flips: u64,
    /// Where reads and writes fail, with the number of the error.
    bad: Range<u64>,
    errno: i32,
    syncs_fail: bool,
    /// Whether a write is durable when it is complete.
    dsync: bool,
    /// Whether other hosts may have the disk.
    shared: bool,
    /// The offsets of the reads of the last batch, in the order of the batch.
    reads: Vec<u64>,
    /// The time of the tier, which passes in steps.
    now: Instant,
    random: Random,
}

impl Disk {
    pub(crate) fn new(len: usize, seed: u64) -> Disk {
        let bytes = vec![0; len];
        Disk(Arc::new(Mutex::new(Platter {
            durable: bytes.clone(),
            current: bytes,
            unsynced: Vec::new(),
            syncing: None,
            new: true,
            until_end: u64::MAX,
            failing: 0,
            failing_reads: 0,
            faults: 0,
            flips: 0,
            bad: 0..0,
            errno: EIO,
            syncs_fail: false,
            dsync: false,
            shared: false,
            reads: Vec::new(),
            now: Instant::now(),
            random: Random::new(seed),
        })))
    }

    /// Returns a disk that holds `bytes`.
    pub(crate) fn holding(bytes: Vec<u8>) -> Disk {
        let disk = Disk::new(0, 0);
        {
            let mut platter = disk.platter();
            (platter.durable, platter.current) = (bytes.clone(), bytes);
            platter.new = false;
        }
        disk
    }

    fn platter(&self) -> std::sync::MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.platter().current.clone()
    }

    /// Ends the process at the operation number `operations` from now on, which is torn.
    pub(crate) fn end_after(&self, operations: u64) {
        self.platter().until_end = operations;
    }

    /// Ends the process now: every operation fails.
    pub(crate) fn end(&self) {
        self.platter().until_end = 0;
    }

    /// Makes one in `n` reads and writes fail; none if `n` is 0.
    pub(crate) fn fail_once_in(&self, n: u64) {
        self.platter().failing = n;
    }

    /// Makes one in `n` reads fail; none if `n` is 0.
    pub(crate) fn fail_reads_once_in(&self, n: u64) {
        self.platter().failing_reads = n;
    }

    /// Lets time pass for the tier.
    pub(crate) fn pass(&self, time: Duration) {
        self.platter().now += time;
    }

    /// Gives one in `n` reads and writes a fault of any kind; none if `n` is 0.
    pub(crate) fn fault_once_in(&self, n: u64) {
        self.platter().faults = n;
    }

    /// Flips a bit of the memory of each of the next `n` reads, as a process may that writes there.
    pub(crate) fn flip_reads(&self, n: u64) {
        self.platter().flips = n;
    }

    /// Makes all reads and writes of these bytes fail with an error of the system.
    pub(crate) fn fail_at(&self, bytes: Range<u64>, errno: i32) {
        let mut platter = self.platter();
        (platter.bad, platter.errno) = (bytes, errno);
    }

    /// Makes syncs fail, or succeed.
    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.platter().syncs_fail = fail;
    }

    /// Makes each write durable when it is complete.
    pub(crate) fn with_dsync(self) -> Disk {
        self.platter().dsync = true;
        self
    }

    /// Lets other hosts have the disk.
    pub(crate) fn shared(self) -> Disk {
        self.platter().shared = true;
        self
    }

    /// Returns how many writes a power cut may lose.
    pub(crate) fn unsynced(&self) -> usize {
        self.platter().unsynced.len()
    }

    /// Returns the offsets of the reads of the last batch, in the order of the batch.
    pub(crate) fn last_reads(&self) -> Vec<u64> {
        self.platter().reads.clone()
    }

    /// Changes bytes, as a drive that falsifies them.
    pub(crate) fn falsify(&self, bytes: Range<u64>, change: impl Fn(&mut [u8])) {
        let mut platter = self.platter();
        let bytes = bytes.start as usize..bytes.end as usize;
        change(&mut platter.current[bytes.clone()]);
        change(&mut platter.durable[bytes]);
    }

    /// Starts the next process.
    pub(crate) fn restart(&self) {
        let mut platter = self.platter();
        (platter.until_end, platter.failing, platter.faults) = (u64::MAX, 0, 0);
        platter.failing_reads = 0;
        platter.syncing = None;
    }

    /// Cuts the power: writes since the last sync that begin in these bytes are lost, no others.
    pub(crate) fn cut_power_losing(&self, lost: Range<u64>) {
        let mut platter = self.platter();
        let Platter { current, durable, unsynced, .. } = &mut *platter;
        for (at, bytes) in unsynced.drain(..).filter(|(at, _)| !lost.contains(at)) {
            durable[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        current.clone_from(durable);
    }

    /// Cuts the power: of each sector written since the last sync, some writes are lost, in any
    /// order.
    pub(crate) fn cut_power(&self) {
        let mut platter = self.platter();
        let Platter { current, durable, unsynced, random, .. } = &mut *platter;
        let lost = random.below(4);
        for (at, bytes) in unsynced.drain(..) {
            for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                // Whole writes, or single sectors of them.
                let held = match lost {
                    0 => true,
                    1 => random.once_in(2),
                    2 => i > 0 || random.once_in(2),
                    _ => random.once_in(20),
                };
                if held {
                    let at = at as usize + i * SECTOR;
                    durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        current.clone_from(durable);
    }
}

/// Ends the process of a tier: it writes nothing more.
pub(crate) fn kill(tier: DiskTier<Disk>, disk: &Disk) {
    disk.end();
    drop(tier);
    disk.restart();
}

impl Platter {
    /// Fails if bytes of a transfer are where transfers fail.
    fn pass(&self, at: u64, len: usize) -> io::Result<()> {
        if at < self.bad.end && self.bad.start < at + len as u64 {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        Ok(())
    }

    /// Makes a fault, at times: one of these errors, a short count, a delay, or that a bit of what
    /// is read flips, if the result is true.
    fn fault(&mut self, errors: &[i32], short: io::ErrorKind) -> io::Result<bool> {
        if self.faults == 0 || !self.random.once_in(self.faults) {
            return Ok(false);
        }
        match self.random.below(4) {
            0 => {
                let error = self.random.below(errors.len() as u64) as usize;
                Err(io::Error::from_raw_os_error(errors[error]))
            }
            1 => Err(short.into()),
            2 => Ok(true),
            _ => {
                std::thread::sleep(Duration::from_micros(50));
                Ok(false)
            }
        }
    }

    /// Counts an operation; returns how many bytes of it are done, or an error.
    fn step(&mut self, len: usize) -> io::Result<usize> {
        match self.until_end {
            0 => return Err(io::Error::other("the process has ended")),
            u64::MAX => {}
            _ => self.until_end -= 1,
        }
        if self.until_end == 0 {
            let sectors = (len / SECTOR) as u64;
            return Ok(self.random.below(sectors + 1) as usize * SECTOR);
        }
        if self.failing > 0 && self.random.once_in(self.failing) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(len)
    }

    /// Makes the first `count` writes durable.
    fn sync(&mut self, count: usize) -> io::Result<()> {
        self.step(0)?;
        if self.until_end == 0 {
            return Err(io::Error::other("the process has ended"));
        }
        if self.syncs_fail {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        for (at, bytes) in self.unsynced.drain(..count) {
            self.durable[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        self.syncing = self.syncing.map(|syncing| syncing.saturating_sub(count));
        Ok(())
    }

    fn write(&mut self, Write { at, parts }: &Write<'_>) -> io::Result<()> {
        assert!(at.is_multiple_of(4096) && parts.iter().all(|it| it.len().is_multiple_of(4096)));
        assert!(parts.iter().all(|it| it.is_empty() || it.as_ptr().addr().is_multiple_of(4096)));
        let bytes = parts.concat();
        self.pass(*at, bytes.len())?;
        self.fault(&[EIO, libc::ENOSPC], io::ErrorKind::WriteZero)?;
        let done = self.step(bytes.len())?;
        let start = *at as usize;
        self.current[start..start + done].copy_from_slice(&bytes[..done]);
        if self.dsync {
            self.durable[start..start + done].copy_from_slice(&bytes[..done]);
        } else {
            self.unsynced.push((*at, bytes[..done].to_vec()));
        }
        if done == bytes.len() { Ok(()) } else { Err(io::Error::other("torn")) }
    }

    fn read(&mut self, Read { at, parts }: &mut Read<'_>) -> io::Result<()> {
        assert!(parts.iter().all(|it| it.is_empty() || it.as_ptr().addr().is_multiple_of(4096)));
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(at.is_multiple_of(4096) && len.is_multiple_of(SECTOR));
        self.pass(*at, len)?;
        let flips = self.fault(&[EIO], io::ErrorKind::UnexpectedEof)? || self.flips > 0;
        self.flips = self.flips.saturating_sub(1);
        if self.failing_reads > 0 && self.random.once_in(self.failing_reads) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let done = self.step(len)?;
        let mut from = *at as usize;
        if done < len || from + len > self.current.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for part in parts {
            part.copy_from_slice(&self.current[from..from + part.len()]);
            from += part.len();
            if flips && !part.is_empty() {
                let bit = self.random.below(part.len() as u64 * 8) as usize;
                part[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }
}

/// Linux's number.
const EIO: i32 = 5;

impl Device for Disk {
    fn len(&self) -> u64 {
        self.platter().current.len() as u64
    }

    fn is_new(&self) -> bool {
        std::mem::take(&mut self.platter().new)
    }

    fn memory_align(&self) -> usize {
        4096
    }

    fn read_align(&self) -> usize {
        SECTOR
    }

    fn writes_are_durable(&self) -> bool {
        self.platter().dsync
    }

    fn now(&self) -> Instant {
        self.platter().now
    }

    fn may_be_shared(&self) -> bool {
        self.platter().shared
    }

    fn can_be_cut(&self) -> bool {
        true
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.step(0)?;
        if platter.until_end == 0 {
            return Err(io::Error::other("the process has ended"));
        }
        platter.current.truncate(len as usize);
        platter.durable.truncate(len as usize);
        platter.unsynced.retain(|(at, bytes)| at + bytes.len() as u64 <= len);
        Ok(())
    }

    /// Writes them in their order, alternately with the caller's work.
    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        let mut results = Vec::new();
        for (index, write) in batch.iter().enumerate() {
            results.push(self.platter().write(write));
            meanwhile(index);
        }
        results
    }

    /// Reads them in any order.
    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        self.platter().reads = batch.iter().map(|read| read.at).collect();
        let mut left: Vec<usize> = (0..batch.len()).collect();
        while !left.is_empty() {
            let next = self.platter().random.below(left.len() as u64) as usize;
            let index = left.swap_remove(next);
            let result = self.platter().read(&mut batch[index]);
            done(index, &mut batch[index], result);
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut platter = self.platter();
        let all = platter.unsynced.len();
        platter.sync(all)
    }

    fn begin_sync(&self) -> io::Result<()> {
        let mut platter = self.platter();
        assert!(platter.syncing.is_none(), "two at a time");
        platter.syncing = Some(platter.unsynced.len());
        Ok(())
    }

    /// Takes some time.
    fn end_sync(&self, wait: bool) -> Option<io::Result<()>> {
        let mut platter = self.platter();
        if !wait && !platter.random.once_in(3) {
            return None;
        }
        let count = platter.syncing.take().expect("a sync has begun");
        Some(platter.sync(count))
    }
}
