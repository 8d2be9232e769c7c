//! A rolling restart without a lost hit: `cargo run -p kvmem-node --example rolling_restart`.
//!
//! A thread of the first process holds the memory. Two engines look up their prefixes without a
//! pause. Meanwhile the server is replaced six times, as by an upgrade: half of
//! the servers are stopped, and half are killed. Each look-up finds all blocks, and each block
//! has its bytes.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, Region};
use kvmem_node::{
    ConnectOptions, MemoryHolder, MemoryHolderCallError, MemoryHolderClient, MemoryHolderError,
    MemoryHolderOptions, NewValue, Node, NodeClient, NodeOptions, NodeServer, ServerOptions,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MEMORY: usize = 64 << 20;
const BLOCKS: u32 = 64;
const BYTES: usize = 64 << 10;
const RESTARTS: usize = 6;

fn main() -> Outcome<()> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [word, folder] if word == "--server" => serve(Path::new(folder)),
        [] => run(),
        _ => Err("give no arguments".into()),
    }
}

/// Serves until standard input is closed.
fn serve(folder: &Path) -> Outcome<()> {
    let holder = MemoryHolderClient::connect(folder.join("holder"))?;
    let node = match <[OwnedFd; 3]>::try_from(claim(&holder)?) {
        Ok(files) => Node::recover(files, NodeOptions::default())?.0,
        Err(_) => {
            let memory = Region::builder(MEMORY).backing(Backing::Shared).map()?;
            let node = Node::create(memory, NodeOptions::default())?;
            holder.put("node", &node.descriptors()?.each_ref().map(AsFd::as_fd))?;
            node
        }
    };
    let server = NodeServer::bind(node, &folder.join("socket"), ServerOptions::default())?;
    let stopper = server.stopper();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    server.run()?;
    Ok(())
}

/// Takes the sole use of the memory, when the server before no longer has it.
fn claim(holder: &MemoryHolderClient) -> Outcome<Vec<OwnedFd>> {
    loop {
        match holder.claim("node") {
            Err(MemoryHolderError::Call(MemoryHolderCallError::Claimed { .. })) => {
                thread::sleep(Duration::from_millis(5));
            }
            files => return Ok(files?),
        }
    }
}

fn start(folder: &Path) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.arg("--server").arg(folder).stdin(Stdio::piped()).spawn()?)
}

/// Ends a server, by a request or by `kill -9`.
fn end(server: &mut Child, is_graceful: bool) -> Outcome<()> {
    if is_graceful {
        drop(server.stdin.take());
    } else {
        server.kill()?;
    }
    server.wait()?;
    Ok(())
}

/// Ends a server, and starts another one.
fn replace(server: &mut Child, is_graceful: bool, folder: &Path) -> Outcome<Child> {
    end(server, is_graceful)?;
    start(folder)
}

/// The files of this run, which go with it.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run() -> Outcome<()> {
    let folder = std::env::temp_dir().join(format!("rolling-restart-{}", std::process::id()));
    let files = Files(folder);
    std::fs::create_dir_all(&files.0)?;
    let holder = MemoryHolder::bind(&files.0.join("holder"), MemoryHolderOptions::default())?;
    thread::spawn(move || holder.run());
    let mut server = start(&files.0)?;
    let stop = AtomicBool::new(false);
    let found = thread::scope(|scope| -> Outcome<_> {
        let engines: Vec<_> = (0..2)
            .map(|seed| {
                let (socket, stop) = (files.0.join("socket"), &stop);
                scope.spawn(move || engine(&socket, seed, stop))
            })
            .collect();
        let replaced = (0..RESTARTS).try_for_each(|number| {
            thread::sleep(Duration::from_millis(150));
            server = replace(&mut server, number % 2 == 0, &files.0)?;
            Ok(())
        });
        thread::sleep(Duration::from_millis(150));
        stop.store(true, Ordering::Relaxed);
        let found: Outcome<Vec<_>> =
            engines.into_iter().map(|engine| engine.join().expect("no panic")).collect();
        replaced.and(found)
    });
    end(&mut server, true)?;
    let found = found?;
    for (seed, Found { lookups, hits, longest }) in found.iter().enumerate() {
        println!("engine {seed}: {lookups} look-ups, {hits} hits, the longest took {longest:.0?}");
        assert_eq!(*hits, lookups * u64::from(BLOCKS), "no hit is lost");
    }
    println!("{RESTARTS} servers were replaced");
    assert_eq!(found.len(), 2);
    Ok(())
}

/// Figures of an engine.
struct Found {
    lookups: u64,
    hits: u64,
    longest: Duration,
}

/// Stores a prefix, and acquires it again and again.
fn engine(socket: &Path, seed: u8, stop: &AtomicBool) -> Outcome<Found> {
    // A call waits for the next server for so long.
    let options =
        ConnectOptions { retry_for: Duration::from_secs(30), ..ConnectOptions::default() };
    // SAFETY: all clients of this socket are these engines, which write to their reservations
    // alone.
    let node = unsafe { NodeClient::connect(socket, &options) }?;
    let keys: Vec<[u8; 5]> = (0..BLOCKS)
        .map(|number| {
            let [a, b, c, d] = number.to_le_bytes();
            [seed, a, b, c, d]
        })
        .collect();
    let mut blocks = node.reserve(&vec![BYTES as u64; keys.len()])?;
    for (block, key) in blocks.iter_mut().zip(&keys) {
        block.bytes_mut()?.fill(key[1] ^ seed);
    }
    node.commit(
        keys.iter().copied().zip(blocks).map(|(key, block)| NewValue::new(key, block)).collect(),
    )?;
    let mut found = Found { lookups: 0, hits: 0, longest: Duration::ZERO };
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let pins = node.acquire_prefix(&keys)?;
        found.lookups += 1;
        found.hits += pins.hits() as u64;
        found.longest = found.longest.max(started.elapsed());
        for (key, value) in keys.iter().zip(pins.values()) {
            let value = value.ok_or("a block is gone")?;
            assert!(value.bytes().iter().all(|byte| *byte == key[1] ^ seed), "wrong bytes");
        }
    }
    Ok(found)
}
