"""docs/engines.md: what is tested with the engines' own modules, with stand-ins, or not at all.

The table is made here: ``KVMEM_WRITE_PAGES=1`` writes it. Each row names the file with its tests,
and the version is that of the wheel that they run with.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from engines import DOCS, HERE, unpacked

PAGE = DOCS.parent / "engines.md"
MARKS = (
    "<!-- The table: KVMEM_WRITE_PAGES=1 pytest test_engines_page.py -->\n",
    "<!-- The end of the table -->\n",
)

REAL = "real modules"
STANDIN = "real modules; stand-ins for PyTorch and the GPU"
STORES = "real modules; stand-ins for PyTorch and the engine's host memory"
UNTESTED = "untested"


@dataclass(frozen=True)
class Row:
    """A feature of an engine, and the tests that prove it."""

    engine: str
    feature: str
    tested: str
    file: str = ""
    tests: tuple[str, ...] = ()


ROWS = (
    Row(
        "vllm",
        "CPU tier in a region, workers share it by descriptor",
        STANDIN,
        "test_vllm.py",
        ("test_chunks_come_back_byte_for_byte_in_every_worker",),
    ),
    Row(
        "vllm",
        "an engine is killed, and starts again with the same name",
        STANDIN,
        "test_vllm.py",
        ("test_a_killed_engine_starts_again_with_the_same_name",),
    ),
    Row(
        "vllm",
        "plug-in, short option, versions",
        STANDIN,
        "test_vllm.py",
        (
            "test_the_plugin_makes_the_classes_known",
            "test_other_releases_of_vllm_raise",
        ),
    ),
    Row(
        "vllm",
        "disk tier: restart, kill, damage, full disk, back-pressure",
        STANDIN,
        "test_vllm_tiers.py",
        (
            "test_chunks_come_back_from_the_disk_and_after_kills",
            "test_a_damaged_chunk_is_never_loaded",
            "test_a_full_disk_evicts_and_serves_what_it_has",
            "test_stores_that_find_the_queue_full_are_dropped",
        ),
    ),
    Row(
        "vllm",
        "eviction policy",
        STANDIN,
        "test_vllm_tiers.py",
        ("test_the_policy_serves_an_engine", "test_a_scan_does_not_empty_the_cache"),
    ),
    Row(
        "vllm",
        "several engines share a node: kills of engines and of the server",
        STANDIN,
        "test_vllm_shared.py",
        (
            "test_two_engines_have_one_copy",
            "test_an_engine_killed_in_a_store_leaves_nothing_behind",
            "test_a_killed_server_is_followed_by_the_next",
        ),
    ),
    Row(
        "vllm",
        "the scheduler of `OffloadingConnector`, with made-up requests",
        STANDIN,
        "test_vllm_connector.py",
        ("test_requests_are_stored_and_found_by_the_real_scheduler",),
    ),
    Row("vllm", "a GPU: copies, registration of the memory, throughput", UNTESTED),
    Row("vllm", "PyTorch's own tensors in place of the stand-in", UNTESTED),
    Row("vllm", "ROCm, XPU, several hosts for one engine", UNTESTED),
    Row(
        "sglang",
        "host pools in regions",
        "real modules; a stand-in for PyTorch, or PyTorch with `KVMEM_WITH_TORCH=1`",
        "test_sglang.py",
        ("test_the_entry_point_puts_host_pools_into_regions",),
    ),
    Row(
        "sglang",
        "storage in a node, on disks, in a cluster: restart, kills, damage, other models",
        STORES,
        "test_sglang_storage.py",
        (
            "test_pages_go_through_sglangs_controller",
            "test_two_engines_share_one_node_and_one_that_starts_again_finds_its_pages",
            "test_an_engine_outlives_its_node",
            "test_a_damaged_page_ends_the_prefix",
        ),
    ),
    Row(
        "lmcache",
        "host memory, `AddressManager`",
        "real modules; a stand-in for PyTorch, or PyTorch with `KVMEM_WITH_TORCH=1`",
        "test_lmcache.py",
    ),
    Row(
        "lmcache",
        "second level in a node or on disks: restart, kills, damage, a full tier",
        STORES,
        "test_lmcache_l2.py",
        (
            "test_objects_go_through_lmcaches_loader_and_controller",
            "test_two_servers_share_one_node_and_a_restart_finds_it_warm",
            "test_a_server_outlives_its_node",
            "test_a_full_tier_stores_what_fits",
        ),
    ),
    Row(
        "lmcache",
        "fixed buffers on the first level's shared memory",
        STORES,
        "test_lmcache_l2.py",
        ("test_lmcaches_shared_memory_is_registered_with_the_rings",),
    ),
)


def version(engine: str) -> str:
    """Returns the version of the wheel in an engine's folder."""
    (metadata,) = unpacked(engine).glob(f"{engine}-*.dist-info/METADATA")
    found = re.search(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1]


def table(versions: dict[str, str]) -> str:
    lines = ["| engine | version | feature | tested with | command |\n", "|---|---|---|---|---|\n"]
    for row in ROWS:
        command = f"`pytest crates/kvmem-python/tests/distributed/{row.file}`" if row.file else "–"
        release = versions[row.engine] if row.file else "–"
        lines.append(f"| {row.engine} | {release} | {row.feature} | {row.tested} | {command} |\n")
    return "\n" + "".join(lines) + "\n"


def test_the_table_matches_the_tests() -> None:
    for row in ROWS:
        assert bool(row.file) == (row.tested != UNTESTED)
        text = (HERE / row.file).read_text(encoding="utf-8") if row.file else ""
        for name in row.tests:
            assert f"def {name}(" in text, name
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    # A newer wheel than that of the page is no difference: the page is written again on purpose.
    versions = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|", text, re.M))
    if os.environ.get("KVMEM_WRITE_PAGES"):
        versions = {row.engine: version(row.engine) for row in ROWS}
    wanted = before + MARKS[0] + table(versions) + MARKS[1] + rest.partition(MARKS[1])[2]
    if os.environ.get("KVMEM_WRITE_PAGES"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted, MARKS[0]
