//! The log of the command: its options and `KVMEM_LOG`.

use std::process::{Command, Output, Stdio};

fn kvmem(args: &[&str], log: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.args(args).env_remove("KVMEM_LOG").stdin(Stdio::null());
    if let Some(log) = log {
        command.env("KVMEM_LOG", log);
    }
    command.output().expect("it can be started")
}

#[test]
fn verbose_options_print_the_steps() {
    let mount = ["mount", "--size", "1MiB", "--pages", "4k", "--populate", "1"];
    let (quiet, info) = (kvmem(&mount, None), kvmem(&[&mount[..], &["-v"]].concat(), None));
    let text = |output: &Output| {
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(text(&quiet), "");
    let info = text(&info);
    assert!(
        info.contains("INFO map{") && info.contains("populate{") && info.contains("time.busy="),
        "{info}"
    );
    assert!(!info.contains("populate_range"), "{info}");
    for debug in [kvmem(&[&mount[..], &["-vv"]].concat(), None), kvmem(&mount, Some("debug"))] {
        let debug = text(&debug);
        assert!(debug.contains("DEBUG map{") && debug.contains("populate_range{"), "{debug}");
    }
    assert_eq!(text(&kvmem(&mount, Some("off"))), "");
    let wrong = kvmem(&mount, Some("loud"));
    let stderr = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("KVMEM_LOG=loud: say off, error, warn, info, debug or trace"),
        "{stderr}"
    );
}
