//! *Pool size*: bytes, as a number or as people write them.

use super::PoolError;
use crate::arena::{ByteSize, SizeError};

/// How large a pool is to be: a number of bytes, or a text such as `"64GiB"`, which is read as
/// every [`ByteSize`]. A text that is no size is told when the pool is built.
///
/// ```
/// use kvmem::pool::PoolSize;
///
/// assert_eq!(PoolSize::from("64 GiB"), PoolSize::from(64 << 30));
/// ```
#[derive(Clone, Debug)]
pub struct PoolSize(Said);

#[derive(Clone, Debug)]
enum Said {
    Bytes(usize),
    Text(String),
}

impl PoolSize {
    /// The number of bytes.
    ///
    /// # Errors
    /// [`PoolError::Size`] if the text is none.
    pub fn bytes(&self) -> Result<usize, PoolError> {
        match &self.0 {
            Said::Bytes(bytes) => Ok(*bytes),
            Said::Text(text) => match text.parse() {
                // A size is at most `isize::MAX`.
                Ok(ByteSize(bytes)) => Ok(bytes as usize),
                Err(SizeError { text, fault }) => {
                    Err(PoolError::Size { text, fault: Box::new(fault) })
                }
            },
        }
    }
}

impl PartialEq for PoolSize {
    /// Whether both are the same number of bytes; what is no size equals nothing.
    fn eq(&self, other: &PoolSize) -> bool {
        matches!((self.bytes(), other.bytes()), (Ok(one), Ok(two)) if one == two)
    }
}

impl From<usize> for PoolSize {
    fn from(bytes: usize) -> PoolSize {
        PoolSize(Said::Bytes(bytes))
    }
}

impl From<&str> for PoolSize {
    fn from(text: &str) -> PoolSize {
        PoolSize(Said::Text(text.to_owned()))
    }
}

impl From<String> for PoolSize {
    fn from(text: String) -> PoolSize {
        PoolSize(Said::Text(text))
    }
}
