//! *Pressure*: the machine, or the server's cgroup, is short of memory, and the server gives some
//! back before the kernel kills a process.
//!
//! Two things say so. *Pressure stall information* is a file, `memory.pressure` of the cgroup or
//! `/proc/pressure/memory`, that wakes the server when tasks have waited for memory for a tenth of
//! the time. Where there is none, and also where there is, the server compares the used memory with
//! the limits, `memory.high` and `memory.max` of each cgroup and the memory of the machine: it
//! gives back when less than a *reserve* is left. The reserve is a sixteenth of the limit, at most
//! 2 GiB. The server looks ten times a second, and a hundred times while less than four reserves
//! are left.
//!
//! Each time the server gives back what is missing from twice the reserve, and at least a sixteenth
//! of its memory, down to its least size. When twice the reserve was left for a second, it takes as
//! much again as leaves that, up to the size that it had: a reserve at each look, so that a
//! neighbour that comes meanwhile is seen.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kvmem::arena::{MemoryLeft, MemoryWatch};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{Mode, OFlags, open};

use super::event_source::EventSource;
use super::server::NodeServer;
use crate::node::ResizeStep;

/// The time between two looks at the limits, in milliseconds, and while little is left.
const LOOK_MS: u64 = 100;
const LOOK_CLOSELY_MS: u64 = 10;
/// Less than so many reserves are little.
const LITTLE: u64 = 4;
/// The time without pressure before the server takes memory again.
const QUIET_MS: u64 = 1000;
/// The reserve is this part of the limit, and at most so many bytes.
const PART: u64 = 16;
const MAX_RESERVE: u64 = 2 << 30;
/// Tasks that have waited for 200 ms of 2 s. A user without rights must name a multiple of 2 s.
const TRIGGER: &[u8] = b"some 200000 2000000\0";

/// What watches the memory of the machine.
#[derive(Debug)]
pub(super) struct Pressure {
    watch: MemoryWatch,
    /// While it is open, the kernel reports stalls. `None`: it cannot.
    _stalls: Option<OwnedFd>,
    /// Whether tasks have waited since the last look.
    has_stalled: bool,
    next_look: u64,
    pressed_at: u64,
}

impl Pressure {
    /// Begins to watch, if the memory may become smaller.
    pub(super) fn new(folder: Option<&Path>, epoll: &OwnedFd) -> Pressure {
        let stalls = stall_files(folder).into_iter().find_map(|path| {
            let file =
                open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
            let file = file.ok()?;
            rustix::io::write(&file, TRIGGER).ok()?;
            let data = EventData::new_u64(EventSource::Stalls.bits());
            // A plain file cannot be watched.
            epoll::add(epoll, file.as_fd(), data, EventFlags::PRI).ok()?;
            Some(file)
        });
        let watch = MemoryWatch::new(folder);
        Pressure { watch, _stalls: stalls, has_stalled: false, next_look: 0, pressed_at: 0 }
    }

    /// Notes that tasks have waited.
    pub(super) fn stalled(&mut self) {
        (self.has_stalled, self.next_look) = (true, 0);
    }
}

/// Returns the files that may report stalls, the one of the cgroup first.
fn stall_files(folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(folder) = folder {
        return vec![folder.join("memory.pressure")];
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.map(|path| Path::new("/sys/fs/cgroup").join(path).join("memory.pressure"));
    own.into_iter().chain([PathBuf::from("/proc/pressure/memory")]).collect()
}

fn reserve_of(left: MemoryLeft) -> u64 {
    (left.limit / PART).min(MAX_RESERVE)
}

/// Returns the size to have now; `None`: the one that there is. `size` is the present one,
/// `at_rest` the one without pressure.
fn next_size(
    left: Option<MemoryLeft>,
    has_stalled: bool,
    is_quiet: bool,
    (min, size, at_rest): (u64, u64, u64),
) -> Option<u64> {
    let most = left.map_or(u64::MAX, reserve_of);
    let reserve = left.map_or(0, reserve_of);
    let left = left.map_or(u64::MAX, |it| it.left);
    if has_stalled || left < reserve {
        let missing = (2 * reserve).saturating_sub(left).max(size / PART);
        return Some(size.saturating_sub(missing).max(min.min(size)));
    }
    let more = left.saturating_sub(2 * reserve).min(most);
    (is_quiet && size < at_rest && more > 0).then(|| size.saturating_add(more).min(at_rest))
}

impl NodeServer {
    /// Returns the time of the next look at the memory of the machine.
    pub(super) fn looks_at_pressure(&self) -> Option<u64> {
        self.pressure.as_ref().map(|it| it.next_look)
    }

    /// Looks at the memory of the machine, if it is time, and changes the size.
    pub(super) fn look_at_pressure(&mut self, now: u64) {
        let Some(pressure) = self.pressure.as_mut().filter(|it| now >= it.next_look) else {
            return;
        };
        let has_stalled = std::mem::take(&mut pressure.has_stalled);
        let left = pressure.watch.left();
        let is_close = left.is_some_and(|it| it.left < LITTLE * reserve_of(it));
        pressure.next_look = now + if is_close { LOOK_CLOSELY_MS } else { LOOK_MS };
        let is_short = left.is_some_and(|it| it.left < 2 * reserve_of(it));
        if is_short {
            pressure.pressed_at = now;
        }
        let is_quiet = now.saturating_sub(pressure.pressed_at) >= QUIET_MS;
        let (size, wanted) = (self.node.size(), self.node.wanted_size());
        let sizes = (self.node.min_size(), size, self.size_at_rest);
        let Some(next) = next_size(left, has_stalled, is_quiet, sizes) else {
            if is_short && wanted > size {
                // Others take what it was about to take.
                self.node.resize(size);
            }
            return;
        };
        if next <= size {
            pressure.pressed_at = now;
        }
        // What is being given back already goes on.
        if (next < size && next < wanted) || (next > size && wanted < next) {
            self.node.resize_for_others(next);
            self.resizing = ResizeStep::More;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_missing_from_the_reserve_is_given_back() {
        let left = |left| Some(MemoryLeft { limit: 16 * GIB, left });
        let sizes = (2 * GIB, 8 * GIB, 8 * GIB);
        assert_eq!(next_size(left(2 * GIB), false, true, sizes), None);
        // Half of the reserve of a GiB is left: 1.5 GiB are missing from two.
        assert_eq!(next_size(left(GIB / 2), false, true, sizes), Some(8 * GIB - 3 * GIB / 2));
        assert_eq!(next_size(left(4 * GIB), true, false, sizes), Some(8 * GIB - GIB / 2));
        assert_eq!(next_size(None, true, false, sizes), Some(8 * GIB - GIB / 2));
        // Not below the least size, nor above the present one.
        assert_eq!(next_size(left(0), true, false, (7 * GIB, 8 * GIB, 8 * GIB)), Some(7 * GIB));
        assert_eq!(next_size(left(0), true, false, (7 * GIB, 4 * GIB, 8 * GIB)), Some(4 * GIB));
    }

    #[test]
    fn memory_is_taken_again_as_long_as_twice_the_reserve_is_left() {
        let left = |left| Some(MemoryLeft { limit: 16 * GIB, left });
        let sizes = (2 * GIB, 4 * GIB, 8 * GIB);
        assert_eq!(next_size(left(5 * GIB), false, false, sizes), None, "it was not quiet");
        assert_eq!(next_size(left(5 * GIB), false, true, sizes), Some(5 * GIB));
        assert_eq!(next_size(left(2 * GIB), false, true, sizes), None);
        assert_eq!(next_size(left(5 * GIB / 2), false, true, sizes), Some(9 * GIB / 2));
        assert_eq!(next_size(None, false, true, sizes), Some(8 * GIB));
    }
}
