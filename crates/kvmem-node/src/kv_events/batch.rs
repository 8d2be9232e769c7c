//! *Batches*: events in vLLM's form, `KVEventBatch`, in MessagePack.
//!
//! A batch is an array of the time, the events, and the rank in a data-parallel group, which a node
//! has not. An event is a map from the names of fields to values, with the name of its class under
//! `type`; fields with default values are left out. vLLM has this form since its events have
//! groups.

use serde_json::Value;

use super::description::Description;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Medium {
    Cpu,
    Storage,
}

impl Medium {
    pub(super) fn name(self) -> &'static str {
        match self {
            Medium::Cpu => "CPU",
            Medium::Storage => "STORAGE",
        }
    }
}

/// The hash of a block, as events have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockHash<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

/// A block that is stored.
pub(super) struct Stored<'a> {
    pub(super) hashes: &'a [BlockHash<'a>],
    pub(super) parent: Option<BlockHash<'a>>,
    pub(super) medium: Medium,
    pub(super) group: Option<u32>,
    pub(super) about: Option<&'a Description<'a>>,
}

/// Blocks that are removed.
pub(super) struct Removed<'a> {
    pub(super) hashes: Vec<BlockHash<'a>>,
    pub(super) medium: Medium,
    pub(super) group: Option<u32>,
}

/// A batch that grows.
#[derive(Default)]
pub(super) struct Batch {
    events: Vec<u8>,
    pub(super) len: u32,
}

impl Batch {
    /// Returns the bytes of its events so far.
    pub(super) fn bytes(&self) -> usize {
        self.events.len()
    }

    pub(super) fn clear(&mut self) {
        self.event("AllBlocksCleared", 0);
    }

    pub(super) fn stored(&mut self, it: &Stored<'_>) {
        let about = it.about;
        let kind = about.and_then(|about| about.kind);
        let window = about.and_then(|about| about.sliding_window);
        let extra = about.and_then(|about| about.extra_keys.as_ref());
        let has = [extra.is_some(), it.group.is_some(), kind.is_some(), window.is_some(), true];
        self.event("BlockStored", 7 + has.into_iter().filter(|has| *has).count());
        self.hashes(it.hashes);
        self.name("parent_block_hash");
        match it.parent {
            Some(parent) => self.hash(parent),
            None => nil(&mut self.events),
        }
        self.name("token_ids");
        let tokens = about.map(Description::tokens);
        array(&mut self.events, tokens.as_ref().map_or(0, ExactSizeIterator::len));
        for token in tokens.into_iter().flatten() {
            uint(&mut self.events, token.into());
        }
        self.name("block_size");
        uint(&mut self.events, about.map_or(0, |about| about.block_size.into()));
        self.name("lora_id");
        match about.and_then(|about| about.lora_id) {
            Some(number) => uint(&mut self.events, number),
            None => nil(&mut self.events),
        }
        self.name("medium");
        string(&mut self.events, it.medium.name());
        self.name("lora_name");
        match about.and_then(|about| about.lora_name) {
            Some(name) => string(&mut self.events, name),
            None => nil(&mut self.events),
        }
        if let Some(extra) = extra {
            self.name("extra_keys");
            value(&mut self.events, extra);
        }
        self.group(it.group);
        if let Some(kind) = kind {
            self.name("kv_cache_spec_kind");
            string(&mut self.events, kind);
        }
        if let Some(window) = window {
            self.name("kv_cache_spec_sliding_window");
            uint(&mut self.events, window);
        }
        self.locality();
    }

    pub(super) fn removed(&mut self, it: &Removed<'_>) {
        self.event("BlockRemoved", 3 + usize::from(it.group.is_some()));
        self.hashes(&it.hashes);
        self.name("medium");
        string(&mut self.events, it.medium.name());
        self.group(it.group);
        self.locality();
    }

    /// Returns the batch, and begins the next one.
    pub(super) fn take(&mut self, seconds: f64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.events.len() + 16);
        array(&mut out, 3);
        out.push(0xCB);
        out.extend(seconds.to_be_bytes());
        array(&mut out, std::mem::take(&mut self.len) as usize);
        out.append(&mut self.events);
        nil(&mut out);
        out
    }

    /// Begins an event with this number of fields.
    fn event(&mut self, class: &str, fields: usize) {
        self.len += 1;
        map(&mut self.events, fields + 1);
        self.name("type");
        string(&mut self.events, class);
    }

    fn name(&mut self, name: &str) {
        string(&mut self.events, name);
    }

    fn group(&mut self, group: Option<u32>) {
        if let Some(group) = group {
            self.name("group_idx");
            uint(&mut self.events, group.into());
        }
    }

    fn locality(&mut self) {
        self.name("locality");
        string(&mut self.events, "LOCAL");
    }

    fn hashes(&mut self, hashes: &[BlockHash<'_>]) {
        self.name("block_hashes");
        array(&mut self.events, hashes.len());
        hashes.iter().for_each(|hash| self.hash(*hash));
    }

    fn hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Number(number) => uint(&mut self.events, number),
            BlockHash::Bytes(bytes) => {
                head(&mut self.events, bytes.len(), None, [0xC4, 0xC5, 0xC6]);
                self.events.extend(bytes);
            }
        }
    }
}

fn nil(out: &mut Vec<u8>) {
    out.push(0xC0);
}

/// Adds a length: in the first byte if it is short, or behind the tag of its width in 1, 2 or 4
/// bytes. A tag 0 stands for a width that the type lacks.
fn head(out: &mut Vec<u8>, len: usize, short: Option<(u8, usize)>, tags: [u8; 3]) {
    match (short, u8::try_from(len), u16::try_from(len)) {
        (Some((tag, limit)), Ok(len), _) if usize::from(len) < limit => out.push(tag | len),
        (_, Ok(len), _) if tags[0] != 0 => out.extend([tags[0], len]),
        (_, _, Ok(len)) => {
            out.push(tags[1]);
            out.extend(len.to_be_bytes());
        }
        _ => {
            out.push(tags[2]);
            // Nothing here has 4 GiB.
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn array(out: &mut Vec<u8>, len: usize) {
    head(out, len, Some((0x90, 16)), [0, 0xDC, 0xDD]);
}

fn map(out: &mut Vec<u8>, len: usize) {
    head(out, len, Some((0x80, 16)), [0, 0xDE, 0xDF]);
}

fn string(out: &mut Vec<u8>, text: &str) {
    head(out, text.len(), Some((0xA0, 32)), [0xD9, 0xDA, 0xDB]);
    out.extend(text.as_bytes());
}

fn uint(out: &mut Vec<u8>, number: u64) {
    match number {
        0..0x80 => out.push(number as u8),
        0x80..0x100 => out.extend([0xCC, number as u8]),
        0x100..0x1_0000 => {
            out.push(0xCD);
            out.extend((number as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(0xCE);
            out.extend((number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xCF);
            out.extend(number.to_be_bytes());
        }
    }
}

/// Adds what JSON has.
fn value(out: &mut Vec<u8>, it: &Value) {
    match it {
        Value::Null => nil(out),
        Value::Bool(it) => out.push(0xC2 + u8::from(*it)),
        Value::Number(it) => match (it.as_u64(), it.as_i64()) {
            (Some(it), _) => uint(out, it),
            (_, Some(it)) => {
                out.push(0xD3);
                out.extend(it.to_be_bytes());
            }
            _ => {
                out.push(0xCB);
                out.extend(it.as_f64().unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(it) => string(out, it),
        Value::Array(all) => {
            array(out, all.len());
            all.iter().for_each(|it| value(out, it));
        }
        Value::Object(all) => {
            map(out, all.len());
            for (key, it) in all {
                string(out, key);
                value(out, it);
            }
        }
    }
}
