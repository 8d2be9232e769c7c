//! *Calls*: values are pinned and released, by clients that are processes of their own.

use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use super::exchange::{CallTimes, KEYS, VALUES, key};
use super::memory::NodeFiles;
use super::role::{ServerProcess, connect};
use super::{NodeChild, NodeRole};
use crate::bench::beside::BesideProgram;

/// Bytes of such a value.
const VALUE_BYTES: usize = 256;
/// A server with the values that the clients pin.
#[derive(Debug)]
pub(super) struct CallsFixture {
    _server: ServerProcess,
    // The socket is in it, so it is dropped last.
    dir: TempDir,
}

impl CallsFixture {
    pub(super) fn new(dir: TempDir, child: NodeChild) -> Result<CallsFixture> {
        let files = NodeFiles::new(64 << 20, 2 * VALUES as u32, true)?;
        let mut server = files.serve(&dir.path().join("socket"), child)?;
        server.wait()?;
        let writer = connect(&dir.path().join("socket"), false, true)?;
        for number in 0..VALUES as u64 {
            writer.insert(key(number), &[number as u8; VALUE_BYTES])?;
        }
        Ok(CallsFixture { _server: server, dir })
    }

    /// Lets clients call at the same time. Adds up their rates, and returns the times of the
    /// slowest.
    pub(super) fn measure(
        &self,
        rings: bool,
        clients: u32,
        time: Duration,
        child: NodeChild,
    ) -> Result<CallTimes> {
        let start = |number: u32| {
            let role = NodeRole::Client {
                socket: self.dir.path().join("socket"),
                rings,
                first: number as usize * (VALUES / KEYS) / clients as usize,
                milliseconds: time.as_millis() as u64,
            };
            BesideProgram::run("a client", &mut child(&role))
        };
        let running: Vec<BesideProgram> = (0..clients).map(start).collect::<Result<_>>()?;
        let mut all = CallTimes { keys_per_s: 0.0, p50_us: 0.0, p99_us: 0.0 };
        for mut client in running {
            let one: CallTimes = client.answer()?;
            all.keys_per_s += one.keys_per_s;
            all.p50_us = all.p50_us.max(one.p50_us);
            all.p99_us = all.p99_us.max(one.p99_us);
        }
        Ok(all)
    }
}
