//! The value of `--tier` of `kvmem serve`: `disk:PATH` or `disk:PATH,SIZE`, and options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use kvmem::arena::ByteSize;
use kvmem_tier::Codec;
use kvmem_trace::escape::shown;
use thiserror::Error;

/// A file or block device that holds values that memory has no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeTier {
    /// The file or block device.
    pub path: PathBuf,
    /// The bytes of the file; `None`: the length of a file does not change, and a new one has four
    /// times the memory.
    pub bytes: Option<u64>,
    /// How values are compressed before they are written.
    pub codec: Codec,
    /// The file with the keys that encrypt values.
    pub key_file: Option<PathBuf>,
}

/// A value of `--tier` that names no tier.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServeTierError {
    /// It does not begin with a kind of tier.
    #[error(
        "{value:?} names no kind of tier, of which there is one, `disk`: say disk:PATH,SIZE, such \
         as disk:/nvme/kv,2TiB, or disk:PATH for a file that exists"
    )]
    Kind {
        /// The whole value.
        value: String,
    },
    /// There is no path.
    #[error("{value:?} names no file: say disk:PATH,SIZE, such as disk:/nvme/kv,2TiB")]
    NoPath {
        /// The whole value.
        value: String,
    },
    /// No codec has the name.
    #[error("{name:?} is no codec: say codec=auto, or codec=none for values as they are")]
    Codec {
        /// The name.
        name: String,
    },
    /// An option has no value.
    #[error(
        "key-file= of {value:?} names no file: say key-file=PATH, of a file with one key of 64 \
         hexadecimal digits a line"
    )]
    NoKeyFile {
        /// The whole value.
        value: String,
    },
    /// No option has the name, or it comes twice.
    #[error(
        "{option:?} is not an option of a tier, or comes twice: say codec=auto and key-file=PATH, \
         each once"
    )]
    Option {
        /// The option and its value.
        option: String,
    },
    /// The text behind the last comma is no size.
    #[error(
        "{size:?} behind the last comma is no size ({error}): say one such as 2TiB; a path that \
         has commas itself is followed by another one, as in {}",
        shown_with_comma(path)
    )]
    Size {
        /// The text.
        size: String,
        /// The reason.
        error: String,
        /// The value without `disk:`.
        path: PathBuf,
    },
}

fn shown_with_comma(path: &std::path::Path) -> String {
    format!("disk:{},", shown(path))
}

impl ServeTier {
    /// Parses the value of `--tier`. Options, `codec=NAME` and `key-file=PATH`, come last, and the
    /// path of a key file has no comma. The path of the tier is everything between `disk:` and the
    /// last comma before them; all other colons and commas belong to it.
    ///
    /// # Errors
    /// [`ServeTierError`].
    pub fn parse(value: OsString) -> Result<ServeTier, ServeTierError> {
        let whole = || value.to_string_lossy().into_owned();
        let Some(mut rest) = value.as_bytes().strip_prefix(b"disk:") else {
            return Err(ServeTierError::Kind { value: whole() });
        };
        let path_of = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (mut codec, mut key_file) = (None, None);
        while let Some(at) = rest.iter().rposition(|byte| *byte == b',') {
            let last = &rest[at + 1..];
            let Some(equals) = last.iter().position(|byte| *byte == b'=') else { break };
            match (&last[..equals], &last[equals + 1..]) {
                (b"codec", name) if codec.is_none() => {
                    let name = text_of(name);
                    codec = Some(Codec::named(&name).ok_or(ServeTierError::Codec { name })?);
                }
                (b"key-file", []) => return Err(ServeTierError::NoKeyFile { value: whole() }),
                (b"key-file", path) if key_file.is_none() => key_file = Some(path_of(path)),
                _ => return Err(ServeTierError::Option { option: text_of(last) }),
            }
            rest = &rest[..at];
        }
        let comma = rest.iter().rposition(|byte| *byte == b',');
        let (path, size) = comma.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 1..])));
        if path.is_empty() {
            return Err(ServeTierError::NoPath { value: whole() });
        }
        // The comma behind a path that has commas itself, and no size.
        let size = size.filter(|size| !size.is_empty());
        let bytes = size.map(|size| {
            let size = OsStr::from_bytes(size).to_string_lossy().into_owned();
            let parsed = size.parse::<ByteSize>().map(|size| size.0);
            parsed.map_err(|error| ServeTierError::Size {
                size,
                error: error.to_string(),
                path: path_of(rest),
            })
        });
        let (path, codec) = (path_of(path), codec.unwrap_or_default());
        Ok(ServeTier { path, bytes: bytes.transpose()?, codec, key_file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<ServeTier, ServeTierError> {
        ServeTier::parse(value.into())
    }

    fn tier(path: &str, bytes: Option<u64>) -> Result<ServeTier, ServeTierError> {
        Ok(ServeTier { path: path.into(), bytes, codec: Codec::None, key_file: None })
    }

    #[test]
    fn a_tier_is_a_path_and_a_size() {
        assert_eq!(parse("disk:/nvme/kv,2TiB"), tier("/nvme/kv", Some(2 << 40)));
        assert_eq!(parse("disk:/nvme/kv"), tier("/nvme/kv", None));
        assert_eq!(parse("disk:kv,4096"), tier("kv", Some(4096)));
        assert_eq!(
            parse("disk:/dev/disk/by-id/a:b:c,1G"),
            tier("/dev/disk/by-id/a:b:c", Some(1 << 30))
        );
        assert_eq!(parse("disk:disk:x"), tier("disk:x", None));
    }

    #[test]
    fn a_path_with_commas_is_followed_by_another_one() {
        assert_eq!(parse("disk:/a,b,2GiB"), tier("/a,b", Some(2 << 30)));
        assert_eq!(parse("disk:/a,b,"), tier("/a,b", None));
        assert_eq!(parse("disk:/a,1GiB,"), tier("/a,1GiB", None));
        assert_eq!(parse("disk:/a,,"), tier("/a,", None));
    }

    #[test]
    fn a_path_is_any_bytes() {
        let value = OsString::from_vec(b"disk:/\xff,1M".to_vec());
        let path = PathBuf::from(OsString::from_vec(b"/\xff".to_vec()));
        let parsed = ServeTier::parse(value).expect("a tier");
        assert_eq!((parsed.path, parsed.bytes), (path, Some(1 << 20)));
    }

    #[test]
    fn options_come_last_in_any_order() {
        let of = |path: &str, bytes, codec, key_file: Option<&str>| {
            let key_file = key_file.map(PathBuf::from);
            Ok(ServeTier { path: path.into(), bytes, codec, key_file })
        };
        let (auto, none) = (Codec::Auto, Codec::None);
        assert_eq!(parse("disk:/kv,codec=auto"), of("/kv", None, auto, None));
        assert_eq!(parse("disk:/kv,1M,codec=none"), of("/kv", Some(1 << 20), none, None));
        let both = of("/kv", Some(1 << 20), auto, Some("/run/k=1"));
        assert_eq!(parse("disk:/kv,1M,codec=auto,key-file=/run/k=1"), both);
        assert_eq!(parse("disk:/kv,1M,key-file=/run/k=1,codec=auto"), both);
        assert_eq!(parse("disk:/a,b,,key-file=k"), of("/a,b", None, none, Some("k")));
        // A comma behind it makes it a part of the path.
        assert_eq!(parse("disk:/a,codec=auto,"), of("/a,codec=auto", None, none, None));
    }

    #[test]
    fn errors_of_options_name_the_choices() {
        let fails = |value: &str| parse(value).expect_err("no tier").to_string();
        for (value, words) in [
            ("disk:/kv,codec=zip", "\"zip\" is no codec: say codec=auto, or codec=none"),
            ("disk:/kv,1M,codec=", "\"\" is no codec"),
            ("disk:/kv,key-file=", "names no file: say key-file=PATH"),
            ("disk:/kv,codec=auto,codec=auto", "\"codec=auto\" is not an option of a tier, or"),
            ("disk:/kv,key-file=a,key-file=b", "\"key-file=a\" is not an option"),
            ("disk:/kv,1M,key=00", "\"key=00\" is not an option"),
            ("disk:,codec=auto", "names no file"),
        ] {
            assert!(fails(value).contains(words), "{value}: {}", fails(value));
        }
    }

    #[test]
    fn errors_name_the_value_and_the_spelling() {
        let fails = |value: &str| parse(value).expect_err("no tier").to_string();
        for value in ["", "/nvme/kv", "nvme:/kv,1GiB", "Disk:/kv", "disk"] {
            let error = fails(value);
            assert!(error.contains(&format!("{value:?}")), "{error}");
            assert!(error.contains("disk:/nvme/kv,2TiB"), "{error}");
        }
        for value in ["disk:", "disk:,", "disk:,1GiB"] {
            assert!(fails(value).contains("names no file"), "{value}");
        }
        for (value, size) in [
            ("disk:/kv,2Tx", "2Tx"),
            ("disk:/kv,-1", "-1"),
            ("disk:/a,b", "b"),
            ("disk:/kv,18446744073709551616", "18446744073709551616"),
        ] {
            let error = fails(value);
            assert!(error.contains(&format!("{size:?} behind the last comma")), "{error}");
            assert!(error.contains(&format!("{value},")), "{error}");
        }
    }
}
