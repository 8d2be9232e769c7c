//! Times calls of clients of a node, by the socket and by rings.
//!
//! ```text
//! cargo run --profile bench -p kvmem-node --example round_trips [SECONDS [socket|rings [CLIENTS]]]
//! ```
//!
//! A call releases the pins of 64 values and pins 64 others, of 4096 values of 256 bytes. The
//! server and the clients are processes of their own: the program runs itself.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{ConnectOptions, Node, NodeClient, NodeOptions, NodeServer, ServerOptions};

const VALUES: u64 = 4096;
const BATCH: u64 = 64;
const VALUE_BYTES: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", socket] => serve(Path::new(socket)),
        ["client", socket, rings, first, seconds] => {
            let seconds = seconds.parse().expect("a number of seconds");
            call(Path::new(socket), rings == "rings", first.parse().expect("a number"), seconds);
        }
        [] => measure(3.0, &["socket", "rings"], &[1, 4]),
        [seconds, ref rest @ ..] => {
            let clients = rest.get(1).map(|it| it.parse().expect("a number of clients"));
            measure(
                seconds.parse().expect("a number of seconds"),
                rest.get(..1).unwrap_or(&["socket", "rings"]),
                clients.as_slice().first().map_or(&[1, 4], std::slice::from_ref),
            );
        }
    }
}

fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (part, eight) in key.chunks_exact_mut(8).enumerate() {
        let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(part as u32 * 13);
        eight.copy_from_slice(&mixed.to_le_bytes());
    }
    key
}

fn serve(socket: &Path) {
    let memory = Region::builder(64 << 20)
        .backing(Backing::Shared)
        .ladder(PageSize::Base)
        .map()
        .expect("memory can be mapped");
    let options = NodeOptions { max_blocks: Some(2 * VALUES as u32), ..NodeOptions::default() };
    let node = Node::create(memory, options).expect("the options are possible");
    let server = NodeServer::bind(node, socket, ServerOptions::default()).expect("a new socket");
    server.run().expect("epoll works");
}

fn connect(socket: &Path, rings: bool) -> NodeClient {
    let options = ConnectOptions { rings, ..ConnectOptions::default() };
    // SAFETY: all clients are this program's, and write to their reservations alone.
    let client = unsafe { NodeClient::connect(socket, &options) }.expect("the server answers");
    assert_eq!(client.has_rings(), rings);
    client
}

/// Calls for some seconds, and prints the number of calls and the microseconds of the middle one
/// and of the slowest hundredth.
fn call(socket: &Path, rings: bool, first: u64, seconds: f64) {
    let client = connect(socket, rings);
    let batches: Vec<Vec<[u8; 32]>> = (0..VALUES / BATCH)
        .map(|batch| (batch * BATCH..(batch + 1) * BATCH).map(key).collect())
        .collect();
    let mut pins = client.acquire(&batches[0]).expect("a call");
    assert_eq!(pins.hits(), BATCH as usize);
    let mut times = Vec::new();
    let mut next = first as usize;
    let (mut started, mut warm) = (Instant::now(), false);
    loop {
        let before = Instant::now();
        let elapsed = before.duration_since(started);
        if !warm && elapsed.as_secs_f64() >= 0.2 {
            (started, warm) = (before, true);
            times.clear();
        } else if elapsed.as_secs_f64() >= seconds {
            break;
        }
        next = (next + 1) % batches.len();
        pins = client.exchange(pins, &batches[next]).expect("a call");
        times.push(before.elapsed());
    }
    let elapsed = started.elapsed();
    assert_eq!(pins.hits(), BATCH as usize);
    times.sort_unstable();
    let microseconds = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    let rate = times.len() as f64 * BATCH as f64 / elapsed.as_secs_f64();
    println!("{rate} {} {}", microseconds(50), microseconds(99));
}

fn start(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("the program has a path");
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).spawn().expect("the program runs itself")
}

fn measure(seconds: f64, paths: &[&str], counts: &[usize]) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("kvmem.sock");
    let path = socket.to_str().expect("the path is Unicode");
    let mut server = start(&["server", path]);
    let writer = connect(&socket, false);
    for number in 0..VALUES {
        writer.insert(key(number), &[number as u8; VALUE_BYTES]).expect("there is space");
    }
    println!("way     clients   p50 µs   p99 µs   million keys/s");
    for &clients in counts {
        for &path in paths {
            let seconds = seconds.to_string();
            let first: Vec<String> = (0..clients).map(|it| (it * 16).to_string()).collect();
            let processes: Vec<Child> =
                first.iter().map(|first| start(&["client", path, path, first, &seconds])).collect();
            let (mut rate, mut middle, mut slow) = (0.0, 0.0_f64, 0.0_f64);
            for process in processes {
                let output = process.wait_with_output().expect("it ends");
                let output = String::from_utf8(output.stdout).expect("numbers");
                let numbers: Vec<f64> = output.split_whitespace().flat_map(str::parse).collect();
                let [own_rate, own_middle, own_slow] = numbers[..] else { panic!("{output}") };
                rate += own_rate;
                (middle, slow) = (middle.max(own_middle), slow.max(own_slow));
            }
            println!("{path:6}  {clients:7}  {middle:7.1}  {slow:7.1}  {:7.2}", rate / 1e6);
        }
    }
    drop(writer);
    std::thread::sleep(Duration::from_millis(10));
    server.kill().and_then(|()| server.wait().map(drop)).expect("the server ends");
}
