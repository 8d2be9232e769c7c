//! [`Keyring`]: the keys of a key file, in locked memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use thiserror::Error;

use super::locked::Locked;

/// Bytes of a key.
pub(crate) const KEY: usize = 32;
/// The most keys of a file.
const MAX_KEYS: usize = 64;
/// The most bytes of a file.
const MAX_FILE: usize = 16 << 10;
/// Bits of the mode that a key file may not have: access of others, writing by the group.
const FORBIDDEN: u32 = 0o027;

/// The name of a key: 8 bytes derived from it, which do not disclose it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl KeyId {
    fn of(key: &[u8; KEY]) -> KeyId {
        struct Len;
        impl KeyType for Len {
            fn len(&self) -> usize {
                8
            }
        }
        let mut id = [0; 8];
        Salt::new(HKDF_SHA256, &[])
            .extract(key)
            .expand(&[b"kvmem key id"], Len)
            .and_then(|okm| okm.fill(&mut id))
            .expect("HKDF-SHA256 makes up to 8160 bytes");
        KeyId(id)
    }
}

/// A key file cannot be used. No text of an error has bytes of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The file cannot be opened or read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users may read the file, or its group may write to it.
    #[error(
        "the key file {} has the mode {mode:04o}, so other users can read or change it: \
         `chmod 0400 {}`",
        path.display(), path.display()
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is too long to be a key file.
    #[error(
        "the key file {} has more than {MAX_FILE} bytes: it has one key of 64 hexadecimal digits \
         a line",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line is no key.
    #[error(
        "line {line} of the key file {} has {found} characters that are not a key: write 64 \
         hexadecimal digits, such as those of `openssl rand -hex 32`, or `#` before a comment",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its characters.
        found: usize,
    },
    /// Two lines have the same key.
    #[error(
        "line {line} of the key file {} repeats the key of an earlier line: remove it",
        path.display()
    )]
    Repeated {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// There are too many keys.
    #[error(
        "the key file {} has more than {MAX_KEYS} keys: remove those with which no value is \
         encrypted any more",
        path.display()
    )]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// There is no key.
    #[error(
        "the key file {} has no key: add a line with the 64 digits of `openssl rand -hex 32`",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The system does not lock memory for keys.
    #[error(
        "cannot lock the memory for keys, which would be swapped to a disk otherwise: {source}. \
         Allow this process to lock 64 KiB more (`ulimit -l`, systemd's `LimitMEMLOCK=`)"
    )]
    Lock {
        /// The system's error.
        source: io::Error,
    },
}

struct Keys {
    len: usize,
    bytes: [[u8; KEY]; MAX_KEYS],
}

/// The keys that values are encrypted with: the first one writes, all of them read.
///
/// A key file has one key a line: 64 hexadecimal digits. Empty lines and those that begin with `#`
/// are comments. To *rotate* keys, put a new one before the others, and remove the old one when no
/// value needs it any more.
///
/// The keys lie in memory that is locked, left out of core dumps, and wiped at the end. Nothing
/// prints them.
pub struct Keyring {
    ids: Vec<KeyId>,
    keys: Locked<Keys>,
}

impl Keyring {
    /// Reads a key file. Only its owner may be able to change it, and no others to read it; the
    /// group may read it. A pipe, such as `/dev/fd/3`, is a key file, too.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Keyring, KeyringError> {
        let path = path.as_ref();
        let file = File::open(path)
            .map_err(|source| KeyringError::Read { path: path.to_owned(), source })?;
        Keyring::read(file, path)
    }

    /// Reads the keys from a descriptor, up to its end.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn from_fd(file: OwnedFd) -> Result<Keyring, KeyringError> {
        use std::os::fd::AsRawFd;
        let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        Keyring::read(file.into(), &path)
    }

    fn read(mut file: File, path: &Path) -> Result<Keyring, KeyringError> {
        let lock = |source| KeyringError::Lock { source };
        let failed = |source| KeyringError::Read { path: path.to_owned(), source };
        let about = file.metadata().map_err(failed)?;
        let mode = about.mode() & 0o7777;
        if about.is_file() && mode & FORBIDDEN != 0 {
            return Err(KeyringError::Mode { path: path.to_owned(), mode });
        }
        let mut text = Locked::new([0_u8; MAX_FILE]).map_err(lock)?;
        let mut len = 0;
        while len < MAX_FILE {
            match file.read(&mut text[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if len == MAX_FILE {
            return Err(KeyringError::TooLong { path: path.to_owned() });
        }
        let mut keys = Locked::new(Keys { len: 0, bytes: [[0; KEY]; MAX_KEYS] }).map_err(lock)?;
        let mut ids = Vec::new();
        for (line, text) in (1..).zip(text[..len].split(|&byte| byte == b'\n')) {
            let text = text.trim_ascii();
            if text.is_empty() || text[0] == b'#' {
                continue;
            }
            let Keys { len, bytes } = &mut *keys;
            let Some(key) = bytes.get_mut(*len) else {
                return Err(KeyringError::TooMany { path: path.to_owned() });
            };
            if !read_hex(text, key) {
                let found = String::from_utf8_lossy(text).chars().count();
                return Err(KeyringError::Line { path: path.to_owned(), line, found });
            }
            let id = KeyId::of(key);
            if ids.contains(&id) {
                return Err(KeyringError::Repeated { path: path.to_owned(), line });
            }
            ids.push(id);
            *len += 1;
        }
        if ids.is_empty() {
            return Err(KeyringError::Empty { path: path.to_owned() });
        }
        Ok(Keyring { ids, keys })
    }

    /// Returns the name of the key that writes.
    #[must_use]
    pub fn writes_with(&self) -> KeyId {
        self.ids[0]
    }

    /// Returns the names of all keys, in the order of their lines.
    #[must_use]
    pub fn ids(&self) -> &[KeyId] {
        &self.ids
    }

    /// Returns the key with a name.
    pub(crate) fn key(&self, id: KeyId) -> Option<&[u8; KEY]> {
        let place = self.ids.iter().position(|one| *one == id)?;
        self.keys.bytes[..self.keys.len].get(place)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("ids", &self.ids).finish_non_exhaustive()
    }
}

/// Reads the hexadecimal digits of a key; returns whether they are one.
fn read_hex(text: &[u8], key: &mut [u8; KEY]) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    pairs.len() == KEY
        && rest.is_empty()
        && pairs.iter().zip(key).all(|(&[high, low], byte)| {
            let value = digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low);
            *byte = value.unwrap_or_default();
            value.is_some()
        })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const A: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const B: &str = "FFEEDDCCBBAA99887766554433221100ffeeddccbbaa99887766554433221100";

    fn read(text: &str, mode: u32) -> Result<Keyring, KeyringError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Keyring::open(&path)
    }

    #[test]
    fn a_file_has_keys_comments_and_empty_lines() {
        let keyring = read(&format!("# the key of May\n\n{A}\r\n  {B}  \n"), 0o400).unwrap();
        assert_eq!(keyring.ids().len(), 2);
        assert_eq!(keyring.writes_with(), keyring.ids()[0]);
        let expected: Vec<u8> = (0..32).collect();
        assert_eq!(keyring.key(keyring.ids()[0]).unwrap()[..], expected);
        assert_eq!(keyring.key(keyring.ids()[1]).unwrap()[0], 0xFF);
        assert_eq!(keyring.key(KeyId([0; 8])), None);
        // The names do not change with the place in the file.
        let other = read(&format!("{B}\n{A}"), 0o640).unwrap();
        assert_eq!(other.ids(), [keyring.ids()[1], keyring.ids()[0]]);
        let text = format!("{keyring:?}");
        assert!(text.contains(&keyring.ids()[0].to_string()), "{text}");
        assert!(!text.contains("0405") && !text.contains("4, 5"), "{text}");
    }

    #[test]
    fn a_descriptor_is_read_to_its_end() {
        use std::io::Write;
        let (read, mut write) = io::pipe().unwrap();
        write.write_all(A.as_bytes()).unwrap();
        drop(write);
        assert_eq!(Keyring::from_fd(read.into()).unwrap().ids().len(), 1);
    }

    #[test]
    fn errors_name_the_place_and_the_remedy() {
        for (text, mode, expected, remedy) in [
            (A.to_owned(), 0o644, "mode 0644", "chmod 0400"),
            (A.to_owned(), 0o620, "mode 0620", "chmod 0400"),
            (String::new(), 0o600, "has no key", "openssl rand -hex 32"),
            ("#\n".to_owned(), 0o600, "has no key", "openssl rand -hex 32"),
            (format!("{A}\n{A}0\n"), 0o600, "line 2", "64 hexadecimal digits"),
            (format!("{A}\n\n{}", &A[..63]), 0o600, "line 3", "64 hexadecimal digits"),
            (format!("g{}", &A[1..]), 0o600, "line 1", "64 hexadecimal digits"),
            (format!("{A}\n#\n{A}\n"), 0o600, "line 3", "remove it"),
            (" ".repeat(MAX_FILE), 0o600, "more than 16384 bytes", "one key"),
        ] {
            let error = read(&text, mode).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(remedy), "{error}");
            assert!(error.contains("/keys") && !error.contains("0405"), "{error}");
        }
        let many: String = (0..=MAX_KEYS).map(|key| format!("{key:064x}\n")).collect();
        let error = read(&many, 0o600).unwrap_err();
        assert!(matches!(error, KeyringError::TooMany { .. }), "{error}");
        let error = Keyring::open("/nowhere/keys").unwrap_err();
        assert!(matches!(error, KeyringError::Read { .. }), "{error}");
    }
}
