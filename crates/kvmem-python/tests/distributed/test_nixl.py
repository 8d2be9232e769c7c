"""NIXL: transfers between pools of two processes, over shared memory and TCP on loopback."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import kvmem
import kvmem.nixl
import numpy as np
import pytest
from conftest import LIMIT, until
from engines import examples, missing
from kvmem.nixl.descriptors import pack
from kvmem.nixl.engine import CARDS, avoid_ib, library

HERE = Path(__file__).parent
SIZE, COUNT = 1 << 20, 16


needs_nixl = pytest.mark.usefixtures("nixl")


@pytest.fixture
def nixl() -> None:
    try:
        library()
    except kvmem.NotAvailableError as error:
        missing(str(error))


class Other:
    """The other process. It starts here, and begins its work with :meth:`become`."""

    name: str
    metadata: bytes
    descriptors: bytes

    def __init__(self) -> None:
        program = [sys.executable, str(HERE / "nixl_peer.py")]
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def become(self, name: str) -> None:
        """Makes its agent, over the transports that are set here now."""
        self.name = name
        self.begin(
            name=name,
            environment={
                name: value for name, value in os.environ.items() if name.startswith("UCX_")
            },
        )
        first = self.line()
        self.metadata, self.descriptors = (
            bytes.fromhex(first["metadata"]),
            bytes.fromhex(first["descriptors"]),
        )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def begin(self, **request: object) -> None:
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def ask(self, **request: object) -> dict[str, Any]:
        self.begin(**request)
        return self.line()

    def stop(self) -> None:
        """Stops the process, like a host that hangs."""
        self.process.send_signal(signal.SIGSTOP)
        while (
            Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
        ):
            time.sleep(0.001)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def end(self) -> int:
        self.process.communicate(timeout=LIMIT)
        return self.process.returncode

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            # A request that a process did not read before it died is still to be written.
            with suppress(BrokenPipeError):
                if stream:
                    stream.close()

    def __enter__(self) -> Other:
        return self


class Spares:
    """Processes that are started in advance, because starting takes most of the time of a test."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.waiting: list[Other] = []

    def refill(self) -> None:
        while len(self.waiting) < self.count:
            self.waiting.append(Other())

    def take(self) -> Other:
        self.refill()
        taken = self.waiting.pop(0)
        self.refill()
        return taken

    def pids(self) -> set[int]:
        return {spare.process.pid for spare in self.waiting}

    def end(self) -> None:
        with ExitStack() as all_of_them:
            for spare in self.waiting:
                all_of_them.enter_context(spare)


@pytest.fixture(scope="module")
def spares() -> Iterator[Spares]:
    # Servers that other tests fork from are children too.
    before = children()
    spares = Spares(2)
    yield spares
    spares.end()
    assert children() <= before


def children() -> set[int]:
    """Child processes of this one that have not been waited for."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


def shared() -> set[str]:
    """Returns what may outlive its process: UCX's shared memory, as files and segments."""
    segments = Path("/proc/sysvipc/shm")
    lines = segments.read_text().splitlines()[1:] if segments.exists() else []
    found = set()
    for _, number, _, _, creator, _, attached, *_ in map(str.split, lines):
        # Other programs create such objects too. Only those whose creator is dead count.
        left = attached == "0" and not Path("/proc", creator).exists()
        if left or int(creator) in {os.getpid(), *children()}:
            found.add(f"segment {number}")
    return {
        *found,
        *(f"/dev/shm/{name}" for name in os.listdir("/dev/shm")),
        *map(str, Path("/tmp").glob("ucx*")),
    }


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, spares: Spares) -> Iterator[None]:
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    before, processes = shared(), children()
    yield
    assert children() <= spares.pids() | processes, "a process is left"
    if not shared() <= before:
        gc.collect()  # an exception may have kept an agent of NIXL
        # What other programs share while they run is among it, until they end.
        until(lambda: shared() <= before)


@pytest.fixture
def agent(nixl: None, pool: kvmem.Pool) -> Iterator[kvmem.nixl.Agent]:
    with kvmem.nixl.Agent(pool) as agent:
        yield agent


@pytest.fixture
def pool() -> Iterator[kvmem.Pool]:
    with kvmem.Pool(2 * SIZE * COUNT, pages="4k") as pool:
        yield pool
        pool.check()


@pytest.fixture
def other(nixl: None, spares: Spares) -> Iterator[Callable[[str], Other]]:
    def become(name: str) -> Other:
        taken = all_of_them.enter_context(spares.take())
        taken.become(name)
        return taken

    with ExitStack() as all_of_them:
        yield become


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP a transfer waits for its peer; over shared memory it is over before a test can stop
    the peer.
    """
    monkeypatch.setenv("UCX_TLS", "tcp")


def noise(blocks: list[kvmem.Block], seed: int) -> list[str]:
    """Fills blocks and returns their checksums."""
    random = np.random.default_rng(seed)
    for block in blocks:
        block.write(random.integers(0, 256, block.nbytes, np.uint8))
    return sums(blocks)


def sums(blocks: list[kvmem.Block]) -> list[str]:
    return [hashlib.sha256(block).hexdigest() for block in blocks]


# UCX's module for InfiniBand.


def test_ib_is_avoided_where_there_is_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("UCX_MODULES", raising=False)
    cards = tmp_path / "infiniband"
    for there, wanted in ((False, "^ib"), (True, "^ib")):
        monkeypatch.delenv("UCX_MODULES", raising=False)
        if there:
            cards.mkdir()
        assert avoid_ib(cards) and os.environ["UCX_MODULES"] == wanted
    assert "no InfiniBand device" in caplog.text and "UCX_MODULES=^ib is set" in caplog.text
    # An existing setting stays, and nothing changes if there is a device.
    for value in ("all", "", "^ib"):
        monkeypatch.setenv("UCX_MODULES", value)
        assert not avoid_ib(cards) and os.environ["UCX_MODULES"] == value
    monkeypatch.delenv("UCX_MODULES")
    (cards / "mlx5_0").mkdir()
    assert not avoid_ib(cards) and "UCX_MODULES" not in os.environ


def program(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with UCX's default settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**inherited, **environment},
    )


@needs_nixl
def test_a_program_with_an_agent_exits_cleanly_with_any_drivers() -> None:
    done = program(
        """
        import logging, os, kvmem, kvmem.nixl
        logging.basicConfig()
        with kvmem.Pool("1MiB", pages="4k") as pool, kvmem.nixl.Agent(pool):
            print("UCX_MODULES", os.environ.get("UCX_MODULES"))
            print("ib", any("libuct_ib" in line for line in open("/proc/self/maps")))
        """
    )
    assert done.returncode == 0, done.stderr
    device = CARDS.is_dir() and any(CARDS.iterdir())
    assert (f"UCX_MODULES {None if device else '^ib'}" in done.stdout) and (
        "WARNING:kvmem.nixl" in done.stderr
    ) == (not device)
    if not device:
        assert "ib False" in done.stdout, "the module was loaded all the same"


@needs_nixl
def test_ports_are_on_the_named_interfaces() -> None:
    """UCX listens on one address of each interface, and UCX_NET_DEVICES names the interfaces."""
    code = """
        import kvmem, kvmem.nixl
        from kvmem.mooncake.ports import listening
        with kvmem.Pool("1MiB", pages="4k") as pool, kvmem.nixl.Agent(pool):
            print({host for host, _ in listening()})
        """
    done = program(code, UCX_NET_DEVICES="lo")
    assert (done.returncode, done.stdout.strip()) == (0, "{'127.0.0.1'}"), done.stderr
    everywhere = program(code).stdout
    assert "'127.0.0.1'" in everywhere and "0.0.0.0" not in everywhere and "'::'" not in everywhere


@needs_nixl
@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_blocks_go_there_and_back(
    pool: kvmem.Pool,
    other: Callable[[str], Other],
    monkeypatch: pytest.MonkeyPatch,
    transports: str,
) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    there = other("there")
    with kvmem.nixl.Agent(pool, name="here") as agent:
        with agent.connect(there.metadata) as peer:
            assert peer.name == "there" and agent.name == "here"
            blocks = pool.allocate_batch(SIZE, COUNT).split()
            wanted = noise(blocks, 1)
            transfer = agent.write(blocks, peer, there.descriptors, notify=b"all of it \xc3\xa9")
            assert transfer.nbytes == COUNT * SIZE
            transfer.wait(LIMIT)
            assert transfer.done
            transfer.wait()  # again
            said = there.ask(sums=1, notifications=1)
            assert said["sums"] == wanted and said["notifications"] == [["here", "all of it é"]]

            # Back, into a batch, with a notification of our own.
            back = pool.allocate_batch(SIZE, COUNT)
            agent.read(back, peer, there.descriptors).wait(LIMIT)
            assert sums(back.split()) == wanted
            peer.notify(b"thanks")
            assert there.ask(notifications=1)["notifications"] == [["here", "thanks"]]

            # Now the other process copies.
            wanted = noise(blocks, 2)
            request = {
                "metadata": agent.metadata.hex(),
                "descriptors": agent.descriptors(blocks).hex(),
                "wait": True,
            }
            assert there.ask(work="read", notify="taken", **request)["done"]
            assert agent.notifications(timeout=LIMIT) == [
                kvmem.nixl.Notification("there", b"taken")
            ]
            assert agent.notifications() == []
            assert there.ask(sums=1)["sums"] == wanted
        # In order: the other process forgets this agent (by its end) before this memory is
        # released.
        assert there.end() == 0


@needs_nixl
def test_unregistered_memory_raises(
    agent: kvmem.nixl.Agent, pool: kvmem.Pool, other: Callable[[str], Other]
) -> None:
    there = other("there")
    peer, nixl = agent.connect(there.metadata), agent.engine
    block = pool.allocate(4096)
    name, (first, *_) = kvmem.nixl.descriptors.unpack(there.descriptors)
    remote = nixl.get_xfer_descs([(first[0], 4096, 0)], mem_type="DRAM")
    good = nixl.get_xfer_descs([(block.ptr, 4096, 0)], mem_type="DRAM")
    nixl.initialize_xfer("WRITE", good, remote, "there").release()

    unregistered = np.ones(4096, np.uint8)
    bad = nixl.get_xfer_descs([(unregistered.ctypes.data, 4096, 0)], mem_type="DRAM")
    with pytest.raises(Exception) as raised:
        nixl.initialize_xfer("WRITE", bad, remote, "there")
    assert type(raised.value).__name__ == "nixlNotFoundError"

    # The same beyond the end of the other process's pool.
    for begin in (agent.write, agent.read):
        with pytest.raises(kvmem.nixl.UnregisteredError, match="not registered") as ours:
            begin(block, peer, pack(name, [(first[0] + (1 << 40), 4096)]))
        assert (
            ours.value.code == "nixlNotFoundError"
            and isinstance(ours.value, kvmem.KvmemError)
            and ours.value.remedy
        )
    agent.write(block, peer, pack(name, [(first[0], 4096)])).wait(LIMIT)
    block.free()  # nothing has kept it


@needs_nixl
def test_invalid_arguments_raise(
    agent: kvmem.nixl.Agent, pool: kvmem.Pool, other: Callable[[str], Other]
) -> None:
    there = other("there")
    peer = agent.connect(there.metadata)
    name, spans = kvmem.nixl.descriptors.unpack(there.descriptors)
    one = pack(name, spans[:1])
    block = pool.allocate(SIZE)
    with kvmem.Pool("4MiB", pages="4k") as stranger:
        foreign = stranger.allocate(SIZE)
        for use in (
            lambda: agent.descriptors(foreign),
            lambda: agent.write(foreign, peer, one),
            lambda: agent.read(foreign, peer, one),
        ):
            with pytest.raises(kvmem.nixl.NotInPoolError, match="lie outside") as raised:
                use()
            assert (
                raised.value.address == foreign.ptr
                and raised.value.nbytes == SIZE
                and raised.value.start == pool.ptr
            )
        mixed = [block, foreign]
        with pytest.raises(kvmem.nixl.NotInPoolError):
            agent.descriptors(mixed)
        foreign.free()  # nothing has kept it
    batch = pool.allocate_batch(4096, 10)
    cache = kvmem.KvCache(pool)
    cache.insert(1, bytes(SIZE))
    pinned = cache.get(1)
    assert pinned is not None
    array = np.from_dlpack(block)
    gone = pool.allocate(10)
    gone.free()
    for blocks, descriptors, words in [
        ([], one, "no blocks"),
        (block, pack(name, spans[:2]), "as many"),
        (block, pack(name, [(spans[0][0], SIZE - 1)]), "as long"),
        (memoryview(block)[:0], pack(name, [(spans[0][0], 0)]), "is empty"),
        (array[::2], pack(name, [(spans[0][0], SIZE // 2)]), "not contiguous"),
        (batch, one, "10 block"),
        (7, one, "int is no block"),
        ([[block]], one, "list is no block"),
        (block, b"rubbish", "7 bytes are no descriptors"),
        (block, one[:-1], "no descriptors"),
        (block, pack("somebody", spans[:1]), "of somebody, and the peer is there"),
        (pinned, one, "read-only"),
        (gone, one, "freed"),
    ]:
        with pytest.raises(ValueError, match=words) as failing:
            agent.read(blocks, peer, descriptors)
        assert isinstance(failing.value, kvmem.KvmemError), words
    for metadata in (b"", b"rubbish", agent.metadata[:50]):
        with pytest.raises(kvmem.InvalidArgumentError, match="no agent's metadata"):
            agent.connect(metadata)
    # Read-only bytes can be sent.
    agent.write(pinned, peer, one).wait(LIMIT)
    agent.write(array[: SIZE // 2], peer, pack(name, [(spans[0][0], SIZE // 2)])).wait(LIMIT)
    assert agent.descriptors(pinned)
    del array, failing, blocks
    pinned.release()
    block.free()
    batch.free()
    peer.close()
    peer.close()
    with pytest.raises(kvmem.ClosedError, match="forgotten"):
        agent.write(pool.allocate(SIZE), peer, one)
    cache.close()


@needs_nixl
def test_the_pool_stays_as_long_as_the_agent() -> None:
    pool = kvmem.Pool("8MiB", pages="4k", max_size="16MiB", boundary="4MiB", shared=True)
    agent = kvmem.nixl.Agent(pool)
    for failing in (pool.close, pool.shrink, lambda: pool.shrink_to("4MiB")):
        with pytest.raises(kvmem.ExportedError, match="hold") as raised:
            failing()
        assert raised.value.views == 1
    assert pool.fileno() >= 0 and agent.descriptors(pool.allocate("4MiB"))
    # Memory added by growing is not registered.
    capacity = pool.capacity
    pool.grow_to("16MiB")
    blocks = [pool.allocate("4MiB") for _ in range(3)]
    beyond = [block for block in blocks if block.offset >= capacity]
    assert beyond
    with pytest.raises(kvmem.nixl.NotInPoolError, match="when the agent was made"):
        agent.descriptors(beyond)
    assert "registered" in repr(agent) and not agent.closed
    assert agent.close() == 0 and agent.close() == 0 and agent.closed and "closed" in repr(agent)
    for use in (
        lambda: agent.metadata,
        lambda: agent.descriptors(blocks),
        lambda: agent.connect(b""),
        agent.notifications,
        lambda: agent.engine,
    ):
        with pytest.raises(kvmem.ClosedError):
            use()
    pool.close()
    assert pool.closed
    with pytest.raises(kvmem.ClosedError):
        kvmem.nixl.Agent(pool)


@needs_nixl
def test_an_agent_that_cannot_be_made_has_a_reason(pool: kvmem.Pool) -> None:
    with pytest.raises(kvmem.NotAvailableError, match=r"no backend 'PIGEON'.* UCX") as raised:
        kvmem.nixl.Agent(pool, backend="PIGEON")
    assert raised.value.device == "nixl" and raised.value.remedy
    with pytest.raises(kvmem.InvalidArgumentError, match="name"):
        kvmem.nixl.Agent(pool, name="")
    told = threading.Event()
    with kvmem.Pool(
        "64MiB",
        pages="4k",
        in_background=True,
        boundary="1MiB",
        progress=lambda *_: told.wait(LIMIT),
    ) as slow:
        with pytest.raises(kvmem.NotReadyError, match="wait_ready"):
            kvmem.nixl.Agent(slow)
        told.set()
        slow.wait_ready()
    # None of them keeps the pool.
    with kvmem.nixl.Agent(pool):
        pass


def test_without_nixl_the_error_names_the_command() -> None:
    program = """
import sys, builtins
sys.modules["nixl"] = None
import kvmem, kvmem.nixl
pool = kvmem.Pool("1MiB", pages="4k")
try:
    kvmem.nixl.Agent(pool)
except kvmem.NotAvailableError as error:
    assert "pip install --no-deps nixl-cu12 nixl" in str(error) and error.remedy in str(error)
    pool.close()
    print("failing")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout == "failing\n", done.stderr


@pytest.mark.parametrize("version", ["1.4.1", "2.0.0"])
def test_other_releases_of_nixl_raise(version: str, script: Callable[..., str]) -> None:
    out = script(
        f"""
        import importlib.metadata, sys, types
        for name in ("nixl", "nixl._api"):
            sys.modules[name] = types.ModuleType(name)
        importlib.metadata.version = lambda name: {version!r}
        import kvmem.nixl, kvmem.storage
        pool = kvmem.Pool("1MiB", pages="4k")
        try:
            kvmem.nixl.Agent(pool)
        except kvmem.storage.UnsupportedVersionError as error:
            print(error, error.remedy)
        pool.close()
        """
    )
    assert f"nixl {version} is installed" in out and "pip install 'nixl>=1.5,<2'" in out


@needs_nixl
def test_with_a_pytorch_of_another_cuda_the_error_names_its_wheel() -> None:
    """NIXL takes the wheel of the CUDA that PyTorch is built for, and no other, though it uses none
    here.
    """
    program = """
import sys, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.version = types.SimpleNamespace(cuda="99.1")
import kvmem, kvmem.nixl
try:
    kvmem.nixl.Agent(kvmem.Pool("1MiB", pages="4k"))
except kvmem.NotAvailableError as error:
    print(error.remedy, "--", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout.startswith(
        "pip install --no-deps nixl-cu99 nixl && pip install numpy -- NIXL cannot be imported"
    ), done.stdout + done.stderr


@needs_nixl
@pytest.mark.parametrize("operation", ["write", "read"])
def test_blocks_cannot_be_freed_while_they_are_copied(
    tcp: None, pool: kvmem.Pool, other: Callable[[str], Other], operation: str
) -> None:
    there = other("there")
    with kvmem.nixl.Agent(pool) as agent:
        peer = agent.connect(there.metadata)
        batch, blocks = pool.allocate_batch(SIZE, COUNT - 1), [pool.allocate(SIZE)]
        begin = getattr(agent, operation)
        begin([batch, *blocks], peer, there.descriptors).wait(LIMIT)
        there.stop()
        transfer = begin([batch, *blocks], peer, there.descriptors)
        with pytest.raises(kvmem.TimeBudgetError, match="goes on") as raised:
            transfer.wait(0.1)
        assert (
            raised.value.seconds == 0.1
            and raised.value.total == COUNT * SIZE
            and isinstance(raised.value, TimeoutError)
        )
        assert not transfer.done
        for failing in (blocks[0].free, batch.free, batch.split, pool.close):
            with pytest.raises(kvmem.ExportedError):
                failing()
        with pytest.raises(kvmem.InUseError, match="1 transfer"):
            peer.close()
        # The transfer was dropped; it still keeps its blocks.
        del transfer, raised
        with pytest.raises(kvmem.ExportedError):
            batch.free()
        there.go_on()
        again = pool.allocate_batch(SIZE, COUNT)
        agent.read(again, peer, there.descriptors).wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            peer_done = begin(again, peer, there.descriptors)
            peer_done.wait(LIMIT)
            try:
                batch.free()
                break
            except kvmem.ExportedError:
                pass
        blocks[0].free()
        peer.close()


@needs_nixl
@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_peer_dies_during_a_transfer_and_another_replaces_it(
    tcp: None, pool: kvmem.Pool, other: Callable[[str], Other], operation: str
) -> None:
    with kvmem.nixl.Agent(pool, name="here") as agent:
        blocks = pool.allocate_batch(SIZE, COUNT).split()
        wanted = noise(blocks, 3)
        there = other("there")
        peer = agent.connect(there.metadata)
        begin = getattr(agent, operation)
        begin(blocks, peer, there.descriptors).wait(LIMIT)
        there.stop()
        transfer = begin(blocks, peer, there.descriptors)
        assert not transfer.done
        there.kill()
        for _ in range(2):
            with pytest.raises(kvmem.nixl.PeerLostError, match="has gone") as raised:
                transfer.wait(LIMIT)
        assert transfer.done and raised.value.code == "nixlRemoteDisconnectError"
        # Late descriptors raise as well.
        with pytest.raises(kvmem.nixl.TransferError):
            begin(blocks, peer, there.descriptors).wait(LIMIT)
        peer.close()
        there = other("there")  # under the same name
        with agent.connect(there.metadata) as peer:
            wanted = noise(blocks, 3)
            agent.write(blocks, peer, there.descriptors).wait(LIMIT)
            assert there.ask(sums=1)["sums"] == wanted
        for block in blocks:
            block.free()
        assert there.end() == 0


@needs_nixl
def test_a_peer_that_has_died_over_shared_memory(
    agent: kvmem.nixl.Agent, pool: kvmem.Pool, other: Callable[[str], Other]
) -> None:
    there = other("there")
    block = pool.allocate(SIZE)
    peer = agent.connect(there.metadata)
    one = pack("there", kvmem.nixl.descriptors.unpack(there.descriptors)[1][:1])
    agent.write(block, peer, one).wait(LIMIT)
    there.kill()
    with pytest.raises(kvmem.nixl.TransferError):
        agent.write(block, peer, one).wait(LIMIT)
    block.free()


@needs_nixl
@pytest.mark.parametrize(
    ("transports", "work"), [("all", "write"), ("all", "read"), ("tcp", "write")]
)
def test_this_process_survives_the_death_of_the_copying_one(
    pool: kvmem.Pool,
    other: Callable[[str], Other],
    monkeypatch: pytest.MonkeyPatch,
    transports: str,
    work: str,
) -> None:
    # Not over TCP during a read: UCX then aborts the process that answers.
    monkeypatch.setenv("UCX_TLS", transports)
    with kvmem.nixl.Agent(pool) as agent:
        blocks = pool.allocate_batch(SIZE, COUNT).split()
        request: dict[str, Any] = {
            "metadata": agent.metadata.hex(),
            "descriptors": agent.descriptors(blocks).hex(),
        }
        there = other("there")
        assert there.ask(work=work, wait=True, **request)["done"]
        there.begin(work=work, **request)
        time.sleep(0.002)
        there.kill()
        wanted = noise(blocks, 4)
        there = other("there")
        assert there.ask(work="read", wait=True, **request)["done"]
        assert there.ask(sums=1)["sums"] == wanted
        assert there.end() == 0


@needs_nixl
def test_closing_ends_running_transfers(
    tcp: None, pool: kvmem.Pool, other: Callable[[str], Other]
) -> None:
    there = other("there")
    agent = kvmem.nixl.Agent(pool)
    peer = agent.connect(there.metadata)
    blocks = pool.allocate_batch(SIZE, COUNT).split()
    agent.read(blocks, peer, there.descriptors).wait(LIMIT)
    there.stop()
    transfer = agent.read(blocks, peer, there.descriptors)
    started = time.monotonic()
    assert agent.close(timeout=0.2) == 1
    assert time.monotonic() - started >= 0.2
    with pytest.raises(kvmem.nixl.TransferError, match="closed before"):
        transfer.wait()
    # Nothing is written to them any more, even when the other process wakes up.
    wanted = noise(blocks, 5)
    there.go_on()
    # It answers, or UCX has ended it, before or after the request.
    with suppress(BrokenPipeError):
        there.begin(sums=1)
    assert there.process.stdout is not None
    there.process.stdout.readline()
    assert sums(blocks) == wanted
    for block in blocks:
        block.free()


@needs_nixl
def test_threads_share_an_agent(
    agent: kvmem.nixl.Agent, pool: kvmem.Pool, other: Callable[[str], Other]
) -> None:
    there = other("there")
    peer = agent.connect(there.metadata)
    spans = kvmem.nixl.descriptors.unpack(there.descriptors)[1]
    wrong: list[BaseException] = []

    def work(me: int) -> None:
        try:
            block, back = pool.allocate(SIZE), pool.allocate(SIZE)
            mine = pack("there", [spans[me]])
            for turn in range(20):
                block.write(bytes([16 * me + turn % 16]) * SIZE)
                agent.write(block, peer, mine, notify=b"%d" % me).wait(LIMIT)
                agent.read(back, peer, mine).wait(LIMIT)
                assert bytes(back) == bytes(block)
            block.free()
            back.free()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong
    told = 0
    while told < 80:
        told += len(there.ask(notifications=1)["notifications"])


@needs_nixl
def test_nothing_need_be_closed_at_exit_and_a_forked_child_gets_an_error() -> None:
    program = """
import os, sys, kvmem, kvmem.nixl
pool, two = kvmem.Pool("4MiB", pages="4k"), kvmem.Pool("4MiB", pages="4k")
agent, other = kvmem.nixl.Agent(pool), kvmem.nixl.Agent(two)
peer = agent.connect(other.metadata)
block, target = pool.allocate(1000), two.allocate(1000)
descriptors = other.descriptors(target)
kept = agent.write(block, peer, descriptors)
kept.wait()
child = os.fork()
if child == 0:
    failing = 0
    for use in (lambda: agent.metadata, lambda: agent.write(block, peer, descriptors),
        agent.notifications, peer.close, lambda: peer.notify(b"x")):
        try:
            use()
        except kvmem.ForkedError:
            failing += 1
    assert failing == 5, failing
    agent.close()
    del agent, other, peer, kept
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
agent.write(block, peer, descriptors).wait()
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0 and done.stdout == "alive\n", done.stdout + done.stderr


@needs_nixl
def test_the_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text(examples("nixl.md"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path
    )
    assert done.returncode == 0 and "the same bytes" in done.stdout, done.stdout + done.stderr
