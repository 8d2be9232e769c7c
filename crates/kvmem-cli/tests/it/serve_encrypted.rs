//! `kvmem serve` and `kvmem tier` with a disk tier that compresses and encrypts values.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvmem::tier::DataType;
use kvmem_node::{ConnectOptions, NodeClient, ValueOptions};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::{run, text};
use crate::metrics::scrape;
use crate::serving::{Place, Server, eventually};

const KEY_A: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const KEY_B: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
/// Values of a namespace.
const VALUES: u32 = 80;
const LEN: usize = 64 << 10;

/// Returns bfloat16 numbers of few exponents, as those of keys and values of a model are.
fn value(namespace: &str, number: u32) -> Vec<u8> {
    let mut state = u64::from(number) << 8 | namespace.len() as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..LEN / 2).flat_map(|_| [next(), if next() & 1 == 0 { 0x3f } else { 0xbf }]).collect()
}

fn key_file(place: &Place, name: &str, keys: &[&str]) -> PathBuf {
    let path = place.folder().join(name);
    let _ = fs::remove_file(&path);
    fs::write(&path, format!("# {name}\n{}\n", keys.join("\n"))).expect("a file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("it is its own");
    path
}

fn tier_of(place: &Place) -> PathBuf {
    place.folder().join("tier")
}

/// Starts a server with other memory, so that values are only found in the tier.
fn serve(place: &Place, keys: &Path) -> Server {
    let tier = tier_of(place);
    let tier = format!("disk:{},64MiB,codec=auto,key-file={}", tier.display(), keys.display());
    place.serve("16MiB", &["--tier", &tier, "--fresh", "--metrics", "127.0.0.1:0"])
}

fn client(place: &Place, namespace: &str) -> NodeClient {
    let options = ConnectOptions { namespace: namespace.to_owned(), ..ConnectOptions::default() };
    place.client_of(&options).expect("the server answers")
}

/// Returns how many values of a namespace the server finds, all of them whole.
fn found(client: &NodeClient, namespace: &str) -> u32 {
    let is_there = |number: &u32| match client.get(number.to_le_bytes()).expect("a call") {
        None => false,
        Some(found) => {
            assert_eq!(
                found.bytes().expect("it is pinned"),
                value(namespace, *number),
                "{namespace} {number}"
            );
            true
        }
    };
    (0..VALUES).filter(is_there).count() as u32
}

/// Returns the figure of a line of the page with metrics that begins with a text.
fn figure(server: &Server, name: &str, label: &str) -> f64 {
    let address: SocketAddr = server.report["metrics"].as_str().expect("text").parse().unwrap();
    let page = scrape(address);
    let lines = page.lines().filter(|it| it.starts_with(name) && it.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    let (status, errors) = server.wait();
    assert!(status.success(), "{errors}");
    assert!(!errors.contains(KEY_A) && !errors.contains(KEY_B), "{errors}");
}

fn tier_command(command: &str, place: &Place, more: &[&str]) -> (bool, Value, String) {
    let tier = tier_of(place);
    let args = [&[command, tier.to_str().expect("a plain path"), "--json", "-"], more].concat();
    let output = run("tier", &args);
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.success(), report, text(&output.stderr))
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The life of a file: written, read by the next server, with another key, with rotated keys, and
/// after one tenant was dropped.
#[test]
fn values_are_found_by_servers_with_their_key_alone() {
    let place = Place::new();
    let keys = key_file(&place, "keys", &[KEY_A]);
    let server = serve(&place, &keys);
    let how = server.report["tier_encodings"][0].as_str().expect("text").to_owned();
    assert!(how.contains(": compressed, encrypted with the key "), "{how}");
    assert!(server.text.contains(&how), "{}", server.text);
    // The last ones push all others out of the memory.
    for (namespace, count) in [("tenant", VALUES), ("other", VALUES), ("more", 2 * VALUES)] {
        let client = client(&place, namespace);
        for number in 0..count {
            let options = ValueOptions { data_type: DataType::Bfloat16, ..ValueOptions::default() };
            let value = value(namespace, number);
            client.insert_with(number.to_le_bytes(), &value, options).expect("there is space");
            eventually("values are stored ahead", || {
                let stats = client.stats().expect("a call");
                // Less than half of the memory is not stored.
                stats.used < 10 << 20 || stats.tier_stored_total + 50 >= stats.committed_total
            });
        }
    }
    let encoded = |stage| figure(&server, "kvmem_tier_encoded_bytes_total{", stage);
    let (before, after) = (encoded("stage=\"before\""), encoded("stage=\"after\""));
    assert!(after > 0.0 && after < 0.72 * before, "{before} bytes became {after}");
    // Neither the command line, nor the environment, nor what it prints has the key.
    let process = PathBuf::from(format!("/proc/{}", server.pid()));
    for file in ["cmdline", "environ"] {
        let bytes = fs::read(process.join(file)).expect("a process");
        assert!(!has(&bytes, KEY_A.as_bytes()) && !has(&bytes, &[0, 0x11, 0x22, 0x33, 0x44]));
    }
    assert!(!server.text.contains(KEY_A) && !server.report.to_string().contains(KEY_A));
    let stored = |client: &NodeClient| {
        let keys: Vec<[u8; 4]> = (0..VALUES).map(u32::to_le_bytes).collect();
        let located = client.locate(&keys).expect("a call");
        located.iter().filter(|it| it.in_tier).count() as u32
    };
    for namespace in ["tenant", "other"] {
        let client = client(&place, namespace);
        eventually("all values are stored", || stored(&client) == VALUES);
    }
    stop(server);

    // The file has neither a key nor a value.
    let bytes = fs::read(tier_of(&place)).expect("a file");
    let secret: Vec<u8> = (0..=0xff).step_by(0x11).collect();
    assert!(!has(&bytes, &secret) && !has(&bytes, &value("tenant", 3)[..64]));
    let (inspected, report, errors) = tier_command("inspect", &place, &[]);
    assert!(inspected, "{errors}");
    let values = &report["tier"]["values"];
    assert!(values["ratio"].as_f64().is_some_and(|ratio| ratio < 0.72), "{values}");
    assert_eq!((&values["encrypted"], &values["encoded"]), (&values["count"], &values["count"]));
    assert_eq!(values["namespaces"], 3);
    let id = values["keys"][0]["id"].as_str().expect("text");
    assert!(how.ends_with(id) && values["keys"][0]["values"] == values["count"], "{values}");
    let (keys, other) = (keys.to_str().expect("plain"), key_file(&place, "other", &[KEY_B]));
    let (verified, report, errors) = tier_command("verify", &place, &["--key-file", keys]);
    assert!(verified && report["not_decrypted"] == 0, "{errors}{report}");
    let (verified, report, _) = tier_command("verify", &place, &[]);
    assert!(verified && report["not_decrypted"] == values["count"], "{report}");
    let wrong = ["--key-file", other.to_str().expect("plain")];
    let (verified, report, errors) = tier_command("verify", &place, &wrong);
    assert!(!verified && report["damaged"] == values["count"], "{errors}{report}");
    let damage = report["damaged_values"][0]["damage"].as_str().expect("text");
    assert!(
        damage.contains(&format!("encrypted with the key {id}, which the key file")),
        "{damage}"
    );

    // With another key: misses, which are counted.
    let server = serve(&place, &other);
    assert_eq!(found(&client(&place, "tenant"), "tenant"), 0);
    assert_eq!(figure(&server, "kvmem_tier_misses_total{", "kind=\"key\""), f64::from(VALUES));
    stop(server);

    // With a new key before the old one: hits, and new values have the new key.
    let server = serve(&place, &key_file(&place, "rotated", &[KEY_B, KEY_A]));
    assert_eq!(found(&client(&place, "tenant"), "tenant"), VALUES);
    assert_eq!(found(&client(&place, "other"), "other"), VALUES);

    // One tenant is dropped, and its bytes cannot be read again, with any key.
    let dropped = place.operator("drop", &["--namespace", "tenant"]);
    assert!(dropped.status.success(), "{}", text(&dropped.stderr));
    assert_eq!(found(&client(&place, "tenant"), "tenant"), 0);
    stop(server);
    let (_, report, _) = tier_command("inspect", &place, &[]);
    let after = &report["tier"]["values"];
    assert_eq!(after["namespaces"], 2, "{after}");
    let count = |values: &Value| values["count"].as_u64().expect("a number");
    assert!(count(after) <= count(values) - u64::from(VALUES), "{after}");
    let server = serve(&place, &place.folder().join("rotated"));
    assert_eq!(found(&client(&place, "tenant"), "tenant"), 0);
    assert_eq!(found(&client(&place, "other"), "other"), VALUES);
    stop(server);
}

/// A file has room for 112 namespaces. The log says why values of others are not stored.
#[test]
fn values_of_too_many_namespaces_are_reported() {
    let place = Place::new();
    let mut server = serve(&place, &key_file(&place, "keys", &[KEY_A]));
    // They are more than half of the memory, so all of them are stored ahead.
    for number in 0..112 + 2 {
        let client = client(&place, &format!("tenant {number}"));
        for key in [0_u8, 1] {
            client.insert([key], &value("", number)).expect("there is space");
        }
    }
    let line = server.error_line("did not store");
    let client = client(&place, "tenant 0");
    eventually("the values of the others are stored", || {
        let stats = client.stats().expect("a call");
        stats.tier_stored_total == 2 * 112 && stats.tier_not_stored_total >= 2 * 2
    });
    let reason = "the tier has 112 namespaces, which is the most: forget one, or use fewer names";
    let file = format!("kvmem: --tier disk:{} did not store ", tier_of(&place).display());
    assert!(line.starts_with(&file) && line.ends_with(reason), "{line}");
    stop(server);
}

#[test]
fn a_key_file_that_cannot_be_used_is_an_error_with_a_remedy() {
    let place = Place::new();
    let tier = format!("disk:{},16MiB", tier_of(&place).display());
    let path = place.folder().join("keys");
    let fails = |option: &str| place.fails("4MiB", &["--tier", &format!("{tier},{option}")]);
    let with_file = format!("key-file={}", path.display());
    let shown = path.display().to_string();
    let (status, errors) = fails(&with_file);
    assert!(status == Some(2) && errors.contains(&shown) && errors.contains("No such"), "{errors}");
    let of_cluster = format!("127.0.0.1:9,{with_file}");
    let (status, errors) = place.fails("4MiB", &["--mooncake", &of_cluster]);
    assert!(status == Some(2) && errors.contains(&shown) && errors.contains("No such"), "{errors}");
    for (text, mode, words) in [
        (KEY_A, 0o644, "has the mode 0644, so other users can read or change it: `chmod 0400"),
        (&KEY_A[1..], 0o400, "has 63 characters that are not a key"),
        ("# none\n", 0o400, "has no key: add a line with the 64 digits"),
    ] {
        let _ = fs::remove_file(&path);
        fs::write(&path, text).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its own");
        let (status, errors) = fails(&with_file);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.contains(words) && errors.contains(&shown), "{errors}");
        assert!(!errors.contains(&KEY_A[1..]), "{errors}");
    }
    let (status, errors) = fails("codec=zip");
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("is no codec: say codec=auto, or codec=none"), "{errors}");
    assert!(!tier_of(&place).exists(), "no file was made");
}
