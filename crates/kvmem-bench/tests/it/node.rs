//! The suite of one pool for several processes. The processes run this program again.

use std::fs;
use std::process::Command;

use kvmem_bench::node::{
    self, NodeBenchOptions, NodeContenderId, NodeMeasureError, NodeRole, NodeScenario,
};

use crate::suite::{Watch, check_names, check_rows};
use crate::tier::SuiteDir;

const TASK: &str = "KVMEM_BENCH_TEST_TASK";

/// Returns the command that runs only [`act_the_role`] of this program.
fn child(role: &NodeRole) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "node::act_the_role", "--nocapture"]).env(TASK, role.to_string());
    command
}

/// Acts the role of a child process. Any other process checks that roles are told by their text.
#[test]
fn act_the_role() {
    let Ok(role) = std::env::var(TASK) else {
        let client = NodeRole::Client {
            socket: "/tmp/a socket".into(),
            rings: true,
            first: 7,
            milliseconds: 3,
        };
        assert_eq!(client.to_string().parse(), Ok(client));
        let error = "server".parse::<NodeRole>().unwrap_err().to_string();
        assert!(error.starts_with("\"server\" is no role: "), "{error}");
        return;
    };
    // Behind the name of the test.
    println!();
    node::act(&role.parse().unwrap(), &mut std::io::stdout()).unwrap();
}

fn options() -> NodeBenchOptions {
    NodeBenchOptions { quick: true, reps: Some(1), ..NodeBenchOptions::new(child) }
}

#[test]
fn every_contender_takes_part_and_the_server_is_killed() {
    let mut watch = Watch::default();
    let report = node::run(&options(), &mut watch).unwrap();
    let keys = ["scenario", "contender", "clients", "p50_us", "p99_us", "keys_per_s", "gb_per_s"];
    check_rows(&report, &watch, &keys);
    let found: Vec<_> =
        report.rows.iter().map(|row| (row.scenario, row.clients, row.contender.as_str())).collect();
    let (ring, socket, memcpy) = ("ring", "socket", "memcpy");
    let calls = |clients| [ring, socket].map(|name| (NodeScenario::Calls, clients, name));
    let all = |scenario| [ring, socket, memcpy].map(|name| (scenario, 1, name));
    let wanted = [
        &calls(1)[..],
        &calls(4),
        &all(NodeScenario::Store),
        &all(NodeScenario::Read),
        &[ring, socket].map(|name| (NodeScenario::Lookup, 1, name)),
    ];
    assert_eq!(found, wanted.concat());
    for row in &report.rows {
        let calls = row.scenario == NodeScenario::Calls;
        assert_eq!((row.p50_us.is_some(), row.p99_us.is_some()), (calls, calls), "{row:?}");
        assert!(row.p50_us <= row.p99_us, "{row:?}");
        let figure = row.keys_per_s.or(row.gb_per_s);
        assert!(figure > Some(0.0), "{row:?}");
    }
    let restart = report.details.restart.as_ref().unwrap();
    assert!(restart.blocks >= 2000 && restart.first_hit_s > 0.0, "{restart:?}");
    let text = report.to_string();
    for part in ["4 client(s)", "store", "serves the next hit", "socket, one client"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_program_takes_part_by_lines_of_json() {
    let dir = SuiteDir::new();
    let log = dir.join("calls").display().to_string();
    let answer = format!(
        r#"echo "$call" >> {log}
        case $call in
        *'"call":"open"'*) echo '{{}}' ;;
        *) echo '{{"seconds":0.5}}' ;;
        esac"#
    );
    let beside = vec![dir.program("redis", &answer)];
    let contenders = vec![NodeContenderId::Memcpy];
    let report = node::run(&NodeBenchOptions { beside, contenders, ..options() }, &mut ()).unwrap();
    let theirs: Vec<_> = report.rows.iter().filter(|row| row.contender == "redis").collect();
    let values = report.details.values;
    let gb = (values << 20) as f64 / 1e9;
    let keys = (report.details.lookups * 64) as f64;
    let figures: Vec<_> =
        theirs.iter().map(|row| (row.scenario, row.gb_per_s, row.keys_per_s)).collect();
    let wanted = [
        (NodeScenario::Store, Some(gb / 0.5), None),
        (NodeScenario::Read, Some(gb / 0.5), None),
        (NodeScenario::Lookup, None, Some(keys / 0.5)),
    ];
    assert_eq!(figures, wanted);
    assert_eq!(report.details.restart, None, "no node takes part");

    let calls = fs::read_to_string(dir.join("calls")).unwrap();
    let calls: Vec<serde_json::Value> =
        calls.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let open = &calls[0];
    assert_eq!((&open["bytes"], &open["batch"]), (&((2 * values) << 20).into(), &64.into()));
    let stores: Vec<_> = calls.iter().filter(|call| call["call"] == "store").collect();
    // Two fill the slots, and one counts.
    assert_eq!(stores.len(), 3);
    assert_eq!((&stores[2]["first"], &stores[2]["count"]), (&(2 * values).into(), &values.into()));
    let read = calls.iter().find(|call| call["call"] == "read").unwrap();
    let numbers = read["numbers"].as_array().unwrap();
    let stored = values..3 * values;
    assert_eq!(numbers.len() as u64, values);
    assert!(numbers.iter().all(|number| stored.contains(&number.as_u64().unwrap())), "{read}");
    let lookup = calls.last().unwrap();
    assert_eq!(lookup["numbers"].as_array().unwrap().len(), 64);
    assert_eq!(lookup["times"], report.details.lookups);
}

#[test]
fn a_process_that_fails_ends_the_run() {
    let dir = SuiteDir::new();
    let beside = vec![dir.program("vague", "echo '{}'")];
    let contenders = vec![NodeContenderId::Memcpy];
    let run = |options| node::run(&options, &mut ()).unwrap_err();
    let error = run(NodeBenchOptions { beside, contenders, ..options() });
    assert!(error.to_string().contains("vague: it answered without `seconds`"), "{error}");

    let silent = |_: &NodeRole| Command::new("true");
    let error = run(NodeBenchOptions { child: silent, ..options() });
    assert!(matches!(error.error, NodeMeasureError::Process(_)));
    assert!(error.to_string().contains("the server: it ended without an answer"), "{error}");
    let error = run(NodeBenchOptions { child: |_| Command::new("/no/such/program"), ..options() });
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

#[test]
fn names_parse_back() {
    check_names::<NodeScenario>();
    check_names::<NodeContenderId>();
}
