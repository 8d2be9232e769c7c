//! `kvmem ls`, `stat`, `top`, `evict`, `drop`, `reclaim` and `resize`, and the metrics of
//! `kvmem serve`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use kvmem::pool::observe::Stats;
use kvmem_node::{ConnectOptions, NamespaceStats, NodeClient, NodeStats};
use serde_json::Value;

use crate::command::text;
use crate::metrics::scrape;
use crate::serving::Place;

fn client(place: &Place, namespace: &str) -> NodeClient {
    let namespace = namespace.to_owned();
    place.client_of(&ConnectOptions { namespace, ..ConnectOptions::default() }).expect("it answers")
}

/// Runs a command that must succeed, and returns what it prints.
fn reported(place: &Place, command: &str, more: &[&str]) -> String {
    let output = place.operator(command, more);
    assert!(output.status.success(), "{command} {more:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

fn json(place: &Place, command: &str, more: &[&str]) -> Value {
    let printed = reported(place, command, &[more, &["--json"]].concat());
    serde_json::from_str(&printed).expect("JSON alone")
}

#[test]
fn values_and_clients_are_listed() {
    let place = Place::new();
    let _server = place.serve("16MiB", &["--quota", "chat=8MiB,share=3"]);
    let (chat, evil) = (client(&place, "chat"), client(&place, "a\x1b[31m\nb"));
    for seed in 0..700_u16 {
        chat.insert(seed.to_be_bytes(), &[1; 1000]).expect("there is space");
    }
    evil.insert([0xAB; 64], b"value").expect("there is space");
    let pins = chat.acquire(&[[0_u8, 7]]).expect("a call");

    let all = json(&place, "ls", &[]);
    let values = all["values"].as_array().expect("a list");
    assert_eq!((values.len(), &all["more"]), (701, &false.into()));
    let pinned: Vec<&Value> = values.iter().filter(|value| value["pins"] == 1).collect();
    assert_eq!(pinned.len(), 1);
    assert_eq!((&pinned[0]["namespace"], &pinned[0]["key"]), (&"chat".into(), &"0007".into()));
    assert_eq!((&pinned[0]["bytes"], &pinned[0]["priority"]), (&1000.into(), &0.into()));
    let of_evil = reported(&place, "ls", &["--namespace", "a\x1b[31m\nb"]);
    assert!(of_evil.contains(&"ab".repeat(64)) && of_evil.contains("1 value(s)"), "{of_evil}");
    assert!(!of_evil.contains('\x1b'), "{of_evil:?}");
    let few = reported(&place, "ls", &["--limit", "10"]);
    assert!(few.ends_with("10 value(s), and there are more: --limit\n"), "{few}");

    let sessions = json(&place, "ls", &["--sessions"]);
    let sessions = sessions["sessions"].as_array().expect("a list").clone();
    assert_eq!(sessions.len(), 2, "the command itself is not shown: {sessions:?}");
    assert!(sessions.iter().all(|it| it["pid"] == std::process::id() && it["connected"] == true));
    assert_eq!(sessions.iter().map(|it| it["pins"].as_u64().expect("a number")).sum::<u64>(), 1);
    let table = reported(&place, "ls", &["--sessions"]);
    assert!(table.contains("process") && table.ends_with("2 client(s)\n"), "{table}");
    drop(pins);
}

#[test]
fn values_are_evicted_and_dropped() {
    let place = Place::new();
    let _server = place.serve("16MiB", &[]);
    let (chat, code) = (client(&place, "chat"), client(&place, "code"));
    for seed in 0..10_u8 {
        chat.insert([seed], &[1; 1 << 20]).expect("there is space");
        code.insert([seed], &[2; 1000]).expect("there is space");
    }
    let evicted = reported(&place, "evict", &["1500000", "--namespace", "chat"]);
    assert_eq!(evicted, "evicted 2.00 MiB (2097152 bytes)\n");
    let keys: Vec<[u8; 1]> = (0..10).map(|seed| [seed]).collect();
    assert_eq!(chat.lookup(&keys[2..]).expect("a call"), 8, "the oldest two are gone");
    assert_eq!(code.lookup(&keys).expect("a call"), 10);
    let pins = chat.acquire(&[[9_u8]]).expect("a call");
    let evicted = reported(&place, "evict", &["1GiB"]);
    assert!(evicted.contains("nothing more can be evicted"), "{evicted}");
    assert_eq!(chat.stats().expect("a call").values, 1, "the pinned one stays");
    drop(pins);

    code.insert([0], b"new").expect("there is space");
    assert_eq!(reported(&place, "drop", &["--namespace", "none"]), "dropped 0 value(s)\n");
    assert_eq!(reported(&place, "drop", &["--namespace", "chat"]), "dropped 1 value(s)\n");
    assert_eq!(code.lookup(&[[0_u8]]).expect("a call"), 1);
    assert_eq!(reported(&place, "drop", &["--all"]), "dropped 1 value(s)\n");
    let stats = code.stats().expect("a call");
    assert_eq!((stats.values, stats.used), (0, 0));
}

#[test]
fn pins_are_limited_and_reclaimed() {
    let place = Place::new();
    let limits = ["--quota", "chat=max,pinned=1500KiB", "--max-pinned", "2500KiB"];
    let _server = place.serve("16MiB", &limits);
    let keys: Vec<[u8; 1]> = (0..3).map(|seed| [seed]).collect();
    for (name, limit) in [("chat", "1536000"), ("code", "2560000")] {
        let client = client(&place, name);
        for key in &keys {
            client.insert(key, &[1; 1 << 20]).expect("there is space");
        }
        let error = client.acquire(&keys).expect_err("more than may be pinned").to_string();
        assert!(error.contains(limit) && error.contains("release pins"), "{error}");
    }
    let chat = client(&place, "chat");
    let pins = chat.acquire(&keys[..1]).expect("a call");
    let pid = std::process::id().to_string();
    let said = reported(&place, "reclaim", &[&pid]);
    assert_eq!(said, format!("1 value(s) of process {pid} are no longer pinned\n"));
    assert!(!pins.is_valid(), "no call has reported it");
    let output = place.operator("reclaim", &["1"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("process 1 is no client") && errors.contains("--sessions"), "{errors}");
}

#[test]
fn statistics_are_shown() {
    let place = Place::new();
    let _server = place.serve("16MiB", &["--quota", "chat=8MiB,share=3"]);
    let chat = client(&place, "chat");
    chat.insert("key", &[1; 1 << 20]).expect("there is space");
    let pins = chat.acquire(&["key", "none", "nor this", "nor that"]).expect("a call");
    let stats = json(&place, "stat", &[]);
    let expected = [
        ("capacity", 16 << 20),
        ("used", 1 << 20),
        ("values", 1),
        ("pinned", 1),
        ("pinned_bytes", 1 << 20),
        ("hits", 1),
        ("misses", 3),
        ("committed_total", 1),
    ];
    for (name, number) in expected {
        assert_eq!(stats[name], number, "{name} of {stats}");
    }
    let shown = reported(&place, "ls", &["--misses"]);
    assert!(shown.contains("\nchat       6e6f6e65"), "{shown}");
    assert!(shown.ends_with("\n1 miss(es)\n"), "{shown}");
    let misses = json(&place, "ls", &["--misses", "--namespace", "chat"])["misses"].clone();
    assert_eq!((&misses[0]["key"], &misses[0]["gone_s"]), (&"6e6f6e65".into(), &Value::Null));
    let others = json(&place, "ls", &["--misses", "--namespace", "x"]);
    assert_eq!(others["misses"], Value::Array(Vec::new()));
    let shown = reported(&place, "stat", &[]);
    for line in [
        "memory        1.00 MiB of 16.00 MiB in use (6.2 %), 15.00 MiB in the largest free range",
        "values        1, 1 of them pinned (1.00 MiB); at most 1,024 blocks",
        "hit rate      25.0 %",
        "hits          1",
        "misses        3: 3 never stored",
        "tier          none",
        "chat              1.00 MiB     8.00 MiB          1      3    25.0 %          0",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "no {line:?} in\n{shown}");
    }
    drop(pins);
}

/// A namespace evicts its own values in turn, so twice its memory would have all of them.
#[test]
fn a_screen_says_who_uses_what_and_what_more_memory_would_bring() {
    let place = Place::new();
    let _server = place.serve("16MiB", &["--quota", "chat=4MiB"]);
    let (chat, code) = (client(&place, "chat"), client(&place, "code"));
    code.insert("key", &[1; 2 << 20]).expect("there is space");
    let round = || {
        for key in 0..6_u8 {
            if chat.acquire(&[[key]]).expect("a call").hits() == 0 {
                chat.insert([key], &[1; 1 << 20]).expect("its own values go");
            }
        }
    };
    (0..5).for_each(|_| round());
    let shown = reported(&place, "top", &["--once"]);
    for line in [
        "memory  6.00 MiB of 16.00 MiB in use (37.5 %), 0 B pinned, 0 B reserved; pressure 0/s",
        "hits    0.0 % of the keys; with half of the memory 0.0 %, with twice 80.0 %, 4x 80.0 %, \
         8x 80.0 %",
        "namespace       bytes  of all   keys/s misses/s       mostly unused/s    0.5x \
         \u{20}    1x      2x      4x      8x",
        "chat         4.00 MiB  66.7 %        0        0            -        0   0.0 % \
         \u{20} 0.0 %  80.0 %  80.0 %  80.0 %",
        "code         2.00 MiB  33.3 %        0        0            -        0       - \
         \u{20}     -       -       -       -",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "no {line:?} in\n{shown}");
    }
    let shown = reported(&place, "stat", &[]);
    let curve = "chat              4.00 MiB           30   0.0 %    0.0 %  80.0 %  80.0 %  80.0 %";
    assert!(shown.lines().any(|shown| shown == curve), "{shown}");

    // Rates are those of the interval.
    let view = std::thread::scope(|scope| {
        let view = scope.spawn(|| json(&place, "top", &["--interval", "2"]));
        let begun = std::time::Instant::now();
        while begun.elapsed().as_secs() < 2 || !view.is_finished() {
            round();
        }
        view.join().expect("it ends")
    });
    let first = &view["namespaces"][0];
    assert_eq!((&first["name"], &first["memory"]), (&"chat".into(), &(4 << 20).into()));
    for rate in [&first["keys_per_s"], &first["misses_per_s"]["evicted"], &view["evicted_per_s"]] {
        assert!(rate.as_f64().expect("a number") > 1.0, "{view}");
    }
    assert_eq!(first["misses_per_s"]["never-stored"], 0.0);
    assert!(first["hit_rates"]["2"].as_f64().expect("a number") > 0.8, "{view}");

    // A live screen shows hit rates since its start, and goes on until its reader ends.
    let mut top = std::process::Command::new(env!("CARGO_BIN_EXE_kvmem"))
        .args(["top", "--socket"])
        .arg(place.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let hits = lines.map_while(Result::ok).filter(|line| line.starts_with("hits "));
    let shown: Vec<String> = hits.take(2).collect();
    assert!(shown.iter().all(|line| line.starts_with("hits    - of the keys;")), "{shown:?}");
    assert_eq!(shown.len(), 2);
    assert!(top.wait().expect("it ends").success());
}

#[test]
fn operators_get_the_reason_of_an_error() {
    let place = Place::new();
    for (command, more) in [
        ("ls", &[][..]),
        ("stat", &[]),
        ("top", &["--once"]),
        ("evict", &["1"]),
        ("drop", &["--all"]),
        ("reclaim", &["1"]),
    ] {
        let output = place.operator(command, more);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {errors}");
        assert!(errors.contains("no server answers") && errors.contains("kvmem serve"), "{errors}");
    }
    for (command, more, expected) in [
        ("drop", &[][..], "--namespace"),
        ("drop", &["--all", "--namespace", "a"], "--all"),
        ("evict", &["many"], "many"),
        ("evict", &[], "BYTES"),
        ("reclaim", &[], "PID"),
        ("reclaim", &["0"], "0"),
        ("top", &["--interval", "0"], "--interval"),
        ("ls", &["--sessions", "--namespace", "a"], "--sessions"),
    ] {
        let output = place.operator(command, more);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command} {more:?}: {errors}");
        assert!(errors.contains(expected), "{command} {more:?}: {errors}");
    }
}

#[test]
fn prometheus_reads_the_figures_of_a_server() {
    let place = Place::new();
    let server = place.serve("16MiB", &["--lease", "100ms", "--metrics", "127.0.0.1:0"]);
    let address: SocketAddr =
        server.report["metrics"].as_str().expect("an address").parse().expect("an address");
    let chat = client(&place, "chat");
    chat.insert("key", &[1; 1 << 20]).expect("there is space");
    let _pins = chat.acquire(&["key", "none"]).expect("a call");
    let scrape = || scrape(address);
    // The figures are at most a second old.
    crate::serving::eventually("the value is published", || {
        scrape().contains("kvmem_node_values{node=")
            && scrape().contains("kvmem_node_namespace_bytes{node=")
            && scrape()
                .lines()
                .any(|it| it.starts_with("kvmem_node_misses_total") && it.ends_with(" 1"))
    });
    let page = scrape();
    let node = place.socket().display().to_string();
    let value = |name: &str, more: &str| {
        let series = format!("{name}{{node=\"{node}\"{more}}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        let value = line.unwrap_or_else(|| panic!("no {series} in\n{page}"));
        value.parse::<f64>().expect("a number")
    };
    let label_of = |label: Option<(&str, &str)>| {
        label.map_or_else(String::new, |(key, value)| format!(",{key}=\"{value}\""))
    };
    for metric in NodeStats::metrics() {
        let value = value(metric.name, &label_of(metric.label));
        assert!(value >= 0.0);
        assert!(page.contains(&format!("# HELP {} {}", metric.name, metric.help)), "{page}");
    }
    for metric in NamespaceStats::metrics() {
        value(metric.name, &format!(",namespace=\"chat\"{}", label_of(metric.label)));
    }
    assert_eq!(value("kvmem_node_capacity_bytes", ""), f64::from(16 << 20));
    assert_eq!(value("kvmem_node_namespace_bytes", ",namespace=\"chat\""), f64::from(1 << 20));
    let numbers = ["values", "sessions", "pinned_values", "hits_total", "committed_total"];
    for name in numbers {
        assert_eq!(value(&format!("kvmem_node_{name}"), ""), 1.0, "{name}");
    }
}

#[test]
fn the_memory_changes_its_size() {
    let place = Place::new();
    let _server = place.serve("8MiB", &["--min", "2MiB", "--max", "16MiB"]);
    assert_eq!(
        reported(&place, "resize", &["16MiB"]),
        "the memory has 16.00 MiB (16777216 bytes)\n"
    );
    let client = client(&place, "");
    client.insert("key", &[7; 100_000]).expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let last = client.reserve(&[1 << 20; 15]).expect("there is space").pop();
    let output = place.operator("resize", &["4MiB"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("instead of 4.00 MiB") && said.contains("pinned or reserved"), "{said}");
    drop(last);
    assert_eq!(reported(&place, "resize", &["4MiB"]), "the memory has 4.00 MiB (4194304 bytes)\n");
    assert_eq!(pins.value(0).expect("it is pinned").bytes(), [7; 100_000]);
    let stat = reported(&place, "stat", &[]);
    assert!(stat.contains("size          4.00 MiB wanted, of 2.00 MiB to 16.00 MiB;"), "{stat}");
    let output = place.operator("resize", &["17MiB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("larger `--max`"), "{}", text(&output.stderr));
}
