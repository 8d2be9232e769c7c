//! The server of metrics, scraped as Prometheus does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::pool::observe::Exporter;
use kvmem_cli::args::MetricsArgs;
use kvmem_cli::metrics_server::{MetricsServer, MetricsServerError};

use super::serving::Place;

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

/// Returns the page of metrics of a server.
pub(crate) fn scrape(address: SocketAddr) -> String {
    let (head, body) = send(address, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
    body
}

fn at(address: &str, anywhere: bool) -> Result<Option<MetricsServer>, MetricsServerError> {
    let address = Some(address.parse().expect("an address"));
    MetricsServer::start(&MetricsArgs { address, anywhere })
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
        let figure = |series: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
        };
        let held = (key + 1) as f64;
        assert_eq!(figure("kvmem_pool_capacity_bytes{pool=\"served\"}"), f64::from(1 << 20));
        assert_eq!(figure("kvmem_pool_allocated_bytes{pool=\"served\"}"), 5000.0 * held);
        assert_eq!(figure("kvmem_cache_blocks{pool=\"served\",cache=\"cache\"}"), held);
        let failing = "kvmem_pool_allocation_failures_total{pool=\"served\",reason=\"too_large\"}";
        assert_eq!(figure(failing), held);
        // Two requests each time, one of which failed.
        assert_eq!(figure("kvmem_pool_allocate_seconds_count{pool=\"served\"}"), 2.0 * held);
        assert!(text.contains("# TYPE kvmem_pool_allocate_seconds histogram"), "{text}");
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

/// 300 clients connect and send nothing, or the beginning of a request. The server starts no thread
/// for them, keeps few descriptors, and answers another request at once.
#[test]
fn idle_clients_take_no_threads_and_few_descriptors() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = free.local_addr().expect("it has one");
    drop(free);
    let server = place.serve("4MiB", &["--metrics", &address.to_string()]);
    let process = format!("/proc/{}", server.pid());
    scrape(address);
    let count = |what: &str| std::fs::read_dir(format!("{process}/{what}")).unwrap().count();
    let (threads, descriptors) = (count("task"), count("fd"));
    let mut idle = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(address).expect("it listens");
        if number % 2 == 0 {
            // Fails if the server has closed this connection for a later one.
            let _ = stream.write_all(b"GET /metrics HTT");
        }
        idle.push(stream);
        if number % 100 == 99 {
            scrape(address);
            assert_eq!(count("task"), threads, "{number}");
            assert!(count("fd") < descriptors + 48, "{number}: {}", count("fd"));
        }
    }
    // The server does not store a head without end.
    let mut stream = TcpStream::connect(address).expect("it listens");
    let _ = stream.write_all(&[b'x'; 64 << 10]);
    let mut answer = [0; 12];
    assert!(stream.read_exact(&mut answer).is_err() || &answer == b"HTTP/1.1 431");
}

#[test]
fn a_public_address_needs_an_option_and_a_port_in_use_another_port() {
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
    let other = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = other.local_addr().expect("it has one").to_string();
    let error = at(&address, false).err().expect("an error");
    assert!(matches!(error, MetricsServerError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("name another port"), "{error}");
}
