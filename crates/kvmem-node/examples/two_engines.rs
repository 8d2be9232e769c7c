//! Two engines share prefixes: `cargo run -p kvmem-node --example two_engines`.
//!
//! Each engine is a process of its own, which answers prompts. It divides a prompt into blocks of
//! tokens, and looks up the KV blocks of all of them. It computes those that are missing, and
//! stores them. Both engines have the same system prompt, which only one of them computes.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::{Command, Output};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    ConnectOptions, NewValue, Node, NodeClient, NodeOptions, NodeServer, ServerOptions,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Tokens of a block, and bytes of its KV values.
const BLOCK: usize = 16;
const BYTES: usize = 64 << 10;

/// The system prompt of both engines, and their questions.
const SYSTEM: usize = 8 * BLOCK;
const QUESTION: usize = 2 * BLOCK;

fn main() -> Outcome<()> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [word, socket, seed] if word == "--engine" => engine(Path::new(socket), seed.parse()?),
        [] => run(),
        _ => Err("give no arguments".into()),
    }
}

/// Serves a node, and runs one engine after the other.
fn run() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("kvmem.sock");
    let memory = Region::builder(16 << 20).backing(Backing::Shared).ladder(PageSize::Base).map()?;
    let node = Node::create(memory, NodeOptions::default())?;
    let server = NodeServer::bind(node, &socket, ServerOptions::default())?;
    let stopper = server.stopper();
    let running = std::thread::spawn(move || server.run());
    let engine = |seed: u32| -> Outcome<String> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.arg("--engine").arg(&socket).arg(seed.to_string());
        let Output { status, stdout, stderr } = command.output()?;
        let (stdout, stderr) = (String::from_utf8(stdout)?, String::from_utf8_lossy(&stderr));
        if status.success() { Ok(stdout) } else { Err(format!("{status}: {stderr}").into()) }
    };
    let said = [engine(1)?, engine(2)?, engine(1)?];
    stopper.stop();
    let node = running.join().expect("the server does not panic")?;
    for line in &said {
        print!("{line}");
    }
    // The system prompt is there once, and the questions of both.
    assert_eq!(node.len(), (SYSTEM + 2 * QUESTION) / BLOCK);
    assert!(said[0].ends_with("found 0 of 10 blocks, computed 10\n"), "{}", said[0]);
    assert!(said[1].ends_with("found 8 of 10 blocks, computed 2\n"), "{}", said[1]);
    assert!(said[2].ends_with("found 10 of 10 blocks, computed 0\n"), "{}", said[2]);
    Ok(())
}

/// Answers one prompt.
fn engine(socket: &Path, seed: u32) -> Outcome<()> {
    let options =
        ConnectOptions { namespace: "llama-3-8b/fp16".to_owned(), ..ConnectOptions::default() };
    // SAFETY: all clients of this socket are these engines, which write to their reservations
    // alone.
    let node = unsafe { NodeClient::connect(socket, &options) }?;
    let system = (0..SYSTEM as u32).collect::<Vec<_>>();
    let question = (0..QUESTION as u32).map(|token| token * 7 + seed).collect::<Vec<_>>();
    let keys = keys_of(&[system, question].concat());
    let found = node.acquire_prefix(&keys)?;
    let hits = found.hits();
    for (key, value) in keys.iter().zip(found.values()) {
        let Some(value) = value else { break };
        // A real engine transfers it to its GPU, from the offset of the pin.
        assert_eq!(value.bytes(), computed(*key));
    }
    let missing = &keys[hits..];
    if !missing.is_empty() {
        let mut blocks = node.reserve(&vec![BYTES as u64; missing.len()])?;
        for (key, block) in missing.iter().zip(&mut blocks) {
            block.bytes_mut()?.copy_from_slice(&computed(*key));
        }
        // One batch: another engine finds all of these blocks, or none.
        node.commit(
            missing
                .iter()
                .copied()
                .zip(blocks)
                .map(|(key, block)| NewValue::new(key, block))
                .collect(),
        )?;
    }
    println!("engine {seed}: found {hits} of {} blocks, computed {}", keys.len(), missing.len());
    Ok(())
}

/// Returns the key of each block of a prompt: a hash of all tokens up to its end.
fn keys_of(tokens: &[u32]) -> Vec<[u8; 8]> {
    let key = |end: usize| {
        let mut hasher = DefaultHasher::new();
        tokens[..end].hash(&mut hasher);
        hasher.finish().to_le_bytes()
    };
    (BLOCK..=tokens.len()).step_by(BLOCK).map(key).collect()
}

/// Computes the KV values of a block. They depend on all tokens before, and so does the key.
fn computed(key: [u8; 8]) -> Vec<u8> {
    key.repeat(BYTES / key.len())
}
