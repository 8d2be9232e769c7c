"""Every callable gets every bad value: it raises an exception of kvmem or a ``TypeError``.

The message uses words that a Python programmer knows, and numbers come with a value and a limit.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import cluster_helper
import kvmem
import pytest
from conftest import LIMIT, MIB, lockable
from kvmem import _kvmem
from kvmem.mooncake import ClusterTier
from node_server import Server

STUB = ast.parse(Path(_kvmem.__file__).with_name("_kvmem.pyi").read_text(encoding="utf-8"))
BAD: list[object] = [
    -1,
    2**63,
    2**64,
    10**30,
    -(10**30),
    float("nan"),
    float("inf"),
    1e300,
    None,
    "",
    b"",
    object(),
    [],
    (),
]
BAD += [(1,), [-1], (-1, 2**64), (0, 0, 2**70), [None], {}, True, "x" * 100, lambda: None]
INTERNAL = re.compile(
    r"\bPy[A-Z]\w+|\b[ui](8|16|32|64|128|size)\b|::|\bVec\b|\bOption\b|\benum\b"
    r"|panic|Rust|`[A-Z]\w+`|&\w"
)
"""Words that a Python programmer does not know: names of PyO3, types of Rust, paths."""


class Scene:
    """One object of each class, and a good value for each parameter."""

    module: Any = kvmem

    def __init__(self) -> None:
        self.region = kvmem.Region(MIB, pages="4k", shared=True)
        self.pool = kvmem.Pool(MIB, pages="4k", shared=True, max_size=2 * MIB)
        self.cache = kvmem.KvCache(self.pool)
        self.space = kvmem.OffsetAllocator(MIB)
        self.arena = kvmem.BumpArena(self.region)
        self.attached = kvmem.AttachedPool(self.pool.fileno(), writable=True)
        self.block = self.pool.allocate(1000)
        self.folder = tempfile.TemporaryDirectory()

    @functools.cached_property
    def tier(self) -> kvmem.DiskTier:
        return kvmem.DiskTier(Path(self.folder.name, "open"), bytes=MIB)

    @functools.cached_property
    def cluster(self) -> ClusterTier:
        tier = ClusterTier(python=cluster_helper.program(Path(self.folder.name, "cluster")))
        assert tier.wait(LIMIT)
        return tier

    @functools.cached_property
    def tiers(self) -> kvmem.TierSet:
        paths = [Path(self.folder.name, name) for name in ("one", "two")]
        return kvmem.TierSet(paths, bytes=MIB)

    def closed_tier(self) -> Path:
        """Returns the path of a tier that is not open."""
        path = Path(self.folder.name, "closed")
        kvmem.DiskTier(path, bytes=MIB).close()
        return path

    @functools.cached_property
    def server(self) -> Server:
        server = Server(MIB)
        # It listens a moment after it has started, and the calls below do not retry.
        kvmem.connect(server.path).close()
        return server

    @functools.cached_property
    def node(self) -> kvmem.NodeCache:
        node = kvmem.connect(self.server.path, devices="mlock")
        node.insert("k", b"value")
        return node

    def make(self, kind: str) -> object:
        def history() -> object:
            made = _kvmem.History()
            made.insert("k")
            return made

        made: dict[str, Callable[[], object]] = {
            "Region": lambda: self.region,
            "BumpArena": lambda: self.arena,
            "Piece": lambda: self.arena.allocate(100),
            "Registration": lambda: kvmem.Registration(kvmem.Region(MIB, pages="4k"), "mlock"),
            "OffsetAllocator": lambda: self.space,
            "Allocation": lambda: self.space.allocate(1000),
            "AllocationBatch": lambda: self.space.allocate_batch(1000, 2),
            "AddressManager": lambda: _kvmem.AddressManager(MIB),
            "History": history,
            "Pool": lambda: self.pool,
            "Block": lambda: self.pool.allocate(1000),
            "BlockBatch": lambda: self.pool.allocate_batch(1000, 2),
            "Hold": lambda: self.pool.hold(),
            "AttachedPool": lambda: self.attached,
            "AttachedBlock": lambda: self.attached.block(self.block.reference()),
            "DiskTier": lambda: self.tier,
            "TierSet": lambda: self.tiers,
            "Chain": lambda: kvmem.Chain(self.tier, self.tiers),
            "ClusterTier": lambda: self.cluster,
            "Fetching": lambda: self.cache.start_fetch(["k"]),
            "KvCache": lambda: self.cache,
            "Pinned": lambda: self.cache.reserve("k", 1000).commit(),
            "Reservation": lambda: self.cache.reserve("k", 1000),
            "NodeCache": lambda: self.node,
            "NodeOperator": lambda: self.node.as_operator(),
            "NodeReservation": lambda: self.node.reserve("r", 1000),
            "PinBatch": lambda: self.node.acquire(["k"]),
            "PinnedValue": lambda: self.node.get("k"),
        }
        return made[kind]()

    def good(self, kind: str, function: str, parameter: str) -> object:
        if parameter == "path":
            return self.closed_tier()
        if parameter == "paths":
            return [self.closed_tier()]
        if parameter in ("upper", "lower"):
            return self.tier
        by_name: dict[str, object] = {
            "address": 0,
            "allocations": [],
            "batch_size": 2,
            "block": 2 if function == "prefix_keys" else self.pool.allocate(10),
            "blocks": [],
            "buffer": bytearray(4096),
            "callback": lambda: None,
            "buffers": [bytearray(64) for _ in range(3)],
            "capacity": MIB,
            "device": "mlock",
            "devices": "mlock",
            "fd": self.pool.fileno() if kind == "AttachedPool" else self.region.fileno(),
            "key": "k",
            "keys": ["k", 7, b"k"],
            "max_blocks": 2,
            "max_ranges": 2,
            "n": 2,
            "namespace": "tenant",
            "nbytes": 100,
            "pool": self.pool,
            "pid": 1,
            "raw_size": 100,
            "reference": self.block.reference(),
            "reservations": [],
            "sizes": {"k": 100},
            # Small, because True is a chunk of one byte.
            "region": kvmem.Region("16KiB", pages="4k"),
            "salt": b"salt",
            "size": 4096
            if kind == "AddressManager"
            else MIB
            if function in ("__new__", "grow_to", "mount_report")
            else 100,
            "slot": 0,
            "firsts": [0, None, None, None, None],
            "source": b"x",
            "text": "64MiB",
            "tokens": [1, 2, 3],
            "total": 1000,
            "value": b"value",
            "values": {"k": b"value"},
            "why": "why not",
        }
        return by_name[parameter]

    def close(self) -> None:
        if "node" in vars(self):
            self.node.close()
        if "server" in vars(self):
            self.server.stop()
        self.cache.close()
        self.attached.close()
        for name in ("tier", "tiers"):
            if name in vars(self):
                getattr(self, name).close()
        self.folder.cleanup()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()
    scene.pool.check()


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields everything that takes arguments: the class (or nothing), and the definition."""
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        if not isinstance(node, ast.ClassDef):
            continue
        kinds = [node.name]
        if node.name == "_Memory":
            kinds = ["Region", "Piece", "Block", "AttachedBlock", "Pinned", "Reservation"]
        elif node.name == "_TierValues":
            kinds = ["DiskTier", "TierSet"]
        elif node.name.startswith("_"):
            continue
        if node.name == "_Memory":
            kinds += ["PinnedValue", "NodeReservation"]
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                yield from ((kind, each) for kind in kinds)


def parameters(function: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Returns the names of the parameters, and whether they are required."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for index, each in enumerate(positional):
        if each.arg not in ("self", "cls"):
            yield each.arg, index < required
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield each.arg, default is None


CASES = {
    f"{kind}.{function.name}({parameter})".lstrip("."): (kind, function, parameter)
    for kind, function in functions()
    for parameter, _ in parameters(function)
    if function.name not in ("__exit__", "__buffer__", "__getitem__")
}


def test_enough_callables_are_found() -> None:
    assert len(CASES) > 120 and "Pool.__new__(populate)" in CASES and "doctor(nodes)" in CASES


def call(
    scene: Scene, kind: str, function: ast.FunctionDef, parameter: str, value: object
) -> object:
    given = {
        name: scene.good(kind, function.name, name)
        for name, required in parameters(function)
        if required
    }
    if function.name == "connect":
        given |= {"path": scene.server.path, "retry_for": 0}
    given[parameter] = value
    if function.name == "events" and parameter != "wait":
        given["wait"] = 0
    if function.name == "__contains__":
        return cast(Any, value) in cast(Any, scene.make(kind))
    if not kind:
        return getattr(kvmem, function.name)(**given)
    owner = getattr(_kvmem, kind)
    is_static = any(
        isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list
    )
    if function.name == "__new__":
        return owner(**given)
    return getattr(owner if is_static else scene.make(kind), function.name)(**given)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pytest.mark.parametrize("case", CASES)
def test_bad_arguments_raise_errors_in_terms_of_python(scene: Scene, case: str) -> None:
    kind, function, parameter = CASES[case]
    if "Registration" in case and not lockable():
        pytest.skip("memory cannot be locked here (RLIMIT_MEMLOCK)")
    for value in BAD:
        where = f"{case} with {value!r}"
        try:
            done = call(scene, kind, function, parameter, value)
            # A new object is dropped.
            with contextlib.suppress(AttributeError, kvmem.KvmemError):
                done.close()  # type: ignore[attr-defined]
        except (kvmem.KvmemError, TypeError) as error:
            text = str(error)
            assert text and not INTERNAL.search(text), f"{where}: {text}"
            if isinstance(error, kvmem.ArgumentTypeError):
                assert parameter in text, f"{where} is not named: {text}"
            elif isinstance(error, kvmem.KvmemError) and is_number(value) and parameter != "stream":
                numbers = error.details
                assert {"value", "requested"} & set(numbers), (
                    f"{where} names no value: {text}, {numbers}"
                )
                told = ("limit", "free", "errno", "device", "remedy")
                assert any(numbers.get(each) is not None for each in told), (
                    f"{where} names no limit: {text}, {numbers}"
                )
        except BaseException as error:
            pytest.fail(f"{where}: {type(error).__name__}: {error}")


def test_errors_have_the_value_and_the_limit(scene: Scene) -> None:
    pool, space = scene.pool, scene.space
    told: list[tuple[Callable[[], object], object, object, str]] = [
        (lambda: pool.allocate(1, align=-1), -1, 0, "align is -1: give a number from 0 to"),
        (lambda: pool.allocate(1, align=3), 3, 2**63, "align is 3: give a power of two"),
        (lambda: space.allocate(1, align=2**64), 2**64, 2**64 - 1, "align is 18446744073709551616"),
        (lambda: pool.allocate_batch(10, -1), -1, 0, "n is -1: give a number from 0"),
        (
            lambda: kvmem.doctor(nodes=[-1]),
            -1,
            0,
            "a node is -1: give a number from 0 to 4294967295",
        ),
        (lambda: kvmem.AttachedPool(-1), -1, 0, "fd is -1: give an open descriptor"),
        (lambda: kvmem.Region.attach(2**40), 2**40, 2**31 - 1, "fd is 1099511627776"),
        (lambda: kvmem.Region(MIB, populate=-1), -1, 0, "populate is -1: give a number from 0"),
        (
            lambda: kvmem.Region(MIB, time_budget=-1),
            -1,
            0,
            "time_budget is -1.0: give a number of seconds",
        ),
        (lambda: pool.wait_ready(timeout=10**400), 10**400, 2**64 - 1, "timeout is 1000"),
        (lambda: kvmem.KvCache(pool, max_blocks=-1), -1, 0, "max_blocks is -1"),
        (
            lambda: kvmem.KvCache(pool, max_blocks=2**40),
            2**40,
            2**32 - 16,
            "a limit of 1099511627776 blocks is too high",
        ),
        (lambda: scene.block.write(b"x", -1), -1, 0, "start is -1"),
        (lambda: scene.block.write(b"x", 10**6), 10**6 + 1, 1000, "do not fit into 1000 bytes"),
        (lambda: pool.allocate(-5), -5, 0, "-5 is no size: give a number of bytes from 0"),
        (lambda: scene.cache.get(2**127), 2**127, 2**127 - 1, "127 bits"),
        (lambda: _kvmem.AddressManager(2**70), 2**70, 2**63 - 1, "beyond 9223372036854775807"),
    ]
    for call_, value, limit, text in told:
        with pytest.raises(kvmem.InvalidArgumentError, match=re.escape(text)) as caught:
            call_()
        assert (caught.value.value, caught.value.limit) == (value, limit), text


def test_the_error_of_a_batch_names_the_whole_batch(scene: Scene) -> None:
    for make in (scene.pool.allocate_batch, scene.space.allocate_batch):
        with pytest.raises(
            kvmem.OutOfSpaceError,
            match=r"1000000000000000000 × 10 bytes \(10000000000000000000 in all\)",
        ) as caught:
            make(10, 10**18)
        assert caught.value.requested == 10**19
        with pytest.raises(kvmem.OutOfSpaceError, match="a range can have at most") as caught:
            make(4 * MIB, 3)
        assert caught.value.requested == 4 * MIB and (caught.value.limit or 0) <= 2 * MIB
    scene.space.allocate(600_000)
    kept = scene.space.allocate(100_000), scene.space.allocate(300_000)
    assert len(kept) == 2
    with pytest.raises(
        kvmem.OutOfSpaceError,
        match=r"2 × 500000 bytes \(1000000 in all\): 648576 bytes are free",
    ) as caught:
        scene.space.allocate_batch(500_000, 2)
    assert (caught.value.requested, caught.value.free) == (1_000_000, 648_576)
    with pytest.raises(kvmem.OutOfSpaceError, match=f"1 bytes at a multiple of {2**63}") as caught:
        scene.space.allocate(1, align=2**63)
    assert caught.value.requested == 1


def test_invalid_descriptors(scene: Scene) -> None:
    for attach in (kvmem.Region.attach, kvmem.AttachedPool):
        with pytest.raises(
            kvmem.InvalidDescriptorError,
            match="fd 100000 cannot be duplicated: Bad file descriptor",
        ) as caught:
            attach(100_000)
        assert (
            isinstance(caught.value, OSError)
            and caught.value.errno == 9
            and caught.value.value == 100_000
        )


def test_a_key_without_a_device(scene: Scene) -> None:
    with pytest.raises(
        kvmem.InvalidArgumentError, match="registered with no device; pass `devices`"
    ) as caught:
        scene.block.key("mlock")
    assert caught.value.value == "mlock"


def test_errors_of_private_and_read_only_memory(scene: Scene) -> None:
    with kvmem.Pool(MIB, pages="4k") as private:
        for use in (private.fileno, private.share):
            with pytest.raises(kvmem.InvalidArgumentError, match="make it with shared=True"):
                use()
    with (
        kvmem.AttachedPool(scene.pool.fileno()) as attached,
        pytest.raises(kvmem.InvalidArgumentError, match="writable=True"),
    ):
        attached.block(scene.block.reference()).write(b"x")


NOT_BYTES = "a bytes-like object is required, not 'int'"
PAIR = "an iterable of pairs of a key and its"
NAMED = {
    "node.insert('k', 5)": f"value: {NOT_BYTES}",
    "node.insert_batch({'k': b'v', 'm': 5})": f"values['m']: {NOT_BYTES}",
    "node.insert_batch([('k', b'v'), 5])": f"values is a mapping, or {PAIR} bytes: element 1 is no "
    "pair, but of type int",
    "node.reserve_batch([('k', None)])": "sizes['k']: a size is an int or a str such as "
    '"64GiB", not NoneType',
    "node.reserve_batch([5])": f"sizes is a mapping, or {PAIR} number of bytes: element 0 is no "
    "pair, but of type int",
    "node.reserve_batch('text')": f"sizes is {PAIR} number of bytes, such as a list, not one of "
    "type str",
    "node.commit([it.node.reserve('r', 8), 5])": "reservations[1]: 'int' object is not an instance "
    "of 'NodeReservation'",
    "node.reserve('w', 8).write(5)": f"source: {NOT_BYTES}",
    "cache.insert('k', 5)": f"value: {NOT_BYTES}",
    "block.write(5)": f"source: {NOT_BYTES}",
    "tier.store({b'k': b'v', b'm': 5})": f"values[b'm']: {NOT_BYTES}",
    "tier.store([5])": f"values is a mapping, or {PAIR} bytes: element 0 is no pair, but of type "
    "int",
    "tier.fetch_into(['k', 'm'], [bytearray(1), 5])": f"buffers[1]: {NOT_BYTES}",
    "module.prefix_keys([1], 1, 5)": f"salt: {NOT_BYTES}",
    "module.Region.from_buffer(5)": f"buffer: {NOT_BYTES}",
    "module.connect_async('nowhere', threads='4')": "threads is an int, not str",
    "cache.get(5.0)": "key: a key is an int, bytes or a str, not float",
    "module.TierSet(7)": "paths: 'int' object is not iterable",
    "pool.share(writable=7)": "writable: 'int' object is not an instance of 'bool'",
    "module.Pool('1MiB', strict=7)": "strict: 'int' object is not an instance of 'bool'",
    "module.Pool('1MiB', strikt=True)": "Pool() got an unexpected keyword argument 'strikt'",
}


@pytest.mark.parametrize("expression", NAMED)
def test_the_argument_and_the_key_are_named(expression: str, scene: Scene) -> None:
    with pytest.raises(TypeError) as raised:
        eval(f"it.{expression}", {"it": scene})
    assert str(raised.value) == NAMED[expression]
