"""Opens each page of the site in Chromium, wide and narrow, light and dark.

``cargo xtask site --check`` runs it as ``python look.py SITE SHOTS``. A page must have a title and
a heading, must not be wider than the window, must be readable in both colour schemes, and must load
everything from the site without a complaint. Pictures of some pages go to the folder SHOTS,
for people to look at. First the browser looks at pages with known faults: it must see them."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Request, sync_playwright

# The widths of a window, in pixels: a laptop's and a telephone's.
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
SHOTS = {
    "README.html",
    "docs/tutorial.html",
    "docs/comparison.html",
    "docs/troubleshooting.html",
    "crates/kvmem/docs/offset.html",
    "bench/README.html",
    "reference/c.html",
    "reference/python.html",
    "reference/command.html",
}
# It has its own layout.
OTHERS = ("search.html",)
# No sandbox, which not all containers allow: it opens pages of this repository only.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
OWN = ("file:", "data:", "blob:", "about:")
GOOD = """<!doctype html><title>t</title><meta name=viewport content='width=device-width'>
<style>@media (prefers-color-scheme: dark) { body { color: #eee; background: #111 } }</style>
<article><h1>h</h1><p>text</p>"""
BAD = {
    "no title": (GOOD.replace("<title>t</title>", ""), 4),
    "no heading": (GOOD.replace("h1", "h2"), 4),
    "500 pixels wide": (GOOD + "<div style='width: 500px; margin: -8px'>wide", 2),
    'the contrast of "faint"': (GOOD + "<i style='color: #777'>faint", 4),
    "did not load": (GOOD + "<img src=missing.png>", 1),
    "a script failed": (GOOD + "<script>missing()</script>", 1),
    "the page fetches http": (GOOD + "<img src=http://127.0.0.1:9/a.png>", 1),
}


class Tab:
    """A tab of the browser, with the faults that it has seen."""

    def __init__(self, tab: Page) -> None:
        self.tab, self.name = tab, ""
        self.faults: list[str] = []
        tab.on("pageerror", lambda error: self.complain(f"a script failed: {error}"))
        tab.on("console", lambda said: said.type == "error" and self.complain(said.text))
        tab.on("requestfailed", lambda one: self.complain(f"a file did not load: {one.url}"))
        tab.on("request", self.requested)

    def complain(self, fault: str) -> None:
        self.faults.append(f"{self.name}: {fault}")

    def requested(self, request: Request) -> None:
        if not request.url.startswith(OWN):
            self.complain(f"the page fetches {request.url}")

    def look(self, file: Path, name: str, shots: Path | None) -> None:
        self.name = name
        self.tab.set_viewport_size({"width": WIDTHS[0], "height": 900})
        self.tab.goto(file.as_uri(), wait_until="load")
        for width in WIDTHS:
            self.tab.set_viewport_size({"width": width, "height": 900})
            for scheme in SCHEMES:
                self.tab.emulate_media(color_scheme=scheme)
                for fault in self.tab.evaluate(LOOK) if name not in OTHERS else ():
                    self.complain(f"{width} pixels, {scheme}: {fault}")
                if shots and name in SHOTS:
                    shot = f"{name.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
                    self.tab.screenshot(path=shots / shot)

    def search(self, site: Path) -> None:
        """Searches the site for a word that it has, without a server."""
        self.name = "search.html"
        self.tab.goto((site / "search.html").as_uri() + "?q=populate")
        self.tab.wait_for_selector("#search-results li", timeout=15_000)


def sees_faults(browser: Any, folder: Path) -> None:
    """Ends the program if the browser overlooks what is wrong, or finds fault with what is not."""
    for what, (html, times) in {"": (GOOD, 0), **BAD}.items():
        file = folder / "page.html"
        file.write_text(html, encoding="utf-8")
        tab = Tab(browser.new_page())
        tab.look(file, "page.html", None)
        found = [fault for fault in tab.faults if what in fault]
        if len(found) != times:
            sys.exit(f"{what or 'a good page'}: {times} faults expected, not {tab.faults}")
        tab.tab.close()


def main() -> None:
    site, shots = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    shutil.rmtree(shots, ignore_errors=True)
    shots.mkdir(parents=True)
    programs = [shutil.which(each) for each in ("chromium", "chromium-browser", "google-chrome")]
    program = next(filter(None, programs), None)
    if program is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    left_out = (site / "rust", site / "_static")
    pages = [p for p in sorted(site.rglob("*.html")) if not any(f in p.parents for f in left_out)]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        sees_faults(browser, Path(folder))
        tab = Tab(browser.new_page())
        for page in pages:
            tab.look(page, str(page.relative_to(site)), shots)
        tab.search(site)
        browser.close()
    print(f"{len(pages)} pages look well; pictures are in {shots}" if not tab.faults else "")
    sys.exit("\n".join(tab.faults[:40]) if tab.faults else 0)


if __name__ == "__main__":
    main()
