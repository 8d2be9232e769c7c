//! `kvmem mount`, run as a command with small sizes.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::command::copied_to;

fn mount(args: &[&str]) -> Output {
    mount_with(args, &[])
}

/// Runs `kvmem mount` with these variables, and without the variables that set the policy.
fn mount_with(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    for name in
        ["KVMEM_PARALLEL_REGISTER", "MC_ENABLE_PARALLEL_REG_MR", "MC_DISABLE_PARALLEL_REG_MR"]
    {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command.arg("mount").args(args).stdin(Stdio::null()).output().unwrap()
}

/// Registers 2 MiB and returns the report; `None` if rings or locked memory are not available.
fn registered(args: &[&str], variables: &[(&str, &str)]) -> Option<Value> {
    let output =
        mount_with(&[&["--size", "2MiB", "--pages", "4k", "--json"], args].concat(), variables);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2)
        && (stderr.contains("is not available") || stderr.contains("MEMLOCK"))
    {
        println!("skipped: {stderr}");
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn the_receipt_lists_the_mapped_pages() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-receipt.json", std::process::id()));
    let json = file.to_str().unwrap();
    let output =
        mount(&["--size", "10MiB", "--pages", "thp,4k", "--populate", "2", "--json", json]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("10 MiB") && text.contains("resident"), "{text}");

    let receipt: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(receipt["requested_bytes"], 10 << 20);
    let ranges = receipt["ranges"].as_array().unwrap();
    let resident: u64 = ranges.iter().map(|range| range["resident_bytes"].as_u64().unwrap()).sum();
    assert!(resident >= 10 << 20, "{receipt}");
    assert!(ranges.iter().all(|range| range["requested"] == "thp"), "{receipt}");
}

#[test]
fn unavailable_memory_ends_with_status_1() {
    // No machine has that many pages of 1 GiB.
    let size = ["--size", "64TiB", "--pages", "1G", "--strict", "--populate", "none"];
    let output = mount(&size);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("kvmem: ") && stderr.contains("1G"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn invalid_options_end_with_status_2() {
    for (arguments, expected) in [
        (&[][..], "--size"),
        (&["--size", "0"], "0 bytes"),
        (&["--size", "big"], "such as 64GiB"),
        (&["--size", "16EiB"], "16EiB"),
        (&["--size", "1MiB", "--pages", "3M"], "3M"),
        (&["--size", "1MiB", "--numa", "bind:x"], "bind:x"),
        (&["--size", "1MiB", "--numa", "bind:1023"], "1023"),
        (&["--size", "1MiB", "--populate", "0"], "--populate"),
        (&["--size", "1MiB", "--time-limit", "0"], "--time-limit"),
        (&["--size", "1MiB", "--json", "no/such/folder/receipt.json"], "no/such/folder"),
        (&["--size", "1MiB", "--devices", ""], "no device is named"),
        (&["--size", "1MiB", "--devices", "rdma"], "say io_uring, io_uring:N, mlock"),
        (&["--size", "1MiB", "--devices", "io_uring:0"], "a number of rings from 1 to 1024"),
        (&["--size", "1MiB", "--devices", "mlock,mlock"], "name each device once"),
        (&["--size", "1MiB", "--devices", "mlock", "--policy", "both"], "sequential, parallel"),
        (&["--size", "1MiB", "--devices", "mlock", "--chunk", "0"], "--chunk"),
        (&["--size", "0", "--devices", "mlock"], "0 bytes"),
        (&["--size", "1MiB", "--devices", "verbs:no_such_nic"], "verbs is not available"),
        (&["--size", "1MiB", "--policy", "auto"], "--devices"),
        (&["--size", "1MiB", "--chunk", "2MiB"], "--devices"),
        (&["--size", "1MiB", "--plan"], "--devices"),
    ] {
        let output = mount(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

#[test]
fn each_step_of_registering_is_timed() {
    let args =
        ["--devices", "io_uring:2", "--policy", "parallel", "--populate", "1", "--chunk", "1MiB"];
    let Some(report) = registered(&args, &[]) else { return };
    let (outcome, seconds) = (&report["outcome"], &report["seconds"]);
    assert_eq!((&outcome["devices"], &outcome["keys"]), (&2.into(), &4.into()), "{report:#}");
    assert_eq!(report["chosen"], "parallel", "{report:#}");
    assert_eq!(report["deregistered"]["keys"], 4);
    assert_eq!(
        report["receipt"]["ranges"][0]["resident_bytes"],
        2 << 20,
        "as it is after registering"
    );
    let of = |step: &str| seconds[step].as_f64().unwrap();
    assert!(of("populate") > 0.0 && of("register") > 0.0 && of("unregister") > 0.0, "{seconds}");
    assert!((of("allocate") - of("map") - of("populate")).abs() < 1e-9, "{seconds}");
    assert!(
        (of("total") - of("allocate") - of("register") - of("unregister")).abs() < 1e-9,
        "{seconds}"
    );

    let text = mount(&[&["--size", "2MiB", "--pages", "4k"], &args[..]].concat()).stdout;
    let text = String::from_utf8(text).unwrap();
    let words = [
        "requested 2 MiB",
        "chosen: parallel",
        "   seconds\n",
        "\nallocate ",
        "\nregister ",
        "\nunregister ",
        "\ntotal ",
    ];
    for word in words {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

#[test]
fn a_plan_populates_and_registers_nothing() {
    let Some(report) = registered(&["--devices", "io_uring:3", "--plan"], &[]) else { return };
    assert_eq!(report["plan"]["devices"].as_array().map(Vec::len), Some(3), "{report:#}");
    assert_eq!(report["receipt"]["ranges"][0]["resident_bytes"], 0);
    assert!(report.get("outcome").is_none());
    let text = mount(&["--size", "2MiB", "--devices", "io_uring:3", "--plan"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("io_uring:2") && text.contains("nothing was done"), "{text}");
}

#[test]
fn options_override_the_environment() {
    let devices = ["--devices", "io_uring:2"];
    let one_by_one = [("KVMEM_PARALLEL_REGISTER", "0")];
    let Some(report) = registered(&devices, &one_by_one) else { return };
    assert_eq!(report["outcome"]["policy"], "sequential", "{report:#}");
    // With the sequential policy memory is not populated before it is registered.
    assert_eq!(report["outcome"]["populated"]["threads"], 0, "{report:#}");
    assert_eq!(registered(&devices, &[]).unwrap()["outcome"]["policy"], "auto");
    let auto = [&devices[..], &["--policy", "auto"]].concat();
    assert_eq!(registered(&auto, &one_by_one).unwrap()["outcome"]["policy"], "auto");
    assert!(registered(&auto, &[("KVMEM_PARALLEL_REGISTER", "maybe")]).is_some());

    for (variable, value) in
        [("KVMEM_PARALLEL_REGISTER", "maybe"), ("MC_DISABLE_PARALLEL_REG_MR", "-1")]
    {
        let output =
            mount_with(&["--size", "2MiB", "--devices", "io_uring:2"], &[(variable, value)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{variable}={value:?}")), "{stderr}");
        // Without devices the environment is not read.
        assert!(
            mount_with(&["--size", "1MiB", "--populate", "none"], &[(variable, value)])
                .status
                .success()
        );
    }
}

#[test]
fn populating_can_be_disabled() {
    let Some(report) = registered(&["--devices", "io_uring:2", "--populate", "none"], &[]) else {
        return;
    };
    assert_eq!(report["outcome"]["resident_bytes"], 0, "{report:#}");
    assert_eq!(report["outcome"]["populated"]["threads"], 0, "{report:#}");
    assert_eq!(report["seconds"]["populate"], 0.0);
}

/// The command predicts this failure, so the status is 2, not 1.
#[test]
fn too_little_locked_memory_fails_before_any_work() {
    let open = std::fs::Permissions::from_mode(0o755);
    let folder = tempfile::Builder::new().permissions(open).tempdir().unwrap();
    let command = copied_to(folder.path());
    let limited = r#"ulimit -l 64 && exec "$0" mount --size 64MiB --pages 4k --devices mlock"#;
    let nobody =
        Command::new("sh").args(["-c", limited]).arg(&command).uid(65534).gid(65534).output();
    let output = match nobody {
        Ok(output) if output.status.code() != Some(126) => output,
        other => {
            eprintln!("skipped: nothing can be run as another user from there: {other:?}");
            return;
        }
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for word in ["mlock", "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l", "CAP_IPC_LOCK"] {
        assert!(stderr.contains(word), "no {word} in {stderr}");
    }
}
