//! *Contenders*: one file each.

mod files;
mod kvmem;
mod plain;

use std::path::Path;

use ::kvmem::pool::Pool;
use anyhow::Result;
use kvmem_tier::Codec;

use super::TierContenderId;
use crate::bench::values::ValueContender;

/// Room for values on a device, and how they are transferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    /// A directory of the contender's own.
    pub(super) dir: &'a Path,
    /// Bytes that it may store.
    pub(super) bytes: u64,
    /// Transfers in flight.
    pub(super) depth: u32,
}

/// Makes a contender of this program for passes of `count` values of `stride` bytes, padding
/// included, in the memory of `pool`.
pub(super) fn contender(
    id: TierContenderId,
    room: Room<'_>,
    stride: usize,
    count: usize,
    pool: &Pool,
) -> Result<Box<dyn ValueContender>> {
    let tier = |codec, encrypts| kvmem::Tier::new(room, stride, count, pool, codec, encrypts);
    Ok(match id {
        TierContenderId::Kvmem => Box::new(tier(Codec::None, false)?),
        TierContenderId::Codec => Box::new(tier(Codec::Auto, false)?),
        TierContenderId::Keys => Box::new(tier(Codec::None, true)?),
        TierContenderId::CodecKeys => Box::new(tier(Codec::Auto, true)?),
        TierContenderId::Plain => Box::new(plain::Plain::new(room, stride, pool)?),
        TierContenderId::Files => Box::new(files::Files::new(room, stride, false)),
        TierContenderId::FilesDirect => Box::new(files::Files::new(room, stride, true)),
    })
}
