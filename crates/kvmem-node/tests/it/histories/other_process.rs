//! [`OtherProcess`]: a client that does what the test writes to its input, and can be killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use kvmem_node::{ConnectOptions, NewValue};

use super::client::{has_bytes_of, write_bytes_of};
use super::model::{Id, SessionId};
use crate::support::connect_with;

/// The client, as the test sees it.
pub(super) struct OtherProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) session: SessionId,
    /// The value that it has pinned.
    pub(super) pinned: Option<Id>,
    /// Its first reservation.
    pub(super) reserved: Option<Id>,
}

impl OtherProcess {
    pub(super) fn start(socket: &Path, rings: bool, session: SessionId) -> OtherProcess {
        let (_, module) = module_path!().split_once("::").expect("it is in the program");
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .args(["--exact", &format!("{module}::role"), "--nocapture", "--test-threads=1"])
            .env("KVMEM_TEST_ROLE", "history")
            .env("KVMEM_TEST_CHILD", socket)
            .env("KVMEM_TEST_WORDS", rings.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let input = child.stdin.take().expect("it is a pipe");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (pinned, reserved) = (None, None);
        let mut process = OtherProcess { child, input, output, session, pinned, reserved };
        assert_eq!(process.answer(), "ready");
        process
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the client do something, and returns its answer.
    pub(super) fn call(&mut self, call: &str) -> String {
        writeln!(self.input, "{call}").expect("it reads");
        self.answer()
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("a pipe") > 0, "it has ended");
            // The harness of the tests prints lines, too.
            if let Some((_, answer)) = line.trim_end().split_once('@') {
                return answer.to_owned();
            }
        }
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Body of the process. Does nothing in the test itself.
#[test]
fn role() {
    if std::env::var("KVMEM_TEST_ROLE").as_deref() != Ok("history") {
        return;
    }
    let socket = PathBuf::from(std::env::var_os("KVMEM_TEST_CHILD").expect("a socket"));
    let rings = std::env::var("KVMEM_TEST_WORDS").as_deref() == Ok("true");
    let client = connect_with(
        &socket,
        &ConnectOptions {
            rings,
            ..ConnectOptions { checksums: true, ..ConnectOptions::default() }
        },
    );
    let (mut pins, mut blocks) = (Vec::new(), Vec::new());
    println!("@ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("it is text");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let answer = match words[0] {
            "acquire" => {
                let found = client.acquire(&[words[1]]).expect("a call");
                let offset = found.value(0).map(|value| value.offset());
                pins.push(found);
                format!("{offset:?}")
            }
            "is" => {
                let found = pins.last().expect("it has acquired").value(0);
                found.is_some_and(|it| has_bytes_of(number(1), it.bytes())).to_string()
            }
            "reserve" => {
                let mut block = client.reserve(&[number(1)]).expect("there is space").remove(0);
                let half = block.len().div_ceil(2);
                block.bytes_mut().expect("it is reserved")[..half].fill(0xEE);
                let offset = block.offset();
                blocks.push(block);
                offset.to_string()
            }
            "commit" => {
                let mut block = blocks.remove(0);
                write_bytes_of(number(2), block.bytes_mut().expect("it is reserved"));
                format!("{:?}", client.commit(vec![NewValue::new(words[1], block)]).is_ok())
            }
            "return" => client.keep_alive().is_ok().to_string(),
            other => panic!("{other}"),
        };
        println!("@{answer}");
    }
}
