//! *Run*: commands that must succeed.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Runs a command, and fails with its name and status if it fails.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// Runs a command and returns its output, or fails with its complaints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no text"))
}

/// Runs a program, whose output is shown. Prints what it does and how long that took.
pub(crate) fn shown(what: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    println!("\n── {what}");
    succeed(command).with_context(|| what.to_owned())?;
    println!("── {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_name_and_the_complaint() {
        assert_eq!(output(Command::new("echo").arg("said")).unwrap(), "said\n");
        let mut fails = Command::new("sh");
        let error = output(fails.args(["-c", "echo reason >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.starts_with("sh ended with exit status: 3") && error.contains("reason"));
        assert!(succeed(&mut Command::new("false")).is_err());
        assert!(succeed(&mut Command::new("kvmem-no-such-program")).is_err());
    }
}
