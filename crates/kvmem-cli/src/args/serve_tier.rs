//! The value of `--tier` of `kvmem serve`: `disk:PATH` or `disk:PATH,SIZE`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use kvmem::arena::ByteSize;
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
    /// Parses the value of `--tier`. The path is everything between `disk:` and the last comma; all
    /// other colons and commas belong to it.
    ///
    /// # Errors
    /// [`ServeTierError`].
    pub fn parse(value: OsString) -> Result<ServeTier, ServeTierError> {
        let whole = || value.to_string_lossy().into_owned();
        let Some(rest) = value.as_bytes().strip_prefix(b"disk:") else {
            return Err(ServeTierError::Kind { value: whole() });
        };
        let path_of = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
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
        Ok(ServeTier { path: path_of(path), bytes: bytes.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<ServeTier, ServeTierError> {
        ServeTier::parse(value.into())
    }

    fn tier(path: &str, bytes: Option<u64>) -> Result<ServeTier, ServeTierError> {
        Ok(ServeTier { path: path.into(), bytes })
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
        assert_eq!(ServeTier::parse(value), Ok(ServeTier { path, bytes: Some(1 << 20) }));
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
