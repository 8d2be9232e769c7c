//! A real browser, for the tests that open pages: Chromium, headless, and not for longer than
//! [`LIMIT`].

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A page is opened in a second or two; a browser that hangs would hold up all other tests.
const LIMIT: Duration = Duration::from_secs(300);

/// Looks at a page as text, and opens it where there is a browser that works: its plots, at least
/// that many, are there, the document is whole, and the browser has no complaint. Returns the text.
#[track_caller]
pub(crate) fn opened(file: &Path, plots: usize) -> String {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let html = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{name}: {error}"));
    let found = html.matches("<svg role=\"img\"").count();
    assert!(found >= plots, "{name}: {found} of {plots} plots");
    assert!(!html.contains("not drawn:"), "{name}: a plot went wrong");
    match browse(file) {
        None => println!("{name}: not opened, for there is no Chromium here that works"),
        Some((dom, log)) => {
            assert_eq!(
                dom.matches("<svg role=\"img\"").count(),
                found,
                "{name}: all plots are there"
            );
            assert_eq!(
                dom.matches("<desc id=").count(),
                found,
                "{name}: as are their descriptions"
            );
            let drawn = ["<rect", "<circle", "<polyline"].iter().any(|shape| dom.contains(shape));
            assert!(drawn || found == 0, "{name}: with something in them");
            assert!(dom.trim_end().ends_with("</html>"), "{name}: to the end");
            let complaints: Vec<&str> =
                log.lines().filter(|line| line.contains(":CONSOLE")).collect();
            assert_eq!(complaints, [""; 0], "{name}: the browser has nothing to say");
        }
    }
    html
}

/// The document as the browser understood it, and what it logged; `None` where there is no browser.
///
/// # Panics
/// When the browser has not ended within [`LIMIT`]. It is killed then, with all processes that it
/// has started.
#[track_caller]
pub(crate) fn browse(file: &Path) -> Option<(String, String)> {
    let [profile, dom, log] = ["profile", "dom", "log"].map(|ending| file.with_extension(ending));
    let mut found = None;
    for program in ["chromium", "chromium-browser", "google-chrome"] {
        // Without a sandbox of its own, which not all containers allow: it opens our own page only.
        // What it says goes to files, so that it never waits for a reader.
        let started = Command::new(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--dump-dom",
            ])
            .args(["--enable-logging=stderr", "--window-size=400,900"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("file://{}", file.display()))
            .stdin(Stdio::null())
            .stdout(File::create(&dom).unwrap())
            .stderr(File::create(&log).unwrap())
            .process_group(0)
            .spawn();
        let Ok(child) = started else { continue };
        let Some(status) = ended(child, LIMIT).unwrap() else {
            panic!("{program} had not opened {} within {LIMIT:?}, and was killed", file.display());
        };
        let [dom, log] = [&dom, &log]
            .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
        if status.success() && !dom.is_empty() {
            found = Some((dom, log));
            break;
        }
    }
    let _ = std::fs::remove_dir_all(profile);
    for path in [dom, log] {
        let _ = std::fs::remove_file(path);
    }
    found
}

/// How a child ended that leads a process group; `None` if it had not within the limit, and its
/// group was killed.
pub(crate) fn ended(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            // The group first, while its leader keeps the number from being given to others.
            Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
