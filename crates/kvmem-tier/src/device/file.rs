//! *File device*: a regular file or a block device, with direct I/O where the file system has it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::arena::Region;
use kvmem::pool::Pool;
use kvmem::register::{Registrar, RegistrationBuilder, RegistrationSet};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::Resource;

use super::batch::{BatchEvents, Reading, Writing};
use super::buffer_table::FixedBufferStats;
use super::counts::{Counts, Next};
use super::direct::{Alignment, open_direct};
use super::fixed::{FixedBuffers, FixedBuffersError};
use super::priority::{Priority, Share};
use super::rings::{Ring, RingPool};
use super::sync::Sync;
use super::transfer::{Transfer, TransferPiece};
use super::workers::{Kind, Workers};
use super::{Device, Read, Write};
use crate::process::Process;

/// How a file device transfers a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// By io_uring: one thread has many transfers in flight.
    IoUring,
    /// By threads that read and write, since this process may have no ring. Slower.
    Threads,
}

/// The keys of memory that is registered, or why it is not.
type Registered = Result<Vec<RegistrationSet>, FixedBuffersError>;

/// Registrations of the device.
#[derive(Default)]
struct Fixed {
    /// The first address of each pool and region, and its memory.
    memory: Vec<(usize, Vec<RegistrationSet>)>,
    buffers: Option<Arc<FixedBuffers>>,
}

/// A file or block device.
pub struct FileDevice {
    file: File,
    len: u64,
    new: bool,
    /// Whether the file was opened with `O_DSYNC`.
    dsync: bool,
    /// Whether other hosts may have it open.
    shared: bool,
    alignment: Alignment,
    rings: Option<Arc<RingPool>>,
    workers: Workers,
    priority: Priority,
    counts: Counts,
    fixed: Mutex<Fixed>,
    syncing: Mutex<Sync>,
    /// A file that is open as long as the device, if it has no rings.
    held_open: Mutex<Option<OwnedFd>>,
    process: Process,
}

/// Transfers, with the ring that makes them if there is one.
struct Batch {
    ring: Option<Ring>,
    transfers: Vec<Transfer>,
}

/// Threads of a device without io_uring, at most.
const MAX_THREADS: u32 = 16;

impl FileDevice {
    /// Opens a file or block device that is not open as a tier, and makes a new or shorter
    /// file `len` bytes long, with its space allocated. A length of 0 stands for that of the file.
    /// A thread has up to `depth` transfers in flight.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::WouldBlock`] if it is open already, as a tier or
    /// [to be read](Self::open_read_only), for three seconds, and if a block device is mounted;
    /// [`io::ErrorKind::Unsupported`] with
    /// an [`UnsupportedAlignment`](super::UnsupportedAlignment) if it transfers only larger units
    /// than the block. A file that could not be made longer has its old length.
    pub fn open(path: &Path, len: u64, depth: u32) -> io::Result<FileDevice> {
        FileDevice::open_with(path, len, depth, OFlags::empty())
    }

    /// Opens a file or block device as [`open`](Self::open) does, with `O_DSYNC`: a write is
    /// durable when it is complete.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dsync(path: &Path, len: u64, depth: u32) -> io::Result<FileDevice> {
        FileDevice::open_with(path, len, depth, OFlags::DSYNC)
    }

    fn open_with(path: &Path, len: u64, depth: u32, flags: OFlags) -> io::Result<FileDevice> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).truncate(false).mode(0o600);
        let busy = "it is open already, as a tier or by a program that reads one: close that first";
        let (file, alignment) = if is_block_device(path) {
            // A lock is of one device node, and a device may have several. The claim is of the
            // device.
            let busy = "it is in use, as a tier or a part of one, or it is mounted: end that first";
            claim(busy, || open_direct(path, &mut options, flags | OFlags::EXCL))?
        } else {
            open_direct(path, options.create(len > 0), flags)?
        };
        lock(&file, FlockOperation::NonBlockingLockExclusive, busy)?;
        let mut device = FileDevice::of(file, alignment, depth);
        device.dsync = flags.contains(OFlags::DSYNC);
        device.shared = may_be_shared(&device.file)?;
        device.set_len(len)?;
        device.sync_name(path)?;
        Ok(device)
    }

    /// Opens a file or block device to read what a tier has left there, without a right to write
    /// to it. Several processes may do so at once. Meanwhile the tier cannot be opened.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::WouldBlock`] if it is open as a tier, for three
    /// seconds; [`io::ErrorKind::InvalidInput`] if it is neither a file nor a block device.
    pub fn open_read_only(path: &Path, depth: u32) -> io::Result<FileDevice> {
        // Opening a FIFO would wait for a writer.
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let error = "it is neither a file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let (file, alignment) = open_direct(path, OpenOptions::new().read(true), OFlags::empty())?;
        let busy = "it is open as a tier: close that first";
        lock(&file, FlockOperation::NonBlockingLockShared, busy)?;
        if kind.is_block_device() {
            // A tier may have it through another device node. Several processes read it at once, so
            // the claim ends at once.
            let busy = "it is in use, as a tier or a part of one, or it is mounted: end that first";
            claim(busy, || open_direct(path, OpenOptions::new().read(true), OFlags::EXCL))?;
        }
        let mut device = FileDevice::of(file, alignment, depth);
        device.set_len(0)?;
        device.new = false;
        Ok(device)
    }

    fn of(file: File, alignment: Alignment, depth: u32) -> FileDevice {
        let rings = RingPool::new(depth).ok().map(Arc::new);
        FileDevice {
            file,
            len: 0,
            new: false,
            dsync: false,
            shared: false,
            alignment,
            rings,
            workers: Workers::new(depth.clamp(1, MAX_THREADS) as usize),
            priority: Priority::new(),
            counts: Counts::default(),
            fixed: Mutex::default(),
            syncing: Mutex::default(),
            held_open: Mutex::default(),
            process: Process::this(),
        }
    }

    /// Makes a shorter file `len` bytes long, with its space allocated.
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.file_type().is_block_device() {
            self.len = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
            return Ok(());
        }
        self.len = metadata.len();
        self.new = self.len == 0;
        if self.len < len {
            self.grow(len).inspect_err(|_| {
                // A longer file would not be new the next time.
                let _ = self.file.set_len(self.len);
            })?;
            self.len = len;
        }
        Ok(())
    }

    /// Makes the name of a file durable, which this process or one that was killed has made: a
    /// power cut would leave the bytes without one. A folder that this process may not read is left
    /// as it is.
    fn sync_name(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let metadata = self.file.metadata()?;
        // A file may have no name, such as one that was opened through its descriptor.
        if !metadata.is_file() || metadata.nlink() == 0 {
            return Ok(());
        }
        // A link may lie in another folder than the file.
        let path = std::fs::canonicalize(path)?;
        let folder = path.parent().map(File::open);
        match folder.and_then(Result::ok).map(|folder| folder.sync_all()) {
            // The file system has no sync of folders.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.unwrap_or(Ok(())),
        }
    }

    /// Makes the file `len` bytes long.
    fn grow(&self, len: u64) -> io::Result<()> {
        let limit = rustix::process::getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| len > limit) {
            // The signal that the kernel would send ends most processes.
            return Err(Errno::FBIG.into());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            // Without it a full file system is noticed when a value is written.
            Err(Errno::OPNOTSUPP) => self.file.set_len(len),
            allocated => Ok(allocated?),
        }
    }

    /// Returns whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.alignment.direct
    }

    /// Returns how batches are transferred.
    #[must_use]
    pub fn engine(&self) -> Engine {
        if self.rings.is_some() { Engine::IoUring } else { Engine::Threads }
    }

    /// Registers the memory of a pool, as long as it is now, as fixed buffers: the kernel pins its
    /// pages once, and not for each transfer. A value that lies in one block of the pool, and needs
    /// no padding, is transferred so; all others are as before. The memory stays mapped until it is
    /// [deregistered](Self::deregister_memory) or the device is dropped. A pool that is registered
    /// already is registered again, with what it has grown by.
    ///
    /// # Errors
    /// [`FixedBuffersError`]: the memory of this pool is not registered, and is transferred as
    /// before.
    pub fn register_memory(&self, pool: &Pool) -> Result<(), FixedBuffersError> {
        self.register_at(pool.as_ptr().addr(), |with| Ok(pool.register_with(with)?))
    }

    /// Registers the memory of a region, as [`register_memory`](Self::register_memory) does for a
    /// pool. Memory that another allocator divides, such as an engine's, is a region. The device
    /// holds the region until it is [deregistered](Self::deregister_region) or the device is
    /// dropped.
    ///
    /// # Errors
    /// [`FixedBuffersError`]: the memory of this region is not registered, and is transferred as
    /// before.
    pub fn register_region(&self, region: &Arc<Region>) -> Result<(), FixedBuffersError> {
        self.register_at(region.base().addr().get(), |with| {
            Ok(vec![with.register(Arc::clone(region))?])
        })
    }

    /// Registers memory that begins at `address`, in place of what was registered there.
    fn register_at(
        &self,
        address: usize,
        register: impl FnOnce(&RegistrationBuilder) -> Registered,
    ) -> Result<(), FixedBuffersError> {
        let rings = self.rings.as_ref().ok_or(FixedBuffersError::NoRings)?;
        self.deregister_at(address);
        let mut fixed = self.fixed();
        let buffers = match &fixed.buffers {
            Some(buffers) => Arc::clone(buffers),
            None => Arc::clone(fixed.buffers.insert(Arc::new(FixedBuffers::new(rings)?))),
        };
        let with = RegistrationSet::builder().registrars([buffers as Arc<dyn Registrar>]);
        let sets = register(&with)?;
        fixed.memory.push((address, sets));
        Ok(())
    }

    /// Deregisters the memory of a pool. Does nothing if it is not registered.
    pub fn deregister_memory(&self, pool: &Pool) {
        self.deregister_at(pool.as_ptr().addr());
    }

    /// Deregisters the memory of a region. Does nothing if it is not registered.
    pub fn deregister_region(&self, region: &Region) {
        self.deregister_at(region.base().addr().get());
    }

    fn deregister_at(&self, address: usize) {
        self.fixed().memory.retain(|(at, _)| *at != address);
    }

    /// Keeps a file open until no transfer of the device can read or write memory any more, also
    /// after this process was killed: the kernel completes what is in flight, and closes the file
    /// then. A lock of the open file shows it to other processes. Called once.
    ///
    /// # Errors
    /// The system's error.
    pub fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        match &self.rings {
            Some(rings) => rings.keep_open(file),
            // The descriptors of a process stay open while one of its threads is in a system call.
            None => {
                self.held_open.lock().unwrap_or_else(PoisonError::into_inner).replace(file);
                Ok(())
            }
        }
    }

    /// Returns what is registered, and how many transfers have used it.
    #[must_use]
    pub fn fixed_buffers(&self) -> FixedBufferStats {
        self.rings.as_ref().map(|rings| rings.fixed()).unwrap_or_default()
    }

    fn fixed(&self) -> MutexGuard<'_, Fixed> {
        self.fixed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes threads transfer the batches, as in a process that may have no ring.
    #[must_use]
    pub fn without_rings(mut self) -> Self {
        *self.fixed() = Fixed::default();
        self.rings = None;
        self
    }

    fn syncing(&self) -> MutexGuard<'_, Sync> {
        self.syncing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails in a forked child: its rings and its file are those of the parent.
    fn owned(&self) -> io::Result<()> {
        if self.process.is_forked() {
            return Err(io::Error::other("the file was opened by the parent of this process"));
        }
        Ok(())
    }

    /// Begins a batch.
    fn begin(&self, transfers: impl Iterator<Item = Transfer>) -> Batch {
        let mut ring = self.rings.as_ref().and_then(|rings| rings.take());
        let mut memory = ring.as_mut().map(Ring::take_memory).unwrap_or_default();
        memory.extend(transfers);
        Batch { ring, transfers: memory }
    }

    /// Makes the transfers of a batch.
    ///
    /// # Safety
    /// As for [`Ring::drive`].
    unsafe fn transfer(
        &self,
        mut batch: Batch,
        share: impl Fn() -> Share,
        events: &mut impl BatchEvents,
    ) {
        match (&self.rings, batch.ring) {
            (Some(rings), Some(mut ring)) => {
                // SAFETY: the conditions of this function are those of `drive`.
                let fixed = unsafe {
                    let counts = (&self.counts, self.alignment.read);
                    let limits = (rings.depth(), share);
                    ring.drive(self.file.as_fd(), batch.transfers, limits, counts, events)
                };
                rings.put(ring, fixed);
            }
            _ => {
                // SAFETY: the caller lends the memory, as for `drive`.
                let transfer = |one: &mut Transfer| unsafe { self.transfer_one(one) };
                self.workers.each(&mut batch.transfers, Kind::of, transfer, events);
            }
        }
    }

    /// Makes one transfer by system calls.
    ///
    /// # Safety
    /// The memory of the transfer is valid for its direction until this returns, and nothing else
    /// uses it meanwhile, except that several writes may read the same bytes.
    unsafe fn transfer_one(&self, transfer: &mut Transfer) -> io::Result<()> {
        while transfer.len() > 0 {
            let (file, at) = (self.file.as_raw_fd(), transfer.at as libc::off_t);
            let (share, write_lock) = match transfer.write {
                true => self.priority.begin_write(),
                false => (Share::READS, None),
            };
            // SAFETY: the caller lends the memory of the transfer.
            let done = unsafe {
                match (transfer.piece(share.piece), transfer.write) {
                    (TransferPiece::Bytes(memory, len), true) => {
                        libc::pwrite(file, memory.cast(), len, at)
                    }
                    (TransferPiece::Bytes(memory, len), false) => {
                        libc::pread(file, memory.cast(), len, at)
                    }
                    (TransferPiece::Parts(parts), true) => {
                        libc::pwritev(file, parts.as_ptr(), parts.len() as libc::c_int, at)
                    }
                    (TransferPiece::Parts(parts), false) => {
                        libc::preadv(file, parts.as_ptr(), parts.len() as libc::c_int, at)
                    }
                }
            };
            drop(write_lock);
            let answer = match done {
                0.. => done as i64,
                _ => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
            };
            if let Next::Done(result) = self.counts.note(transfer, answer, self.alignment.read) {
                return result;
            }
        }
        Ok(())
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The time for which a file that is in use is waited for.
const MAX_WAIT: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_millis(10);

/// Opens a block device for this process alone, or fails with the error `busy`. A process that was
/// killed has the device until all that it had in flight is complete.
fn claim<T>(busy: &'static str, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + MAX_WAIT;
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if Instant::now() >= end {
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, busy));
                }
                thread::sleep(WAIT);
            }
            opened => return opened,
        }
    }
}

/// The file systems that other hosts may have, by the numbers that `statfs` returns: NFS, SMB,
/// CIFS, SMB 2, Ceph, Lustre, GFS2, OCFS2, FUSE and virtiofs, 9P, AFS, GPFS, BeeGFS.
const OF_NETWORKS: [u32; 13] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x00C3_6400,
    0x0BD0_0BD0,
    0x0116_1970,
    0x7461_636F,
    0x6573_5546,
    0x0102_1997,
    0x5346_414F,
    0x4750_4653,
    0x1983_0326,
];

/// Returns whether other hosts may have a file open.
fn may_be_shared(file: &File) -> io::Result<bool> {
    if file.metadata()?.file_type().is_block_device() {
        return Ok(true);
    }
    Ok(OF_NETWORKS.contains(&(rustix::fs::fstatfs(file)?.f_type as u32)))
}

/// Locks the file against other tiers, or fails with the error `busy`.
///
/// The kernel completes what a killed process had in flight, and closes the file only then: until
/// that is done, the lock prevents the next process from reading what the last one still writes.
fn lock(file: &File, operation: FlockOperation, busy: &'static str) -> io::Result<()> {
    let end = Instant::now() + MAX_WAIT;
    loop {
        match rustix::fs::flock(file, operation) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(WAIT),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, busy));
            }
            locked => return Ok(locked?),
        }
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // Forked children may have the file open still. No transfer is in flight any more.
        if !self.process.is_forked() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
            return;
        }
        // A child has none of the threads, and a copy of a lock that one of them may have held.
        self.workers.forget();
        // A child has the rings of its parent, and must leave the tables as they are.
        std::mem::forget(std::mem::take(
            self.fixed.get_mut().unwrap_or_else(PoisonError::into_inner),
        ));
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_new(&self) -> bool {
        self.new
    }

    fn memory_align(&self) -> usize {
        self.alignment.memory
    }

    fn read_align(&self) -> usize {
        self.alignment.read
    }

    fn writes_are_durable(&self) -> bool {
        self.dsync
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        FileDevice::keep_open(self, file)
    }

    fn fixed_buffers(&self) -> FixedBufferStats {
        FileDevice::fixed_buffers(self)
    }

    fn may_be_shared(&self) -> bool {
        self.shared
    }

    fn can_be_cut(&self) -> bool {
        self.file.metadata().is_ok_and(|it| it.is_file())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len = len;
        Ok(())
    }

    /// The file system knows which parts were never written. A block device does not: all of it is
    /// data.
    fn next_data(&self, at: u64) -> io::Result<Option<Range<u64>>> {
        self.owned()?;
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => Ok(Some(start..rustix::fs::seek(&self.file, SeekFrom::Hole(start))?)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL) if at < self.len => Ok(Some(at..self.len)),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        if self.process.is_forked() {
            return batch.iter().map(|_| self.owned()).collect();
        }
        let mut events = Writing::new(batch.len(), meanwhile);
        let transfers = self.begin(batch.iter().map(Transfer::write));
        let share = || self.priority.share_of_writes();
        // SAFETY: `batch` lends the memory until this function returns or unwinds. Everything that
        // may happen to it meanwhile is reading.
        unsafe { self.transfer(transfers, share, &mut events) };
        events.results
    }

    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        self.read_meanwhile(batch, &mut || false, done);
    }

    fn read_meanwhile(
        &self,
        batch: &mut [Read<'_>],
        meanwhile: &mut dyn FnMut() -> bool,
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        if self.process.is_forked() {
            (0..).zip(batch).for_each(|(index, read)| done(index, read, self.owned()));
            while meanwhile() {}
            return;
        }
        let _reading = self.priority.reading();
        let transfers = self.begin(batch.iter_mut().map(Transfer::read));
        let share = || Share::READS;
        let mut events = Reading::new(batch, meanwhile, done);
        // SAFETY: `batch` lends the memory to this function alone until it returns or unwinds. The
        // events use that of a read when it is complete, and `meanwhile` cannot have it.
        unsafe { self.transfer(transfers, share, &mut events) };
    }

    /// One system call takes less than a ring does for one transfer.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.owned()?;
        let mut transfer = Transfer::write(&Write { at, parts: [bytes, &[]] });
        // SAFETY: `bytes` is borrowed until this returns.
        unsafe { self.transfer_one(&mut transfer) }
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.owned()?;
        let mut transfer = Transfer::read(&mut Read { at, parts: [bytes, &mut []] });
        // SAFETY: `bytes` is borrowed for this call alone until it returns.
        unsafe { self.transfer_one(&mut transfer) }
    }

    fn sync(&self) -> io::Result<()> {
        self.owned()?;
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn begin_sync(&self) -> io::Result<()> {
        self.owned()?;
        self.syncing().begin(self.file.as_fd(), self.rings.is_some());
        Ok(())
    }

    fn end_sync(&self, wait: bool) -> Option<io::Result<()>> {
        match self.owned() {
            Ok(()) => self.syncing().end(wait),
            Err(error) => Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use tempfile::TempPath;

    use super::*;
    use crate::device::AlignedBuffer;
    use crate::format::BLOCK;
    use kvmem::tier::TierRead;

    use crate::{DiskTier, DiskTierOptions, Fetched};

    /// Returns a path without a file.
    fn temp_path(name: &str) -> TempPath {
        let unmade = tempfile::Builder::new().prefix(name).make(|_| Ok(()));
        unmade.unwrap().into_temp_path()
    }

    type Change = fn(usize, i64) -> i64;

    /// Opens a device whose kernel gives other answers.
    fn device(place: &Path, has_rings: bool, change: Change) -> FileDevice {
        let mut device = FileDevice::open(place, 4 << 20, 8).unwrap();
        if !has_rings {
            device = device.without_rings();
        }
        device.counts.change = Some(Box::new(change));
        device
    }

    fn bytes(blocks: usize, seed: u8) -> AlignedBuffer {
        let mut bytes = AlignedBuffer::new(blocks);
        for (at, byte) in (0_usize..).zip(bytes.iter_mut()) {
            *byte = (at / 512) as u8 ^ at as u8 ^ seed;
        }
        bytes
    }

    /// A write goes in pieces, short ones during a read, and arrives whole. Reads are not divided.
    #[test]
    fn writes_go_in_pieces_that_are_short_during_reads() {
        const LEN: usize = 700 * BLOCK;
        let place = temp_path("pieces");
        for has_rings in [true, false] {
            let answers = Arc::new(Mutex::new(Vec::new()));
            let mut device = device(&place, has_rings, |_, answer| answer);
            let seen = Arc::clone(&answers);
            device.counts.change = Some(Box::new(move |_, answer| {
                seen.lock().unwrap().push(answer as usize);
                answer
            }));
            let longest = || std::mem::take(&mut *answers.lock().unwrap()).into_iter().max();
            for (round, is_reading) in [(1, false), (2, true), (3, false)] {
                let reading = is_reading.then(|| device.priority.reading());
                let written = bytes(700, round);
                let (first, second) = written.split_at(600 * BLOCK);
                let batch = [
                    Write { at: 0, parts: [&first[..500 * BLOCK], &[]] },
                    Write { at: (500 * BLOCK) as u64, parts: [&first[500 * BLOCK..], second] },
                ];
                let results = device.write(&batch, &mut |_| {});
                assert!(results.iter().all(Result::is_ok), "{results:?}");
                let longest_write = longest().expect("answers");
                // The last piece has the second part, too.
                let is_right = match is_reading {
                    true => longest_write <= (256 << 10) + second.len(),
                    false => longest_write == 500 * BLOCK,
                };
                assert!(is_right, "{has_rings} {is_reading}: {longest_write}");
                drop(reading);
                let mut read = vec![0; LEN];
                File::open(&place).unwrap().read_exact_at(&mut read, 0).unwrap();
                assert!(read == *written, "{has_rings} {is_reading}");
                thread::sleep(Duration::from_millis(20));
            }
            let mut read = AlignedBuffer::new(700);
            device.read(&mut [Read { at: 0, parts: [&mut read, &mut []] }], &mut |_, _, _| {});
            assert_eq!(longest(), Some(LEN));
        }
    }

    /// Both engines go on after short, interrupted and unaligned answers: in the middle of a part,
    /// and in the next one.
    #[test]
    fn short_answers_of_the_kernel_are_resumed() {
        let place = temp_path("resumed");
        let half: Change = |_, answer| if answer > 4096 { answer / 2 } else { answer };
        let sector: Change =
            |number, answer| if number % 3 > 0 { answer } else { answer.min(4096) };
        let unaligned: Change = |number, answer| {
            if number % 2 == 0 && answer > 5000 { answer - 77 } else { answer }
        };
        let interrupted: Change = |number, answer| match number % 3 {
            0 => -i64::from(libc::EINTR),
            1 => -i64::from(libc::EAGAIN),
            _ => answer,
        };
        for (change, name) in [
            (half, "half"),
            (sector, "sector"),
            (unaligned, "unaligned"),
            (interrupted, "interrupted"),
        ] {
            for has_rings in [true, false] {
                let device = device(&place, has_rings, change);
                let written = bytes(30, name.len() as u8);
                let batch: Vec<Write<'_>> = (0..10)
                    .map(|index| {
                        let (first, rest) = written[index * 3 * BLOCK..].split_at(2 * BLOCK);
                        Write { at: (index * 5 * BLOCK) as u64, parts: [first, &rest[..BLOCK]] }
                    })
                    .collect();
                let results = device.write(&batch, &mut |_| {});
                assert!(results.iter().all(Result::is_ok), "{name}: {results:?}");
                // What the file has is read by another descriptor.
                let file = File::open(&place).unwrap();
                let mut found = vec![0; 3 * BLOCK];
                for (index, expected) in written.chunks_exact(3 * BLOCK).enumerate() {
                    file.read_exact_at(&mut found, (index * 5 * BLOCK) as u64).unwrap();
                    assert!(found == expected, "{name}, {has_rings}: {index}");
                }
                let mut read = AlignedBuffer::new(30);
                let mut left: &mut [u8] = &mut read;
                let mut reads = Vec::new();
                for index in 0..10 {
                    let (first, rest) = left.split_at_mut(BLOCK);
                    let (second, behind) = rest.split_at_mut(2 * BLOCK);
                    left = behind;
                    reads.push(Read { at: (index * 5 * BLOCK) as u64, parts: [first, second] });
                }
                device.read(&mut reads, &mut |index, _, result| {
                    assert!(result.is_ok(), "{name}, {index}: {result:?}");
                });
                assert!(*read == *written, "{name}, {has_rings}");
                let one = bytes(4, 99);
                device.write_at(0, &one).unwrap();
                let mut read = AlignedBuffer::new(4);
                device.read_at(0, &mut read).unwrap();
                assert!(*read == *one, "{name}");
            }
        }
    }

    /// A tier on a file whose kernel stops in the middle: a miss of the kind *short*, and a store
    /// that fails. What was stored before is found when the kernel recovers.
    #[test]
    fn transfers_that_do_not_go_on_are_misses_and_errors() {
        use std::sync::atomic::{AtomicI64, Ordering};
        static MOST: AtomicI64 = AtomicI64::new(i64::MAX);
        // Relaxed, here as at the next uses: one thread after the other changes and reads it.
        let change: Change = |_, answer| answer.min(MOST.load(Ordering::Relaxed));
        for has_rings in [true, false] {
            for most in [0, 100] {
                let place = temp_path("stopped");
                let (tier, _) =
                    DiskTier::on(device(&place, has_rings, change), &DiskTierOptions::default())
                        .unwrap();
                let is_direct = tier.device().is_direct();
                let value = bytes(8, 1);
                for key in 0..6_u8 {
                    tier.store(&[(&[key], &value)]).remove(0).unwrap();
                }
                MOST.store(most, Ordering::Relaxed);
                let mut into = [const { [0; 8 * BLOCK] }; 3];
                let keys: [u8; 3] = [0, 1, 2];
                let mut requests: Vec<TierRead<'_>> = keys
                    .iter()
                    .zip(&mut into)
                    .map(|(key, into)| TierRead { key: std::slice::from_ref(key), into })
                    .collect();
                let found = tier.fetch(&mut requests);
                // Where any offset will do, 100 bytes at a time are slow, and not the end.
                let goes_on = most > 0 && !is_direct;
                let expected = if goes_on { Fetched::Hit } else { Fetched::Failed };
                assert_eq!(found, [expected; 3], "{has_rings}, {most}");
                let stats = tier.stats();
                let misses = if goes_on { 0 } else { 3 };
                assert_eq!((stats.short_misses, stats.io_misses), (misses, 0));
                let stored = tier.store(&[(b"later", &value)]).remove(0);
                assert_eq!(stored.is_ok(), goes_on, "{stored:?}");
                MOST.store(i64::MAX, Ordering::Relaxed);
                let mut into = vec![0; 8 * BLOCK];
                let found = tier.fetch(&mut [TierRead { key: &[5], into: &mut into }]);
                assert!(found == [Fetched::Hit] && into == *value);
            }
        }
    }

    /// A file that ends within a block: direct reads cannot go on there.
    #[test]
    fn a_file_that_was_cut_off_within_a_block_is_a_short_read() {
        let place = temp_path("cut");
        for has_rings in [true, false] {
            let device = device(&place, has_rings, |_, answer| answer);
            device.write_at(0, &bytes(8, 3)).unwrap();
            let file = OpenOptions::new().write(true).open(&place).unwrap();
            file.set_len(5 * BLOCK as u64 + 100).unwrap();
            let mut memory = AlignedBuffer::new(8);
            let (first, second) = memory.split_at_mut(4 * BLOCK);
            let mut reads = [
                Read { at: 0, parts: [first, &mut []] },
                Read { at: 16_384, parts: [second, &mut []] },
            ];
            let mut results = [const { None }; 2];
            device.read(&mut reads, &mut |index, _, result| results[index] = Some(result));
            assert!(matches!(results[0], Some(Ok(()))));
            let Some(Err(error)) = &results[1] else { panic!("{results:?}") };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{has_rings}");
            file.set_len(4 << 20).unwrap();
        }
    }
}
