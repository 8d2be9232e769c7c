//! *Acquisitions*: the request and the answer of [`Call::Acquire`], encoded and decoded by hand.
//!
//! The bytes are those of postcard. Its derived code takes a quarter of the time of a call of 64
//! keys, because it encodes and decodes numbers byte by byte. Here, a number is a word.
//!
//! A decoder returns `None` for anything but a message of its kind in its usual form. The caller
//! then lets postcard decode it, which has the last word on messages that are wrong.

use super::{Answer, Call, Key, Request, Response};
use crate::format::MAX_KEY;
use crate::node::{BlockHandle, Granted, MAX_BATCH};

/// The number of [`Call::Acquire`] among the calls.
const ACQUIRE: u64 = 4;
/// The number of `Ok` in a `Result`.
const OK: u64 = 0;
/// The number of [`Answer::Pinned`] among the answers.
const PINNED: u64 = 5;

/// Encodes a request into `buffer`, which it clears. Returns `false` for other calls.
pub(super) fn encode_request(id: u32, call: &Call<'_>, buffer: &mut Vec<u8>) -> bool {
    let Call::Acquire { epoch, release, keys, prefix_only, wait } = call else { return false };
    buffer.clear();
    for number in [id.into(), ACQUIRE, *epoch, release.len() as u64] {
        put(buffer, number);
    }
    release.iter().for_each(|handle| put_handle(buffer, *handle));
    put(buffer, keys.len() as u64);
    for Key(bytes) in keys {
        put(buffer, bytes.len() as u64);
        buffer.extend_from_slice(bytes);
    }
    buffer.extend_from_slice(&[u8::from(*prefix_only), u8::from(*wait)]);
    true
}

/// Encodes a response into `buffer`, which it clears. Returns `false` for other answers.
pub(super) fn encode_response(response: &Response, buffer: &mut Vec<u8>) -> bool {
    let Response { id, result: Ok(Answer::Pinned { epoch, blocks, pending }) } = response else {
        return false;
    };
    buffer.clear();
    for number in [(*id).into(), OK, PINNED, *epoch, blocks.len() as u64] {
        put(buffer, number);
    }
    for block in blocks {
        let Some(Granted { handle, offset, len, checksum }) = block else {
            buffer.push(0);
            continue;
        };
        buffer.push(1);
        put_handle(buffer, *handle);
        put(buffer, *offset);
        put(buffer, *len);
        buffer.push(u8::from(checksum.is_some()));
        checksum.iter().for_each(|checksum| put(buffer, (*checksum).into()));
    }
    put(buffer, pending.len() as u64);
    pending.iter().for_each(|position| put(buffer, (*position).into()));
    true
}

/// Decodes a request.
pub(super) fn decode_request(bytes: &[u8]) -> Option<Request<'_>> {
    let mut input = Input(bytes);
    let id = input.number_32()?;
    if input.number()? != ACQUIRE {
        return None;
    }
    let epoch = input.number()?;
    let release = input.several(Input::handle)?;
    let keys = input.several(|input| {
        let len = input.number().filter(|len| *len <= MAX_KEY as u64)? as usize;
        let (key, rest) = input.0.split_at_checked(len)?;
        input.0 = rest;
        Some(Key(key))
    })?;
    let (prefix_only, wait) = (input.flag()?, input.flag()?);
    let call = Call::Acquire { epoch, release, keys, prefix_only, wait };
    input.0.is_empty().then_some(Request { id, call })
}

/// Decodes a response.
pub(super) fn decode_response(bytes: &[u8]) -> Option<Response> {
    let mut input = Input(bytes);
    let id = input.number_32()?;
    if input.number()? != OK || input.number()? != PINNED {
        return None;
    }
    let epoch = input.number()?;
    let blocks = input.several(|input| {
        if !input.flag()? {
            return Some(None);
        }
        let handle = input.handle()?;
        let (offset, len) = (input.number()?, input.number()?);
        let checksum = if input.flag()? { Some(input.number_32()?) } else { None };
        Some(Some(Granted { handle, offset, len, checksum }))
    })?;
    let pending = input.several(|input| u16::try_from(input.number()?).ok())?;
    let result = Ok(Answer::Pinned { epoch, blocks, pending });
    input.0.is_empty().then_some(Response { id, result })
}

/// The high bit of each byte of a word.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Appends a number: seven bits a byte, the low ones first, with the high bit set if another byte
/// follows.
fn put(buffer: &mut Vec<u8>, mut number: u64) {
    while number >> 56 != 0 {
        buffer.push(number as u8 | 0x80);
        number >>= 7;
    }
    if number < 0x80 {
        buffer.push(number as u8);
        return;
    }
    let len = number.ilog2() as usize / 7 + 1;
    // Spreads 56 bits over eight bytes: into two parts, then into four, then into eight.
    let twos = number & 0x0fff_ffff | (number & 0x00ff_ffff_f000_0000) << 4;
    let fours = twos & 0x0000_3fff_0000_3fff | (twos & 0x0fff_c000_0fff_c000) << 2;
    let eights = fours & 0x007f_007f_007f_007f | (fours & 0x3f80_3f80_3f80_3f80) << 1;
    let follows = HIGH_BITS & ((1 << (8 * (len - 1))) - 1);
    let end = buffer.len() + len;
    buffer.extend_from_slice(&(eights | follows).to_le_bytes());
    buffer.truncate(end);
}

fn put_handle(buffer: &mut Vec<u8>, BlockHandle { slot, generation }: BlockHandle) {
    put(buffer, slot.into());
    put(buffer, generation.into());
}

/// The bytes that are not decoded yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Takes a number with as few bytes as it needs.
    fn number(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first()?;
        if first < 0x80 {
            self.0 = rest;
            return Some(first.into());
        }
        let Some(word) = self.0.first_chunk::<8>() else { return self.long_number() };
        let word = u64::from_le_bytes(*word);
        // The first byte without its high bit ends the number.
        let ends = !word & HIGH_BITS;
        if ends == 0 {
            return self.long_number();
        }
        let len = ends.trailing_zeros() as usize / 8 + 1;
        if self.0[len - 1] == 0 {
            return None;
        }
        self.0 = &self.0[len..];
        // Packs eight times seven bits: into four parts, then into two, then into one.
        let eights = word & (ends ^ (ends - 1)) & !HIGH_BITS;
        let fours = eights & 0x007f_007f_007f_007f | (eights & 0x7f00_7f00_7f00_7f00) >> 1;
        let twos = fours & 0x0000_3fff_0000_3fff | (fours & 0x3fff_0000_3fff_0000) >> 2;
        Some(twos & 0x0fff_ffff | (twos & 0x0fff_ffff_0000_0000) >> 4)
    }

    /// Takes a number that has more than eight bytes, or is among the last ones of the message.
    fn long_number(&mut self) -> Option<u64> {
        let mut number = 0;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if bits << (7 * at) >> (7 * at) != bits {
                return None;
            }
            number |= bits << (7 * at);
            if *byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return (*byte != 0).then_some(number);
            }
        }
        None
    }

    fn number_32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        (byte < 2).then_some(byte == 1)
    }

    fn handle(&mut self) -> Option<BlockHandle> {
        Some(BlockHandle { slot: self.number_32()?, generation: self.number_32()? })
    }

    /// Takes a count, and then that number of elements: at most [`MAX_BATCH`].
    fn several<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number().filter(|count| *count <= MAX_BATCH as u64)?;
        let mut all = Vec::with_capacity(count as usize);
        for _ in 0..count {
            all.push(one(self)?);
        }
        Some(all)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{decode, encode};

    /// Numbers of each length.
    fn numbers() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64_u32).prop_map(|(bits, shift)| bits >> shift)
    }

    fn handles() -> impl Strategy<Value = BlockHandle> {
        (numbers(), numbers())
            .prop_map(|(slot, use_of)| BlockHandle { slot: slot as u32, generation: use_of as u32 })
    }

    fn blocks() -> impl Strategy<Value = Option<Granted>> {
        let checksum = proptest::option::of(any::<u32>());
        let granted = (handles(), numbers(), numbers(), checksum)
            .prop_map(|(handle, offset, len, checksum)| Granted { handle, offset, len, checksum });
        proptest::option::of(granted)
    }

    /// Messages as postcard encodes them, whole, cut off, or with one other byte.
    fn damage(bytes: &[u8], (at, byte): (usize, u8)) -> [Vec<u8>; 3] {
        let at = at % bytes.len();
        let mut other = bytes.to_vec();
        other[at] = byte;
        [bytes.to_vec(), bytes[..at].to_vec(), other]
    }

    proptest! {
        #[test]
        fn requests_are_those_of_postcard(
            id in any::<u32>(),
            epoch in numbers(),
            release in proptest::collection::vec(handles(), 0..9),
            keys in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 0..9),
            flags in any::<[bool; 2]>(),
            damaged in any::<(usize, u8)>(),
        ) {
            let [prefix_only, wait] = flags;
            let keys = keys.iter().map(|key| Key(key)).collect();
            let call = Call::Acquire { epoch, release, keys, prefix_only, wait };
            let (mut ours, mut theirs) = (vec![1], Vec::new());
            prop_assert!(encode_request(id, &call, &mut ours));
            encode(&Request { id, call }, &mut theirs);
            prop_assert_eq!(&ours, &theirs);
            for message in damage(&ours, damaged) {
                let theirs = format!("{:?}", decode::<Request<'_>>(&message));
                if let Some(ours) = decode_request(&message) {
                    prop_assert_eq!(format!("{:?}", Some(ours)), theirs);
                }
            }
        }

        #[test]
        fn responses_are_those_of_postcard(
            id in any::<u32>(),
            epoch in numbers(),
            blocks in proptest::collection::vec(blocks(), 0..9),
            pending in proptest::collection::vec(any::<u16>(), 0..9),
            damaged in any::<(usize, u8)>(),
        ) {
            let result = Ok(Answer::Pinned { epoch, blocks, pending });
            let response = Response { id, result };
            let (mut ours, mut theirs) = (vec![1], Vec::new());
            prop_assert!(encode_response(&response, &mut ours));
            encode(&response, &mut theirs);
            prop_assert_eq!(&ours, &theirs);
            prop_assert!(decode_response(&ours).is_some());
            for message in damage(&ours, damaged) {
                let theirs = format!("{:?}", decode::<Response>(&message));
                if let Some(ours) = decode_response(&message) {
                    prop_assert_eq!(format!("{:?}", Some(ours)), theirs);
                }
            }
        }
    }
}
