"""Where the memory of an engine of vLLM lies, and what pins it."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_driver
import pytest
from conftest import MIB
from engines import HAS_TORCH
from node_server import Server
from vllm_process import (
    Engine,
    EngineError,
    release,  # noqa: F401 (release)
    row_bytes,
    vllm,
    with_oldest,
)

SMALL = {"pages": "4k"}
NAMES = [f"chunk {i}" for i in range(8)]
BIND = 2

one_node = pytest.mark.skipif(
    not Path("/sys/devices/system/node/node0").exists(), reason="this kernel has no NUMA"
)


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in for the driver that the tests of the registrar use."""
    if HAS_TORCH:
        pytest.skip("PyTorch's tensors are on no GPU here")
    return cuda_driver.compiled(tmp_path_factory.mktemp("cuda"))


@with_oldest
@pytest.mark.parametrize("spec", ["KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"])
def test_each_worker_pins_its_mapping_in_pieces(spec: str, libcuda: str) -> None:
    # Rows of 128 KiB: a piece is 16 of them.
    options = {**SMALL, "registrar": "cuda", "registrar_chunk": "2MiB"}
    with Engine(spec, {"kvmem": options}, workers=2, rows=128, libcuda=libcuda) as engine:
        rows = 128 * row_bytes(2)
        found = engine("workers", "driver", "live_ranges", "registered", "misuse", "vllm")
        assert found == [[rows // (2 * MIB), rows // (2 * MIB), 0, 0]] * 2
        # Each for the GPU of its caches.
        assert engine("workers", "driver", "context") == [[0], [1]]
        assert engine("store", NAMES) == NAMES
        assert engine("load", NAMES) == 8 * row_bytes(2)


@with_oldest
def test_vllm_pins_unless_kvmem_is_told_to(libcuda: str) -> None:
    with Engine("KvmemOffloadingSpec", {"kvmem": SMALL}, workers=2, libcuda=libcuda) as engine:
        assert engine("workers", "driver", "registered", "vllm") == [[0, 1]] * 2
        assert engine("store", NAMES) == NAMES
        assert engine("load", NAMES) == 8 * row_bytes(2)


def test_the_memory_of_a_node_is_pinned_in_one_piece(libcuda: str) -> None:
    with Server(16 * MIB) as server:
        options = {"socket": str(server.path), "registrar": "cuda"}
        with Engine("KvmemSharedSpec", {"kvmem": options}, workers=2, libcuda=libcuda) as engine:
            assert engine("workers", "driver", "live_ranges", "vllm") == [[1, 0]] * 2
            assert engine("store", NAMES) == NAMES
            assert engine("load", NAMES) == 8 * row_bytes(2)


@with_oldest
def test_no_row_is_cut_by_the_edge_of_a_piece(libcuda: str) -> None:
    # Rows of 96 KiB: a piece of 64 of them is the shortest one of whole hugepages.
    options = {**SMALL, "registrar": "cuda", "registrar_chunk": "2MiB"}
    spec = "KvmemOffloadingSpec"
    with Engine(spec, {"kvmem": options}, workers=3, rows=128, libcuda=libcuda) as engine:
        assert engine("workers", "driver", "live_ranges", "vllm") == [[2, 0]] * 3
        copy_all_rows(engine, 128, row_bytes(3))


def test_no_row_of_a_node_is_cut_by_the_edge_of_a_piece(libcuda: str) -> None:
    with Server(12 * MIB, boundary=MIB) as server:
        extra = {"kvmem": {"socket": str(server.path), "registrar": "cuda"}}
        spec = "KvmemSharedSpec"
        with Engine(spec, extra, workers=3, libcuda=libcuda, piece=2 * MIB) as engine:
            assert engine("workers", "driver", "live_ranges", "vllm") == [[6, 0]] * 3
            copy_all_rows(engine, 12 * (MIB // row_bytes(3)), row_bytes(3))


def copy_all_rows(engine: Engine, rows: int, nbytes: int) -> None:
    """Stores a chunk in every row, and loads each. The driver copies, and meets no edge."""
    for first in range(0, rows, 20):
        names = [f"row {row}" for row in range(first, min(first + 20, rows))]
        assert engine("store", names) == names
        assert engine("load", names) == len(names) * nbytes
    # Two blocks of two tensors, there and back.
    copied = 2 * 2 * 2 * rows
    assert engine("workers", "driver", "copied", "crossed") == [[copied, 0]] * 3


def test_pins_end_before_the_memory_is_unmapped(libcuda: str) -> None:
    vllm(
        f"""
        import vllm_engine, vllm_standins
        options = dict(workers=1, page=8192, blocks_per_chunk=2, gpu_chunks=8, engine_id="pins",
            libcuda={libcuda!r}, extra={{"spec_name": "KvmemOffloadingSpec",
            "spec_module_path": "kvmem.vllm", "cpu_bytes_to_use": 1 << 22,
            "kvmem": {{"pages": "4k", "registrar": "cuda"}}}})
        number = vllm_standins.driver_number
        worker = vllm_engine.Worker(options, 0)
        assert worker._worker._mmap_region.is_pinned and number("live_ranges") == 1
        worker.close()
        assert number("live_ranges") == number("misuse") == number("vllm") == 0
        assert number("retained") == number("released"), number("retained")
        # A piece that fails takes the others with it, and the engine does not start.
        import ctypes, kvmem
        vllm_standins._driver.fail(b"cuMemHostRegister_v2", 2, 1, 2)
        options["extra"]["kvmem"].update(registrar_chunk="2MiB")
        try:
            vllm_engine.Worker(options, 0)
        except kvmem.RegistrationError as error:
            assert number("live_ranges") == 0
            print("not pinned:", error)
        # Nothing is left of the region either.
        options["extra"]["kvmem"].pop("registrar")
        vllm_engine.Worker(options, 0).close()
        """
    )


def test_a_missing_driver_is_an_error_at_the_start() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    options = {"kvmem": {**SMALL, "registrar": "cuda"}}
    with pytest.raises(EngineError, match=r"NotAvailableError.*libcuda"):
        Engine("KvmemOffloadingSpec", options, workers=1)
    with pytest.raises(EngineError, match="registrar is 'verbs'"):
        Engine("KvmemOffloadingSpec", {"kvmem": {"registrar": "verbs"}}, workers=1)


@with_oldest
@one_node
@pytest.mark.parametrize("numa", [[0, 0], "auto"])
@pytest.mark.parametrize("spec", ["KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"])
def test_the_slots_of_a_worker_are_bound_to_its_node(
    spec: str, numa: list[int] | str, tmp_path: Path
) -> None:
    options = {"kvmem": {"numa": numa}}
    with Engine(spec, options, workers=2, rows=16, barrier=str(tmp_path)) as engine:
        # The kernel's own answer, in each worker, for each row.
        assert engine("workers", "policies") == [[[BIND, 1]] * 16] * 2
        assert engine("store", NAMES) == NAMES
        assert engine("load", NAMES) == 8 * row_bytes(2)


@one_node
def test_the_slots_of_workers_share_no_page_and_leave_none_out() -> None:
    vllm(
        """
        import os
        from pathlib import Path
        from kvmem.vllm import _placement
        for row, slot in ((8192, 2048), (12288, 4096), (12288, 5000), (16384, 3000), (4096, 4096)):
            workers = row // slot
            pages = [
                at
                for rank in range(workers)
                for start, length in _placement.slots(3, row, slot, rank, 4096)
                for at in range(start, start + length, 4096)
            ]
            assert sorted(pages) == list(range(0, 3 * row, 4096)), (row, slot)
        """
    )


@one_node
def test_nodes_are_those_of_the_gpus_or_of_the_processors(tmp_path: Path) -> None:
    vllm(
        """
        import os, sys, types
        from pathlib import Path
        from kvmem.vllm import _placement
        machine = _placement.SYSFS = Path(sys.argv[1])

        def write(name, text):
            path = machine / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

        write("devices/system/node/has_memory", "0-1,3\\n")
        write("devices/system/node/node0/cpulist", "1000-1007\\n")
        write("devices/system/node/node1/cpulist", "0-63\\n")
        write("devices/system/node/node3/cpulist", "\\n")
        write("devices/system/node/node1/meminfo",
            "Node 1 MemFree:  100 kB\\nNode 1 Inactive(file): 24 kB\\nNode 1 MemUsed: 9 kB\\n")
        write("bus/pci/devices/0000:c1:00.0/numa_node", "3\\n")
        write("bus/pci/devices/0000:c2:00.0/numa_node", "-1\\n")
        assert _placement.online_nodes() == [0, 1, 3]
        tensor = types.SimpleNamespace(device=None)
        _placement._bus_id = lambda device: "0000:C1:00.0"
        assert _placement.near_node(tensor) == 3
        _placement._bus_id = lambda device: "0000:C2:00.0"
        assert _placement.near_node(tensor) == 1
        _placement._bus_id = lambda device: None
        assert _placement.near_node(tensor) == 1
        write("devices/system/node/node0/cpulist", "0-7\\n")
        assert _placement.near_node(tensor) is None
        from kvmem.vllm import PlacementError
        _placement.check_free(1, 124 * 1024, "worker 0")
        try:
            _placement.check_free(1, 124 * 1024 + 1, "worker 0")
        except PlacementError as error:
            assert (error.node, error.requested, error.limit) == (1, 126977, 126976)
        else:
            raise AssertionError
        """,
        str(tmp_path),
    )


@one_node
def test_what_a_machine_or_a_layout_cannot_do_is_an_error() -> None:
    page = 1 << 20
    for numa, more, words in (
        ([0], {}, "has 1 nodes, and the engine has 2 workers"),
        ([0, 77], {}, "has node 77, and the nodes with memory are"),
        ([0, -1], {}, "give numbers of nodes"),
        ([0, "1"], {}, "give numbers of nodes"),
        ("auto", {"pages": "2M,4k"}, "share hugepages"),
    ):
        with pytest.raises(EngineError, match=re.escape(words)):
            Engine("KvmemOffloadingSpec", {"kvmem": {"numa": numa, **more}}, workers=2)
    # Slots of whole hugepages have them.
    with pytest.raises(EngineError, match="a page of 1 GiB has slots of several workers"):
        options = {"kvmem": {"numa": "auto", "pages": "1G,4k"}, "cpu_bytes_to_use": 16 * page}
        Engine("KvmemOffloadingSpec", options, workers=2, page=page, gpu_chunks=2)


@one_node
def test_a_process_without_the_permission_is_told_so(tmp_path: Path) -> None:
    """A container's seccomp profile answers EPERM to ``mbind``."""
    out = vllm(
        """
        import errno, os
        from kvmem.vllm import OffloadRegion, PlacementError, _placement
        from kvmem.vllm._options import RegionOptions
        def denied(number, *arguments):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        real, _placement._syscall = _placement._syscall, denied
        layout = dict(num_chunks=8, rank=0, kv_bytes_per_chunk=8192, cpu_page_size=8192)
        try:
            OffloadRegion("denied", **layout, options=RegionOptions(numa=[0]))
        except PlacementError as error:
            print("not allowed:", error)
        # The name is free again.
        _placement._syscall = real
        OffloadRegion("denied", **layout, options=RegionOptions(numa=[0])).cleanup()
        """
    )
    assert re.search("not allowed: .*Operation not permitted: .*--cap-add SYS_NICE", out)


def test_the_log_names_limits_of_pinning() -> None:
    out = vllm(
        """
        from kvmem.vllm import region
        from kvmem.vllm._options import RegionOptions
        pinned = []
        region.doctor = lambda nbytes, **options: pinned.append(options["pinned"]) or {"checks": [
            {"name": "pins", "verdict": "fail", "why": "too long", "fix": "shorter"}]}
        for registrar in (None, "cuda"):
            region._tell_limits(1 << 30, RegionOptions(registrar=registrar))
        assert pinned == [False, True]
        """
    )
    assert "kvmem doctor: pins: too long (fix: shorter)" in out


def test_memory_of_a_node_stays_mapped_while_a_tensor_views_it() -> None:
    with Server(4 * MIB) as server:
        out = vllm(
            """
            import gc, logging, sys
            logging.basicConfig(level=logging.WARNING)
            import kvmem
            from kvmem.vllm.region import NodeRegion
            def mappings():
                with open("/proc/self/maps") as maps:
                    return sum("kvmem" in line and f"{cache_start:x}-" in line for line in maps)
            def made():
                cache = kvmem.connect(sys.argv[1])
                return cache, cache.memory_address, NodeRegion(cache, 0, 8192, 8192)
            cache, cache_start, region = made()
            view = region.create_next_worker_view(4096)
            view[0] = 7
            assert mappings() == 1
            region.cleanup()
            assert int(view[0, 4095]) == 7 and mappings() == 1
            del view, region
            gc.collect()
            assert mappings() == 0 and cache.closed
            # Without views the memory goes at once, and there is no second warning.
            cache, cache_start, region = made()
            region.cleanup()
            assert mappings() == 0 and cache.closed
            """,
            str(server.path),
        )
    assert out.count("stays mapped") == 1, out
