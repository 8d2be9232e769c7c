"""*Data*: figures and reports as plain values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

from ._stats import BumpStats as BumpStats
from ._stats import ClusterTierStats as ClusterTierStats
from ._stats import DiskTierInspection as DiskTierInspection
from ._stats import DiskTierStats as DiskTierStats
from ._stats import KvCacheStats as KvCacheStats
from ._stats import Metrics as Metrics
from ._stats import NamespaceStats as NamespaceStats
from ._stats import NodeStats as NodeStats
from ._stats import OpenReport as OpenReport
from ._stats import WriteBehindStats as WriteBehindStats


class Residency(NamedTuple):
    """How much of a range is resident."""

    len_bytes: int
    """Length of the range in bytes."""
    resident_bytes: int
    """Resident bytes of it."""
    error_bytes: int
    """Maximum error of ``resident_bytes``, in 99 cases of 100; 0 if every page was checked."""
    huge_bytes: int | None
    """Bytes that are mapped by huge pages, if the kernel reports them."""


class DamagedValue(NamedTuple):
    """A value of a disk tier that is not what was stored."""

    digest: str
    """The digest of the value's key: 32 digits."""
    offset: int
    """Where its bytes begin in the file."""
    nbytes: int
    """Its length in bytes."""
    ranges: int
    """In how many ranges of the file it lies."""
    damage: Literal["checksum", "device", "encoding"]
    """``checksum``: the bytes on the drive are not those that were stored. ``device``: the drive
    failed to read them. ``encoding``: the bytes have their checksum, and the keys do not decode
    them."""
    errno: int | None
    """Error number of the kernel, if the drive failed."""
    unverified: bool
    """Whether a power cut may have taken the value before a sync. If so, the drive is sound, and a
    fetch makes its bytes free again."""


class DiskTierVerification(NamedTuple):
    """What a verification of a disk tier has found."""

    entries: int
    """Values read."""
    nbytes: int
    """Bytes read, padding included."""
    seconds: float
    """How long that took."""
    damaged: int
    """Values that are not what was stored. A fetch of one is a miss."""
    dropped: int
    """Entries that name bytes outside of the file, or bytes of others: they are no values."""
    damaged_values: tuple[DamagedValue, ...]
    """The first of the damaged values, in the order of the file."""


class Key(NamedTuple):
    """The right of a device to reach a range of bytes. The names are those of verbs."""

    handle: int
    """Number by which the device knows the registration."""
    lkey: int
    """Key for local work requests; the buffer index of a ring."""
    rkey: int | None
    """Key for a remote peer, if there is one."""


class BlockReference(NamedTuple):
    """The position of a block as plain data, for a process that has attached the pool."""

    pool: int
    """Number of the pool: its ``share_id``."""
    offset: int
    """Offset of the block in the pool, in bytes."""
    nbytes: int
    """Length of the block in bytes."""


class Event(NamedTuple):
    """Something that happened to a value of a node."""

    number: int
    """Counts all events of the server since it started."""
    kind: Literal["stored", "replaced", "removed", "evicted", "damaged", "tier_evicted"]
    """What happened. ``evicted``: its memory was needed, or its time was over. ``damaged``: it was
    removed, because its bytes did not have their checksum. ``tier_evicted``: the tier has let
    values go whose keys it does not know; :meth:`NodeCache.locate` says which remain."""
    namespace: int
    """Number of the namespace of the key: the index in ``NodeStats.namespaces``. 65535: the event
    concerns all of them."""
    key: int | bytes | str
    """The key; empty if the event has none."""


class Located(NamedTuple):
    """Where the value of a key of a node is."""

    in_memory: bool
    """In the memory of the node."""
    in_tier: bool
    """In its tier, if that answers without waiting for a network."""


class EventBatch(Sequence[Event]):
    """Events in order, with the number to go on at."""

    __slots__ = ("_events", "lost", "next")

    def __init__(self, events: tuple[Event, ...], next: int, lost: bool) -> None:
        self._events = events
        self.next = next
        """Number of the next event: where the next call starts."""
        self.lost = lost
        """Whether events after the start were missed: the server has the latest ones, and one that
        has restarted has none of those before. Look at what
        ``list_namespace()`` returns then, and go on."""

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...
    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<EventBatch of {len(self)} events, next {self.next}>"


class Listed(NamedTuple):
    """A value of a node, for operators."""

    namespace: str
    """Name of the namespace."""
    key: int | bytes | str
    """The key."""
    nbytes: int
    """Bytes of the value."""
    pins: int
    """Its pins, of all clients."""
    priority: int
    """Its priority; values of priority 0 are evicted first."""
    idle_seconds: float
    """Seconds since it was last used."""


class Miss(NamedTuple):
    """A key of a node that was acquired and had no value."""

    namespace: str
    """Name of the namespace."""
    key: int | bytes | str
    """The key."""
    reason: Literal[
        "never-stored",
        "evicted",
        "expired",
        "removed",
        "damaged",
        "tier-away",
        "tier-lost",
        "not-fetched",
    ]
    """Why it had no value. ``never-stored``: the server does not know a value of the key.
    ``evicted``: for others. ``expired``: its time was over. ``removed``: by a client or an
    operator. ``damaged``: its bytes did not have their checksum. ``tier-away``: it is in the tier,
    which is away or detached. ``tier-lost``: it was evicted to the tier, which has let it go since.
    ``not-fetched``: the tier has it and did not bring it."""
    ago_seconds: float
    """Seconds since the miss."""
    gone_seconds: int | None
    """Seconds between the moment when the value left the memory and the miss; None: the server does
    not know a value of the key."""
    evicted_for: str | None
    """Name of the namespace for whose block the value was evicted; None: for none."""
    priority: int | None
    """The priority of the value; None: the server does not know a value of the key."""


class Resized(NamedTuple):
    """The size of the memory of a node after a call that changes it."""

    size: int
    """Bytes for values and reservations now."""
    wanted: int
    """Bytes that were requested, in whole pages. The server goes on until the memory has them."""
    held_bytes: int
    """Bytes behind that end that are pinned, reserved, or being stored or verified."""
    registered_clients: int
    """Clients that have registered the memory with devices, or may have: while there are any, the
    memory does not shrink."""


class SessionListed(NamedTuple):
    """A client of a node, for operators."""

    pid: int
    """Number of the process; 0: the server cannot see it."""
    namespace: str
    """Name of the namespace."""
    pins: int
    """Values that it has pinned."""
    reservations: int
    """Its reservations."""
    connected: bool
    """Whether it is connected now."""
    silent_seconds: float
    """Seconds since its last call."""


class Report(Mapping[str, Any]):
    """The result of an operation or examination. It is a mapping with the names that the ``kvmem``
    command writes as JSON, and prints like that command."""

    __slots__ = ("data", "text")

    def __init__(self, data: dict[str, Any], text: str) -> None:
        self.data = data
        self.text = text

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {', '.join(self.data)}>"


class Diagnosis(Report):
    """The limits of this machine checked against requested memory, and the available devices."""

    __slots__ = ("failed", "fix_script", "requirements")

    def __init__(
        self, data: dict[str, Any], text: str, requirements: str, failed: list[str], fix_script: str
    ) -> None:
        super().__init__(data, text)
        self.requirements = requirements
        """The requested memory, in words."""
        self.failed = failed
        """Names of the checks that failed."""
        self.fix_script = fix_script
        """A shell script with all remedies, to read and to run as root. Nothing has run it."""

    @property
    def passes(self) -> bool:
        """Whether no check failed."""
        return not self.failed
