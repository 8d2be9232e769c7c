"""The dashboard and the alerts: schemas, links, and all queries in a real Prometheus that scrapes a
real server.

Grafana itself is not loaded: its licence keeps it out of these machines, and none of the package
registries has its server. Its own models read the dashboard instead, which they must keep whole.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from manifests import DEPLOY

from machine import ROOT

DASHBOARD = json.loads((DEPLOY / "grafana/kvmem.json").read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
QUERIES = [
    (f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel["targets"]
]
ALERTS = DEPLOY / "prometheus/alerts.yml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
# The pages that list what a server publishes.
PAGES = [ROOT / f"crates/kvmem-{crate}/docs/metrics.md" for crate in ("node", "tier", "cluster")]
# A row of a dashboard is 24 wide.
WIDTH = 24
SECONDS = 60.0


def metrics(text: str) -> set[str]:
    return set(re.findall(r"\bkvmem_\w+", text))


def published() -> set[str]:
    return metrics("".join(page.read_text() for page in PAGES))


# The dashboard as a file.


def is_kept(before: Any, after: Any) -> bool:
    """Whether everything of a value is in another one, which may have more."""
    if isinstance(before, dict):
        return all(name in after and is_kept(part, after[name]) for name, part in before.items())
    if isinstance(before, list):
        return len(before) == len(after) and all(map(is_kept, before, after))
    return before == after


# The models of dashboards that Grafana's import and its files have read since its version 5.
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")
def test_grafanas_models_keep_the_dashboard() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = lambda data: json.loads(JSONEncoder().encode(Dashboard.from_json(data)))  # noqa: E731
    assert is_kept(DASHBOARD, read(DASHBOARD))
    # They drop what they do not know.
    assert not is_kept({**DASHBOARD, "unknown": 1}, read({**DASHBOARD, "unknown": 1}))


def test_panels_have_a_question_a_place_and_a_text() -> None:
    numbers = [each["id"] for each in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    at = 0
    rows: list[tuple[str, list[dict[str, Any]]]] = []
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            rows.append((panel["title"], []))
        else:
            rows[-1][1].append(panel)
    for title, panels in rows:
        assert title.endswith("?") and panels, title
        at += 1
        places = [each["gridPos"] for each in panels]
        x = 0
        for place in places:
            assert (place["x"], place["y"]) == (x, at)
            x += place["w"]
        assert x == WIDTH, title
        at += places[0]["h"]
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert all("$instance" in each["expr"] for each in panel["targets"]), panel["title"]


def test_the_metrics_exist() -> None:
    named = metrics(json.dumps([expr for _, expr, _ in QUERIES]) + ALERTS.read_text())
    assert named <= published(), named - published()
    assert not metrics("kvmem_node_none_total") <= published()


# The alerts as a file.


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_lead_to_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == rule["alert"].lower() and anchor in anchors(ROOT / page)


def test_every_runbook_has_an_alert() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    assert re.findall(r"(?m)^### (Kvmem\w+)$", page) == [rule["alert"] for rule in RULES]


def promtool(*arguments: str | Path) -> None:
    """Runs promtool, which must find nothing."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: apt-get install prometheus")
    promtool = ["promtool", *arguments]
    ran = subprocess.run(promtool, cwd=ALERTS.parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_finds_nothing() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS.name)


def test_alerts_fire_and_are_silent() -> None:
    promtool("test", "rules", "alerts.test.yml")
    tests = yaml.safe_load((ALERTS.parent / "alerts.test.yml").read_text())["tests"]
    fires = {
        each["labels"].split('"')[1]
        for test in tests
        for one in test["promql_expr_test"]
        for each in one["exp_samples"]
    }
    assert fires == {rule["alert"] for rule in RULES}


# A real Prometheus, and a real server.


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait(what: str, found: Any) -> Any:
    limit = time.monotonic() + SECONDS
    while not (result := found()):
        assert time.monotonic() < limit, f"{what} takes longer than {SECONDS} s"
        time.sleep(0.1)
    return result


class Scraped(NamedTuple):
    """A Prometheus that scrapes a server with a small memory and an encrypted disk tier."""

    ask: Callable[..., Any]
    """Has the Prometheus answer a call of its interface."""
    work: Callable[[], None]
    """Has clients of the server store and read: more than the memory has space for."""


@pytest.fixture(scope="module")
def scraped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scraped]:
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is missing: apt-get install prometheus")
    command = request.config.getoption("--command")
    folder = tmp_path_factory.mktemp("monitoring")
    node = f"serve --size 1MiB --pages 4k --retain none --metrics 127.0.0.1:{free_port()}".split()
    keys = folder / "keys"
    keys.write_text("07" * 32)
    keys.chmod(0o400)
    tier = f"disk:{folder}/tier,16MiB,codec=auto,key-file={keys}"
    node += ["--socket", str(folder / "sock"), "--tier", tier]
    address = node[node.index("--metrics") + 1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "kvmem", "static_configs": [{"targets": [address]}]}],
        "rule_files": [str(ALERTS)],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    listens = f"127.0.0.1:{free_port()}"
    prometheus = ["prometheus", f"--config.file={folder}/prometheus.yml", "--log.level=warn"]
    prometheus += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={listens}"]

    def ask(path: str, **parameters: str) -> Any:
        url = f"http://{listens}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["data"]

    def is_scraped() -> bool:
        try:
            return bool(ask("query", query="kvmem_node_hits_total")["result"])
        except OSError:
            return False

    engine = [command.with_name("examples") / "two_engines", "--engine", folder / "sock"]

    def work() -> None:
        for seed in range(9):
            subprocess.run([*engine, str(seed)], check=True, stdout=subprocess.DEVNULL)

    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [subprocess.Popen([command, *node])]
        wait("the server", (folder / "sock").exists)
        started += [subprocess.Popen(prometheus)]
        wait("the first scrape", is_scraped)
        yield Scraped(ask, work)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def unanswered(ask: Callable[..., Any]) -> list[tuple[str, str, Any]]:
    """Returns the queries for which a Prometheus has no number yet. A Mooncake cluster is not below
    the server."""
    values = {"$instance": ".*", "$__rate_interval": "30s", "$__range": "1m"}
    empty = []
    for name, expr, legend in QUERIES:
        for variable, value in values.items():
            expr = expr.replace(variable, value)
        assert "$" not in expr, expr
        # Prometheus answers a query that it cannot read by an error.
        found = ask("query", query=expr)["result"]
        has_numbers = any(math.isfinite(float(each["value"][1])) for each in found)
        if not has_numbers and "kvmem_cluster_" not in expr:
            empty.append((name, expr, found))
        labels = set(re.findall(r"{{(\w+)}}", legend))
        assert all(labels <= set(each["metric"]) for each in found), (name, legend, found)
    return empty


def test_a_prometheus_answers_each_panel(scraped: Scraped) -> None:
    limit = time.monotonic() + SECONDS
    while (empty := unanswered(scraped.ask)) and time.monotonic() < limit:
        scraped.work()
    assert not empty
    assert not scraped.ask("query", query="kvmem_node_none_total")["result"]


def test_a_prometheus_evaluates_each_alert(scraped: Scraped) -> None:
    def rules() -> Any:
        found = scraped.ask("rules")["groups"][0]["rules"]
        return all(each["health"] != "unknown" for each in found) and found

    found = wait("the first evaluation", rules)
    assert [each["name"] for each in found] == [rule["alert"] for rule in RULES]
    assert [each["lastError"] for each in found if each["health"] != "ok"] == []
