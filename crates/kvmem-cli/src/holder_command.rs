//! `kvmem holder`: holds the memory of a node while no server runs, or asks a memory holder that
//! does.
//!
//! A memory holder in the background is a grandchild of the process that starts it, in a session of
//! its own. Neither a signal to the server's process group nor the end of a terminal reaches it,
//! and the machine's first process adopts it.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration};
use kvmem_node::{
    MemoryHolder, MemoryHolderClient, MemoryHolderError, MemoryHolderOptions, RetainedListed,
};

use crate::args::HolderArgs;
use crate::output::{Failure, print, print_message};
use kvmem_trace::escape::shown;

/// The line that a memory holder in the background prints when it listens.
const READY: &str = "ready\n";

/// Holds memory, or makes a call to a memory holder.
pub(crate) fn run(args: &HolderArgs) -> Result<(), Failure> {
    if args.list || args.stop || args.forget.is_some() {
        ask(args)
    } else if args.detach {
        detach(args)
    } else {
        hold(args)
    }
}

fn ask(args: &HolderArgs) -> Result<(), Failure> {
    let client = MemoryHolderClient::connect(&args.socket).map_err(failure)?;
    if let Some(name) = &args.forget {
        return client.forget(name).map_err(failure);
    }
    let names = client.list().map_err(failure)?;
    if args.list {
        return print(RetainedTable(names));
    }
    if let Some(RetainedListed { name, claimed_by: Some(pid), .. }) =
        names.iter().find(|it| it.claimed_by.is_some())
    {
        return Err(Failure::usage(format_args!("process {pid} uses {name}: stop that first")));
    }
    client.stop().map_err(failure)
}

/// Holds memory in this process until a client stops it, or it is idle.
fn hold(args: &HolderArgs) -> Result<(), Failure> {
    if args.session {
        // It fails if the process leads a group, which has no other process of the server then.
        let _ = rustix::process::setsid();
    }
    let path = absolute(&args.socket).map_err(Failure::usage)?;
    let options = MemoryHolderOptions { idle: args.idle, ends_after_use: args.session };
    let holder = MemoryHolder::bind(&path, options).map_err(failure)?;
    if args.session {
        let _ = io::stdout().write_all(READY.as_bytes());
        let _ = io::stdout().flush();
        let _ = std::env::set_current_dir("/");
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Failure::new(format_args!("/dev/null: {error}"), 1))?;
        // They fail only for descriptors that are not open.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    } else {
        print_message(format_args!("kvmem: holding memory at {}", shown(&path)));
    }
    holder.run().map_err(failure)
}

/// Starts the memory holder as a child, and returns when it listens: the caller's process ends
/// then, and the memory holder has no parent that waits for it.
fn detach(args: &HolderArgs) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(
            format_args!("cannot start a memory holder for {}: {error}", shown(&args.socket)),
            1,
        )
    };
    let mut command = this_program().map_err(cannot)?;
    command.arg("holder").arg("--session").arg("--socket").arg(&args.socket);
    command.arg("--idle").arg(format!("{}ms", args.idle.as_millis()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(cannot)?;
    }
    if line == READY {
        return Ok(());
    }
    // It has printed the reason.
    let status = child.wait().map_err(cannot)?;
    let status = u8::try_from(status.code().unwrap_or(1)).unwrap_or(1);
    Err(Failure::new(
        format_args!("no memory holder listens at {}", shown(&args.socket)),
        status.max(1),
    ))
}

/// Returns a command that runs this program, even if its file was replaced meanwhile.
fn this_program() -> io::Result<Command> {
    let path = std::env::current_exe()?;
    let mut command = if path.exists() {
        Command::new(path)
    } else {
        Command::new(PathBuf::from("/proc/self/exe"))
    };
    command.arg0("kvmem");
    Ok(command)
}

/// Starts a memory holder in the background.
///
/// # Errors
/// The reason as text.
pub(crate) fn start(socket: &Path, idle: Duration) -> Result<(), String> {
    let mut command = this_program().map_err(|error| error.to_string())?;
    command.arg("holder").arg("--detach").arg("--socket").arg(socket);
    command.arg("--idle").arg(format!("{}ms", idle.as_millis()));
    kvmem_cluster::hide_service_manager(&mut command);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Status 2 for what was impossible from the start, 1 for what went wrong.
pub(crate) fn failure(error: MemoryHolderError) -> Failure {
    match error {
        MemoryHolderError::System { .. } | MemoryHolderError::BadAnswer { .. } => {
            Failure::new(error, 1)
        }
        _ => Failure::usage(error),
    }
}

/// Table of the memory that a memory holder has.
struct RetainedTable(Vec<RetainedListed>);

impl fmt::Display for RetainedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>12} {:>10}  retained for", "name", "bytes", "used by")?;
        for retained in &self.0 {
            let RetainedListed { name, bytes, claimed_by, retained_ms, .. } = retained;
            let bytes = BinaryBytes(*bytes).to_string();
            let user = claimed_by.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let retained_for = HumanDuration(Duration::from_millis(*retained_ms));
            writeln!(f, "{name:<24} {bytes:>12} {user:>10}  {retained_for}")?;
        }
        Ok(())
    }
}
