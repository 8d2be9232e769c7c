//! *Session*: the keys of one opening of a tier, and those of earlier ones, as far as values need
//! them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroize;

use super::keyring::{KEY, KeyId};
use super::locked::Locked;

/// The most derived keys in memory: a page of locked memory each.
const MAX_KEYS: usize = 32;

/// The random bytes of a session.
pub(crate) type SessionId = [u8; 16];

/// Returns random bytes of the system; `None` if it has none.
pub(super) fn random() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().map(|()| bytes)
}

/// The names of a session key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Derivation {
    pub(crate) key: KeyId,
    pub(crate) seed: [u8; 16],
    pub(crate) session: SessionId,
}

/// A derived key in locked memory; in memory that is not, if this process may lock no more.
enum SessionKey {
    Locked(Locked<LessSafeKey>),
    Plain(Box<LessSafeKey>),
}

impl SessionKey {
    fn get(&self) -> &LessSafeKey {
        match self {
            SessionKey::Locked(key) => key,
            SessionKey::Plain(key) => key,
        }
    }
}

/// Seals values under the key of this session, and opens those of all sessions.
pub(crate) struct Session {
    id: SessionId,
    /// The next nonce.
    counter: AtomicU64,
    /// The key that was used last is behind all others.
    keys: Mutex<VecDeque<(Derivation, Arc<SessionKey>)>>,
}

/// A key of 32 bytes.
struct KeyBytes;

impl KeyType for KeyBytes {
    fn len(&self) -> usize {
        KEY
    }
}

/// Derives the key of a namespace, and from that the key of a session.
fn derive(master: &[u8; KEY], of: &Derivation) -> UnboundKey {
    let mut namespace_key = [0; KEY];
    Salt::new(HKDF_SHA256, &of.seed)
        .extract(master)
        .expand(&[b"kvmem namespace"], KeyBytes)
        .and_then(|okm| okm.fill(&mut namespace_key))
        .expect("HKDF-SHA256 makes up to 8160 bytes");
    let namespace = Prk::new_less_safe(HKDF_SHA256, &namespace_key);
    namespace_key.zeroize();
    let info: [&[u8]; 2] = [b"kvmem session", &of.session];
    let session = namespace.expand(&info, &AES_256_GCM);
    session.expect("HKDF-SHA256 makes up to 8160 bytes").into()
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Session {
    /// Begins a session; `None` if the system has no random numbers.
    pub(crate) fn begin() -> Option<Session> {
        let keys = Mutex::new(VecDeque::new());
        Some(Session { id: random()?, counter: AtomicU64::new(0), keys })
    }

    /// Returns the identity and a number that no other value of this session has.
    pub(crate) fn next(&self) -> (SessionId, u64) {
        // Relaxed: only the number itself counts.
        (self.id, self.counter.fetch_add(1, Ordering::Relaxed))
    }

    fn key(&self, master: &[u8; KEY], of: &Derivation) -> Arc<SessionKey> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = keys.iter().rposition(|(name, _)| name == of) {
            let found = keys.remove(at).expect("it is there");
            keys.push_back(found);
        } else {
            let key = LessSafeKey::new(derive(master, of));
            let key = lock(key, || LessSafeKey::new(derive(master, of)));
            keys.push_back((*of, Arc::new(key)));
            if keys.len() > MAX_KEYS {
                keys.pop_front();
            }
        }
        Arc::clone(&keys.back().expect("it has one").1)
    }

    /// Encrypts bytes in place; returns the tag. `None` if they are too long for one nonce: about
    /// 64 GiB.
    pub(crate) fn seal(
        &self,
        master: &[u8; KEY],
        of: &Derivation,
        counter: u64,
        bound: &[u8],
        bytes: &mut [u8],
    ) -> Option<[u8; 16]> {
        let key = self.key(master, of);
        let sealed =
            key.get().seal_in_place_separate_tag(nonce(counter), Aad::from(bound), bytes).ok()?;
        sealed.as_ref().try_into().ok()
    }

    /// Decrypts bytes in place; `None` if the tag is not theirs. They mean nothing then.
    pub(crate) fn open(
        &self,
        master: &[u8; KEY],
        of: &Derivation,
        counter: u64,
        bound: &[u8],
        bytes: &mut [u8],
        tag: [u8; 16],
    ) -> Option<()> {
        let key = self.key(master, of);
        let (nonce, tag) = (nonce(counter), Tag::from(tag));
        let opened = key.get().open_in_place_separate_tag(nonce, Aad::from(bound), tag, bytes, 0..);
        opened.ok().map(drop)
    }

    /// Drops the keys that were derived from a seed.
    pub(crate) fn forget(&self, seed: &[u8; 16]) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|(of, _)| of.seed != *seed);
    }
}

/// Moves a key into locked memory. `again` derives it once more if that fails.
fn lock(key: LessSafeKey, again: impl FnOnce() -> LessSafeKey) -> SessionKey {
    let locked: io::Result<Locked<LessSafeKey>> = Locked::new(key);
    locked.map_or_else(|_| SessionKey::Plain(Box::new(again())), SessionKey::Locked)
}
