//! [`Contents`]: the values that clients have written, and which of them a look-up may find.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvmem::arena::Region;

/// A moment of the history: how many moments came before.
pub(super) type Moment = u64;

/// Names a value. Its bytes begin with it.
pub(super) type ValueId = u64;

/// The least bytes of a value.
pub(super) const MIN_LEN: u64 = 16;

/// A value that a client writes.
#[derive(Clone, Debug)]
struct Value {
    namespace: usize,
    key: Vec<u8>,
    len: u64,
    /// When a client has first asked to commit it.
    sent: Option<Moment>,
    /// When the client had the answer.
    answered: Option<Moment>,
    /// From here on no look-up finds it: a client has the answer to a later commit under the key,
    /// or to a removal.
    over: Option<Moment>,
    /// It was removed, and not replaced.
    removed: bool,
    /// In milliseconds; the server may have counted from an earlier time.
    ttl: u64,
    expires_at: Option<u64>,
}

/// All values, and the memory of the node in which they lie.
#[derive(Debug)]
pub(super) struct Contents {
    values: Vec<Value>,
    by_key: BTreeMap<(usize, Vec<u8>), Vec<ValueId>>,
    memory: Arc<Region>,
    /// Whether values end with their time: a tier counts it from the moment when it stores them.
    expire: bool,
}

fn byte(id: ValueId, index: usize) -> u8 {
    match index {
        0..8 => id.to_le_bytes()[index],
        _ => {
            (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (8 * (index % 8))) as u8 ^ (index / 8) as u8
        }
    }
}

impl Contents {
    pub(super) fn new(memory: Arc<Region>, expire: bool) -> Contents {
        Contents { values: Vec::new(), by_key: BTreeMap::new(), memory, expire }
    }

    /// Begins a value.
    pub(super) fn add(&mut self, namespace: usize, key: &[u8], len: u64, ttl: u64) -> ValueId {
        self.values.push(Value {
            namespace,
            key: key.to_vec(),
            len,
            sent: None,
            answered: None,
            over: None,
            removed: false,
            ttl,
            expires_at: None,
        });
        let id = self.values.len() as ValueId;
        self.by_key.entry((namespace, key.to_vec())).or_default().push(id);
        id
    }

    fn of_key(&self, namespace: usize, key: &[u8]) -> &[ValueId] {
        self.by_key.get(&(namespace, key.to_vec())).map_or(&[], Vec::as_slice)
    }

    fn value(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id as usize - 1]
    }

    pub(super) fn key(&self, id: ValueId) -> &[u8] {
        &self.values[id as usize - 1].key
    }

    pub(super) fn ttl(&self, id: ValueId) -> u64 {
        self.values[id as usize - 1].ttl
    }

    pub(super) fn bytes(&self, id: ValueId) -> Vec<u8> {
        (0..self.values[id as usize - 1].len as usize).map(|index| byte(id, index)).collect()
    }

    fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.memory.len() as u64, "offset {offset}");
        // SAFETY: the byte lies in the region.
        unsafe { self.memory.base().as_ptr().add(offset as usize) }
    }

    /// Writes some bytes of a value to its block at `offset`.
    pub(super) fn write(&self, id: ValueId, offset: u64, range: std::ops::Range<usize>) {
        for index in range {
            // SAFETY: the byte lies in the region, and this thread alone uses the memory.
            unsafe { self.at(offset + index as u64).write(byte(id, index)) };
        }
    }

    /// Returns whether the first `len` bytes at `offset` are those of a value. Looks at the ends
    /// alone unless `all`.
    pub(super) fn has(&self, id: ValueId, offset: u64, len: usize, all: bool) -> bool {
        // SAFETY: as in `write`.
        let is = |index: usize| unsafe { self.at(offset + index as u64).read() } == byte(id, index);
        match all || len < 32 {
            true => (0..len).all(is),
            false => (0..8).chain(len - 8..len).all(is),
        }
    }

    fn id_at(&self, offset: u64) -> ValueId {
        // SAFETY: as in `write`.
        let byte = |index| unsafe { self.at(offset + index).read() };
        u64::from_le_bytes(std::array::from_fn(|index| byte(index as u64)))
    }

    /// Notes that a client asks to commit a value.
    pub(super) fn commit_sent(&mut self, id: ValueId, moment: Moment) {
        self.value(id).sent.get_or_insert(moment);
    }

    /// Notes that the commit was answered.
    pub(super) fn commit_answered(&mut self, id: ValueId, moment: Moment, now: u64) {
        let expire = self.expire;
        let value = self.value(id);
        if value.answered.is_some() {
            return;
        }
        value.answered = Some(moment);
        value.expires_at = (value.ttl > 0 && expire).then_some(now + value.ttl);
        let (sent, namespace, key) =
            (value.sent.expect("sent"), value.namespace, value.key.clone());
        self.end(namespace, &key, sent, moment, false);
    }

    /// Notes that a removal of a key, requested at `sent`, was answered.
    pub(super) fn removed(&mut self, namespace: usize, key: &[u8], sent: Moment, moment: Moment) {
        self.end(namespace, key, sent, moment, true);
    }

    /// Ends the values of a key whose commits were answered before `sent`.
    fn end(&mut self, namespace: usize, key: &[u8], sent: Moment, moment: Moment, removed: bool) {
        for id in self.of_key(namespace, key).to_vec() {
            let value = self.value(id);
            if value.answered.is_some_and(|it| it < sent) {
                value.over.get_or_insert(moment);
                value.removed |= removed;
            }
        }
    }

    /// The power was cut, and the memory is another one: a value that was replaced may come back
    /// from the tier. Also one that was removed, if the disk fails.
    pub(super) fn cut_power(&mut self, memory: Arc<Region>, disk_fails: bool) {
        self.memory = memory;
        let back = self.values.iter_mut().filter(|it| !it.removed || disk_fails);
        back.for_each(|it| it.over = None);
    }

    /// The last block of the tier's journal may be lost: all values may be as they were before it.
    pub(super) fn lose_journal(&mut self) {
        self.values.iter_mut().for_each(|it| it.over = None);
    }

    /// Returns the value that an acquisition has found, which was requested at `sent`.
    pub(super) fn check_found(
        &mut self,
        (namespace, key): (usize, &[u8]),
        (offset, len): (u64, u64),
        (sent, sent_ms): (Moment, u64),
    ) -> Result<ValueId, String> {
        let id = self.id_at(offset);
        let found = format!("{key:?} of namespace {namespace} has value {id} at {offset}");
        let Some(value) = id.checked_sub(1).and_then(|it| self.values.get(it as usize)) else {
            return Err(format!("{found}, which nobody wrote"));
        };
        if (value.namespace, &*value.key, value.len) != (namespace, key, len) {
            return Err(format!("{found} with {len} bytes, which is {value:?}"));
        }
        if value.sent.is_none() {
            return Err(format!("{found}, which nobody has committed"));
        }
        if value.over.is_some_and(|over| over < sent) {
            return Err(format!("{found}, which is over: {value:?}; requested at {sent}"));
        }
        if value.expires_at.is_some_and(|it| it < sent_ms) {
            return Err(format!(
                "{found}, which has expired: {value:?}; requested at {sent_ms} ms"
            ));
        }
        if !self.has(id, offset, len as usize, true) {
            return Err(format!("{found} with other bytes"));
        }
        Ok(id)
    }

    /// Returns whether a look-up, requested at `sent`, may find a key.
    pub(super) fn may_have(&self, namespace: usize, key: &[u8], sent: Moment, now: u64) -> bool {
        let may = |it: &Value| {
            it.sent.is_some()
                && it.over.is_none_or(|over| over >= sent)
                && it.expires_at.is_none_or(|at| at >= now)
        };
        self.of_key(namespace, key).iter().any(|id| may(&self.values[*id as usize - 1]))
    }
}
