//! Answers of a hostile server of a node: any packets, descriptors, and stores to the memory of
//! rings. A client gets values inside of the memory that it has mapped, or a typed error, in time.
#![cfg_attr(fuzzing, no_main)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kvmem::arena::Region;
use kvmem_fuzz::node::shared;
use kvmem_node::{ClientError, ConnectOptions, NewValue, NodeClient, PinBatch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use tempfile::TempDir;

/// Bytes of the memory of the server.
const BYTES: usize = 64 << 10;
/// How long a call waits for its answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(40);
/// A call takes no longer, on a machine that others use, too.
const LIMIT: Duration = Duration::from_secs(5);
/// Connections that the server accepts.
const CONNECTIONS: usize = 3;
/// Answers that do not come, or are followed by many others.
const SLOW: usize = 2;

/// Numbers of the calls, as they are encoded.
const HELLO: u8 = 0;
const RINGS: u8 = 10;
/// Numbers of the answers.
const WELCOME: u8 = 0;
const RINGS_GIVEN: u8 = 3;
const PINNED: u8 = 5;
const RESERVED: u8 = 6;
const ANSWERS: u8 = 12;

/// The file of rings: a header for each direction, and two areas.
const RING_FILE: usize = AREAS_AT + 2 * AREA_BYTES;
const AREAS_AT: usize = 4096;
const AREA_BYTES: usize = 256 << 10;
/// The header of the ring of answers, which begins with its tail.
const ANSWERS_AT: u64 = 2048;

/// Appends a number in the encoding of the messages.
fn put(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads such a number from the front of a message.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// What one message of the input is.
#[derive(Clone, Copy)]
struct Message<'a> {
    what: u8,
    bytes: &'a [u8],
}

/// Divides an input into messages: what it is, a length, and that number of bytes.
fn messages(mut bytes: &[u8]) -> Vec<Message<'_>> {
    let mut messages = Vec::new();
    while let [what, len, rest @ ..] = bytes {
        let (own, rest) = rest.split_at(rest.len().min((*len).into()));
        messages.push(Message { what: *what, bytes: own });
        bytes = rest;
    }
    messages
}

/// Returns an offset, a length or another number near a limit.
fn number(byte: u8) -> u64 {
    let base = [0, 1, 64, 4096, 5000, BYTES as u64, 1 << 32, u64::MAX][usize::from(byte % 8)];
    base.wrapping_add(u64::from(byte / 8 % 8)).wrapping_sub(u64::from(byte / 64))
}

impl Message<'_> {
    /// Returns the packet of an answer to request `id`; `None`: there is none.
    fn packet(&self, id: u64) -> Option<Vec<u8>> {
        let mut packet = Vec::new();
        let mut ok = |answer| {
            put(id, &mut packet);
            packet.extend([0, answer]);
        };
        match self.what % 8 {
            0 => packet.extend(self.bytes),
            1 => {
                put(id, &mut packet);
                packet.extend(self.bytes);
            }
            2 => {
                ok(PINNED);
                // An epoch, and blocks of which each may be missing.
                put(number(self.bytes.first().copied().unwrap_or(1)), &mut packet);
                let blocks = self.bytes.get(1..).unwrap_or_default().chunks_exact(3);
                put(blocks.len() as u64, &mut packet);
                for block in blocks {
                    packet.push(u8::from(block[0] & 1 == 0));
                    if block[0] & 1 == 0 {
                        put_block(block, &mut packet);
                        let sum = [0_u8, 1, 7];
                        packet.extend(&sum[..if block[0] & 2 == 0 { 1 } else { 0 }]);
                        packet.extend(&sum[if block[0] & 2 == 0 { 3 } else { 1 }..]);
                    }
                }
            }
            3 => {
                ok(RESERVED);
                let blocks = self.bytes.chunks_exact(3);
                put(blocks.len() as u64, &mut packet);
                for block in blocks {
                    put_block(block, &mut packet);
                    packet.push(0);
                }
            }
            4 => {
                let (answer, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
                ok(answer % ANSWERS);
                packet.extend(rest);
            }
            5 => {
                put(id, &mut packet);
                packet.push(1);
                packet.extend(self.bytes);
            }
            _ => return None,
        }
        Some(packet)
    }
}

/// Appends a handle, an offset and a length.
fn put_block(block: &[u8], packet: &mut Vec<u8>) {
    put(u64::from(block[0] / 4), packet);
    put(1, packet);
    put(number(block[1]), packet);
    put(number(block[2]), packet);
}

/// Returns the answer to a greeting, with a field that is not right.
fn welcome(id: u64, wrong: u8) -> Vec<u8> {
    let mut fields = [1, 7, BYTES as u64, 64, 0, 9, 1000, 5, 0, 0, 0];
    if let Some(field) = fields.get_mut(usize::from(wrong % 16)) {
        *field = number(wrong / 16);
    }
    let mut packet = Vec::new();
    put(id, &mut packet);
    packet.extend([0, WELCOME]);
    fields.into_iter().for_each(|field| put(field, &mut packet));
    packet
}

/// Files that a server may pass.
struct Files {
    memory: OwnedFd,
    words: OwnedFd,
    /// Not what a client expects.
    others: Vec<OwnedFd>,
}

fn file_of(region: Region) -> Result<OwnedFd> {
    region.share()?.context("it is shared")
}

fn files() -> Result<&'static Files> {
    static FILES: OnceLock<Files> = OnceLock::new();
    if let Some(made) = FILES.get() {
        return Ok(made);
    }
    let unsealed = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&unsealed, BYTES as u64)?;
    let empty = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC)?;
    let (reader, writer) = std::io::pipe()?;
    let others = vec![
        unsealed,
        empty,
        file_of(shared(4096)?)?,
        file_of(shared(2 * BYTES)?)?,
        reader.into(),
        writer.into(),
        std::fs::File::open("/dev/null")?.into(),
        std::fs::File::open("/dev/full")?.into(),
        std::fs::File::open("/")?.into(),
        std::os::unix::net::UnixDatagram::unbound()?.into(),
    ];
    let made = Files { memory: file_of(shared(BYTES)?)?, words: file_of(shared(4096)?)?, others };
    Ok(FILES.get_or_init(|| made))
}

impl Files {
    /// Returns the descriptors of a packet that has two, some of them other ones.
    fn choose<'a>(&'a self, right: [&'a OwnedFd; 2], which: u8) -> Vec<BorrowedFd<'a>> {
        let other = &self.others[usize::from(which / 8) % self.others.len()];
        let [first, second] = right;
        let chosen = match which % 8 {
            0..3 => vec![first, second],
            3 => vec![other, second],
            4 => vec![first, other],
            5 => vec![first],
            6 => vec![second, first, other],
            _ => Vec::new(),
        };
        chosen.into_iter().map(AsFd::as_fd).collect()
    }
}

fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags).is_ok()
}

/// A server in a thread, and the folder of its socket.
struct Hostile {
    folder: TempDir,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Hostile {
    fn start(input: Vec<u8>) -> Result<Hostile> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("hostile");
        let kind = SocketType::SEQPACKET;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
        rustix::net::listen(&listener, 4)?;
        let listener = Arc::new(listener);
        let accepts = Arc::clone(&listener);
        let thread = Some(std::thread::spawn(move || serve(&accepts, &input)));
        Ok(Hostile { folder, listener, thread })
    }

    fn stop(mut self) -> Result<()> {
        // The server may wait for another connection.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let thread = self.thread.take().context("it runs")?;
        thread.join().map_err(|_| anyhow!("the hostile server panicked"))?
    }
}

fn serve(listener: &OwnedFd, input: &[u8]) -> Result<()> {
    let [greeting, descriptors, _, rest @ ..] = input else { return Ok(()) };
    let files = files()?;
    let mut left = messages(rest).into_iter();
    let mut slow = 0;
    for _ in 0..CONNECTIONS {
        let Ok(socket) = rustix::net::accept(listener) else { break };
        let mut buffer = vec![0; 256 << 10];
        while let Some(len) = receive(listener, &socket, &mut buffer)? {
            let mut request = &buffer[..len];
            let (Some(id), Some(call)) = (take(&mut request), request.first()) else { break };
            if *call == HELLO {
                let chosen = files.choose([&files.memory, &files.words], *descriptors);
                send(&socket, &welcome(id, *greeting), &chosen);
                continue;
            }
            if *call == RINGS {
                serve_rings(&socket, id, *descriptors, left.by_ref().collect())?;
                break;
            }
            if id == 0 {
                continue;
            }
            let Some(message) = left.next() else { break };
            if let Some(packet) = message.packet(id) {
                send(&socket, &packet, &[]);
            } else {
                // Nothing, or answers that no thread waits for, or the end.
                let answers = match message.bytes {
                    [1, ..] if slow < SLOW => 0,
                    [2, ..] if slow < SLOW => 30,
                    _ => break,
                };
                slow += 1;
                for at in 0..answers {
                    send(&socket, &[100 + at, 0, 2], &[]);
                }
            }
        }
    }
    // Further connections are refused, and not kept waiting.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
    Ok(())
}

/// Receives a request; `None`: the client has ended the connection, or makes another one.
fn receive(listener: &OwnedFd, socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    let mut ends = [PollFd::new(listener, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
    poll(&mut ends, None)?;
    if ends[1].revents().is_empty() {
        return Ok(None);
    }
    Ok(rustix::net::recv(socket, buffer, RecvFlags::empty()).ok().map(|(len, _)| len))
}

/// Gives rings, and sends all answers through them at once.
fn serve_rings(socket: &OwnedFd, id: u64, which: u8, left: Vec<Message<'_>>) -> Result<()> {
    let files = files()?;
    let ring = std::fs::File::from(file_of(shared(RING_FILE)?)?);
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let bell = rustix::event::eventfd(0, flags)?;
    if which & 64 != 0 {
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes())?;
    }
    // The first request rings the doorbell.
    ring.write_all_at(&1_u32.to_le_bytes(), 256)?;
    let file = OwnedFd::from(ring.try_clone()?);
    let mut packet = Vec::new();
    put(id, &mut packet);
    packet.extend([0, RINGS_GIVEN]);
    let chosen = files.choose([&file, &bell], which.rotate_left(3));
    send(socket, &packet, &chosen);
    let mut tail = 0_u64;
    for (id, message) in (1..).zip(left) {
        if let Some(packet) = message.packet(id) {
            let area = (AREAS_AT + AREA_BYTES) as u64;
            let words = 1 + packet.len().div_ceil(8) as u64;
            if (tail + words) * 8 > AREA_BYTES as u64 {
                break;
            }
            ring.write_all_at(&(packet.len() as u64).to_le_bytes(), area + tail * 8)?;
            ring.write_all_at(&packet, area + tail * 8 + 8)?;
            tail += words;
            ring.write_all_at(&tail.to_le_bytes(), ANSWERS_AT)?;
        } else if let [at, low, high, value] = message.bytes[..message.bytes.len().min(4)] {
            // A word of one of the headers, or the length of a message.
            let place = match at % 4 {
                0 => u64::from(at / 4 % 4) * 128,
                1 => ANSWERS_AT + u64::from(at / 4 % 4) * 128,
                _ => (AREAS_AT + AREA_BYTES) as u64 + u64::from(low) * 8,
            };
            let word = number(value).wrapping_add(u64::from(high) << 8);
            ring.write_all_at(&word.to_le_bytes(), place)?;
        }
        send(socket, &[0], &[]);
    }
    Ok(())
}

/// Checks that bytes lie in the mapping, and reads them.
fn check(client: &NodeClient, bytes: &[u8]) -> Result<()> {
    let (base, len) = client.memory();
    let (memory, range) = (base.addr()..=base.addr() + len, bytes.as_ptr_range());
    ensure!(memory.contains(&range.start.addr()), "a value begins outside of the memory");
    ensure!(memory.contains(&range.end.addr()), "a value ends outside of the memory");
    std::hint::black_box(bytes.iter().fold(0_u8, |sum, byte| sum ^ byte));
    Ok(())
}

/// Makes one call, and looks at what it gives.
fn call(client: &NodeClient, which: u8, held: &mut Vec<PinBatch>) -> Result<()> {
    match which % 12 {
        0..3 => {
            let pins = match held.pop().filter(|_| which.is_multiple_of(2)) {
                Some(earlier) => client.exchange(earlier, &["a", "b"])?,
                None => client.acquire(&["a", "b"])?,
            };
            for value in pins.values().flatten() {
                check(client, value.bytes())?;
                let _ = value.verify();
            }
            held.push(pins);
        }
        3 | 4 => {
            let mut blocks = client.reserve(&[5000])?;
            let is_right = blocks.len() == 1 && blocks[0].len() == 5000;
            ensure!(is_right, "{} blocks of other lengths", blocks.len());
            check(client, blocks[0].bytes_mut()?)?;
            if which.is_multiple_of(2) {
                client
                    .commit(vec![NewValue::new("a", blocks.remove(0))])
                    .map_err(ClientError::from)?;
            }
        }
        5 => drop(client.lookup(&["a"])?),
        6 => drop(client.stats()?),
        7 => drop(client.events(0, 8, Duration::ZERO)?),
        8 => drop(client.as_operator().list(0, 8)?),
        9 => drop(client.as_operator().sessions()?),
        10 => drop(client.remove(&["a"])?),
        _ => held.clear(),
    }
    Ok(())
}

fn target(bytes: &[u8]) -> Result<()> {
    let [_, _, flags, rest @ ..] = bytes else { return Ok(()) };
    let hostile = Hostile::start(bytes.to_vec())?;
    let options = ConnectOptions {
        rings: flags & 1 != 0,
        read_only: flags & 2 != 0,
        populate: flags & 4 != 0,
        verify: flags & 8 != 0,
        checksums: flags & 16 != 0,
        retry_for: Duration::ZERO,
        answer_within: ANSWER_WITHIN,
        ..ConnectOptions::default()
    };
    let started = Instant::now();
    // SAFETY: nothing writes to the memory of this server.
    let client = unsafe { NodeClient::connect(hostile.folder.path().join("hostile"), &options) };
    ensure!(started.elapsed() < LIMIT, "connecting took {:?}", started.elapsed());
    if let Ok(client) = client {
        let mut held = Vec::new();
        for message in messages(rest).into_iter().chain([Message { what: 5 << 3, bytes: &[] }]) {
            let started = Instant::now();
            // Any error of the client is right.
            let done = call(&client, message.what >> 3, &mut held);
            done.or_else(|error| error.is::<ClientError>().then_some(()).ok_or(error))?;
            let took = started.elapsed();
            ensure!(took < LIMIT, "a call took {took:?}");
        }
    }
    hostile.stop()
}

/// Returns answers of each kind, with good and with bad numbers.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let message = |what: u8, call: u8, bytes: &[u8]| {
        let mut message = vec![what | call << 3, bytes.len() as u8];
        message.extend(bytes);
        message
    };
    let named = |name: &str, head: [u8; 3], messages: &[Vec<u8>]| {
        (name.to_owned(), [&head[..], &messages.concat()].concat())
    };
    const RIGHT: u8 = 15;
    let pins = |block: u8, offset: u8, len: u8| {
        message(2, 0, &[4, block, offset, len, block, offset, len])
    };
    let blocks = |offset: u8, len: u8| message(3, 3, &[0, offset, len]);
    let each: Vec<Vec<u8>> =
        (0..ANSWERS).map(|answer| message(4, answer, &[answer, 1, 0, 0])).collect();
    let all = [pins(0, 1, 3), blocks(3, 4), pins(0, 5, 1), blocks(7, 4), pins(2, 0, 7)];
    vec![
        named("each", [RIGHT, 0, 0], &each),
        named("blocks", [RIGHT, 0, 0], &all),
        named("rings", [RIGHT, 0, 1], &all),
        named("verified", [RIGHT, 0, 8], &all),
        named("reader", [RIGHT, 0, 2], &all),
        named("epochs", [RIGHT, 0, 0], &[pins(0, 1, 3), message(2, 0, &[1, 0, 0, 0, 0, 0, 0])]),
        named("welcome", [0x52, 0, 0], &all),
        named("session", [0x57, 0, 0], &all),
        named("files", [RIGHT, 3, 0], &all),
        named("other-files", [RIGHT, 0x2C, 0], &all),
        named("no-files", [RIGHT, 7, 0], &all),
        named("bell", [RIGHT, 64, 1], &all),
        named("counters", [RIGHT, 0, 1], &[message(7, 0, &[1, 0, 9, 7]), pins(0, 1, 3)]),
        named("silence", [RIGHT, 0, 0], &[message(6, 1, &[1]), pins(0, 1, 3)]),
        named("others", [RIGHT, 0, 0], &[message(6, 3, &[2]), pins(0, 1, 3)]),
        named("errors", [RIGHT, 0, 0], &[message(5, 0, &[0, 1, 1, 1]), message(5, 3, &[6, 1, 1])]),
        named("bytes", [RIGHT, 0, 0], &[message(1, 0, &[0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F])]),
    ]
}

kvmem_fuzz::run!(target, corpus);
