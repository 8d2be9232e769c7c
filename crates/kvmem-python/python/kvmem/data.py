"""*Data*: figures and reports as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload


class Metrics(NamedTuple):
    """Figures of a space or pool. Sizes are in bytes."""

    capacity: int
    """Length of the space."""
    allocated: int
    """Bytes in use: exactly the requested bytes."""
    free: int
    """Bytes not in use."""
    largest_free: int
    """Longest range that could be allocated now."""
    live: int
    """Number of ranges in use."""
    free_ranges: int
    """Number of free ranges, as many as in the map."""
    metadata_bytes: int
    """Memory that the metadata takes."""

    @property
    def utilization(self) -> float:
        """Share of the space that is in use."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lie outside the longest free range."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


class BumpStats(NamedTuple):
    """Bytes that an arena has allocated. ``used + remaining == capacity``."""

    capacity: int
    """Length of the arena's memory in bytes."""
    used: int
    """Bytes allocated, including the padding before them."""
    remaining: int
    """Bytes not allocated."""


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


class KvCacheStats(NamedTuple):
    """Figures of a cache."""

    blocks: int
    """Blocks held, those being written included."""
    bytes: int
    """Bytes of those blocks."""
    hits: int
    """Calls of ``get`` that found their key."""
    misses: int
    """Calls of ``get`` that did not find their key."""
    insertions: int
    """Values committed."""
    replacements: int
    """Committed values that replaced another value under the same key."""
    evictions: int
    """Blocks evicted."""
    removals: int
    """Blocks removed by their key."""
    insertion_failures: int
    """Insertions that failed because nothing could be evicted."""
    sink_failures: int
    """Evicted values that the lower tier failed to store."""
    superseded: int
    """Fetched values that were not stored because their lease was no longer valid."""

    @property
    def hit_rate(self) -> float:
        """Hits per call of ``get``; 0 before the first call."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0


class OpenReport(NamedTuple):
    """What opening a disk tier found."""

    created: bool
    """Whether the tier was made just now."""
    entries: int
    """Values found."""
    replayed: int
    """Changes that the journal had since the last checkpoint."""
    dropped: int
    """Entries that contradict others, and were dropped."""
    damaged: int
    """Values that ``verify="all"`` found damaged, and removed."""
    journal_damaged: int
    """Blocks of the journal that are damaged, or that a power cut took, although later ones are
    whole. The changes of the later ones count.
    """
    journal_unknown: int
    """Of these, blocks whose keys no whole block repeats, and that a power cut may have taken. If
    it did not, a value that they removed or replaced may be found again.
    """
    in_doubt: int
    """Values that were dropped since such a block may have removed or replaced them."""


class ClusterTierStats(NamedTuple):
    """Counts the calls of a :class:`kvmem.mooncake.ClusterTier` since it was made."""

    works: bool
    """Whether the cluster works now."""
    stored: int
    """Values that the cluster has stored."""
    stored_nbytes: int
    """The bytes of these."""
    fetched: int
    """Values that were fetched."""
    fetched_nbytes: int
    """The bytes of these."""
    absent: int
    """Keys that were looked up and that the cluster does not have."""
    skipped: int
    """Keys that were not looked up, because the cluster was away."""
    dropped: int
    """Values that were not stored: the cluster was away, the staging memory was full, or the value
    was superseded or too long.
    """
    failed: int
    """Stores and fetches that the cluster failed."""
    corrupt: int
    """Fetched values whose bytes were not those that were stored."""
    stale: int
    """Keys that are not looked up until the cluster has removed their objects."""
    queued_nbytes: int
    """Bytes of values that wait for the cluster."""
    starts: int
    """Clients that were started."""
    hangs: int
    """Clients that were killed because they did not answer in time."""
    violations: int
    """Clients that were killed because an answer was none to a call."""
    last_report: str | None
    """Why the cluster went away last, or that it works."""


class DiskTierStats(NamedTuple):
    """What a disk tier holds, and what it has done since it was opened."""

    entries: int
    """Values held."""
    scattered: int
    """Of these, values in several ranges of the file."""
    unverified_values: int
    """Of these, values whose bytes a power cut may have taken: they were written without a sync,
    by a process that was killed before the next checkpoint, and were not read since."""
    nbytes: int
    """The bytes of all values held, without padding."""
    capacity: int
    """Bytes of the file for values."""
    used: int
    """Bytes of the file that values use, padding included."""
    quarantined: int
    """Bytes of the file that are not used any more, because what was written there was lost."""
    stored: int
    """Values stored."""
    written_bytes: int
    """Bytes of values written, padding included."""
    metadata_bytes: int
    """Bytes of journal, checkpoints and superblocks written."""
    lifetime_bytes: int
    """Bytes that were written to the file over its life."""
    bytes_per_day: int
    """Bytes that were written in a day of this life, on average; the first day counts whole."""
    hits: int
    """Values fetched."""
    misses: int
    """Fetches of keys without a value."""
    checksum_misses: int
    """Fetches of values whose bytes were damaged."""
    lost_misses: int
    """Fetches of values whose bytes a power cut took before they were synced."""
    io_misses: int
    """Fetches that the drive failed with an error."""
    short_misses: int
    """Fetches of which the file had fewer bytes than were stored."""
    not_admitted: int
    """Values that a cache evicted and that were not written, by ``admission`` or the rate."""
    unchanged: int
    """Values that a cache evicted as it had fetched them: they were not written again."""
    evictions: int
    """Values evicted."""
    expired: int
    """Of these, values that had expired."""
    superblock_failures: int
    """Copies of the superblock that could not be written. The other copy was."""
    checkpoints: int
    """Checkpoints written."""
    index_bytes: int
    """Memory that the index takes."""
    fixed_buffer_bytes: int
    """Bytes of memory that are registered with the rings of the file."""
    fixed_buffer_transfers: int
    """Transfers that used registered memory."""
    read_only: bool
    """Whether the journal failed: nothing is stored until it is begun anew."""

    @property
    def hit_rate(self) -> float:
        """Hits per fetch; 0 before the first one."""
        failed = self.checksum_misses + self.lost_misses + self.io_misses + self.short_misses
        calls = self.hits + self.misses + failed
        return self.hits / calls if calls else 0.0

    @property
    def write_amplification(self) -> float:
        """Bytes written per byte of values written; 0 before the first one."""
        written = self.written_bytes + self.metadata_bytes
        return written / self.written_bytes if self.written_bytes else 0.0


class DiskTierInspection(NamedTuple):
    """What the file of a disk tier holds. Sizes are in bytes."""

    file_bytes: int
    """Length of the file or block device."""
    modified: float | None
    """When the file was last written to, in seconds since 1970; None for a block device."""
    since: int
    """When the file was made, or first opened by a program that counts what it writes, in seconds
    since 1970. 0: not yet.
    """
    lifetime_bytes: int
    """Bytes that were written to the file since then, up to the last checkpoint."""
    superblocks: int
    """Copies of the superblock that are valid, of two."""
    identity: str
    """The identity of the file, chosen at random when it was made: 32 digits."""
    generation: int
    """How often a superblock was written."""
    epoch: int
    """How often a journal was begun."""
    tier_bytes: int
    """Bytes of the tier: at most those of the file."""
    capacity: int
    """Bytes for values."""
    entries: int
    """Values."""
    max_entries: int
    """The most values that the tier can hold."""
    scattered: int
    """Of the values, those in several ranges of the file."""
    unverified_values: int
    """Of the values, those that a power cut may have taken, and that were not read since."""
    value_bytes: int
    """The bytes of all values, without padding."""
    used_bytes: int
    """The bytes that values use, padding included."""
    min_bytes: int | None
    """The length of the shortest value; None without values."""
    median_bytes: int | None
    """Half of the values are at most this long; None without values."""
    max_bytes: int | None
    """The length of the longest value; None without values."""
    free_bytes: int
    """Bytes that are not in use."""
    longest_free_bytes: int
    """Bytes of the longest range that is not in use."""
    quarantined: int
    """Parts of the file that are not used any more, because what was written there was lost."""
    quarantined_bytes: int
    """Bytes of these parts."""
    dropped: int
    """Entries that name bytes outside of the file, or bytes of others: they are no values."""
    checkpoint_changes: int
    """Changes in the checkpoint."""
    journal_changes: int
    """Changes in the journal, after the checkpoint."""
    journal_blocks: int
    """Blocks of 4096 bytes that these have."""
    max_journal_blocks: int
    """Blocks of 4096 bytes that the journal can have."""
    journal_damaged: int
    """Blocks of the journal that are damaged, or that a power cut took, although later ones are
    whole. The changes of the later ones count.
    """
    journal_unknown: int
    """Of these, blocks whose keys no whole block repeats, and that a power cut may have taken. If
    it did not, a value that they removed or replaced may be found again.
    """
    in_doubt: int
    """Values that were dropped since such a block may have removed or replaced them."""
    format_version: int
    """The version of the file's format."""
    direct: bool
    """Whether transfers bypass the page cache."""
    engine: str
    """How bytes are transferred: ``io_uring`` or ``threads``."""

    @property
    def utilization(self) -> float:
        """Share of the bytes for values that values occupy, without padding."""
        return self.value_bytes / self.capacity


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
    damage: Literal["checksum", "device"]
    """``checksum``: the bytes on the drive are not those that were stored. ``device``: the drive
    failed to read them.
    """
    errno: int | None
    """Error number of the kernel, if the drive failed."""
    unverified: bool
    """Whether a power cut may have taken the value before a sync. If so, the drive is sound, and a
    fetch makes its bytes free again.
    """


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


class WriteBehindStats(NamedTuple):
    """What the queue between a cache and its lower tier holds, and what it has done.

    Every value that the cache evicted is ``written``, ``replaced``, ``dropped``, ``failed``,
    ``rejected`` or still in the queue.
    """

    values: int
    """Values in the queue, those being written included."""
    nbytes: int
    """Their bytes. They are in use in the pool."""
    removals: int
    """Removals in the queue."""
    max_nbytes: int
    """The most bytes that were in the queue at once."""
    evicted: int
    """Values that the cache evicted."""
    written: int
    """Values that the tier took: it stored them, or did not want them."""
    written_bytes: int
    """Bytes of these values."""
    batches: int
    """Batches of values that were given to the tier."""
    replaced: int
    """Values that a later value, or a removal of their key, made superfluous before they were
    written.
    """
    dropped: int
    """Values that were not written because the queue was full."""
    failed: int
    """Values that the tier failed to take."""
    rejected: int
    """Values that the queue did not take: it was closed, or full of removals."""
    waits: int
    """Threads that waited because the queue was full."""
    hits: int
    """Values that were fetched out of the queue."""
    panics: int
    """Calls of the tier by a writer that panicked."""
    untrusted: int
    """Keys that are not fetched, because the tier failed to remove an older value."""
    last_error: str | None
    """Message of the latest failure of the tier in a writer."""


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


class NamespaceStats(NamedTuple):
    """Figures of a namespace of a node."""

    name: str
    """Its name."""
    nbytes: int
    """Bytes of its values and reservations."""
    max_nbytes: int | None
    """The most bytes that it may use; None: as many as the node has."""
    pinned: int
    """Values that are pinned."""
    pinned_nbytes: int
    """Bytes of values that are pinned."""
    share: int
    """Its share of the memory, beside those of the others."""


class NodeStats(NamedTuple):
    """Figures of a node. Counts begin when its server starts."""

    capacity: int
    """Bytes of the memory."""
    used: int
    """Bytes that values and reservations use."""
    largest_free: int
    """Bytes of the longest free range."""
    values: int
    """Values that can be found."""
    max_blocks: int
    """The most values and reservations that there can be."""
    sessions: int
    """Clients that are connected, or whose process lives."""
    orphaned_sessions: int
    """Clients that have not returned since the server restarted."""
    pinned: int
    """Values that are pinned."""
    pinned_nbytes: int
    """Bytes of values that are pinned."""
    reservations: int
    """Reservations."""
    reserved_nbytes: int
    """Bytes of reservations."""
    fenced_nbytes: int
    """Bytes of reservations that were taken back: their client was silent for too long."""
    dead_nbytes: int
    """Bytes of values whose parent is neither in memory nor in the tier: no look-up from the start
    of a prefix on finds them.
    """
    hits: int
    """Keys that were acquired and had a value."""
    misses: int
    """Keys that were acquired and had none."""
    reserved: int
    """Blocks that were reserved."""
    committed: int
    """Values that were stored."""
    removed: int
    """Values that were removed."""
    evicted: int
    """Values that were evicted for others."""
    expired: int
    """Values whose time was over."""
    fenced: int
    """Reservations that were taken back."""
    out_of_space: int
    """Reservations that failed because nothing could be evicted."""
    scrubbed: int
    """Values that the server has verified in the background."""
    damaged: int
    """Values that were removed because their bytes did not have their checksum."""
    tier_stored: int
    """Values that the server's disk tier has stored."""
    tier_fetched: int
    """Values that were fetched from the tier."""
    tier_failed: int
    """Values that the tier could not fetch or remove."""
    tier_state: Literal["none", "working", "read_only", "away"]
    """Whether the tier works: there is none, it stores and finds values, it finds them and stores
    nothing because its device failed, or it does neither now and may do both later.
    """
    namespaces: tuple[NamespaceStats, ...]
    """All namespaces. The number of a namespace is its index. One that this user may not use has no
    name, a share of 0, and no figures.
    """

    @property
    def hit_rate(self) -> float:
        """Hits per key that was acquired; 0 before the first one."""
        keys = self.hits + self.misses
        return self.hits / keys if keys else 0.0


class Event(NamedTuple):
    """Something that happened to a value of a node."""

    number: int
    """Counts all events of the server since it started."""
    kind: Literal["stored", "replaced", "removed", "evicted", "damaged", "tier_evicted"]
    """What happened. ``evicted``: its memory was needed, or its time was over. ``damaged``: it was
    removed, because its bytes did not have their checksum. ``tier_evicted``: the tier has let
    values go whose keys it does not know; :meth:`NodeCache.locate` tells which are left.
    """
    namespace: int
    """Number of the namespace of the key: the index in ``NodeStats.namespaces``. 65535: the event
    concerns all of them.
    """
    key: int | bytes | str
    """The key; empty if the event has none."""


class Located(NamedTuple):
    """Where the value of a key of a node is."""

    in_memory: bool
    """In the memory of the node."""
    in_tier: bool
    """In the tier below it, as far as that answers without waiting for a network."""


class EventBatch(Sequence[Event]):
    """Events in order, with the number to go on at."""

    __slots__ = ("_events", "lost", "next")

    def __init__(self, events: tuple[Event, ...], next: int, lost: bool) -> None:
        self._events = events
        self.next = next
        """Number of the next event: where the next call starts."""
        self.lost = lost
        """Whether events after the start were lost: the server keeps the latest ones, and one that
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
    """The result of an operation or examination.

    It is a mapping with the names that the ``kvmem`` command writes as JSON, and prints like that
    command.
    """

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
        self,
        data: dict[str, Any],
        text: str,
        requirements: str,
        failed: list[str],
        fix_script: str,
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
