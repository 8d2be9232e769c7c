//! `kvmem-lab replay --metrics`, scraped as Prometheus does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::pool::observe::Exporter;
use kvmem_cli::args::MetricsArgs;
use kvmem_cli::metrics_server::{MetricsServer, MetricsServerError};

fn small_trace() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/kvmem-cli/tests/data/small_trace.jsonl");
    std::fs::read_to_string(path).expect("it is there").lines().map(str::to_owned).collect()
}

fn kvmem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"));
    command.args(args).stdin(Stdio::null()).output().expect("it can be started")
}

/// Sends a request without an HTTP library. Returns the head and the body of the response.
fn send(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn scrape(address: SocketAddr) -> String {
    let (head, body) = send(address, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
    body
}

/// Returns the value of a line such as `name{labels} 7`.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

/// A replay that waits for its trace.
struct Replay {
    child: Child,
    trace: Option<ChildStdin>,
    address: SocketAddr,
}

impl Replay {
    fn start() -> Replay {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"))
            .args(["replay", "-", "--pool", "64GiB", "--json", "-", "--metrics", "127.0.0.1:0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("it says where");
        let address = line.trim().strip_prefix("kvmem-lab: metrics at http://");
        let address = address.and_then(|address| address.strip_suffix("/metrics")).expect(&line);
        let (address, trace) = (address.parse().expect("an address"), child.stdin.take());
        Replay { child, trace, address }
    }

    fn feed(&mut self, lines: &[String]) {
        let trace = self.trace.as_mut().expect("it is open");
        lines.iter().for_each(|line| writeln!(trace, "{line}").expect("it reads"));
        trace.flush().expect("it reads");
    }

    /// Waits until the replay has served this number of requests. Returns the response to the last
    /// scrape.
    fn wait_for(&self, requests: f64) -> String {
        let start = Instant::now();
        loop {
            let text = scrape(self.address);
            let served = value(&text, "kvmem_replay_requests_total");
            if served == Some(requests) {
                return text;
            }
            assert!(served.is_none_or(|served| served < requests), "{text}");
            assert!(start.elapsed() < Duration::from_secs(120), "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_scrape_follows_a_running_replay() {
    let trace = small_trace();
    let mut replay = Replay::start();
    replay.feed(&trace[..100]);
    let text = replay.wait_for(100.0);
    assert!(text.contains("# TYPE kvmem_replay_requests_total counter"), "{text}");
    replay.feed(&trace[100..]);
    drop(replay.trace.take());
    let output = replay.child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(report["requests"], trace.len());
    assert!(TcpStream::connect(replay.address).is_err(), "it listens no more");
}

fn at(address: &str, anywhere: bool) -> Result<Option<MetricsServer>, MetricsServerError> {
    MetricsServer::start(&MetricsArgs {
        address: Some(address.parse().expect("an address")),
        anywhere,
    })
}

#[test]
fn a_scrape_returns_the_figures_of_pools_and_caches() {
    assert!(MetricsServer::start(&MetricsArgs::default()).expect("nothing can fail").is_none());
    let server = at("127.0.0.1:0", false).expect("a port is free").expect("it was asked for");
    let builder = Pool::builder("1 MiB").ladder(PageSize::Base).name("served").measure_latency(1);
    let pool = builder.build().expect("little memory");
    let cache: KvCache<u64> = KvCache::new(&pool);
    server.observe(Exporter::new().pool(&pool).cache(&cache));
    for key in 0..3 {
        cache.insert(key, &[7; 5000]).expect("room");
        assert!(pool.allocate(2 << 20).is_err());
        let text = scrape(server.address());
        let figure =
            |series: &str| value(&text, series).unwrap_or_else(|| panic!("no {series} in {text}"));
        assert_eq!(figure("kvmem_pool_capacity_bytes{pool=\"served\"}"), f64::from(1 << 20));
        assert_eq!(
            figure("kvmem_pool_allocated_bytes{pool=\"served\"}"),
            5000.0 * (key + 1) as f64
        );
        assert_eq!(figure("kvmem_cache_blocks{pool=\"served\",cache=\"cache\"}"), (key + 1) as f64);
        let failing = "kvmem_pool_allocation_failures_total{pool=\"served\",reason=\"too_large\"}";
        assert_eq!(figure(failing), (key + 1) as f64);
        // Two requests each time, one of which failed.
        assert_eq!(
            figure("kvmem_pool_allocate_seconds_count{pool=\"served\"}"),
            2.0 * (key + 1) as f64
        );
        assert!(text.contains("# TYPE kvmem_pool_allocate_seconds histogram"), "{text}");
        assert!(
            text.contains("# HELP kvmem_pool_capacity_bytes Bytes that blocks could have"),
            "{text}"
        );
    }
    assert!(send(server.address(), "GET /").0.starts_with("HTTP/1.1 404"));
    assert!(send(server.address(), "POST /metrics").0.starts_with("HTTP/1.1 405"));
    let (head, body) = send(server.address(), "HEAD /metrics");
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}\n{body}");
    let address = server.address();
    drop(server);
    // The server's own thread closes the port, a moment later.
    let end = Instant::now() + Duration::from_secs(120);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "it listens no more");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether the server has not closed a connection on which it sends nothing.
fn is_connected(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a setting");
    let found = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("a setting");
    found.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// 1000 clients connect and send nothing, or the beginning of a request. The replay starts no
/// thread for them, keeps few descriptors, and answers another request at once.
#[cfg(target_os = "linux")]
#[test]
fn idle_clients_take_no_threads_and_few_descriptors() {
    let mut replay = Replay::start();
    replay.feed(&small_trace()[..10]);
    // Then all threads of the replay run.
    replay.wait_for(10.0);
    let process = format!("/proc/{}", replay.child.id());
    let threads = || std::fs::read_dir(format!("{process}/task")).expect("it runs").count();
    let descriptors = || std::fs::read_dir(format!("{process}/fd")).expect("it runs").count();
    let before = threads();
    let mut idle = Vec::new();
    // Scrapes that were answered while the idle client before them was connected.
    let mut at_once = 0;
    for number in 0..1000 {
        let mut stream = TcpStream::connect(replay.address).expect("it listens");
        if number % 2 == 0 {
            // Fails if the server has closed this connection for a later one.
            let _ = stream.write_all(b"GET /metrics HTT");
        }
        idle.push(stream);
        if number % 100 == 99 {
            assert!(value(&scrape(replay.address), "kvmem_replay_requests_total").is_some());
            at_once += usize::from(is_connected(&idle[number]));
            assert_eq!(threads(), before, "{number}");
            assert!(descriptors() < 64, "{number}: {}", descriptors());
        }
    }
    // A busy machine may miss some, but no scrape waits for the time-out of idle clients.
    assert!(at_once > 0);
    // The server closes the other connections in the end, without a response.
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => assert_eq!(answer, b""),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
    // The server does not store a head without end.
    let mut stream = TcpStream::connect(replay.address).expect("it listens");
    let _ = stream.write_all(&[b'x'; 64 << 10]);
    let mut answer = [0; 12];
    assert!(stream.read_exact(&mut answer).is_err() || &answer == b"HTTP/1.1 431");
    drop(replay.trace.take());
    assert!(replay.child.wait().expect("it ends").success());
}

#[test]
fn a_public_address_needs_an_option() {
    for reachable in ["0.0.0.0:0", "[::]:0", "192.0.2.7:9464"] {
        let error = at(reachable, false).err().expect("an error");
        assert!(matches!(error, MetricsServerError::Reachable { .. }), "{error}");
        assert!(error.to_string().contains("--metrics-anywhere"), "{error}");
    }
    let server = at("0.0.0.0:0", true).expect("a port is free").expect("it was asked for");
    scrape(SocketAddr::from(([127, 0, 0, 1], server.address().port())));
    // Not an address of this machine.
    let error = at("192.0.2.7:9464", true).err().expect("an error");
    assert!(matches!(error, MetricsServerError::Rejected { .. }), "{error}");
}

#[test]
fn a_port_in_use_fails_with_a_remedy() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = other.local_addr().expect("it has one").to_string();
    let error = at(&address, false).err().expect("an error");
    assert!(matches!(error, MetricsServerError::InUse { .. }), "{error}");
    let output = kvmem(&["replay", "-", "--metrics", &address]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&address) && stderr.contains("name another port"), "{stderr}");
    let output = kvmem(&["replay", "-", "--metrics-anywhere"]);
    assert_eq!(output.status.code(), Some(2), "the option needs --metrics");
}
