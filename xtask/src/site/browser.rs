//! *Browser*: each page of the site is opened in Chromium, wide and narrow, light and dark.
//!
//! A page must have a title and a heading, must not be wider than the window, must be readable in
//! both colour schemes, and must load everything from the site without a complaint. Pictures of
//! some pages are kept in `target/site-shots`, for people to look at.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::devtools::Browser;
use super::links::{name, pages};
use crate::say;
use crate::setup;
use crate::step::Report;

/// The widths of a window, in pixels: a laptop's and a telephone's.
const WIDTHS: [u32; 2] = [1280, 390];

/// The colour schemes that a reader's system may ask for.
const SCHEMES: [&str; 2] = ["light", "dark"];

/// Pages of which pictures are kept, by the beginnings of their names.
const SHOTS: [&str; 9] = [
    "index.html",
    "docs/tutorial.html",
    "docs/comparison.html",
    "docs/troubleshooting.html",
    "crates/kvmem/docs/offset.html",
    "bench/README.html",
    "reference/c.html",
    "reference/python.html",
    "reference/command.html",
];

/// The least contrast of a text and its background, by WCAG 2 for text of any size.
const LEAST_CONTRAST: &str = "4.5";

/// The script that looks for faults.
const LOOK: &str = include_str!("look.js");

/// Opens all pages.
pub(super) fn check(site: &Path, target: &Path, report: &mut Report) {
    setup::chromium();
    let profile = target.join("profile");
    let mut browser = None;
    if !report.check("site: browser", || Browser::start(&profile).map(|new| browser = new)) {
        return;
    }
    let Some(mut browser) = browser else {
        say!("(there is no Chromium here, so no page is opened)");
        return;
    };
    report.check("site: pages at 1280 and 390 pixels, light and dark", || {
        let shots = target.with_file_name("site-shots");
        let _ = std::fs::remove_dir_all(&shots);
        std::fs::create_dir_all(&shots)?;
        let mut faults = Vec::new();
        let pages = pages(site)?;
        for file in &pages {
            look(&mut browser, site, file, &shots, &mut faults)
                .with_context(|| file.display().to_string())?;
        }
        search(&mut browser, site, &mut faults)?;
        ensure!(faults.is_empty(), "{} faults:\n   {}", faults.len(), shown(&faults));
        say!("{} pages look well; pictures are in {}", pages.len(), shots.display());
        Ok(())
    });
    drop(browser);
    let _ = std::fs::remove_dir_all(profile);
}

fn shown(faults: &[String]) -> String {
    faults.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n   ")
}

/// Opens one page and looks at it in each width and colour scheme.
fn look(
    browser: &mut Browser,
    site: &Path,
    file: &Path,
    shots: &Path,
    faults: &mut Vec<String>,
) -> Result<()> {
    let page = name(site, file);
    resize(browser, WIDTHS[0])?;
    browser.call("Page.navigate", json!({"url": format!("file://{}", file.display())}))?;
    browser.wait("Page.loadEventFired", |event| {
        faults.extend(complaint(event).map(|text| format!("{page}: {text}")));
    })?;
    // The page of plots has its own layout, and its own tests.
    let is_plain = page.contains('/') || page == "index.html";
    for width in WIDTHS {
        resize(browser, width)?;
        for scheme in SCHEMES {
            let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
            browser.call("Emulation.setEmulatedMedia", json!({"features": features}))?;
            if is_plain {
                let script = LOOK.replace("LEAST_CONTRAST", LEAST_CONTRAST);
                let found = browser.evaluate(&script)?;
                for fault in found.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    faults.push(format!("{page}, {width} pixels, {scheme}: {fault}"));
                }
            }
            if SHOTS.contains(&&*page) {
                let name = page.trim_end_matches(".html").replace('/', "-");
                shoot(browser, &shots.join(format!("{name}-{width}-{scheme}.png")))?;
            }
        }
    }
    browser.drain(|event| faults.extend(complaint(event).map(|text| format!("{page}: {text}"))));
    Ok(())
}

/// Searches the site for a word that it has, without a server.
fn search(browser: &mut Browser, site: &Path, faults: &mut Vec<String>) -> Result<()> {
    let url = format!("file://{}?q=populate", site.join("search.html").display());
    browser.call("Page.navigate", json!({"url": url}))?;
    browser.wait("Page.loadEventFired", |_| {})?;
    let script = "(async () => {
        const found = () => document.querySelectorAll('#search-results li').length;
        for (let turn = 0; turn < 300 && found() === 0; turn += 1) {
            await new Promise((resolve) => setTimeout(resolve, 50));
        }
        return found();
    })()";
    if browser.evaluate(script)? == json!(0) {
        faults.push("search.html: the search finds nothing".to_owned());
    }
    browser.drain(|event| {
        faults.extend(complaint(event).map(|text| format!("search.html?q=populate: {text}")));
    });
    Ok(())
}

/// Sets the width of the window. It does not stand for a telephone, where a page that is too wide
/// makes the window wider.
fn resize(browser: &mut Browser, width: u32) -> Result<()> {
    let size = json!({
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false,
    });
    browser.call("Emulation.setDeviceMetricsOverride", size).map(drop)
}

/// Stores a picture of the window.
fn shoot(browser: &mut Browser, file: &PathBuf) -> Result<()> {
    let shot = browser.call("Page.captureScreenshot", json!({"format": "png"}))?;
    let data = shot["data"].as_str().context("the browser has taken no picture")?;
    std::fs::write(file, decoded(data)?).with_context(|| format!("cannot write {}", file.display()))
}

/// What an event of the browser complains about: errors of scripts, and files that did not load or
/// that come from elsewhere.
fn complaint(event: &Value) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
        "Log.entryAdded" if params["entry"]["level"] == "error" => {
            Some(format!("the browser logs: {}", params["entry"]["text"]))
        }
        "Runtime.exceptionThrown" => {
            Some(format!("a script failed: {}", params["exceptionDetails"]["text"]))
        }
        "Runtime.consoleAPICalled" if params["type"] == "error" => {
            Some(format!("a script complains: {}", params["args"]))
        }
        "Network.loadingFailed" if params["canceled"] != true => {
            Some(format!("a file did not load: {}", params["errorText"]))
        }
        "Network.requestWillBeSent" => {
            let url = params["request"]["url"].as_str()?;
            let own = ["file:", "data:", "blob:", "about:"].iter().any(|own| url.starts_with(own));
            (!own).then(|| format!("the page fetches {url}"))
        }
        _ => None,
    }
}

/// Decodes base64.
fn decoded(text: &str) -> Result<Vec<u8>> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut values = [None; 256];
    for (value, letter) in (0u32..).zip(LETTERS) {
        values[usize::from(*letter)] = Some(value);
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = values[usize::from(letter)].context("the picture is not base64")?;
        bits = bits << 6 | value;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_errors_and_requests_to_other_hosts() {
        let event = |method: &str, params: Value| json!({"method": method, "params": params});
        let request =
            |url: &str| event("Network.requestWillBeSent", json!({"request": {"url": url}}));
        assert!(complaint(&request("file:///a.css")).is_none());
        assert!(complaint(&request("https://a.b/c.css")).unwrap().contains("https://a.b/c.css"));
        let log =
            |level: &str| event("Log.entryAdded", json!({"entry": {"level": level, "text": "x"}}));
        assert!(complaint(&log("error")).is_some() && complaint(&log("info")).is_none());
        let failed = event("Network.loadingFailed", json!({"errorText": "net::ERR"}));
        assert!(complaint(&failed).unwrap().contains("net::ERR"));
    }

    #[test]
    fn faults_of_a_page_are_seen() {
        let made = tempfile::tempdir().unwrap();
        let site = made.path();
        let Some(mut browser) = Browser::start(&site.join("profile")).unwrap() else {
            say!("skipped: there is no Chromium here");
            return;
        };
        let mut faults_of = |name: &str, html: &str| {
            let file = site.join(name);
            std::fs::write(&file, html).unwrap();
            let mut faults = Vec::new();
            look(&mut browser, site, &file, site, &mut faults).unwrap();
            faults
        };
        const GOOD: &str = "<!doctype html><title>t</title><meta name=viewport content=\
            'width=device-width'><style>@media (prefers-color-scheme: dark) { body { color: #eee; \
            background: #111 } }</style><article><h1>h</h1><p>text</p>";
        assert_eq!(faults_of("index.html", GOOD), [""; 0]);
        for (what, html, times) in [
            ("no title", GOOD.replace("<title>t</title>", ""), 4),
            ("no heading", GOOD.replace("h1", "h2"), 4),
            (
                "500 pixels wide",
                GOOD.to_owned() + "<div style='width: 500px; margin: -8px'>wide",
                2,
            ),
            ("the contrast of \"faint\"", GOOD.to_owned() + "<i style='color: #777'>faint", 4),
            ("did not load", GOOD.to_owned() + "<img src=missing.png>", 1),
            ("a script failed", GOOD.to_owned() + "<script>missing()</script>", 1),
            ("the page fetches http", GOOD.to_owned() + "<img src=http://127.0.0.1:9/a.png>", 1),
        ] {
            let faults = faults_of("index.html", &html);
            let found = faults.iter().filter(|fault| fault.contains(what)).count();
            assert_eq!(found, times, "{what}: {faults:?}");
        }
        drop(browser);
    }

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decoded("aGVsbG8=").unwrap(), b"hello");
        assert_eq!(decoded("/+8A").unwrap(), [255, 239, 0]);
        assert!(decoded("a b").is_err());
    }
}
