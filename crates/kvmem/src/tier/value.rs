//! Values on their way to a tier ([`TierValue`]) and back ([`TierRead`], [`TierHit`]).

use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Hints about the worth of a value. A tier uses those that it understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierHints {
    /// The tier evicts values of a lower priority first.
    pub priority: Priority,
    /// How long the value is of use, from the call on. Afterwards it is a miss. `None`: forever.
    pub ttl: Option<Duration>,
    /// Number of blocks before this one in its prefix; 0 if it is not known.
    pub depth: u32,
    /// The type of its elements. A tier that compresses values tries it first.
    pub data_type: DataType,
}

/// A value to store.
#[derive(Clone, Copy)]
pub struct TierValue<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub bytes: &'a [u8],
    /// Hints about its worth.
    pub hints: TierHints,
    /// The value of the tier that this one was fetched from and still equals, as the tier has named
    /// it.
    pub origin: Option<TierOrigin>,
    /// The namespace whose keys encrypt it, in a tier that encrypts; empty for the one without a
    /// name.
    pub namespace: &'a [u8],
    pinned: Option<&'a dyn PinnedValue>,
}

impl<'a> TierValue<'a> {
    /// Makes a value without hints.
    #[must_use]
    pub fn new(key: &'a [u8], bytes: &'a [u8]) -> Self {
        let hints = TierHints::default();
        TierValue { key, bytes, hints, origin: None, namespace: &[], pinned: None }
    }

    /// Makes a value of a cache, which a tier may keep pinned. The bytes are those of `pinned`.
    #[must_use]
    pub fn pinned(key: &'a [u8], pinned: &'a dyn PinnedValue) -> Self {
        TierValue { pinned: Some(pinned), ..TierValue::new(key, pinned.bytes()) }
    }

    /// Sets the hints.
    #[must_use]
    pub fn with_hints(self, hints: TierHints) -> Self {
        TierValue { hints, ..self }
    }

    /// Sets the origin.
    #[must_use]
    pub fn with_origin(self, origin: Option<TierOrigin>) -> Self {
        TierValue { origin, ..self }
    }

    /// Sets the namespace, such as the name of a tenant: see [`Tier::forget_namespace`].
    ///
    /// [`Tier::forget_namespace`]: super::Tier::forget_namespace
    #[must_use]
    pub fn with_namespace(self, namespace: &'a [u8]) -> Self {
        TierValue { namespace, ..self }
    }

    /// Returns whether the key has received another value since, or was removed or cleared: see
    /// [`Pinned::is_superseded`](crate::cache::Pinned::is_superseded).
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.pinned.is_some_and(PinnedValue::is_superseded)
    }

    /// Returns the value as something that outlives the call: a pin on the bytes of a cache, or a
    /// copy.
    #[must_use]
    pub fn pin(&self) -> Arc<dyn PinnedValue> {
        match self.pinned {
            Some(pinned) => pinned.pin(),
            None => Arc::new(Box::<[u8]>::from(self.bytes)),
        }
    }

    /// Returns the pin of a cache if it is of this type, such as
    /// [`Pinned<u64>`](crate::cache::Pinned).
    #[must_use]
    pub fn downcast<P: PinnedValue>(&self) -> Option<&'a P> {
        let pinned: &dyn Any = self.pinned?;
        pinned.downcast_ref()
    }
}

impl fmt::Debug for TierValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierValue")
            .field("key", &self.key)
            .field("len", &self.bytes.len())
            .field("hints", &self.hints)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// A value to read.
#[derive(Debug)]
pub struct TierRead<'a> {
    /// The key, as it was stored.
    pub key: &'a [u8],
    /// Memory for the value: as many bytes as the tier said that it has.
    pub into: &'a mut [u8],
}

/// Facts about a value that a tier has read.
#[derive(Clone, Copy, Debug, Default)]
pub struct TierHit {
    /// The CRC-32C of the bytes as they were stored, if the tier has it. Other processes may write
    /// to the memory meanwhile, so a node keeps this checksum, and not one of the memory.
    pub checksum: Option<u32>,
    /// The name of the value in the tier, if it has one. A cache keeps it, and passes it with the
    /// value when it evicts it.
    pub origin: Option<TierOrigin>,
    /// The hints with which the value was stored, as far as the tier keeps them; the time to live
    /// is what is left of it.
    pub hints: TierHints,
}

/// The name of a value that a lower tier has. A tier assigns to each value that it stores a name of
/// its own, which no value of any tier in this process ever has again: a value whose origin the
/// tier still has under the key was not changed since, and need not be written again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TierOrigin(NonZeroU64);

impl TierOrigin {
    /// Makes an origin of a number that is unique in this process.
    #[must_use]
    pub fn new(number: NonZeroU64) -> TierOrigin {
        TierOrigin(number)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> NonZeroU64 {
        self.0
    }
}

/// The worth of a value compared with others: a tier or a node evicts values of a lower priority
/// first. From 0, the default, to 3; all interfaces of all languages have this range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(u8);

impl Priority {
    /// The highest priority: 3.
    pub const MAX: Priority = Priority(3);

    /// Makes a priority; `None` above [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(level: u8) -> Option<Priority> {
        if level <= Priority::MAX.0 { Some(Priority(level)) } else { None }
    }

    /// Returns the priority that is nearest to a number, such as one that an older version stored.
    #[must_use]
    pub fn nearest(level: i8) -> Priority {
        Priority(level.clamp(0, Priority::MAX.0 as i8) as u8)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The type of the elements of a value, such as that of a model's keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum DataType {
    /// It is not known.
    #[default]
    Unknown = 0,
    /// 8 bits of exponent, 7 of mantissa.
    Bfloat16 = 1,
    /// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
    Float16 = 2,
    /// 4 bits of exponent, 3 of mantissa, without infinities.
    Float8E4m3 = 3,
    /// 5 bits of exponent, 2 of mantissa.
    Float8E5m2 = 4,
}

impl DataType {
    /// All of them, in the order of their numbers.
    pub const ALL: [DataType; 5] = [
        DataType::Unknown,
        DataType::Bfloat16,
        DataType::Float16,
        DataType::Float8E4m3,
        DataType::Float8E5m2,
    ];

    /// Returns the name, which is PyTorch's: `bfloat16`, `float16`, `float8_e4m3fn` or
    /// `float8_e5m2`; `unknown`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DataType::Unknown => "unknown",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float16 => "float16",
            DataType::Float8E4m3 => "float8_e4m3fn",
            DataType::Float8E5m2 => "float8_e5m2",
        }
    }

    /// Returns the type with a name; `None` if no type has it.
    #[must_use]
    pub fn named(name: &str) -> Option<DataType> {
        DataType::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// A value whose bytes stay in memory while it exists, such as a [pin](crate::cache::Pinned) of a
/// cache.
pub trait PinnedValue: Any + Send + Sync {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes of memory that it keeps from other use.
    fn memory_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Returns whether the key has received another value since, or was removed.
    fn is_superseded(&self) -> bool {
        false
    }

    /// Returns another pin on the same bytes.
    fn pin(&self) -> Arc<dyn PinnedValue>;
}

/// A copy of a value.
impl PinnedValue for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn pin(&self) -> Arc<dyn PinnedValue> {
        Arc::new(self.clone())
    }
}
