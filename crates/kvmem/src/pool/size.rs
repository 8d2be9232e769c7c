//! *Pool size*: bytes, as a number or as a text.

use super::PoolError;
use crate::arena::{ByteSize, SizeError};

/// The size of a pool: a number of bytes, or a text such as `"64GiB"`, which is parsed like every
/// [`ByteSize`]. If the text is not a size, building the pool fails.
///
/// ```
/// use kvmem::pool::PoolSize;
///
/// assert_eq!(PoolSize::from("64 GiB"), PoolSize::from(64 << 30));
/// ```
#[derive(Clone, Debug)]
pub struct PoolSize(Input);

#[derive(Clone, Debug)]
enum Input {
    Bytes(usize),
    Text(String),
}

impl PoolSize {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// [`PoolError::Size`] if the text is not a size.
    pub fn bytes(&self) -> Result<usize, PoolError> {
        match &self.0 {
            Input::Bytes(bytes) => Ok(*bytes),
            Input::Text(text) => match text.parse() {
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
    /// Returns whether both are the same number of bytes. A text that is not a size equals nothing.
    fn eq(&self, other: &PoolSize) -> bool {
        matches!((self.bytes(), other.bytes()), (Ok(one), Ok(two)) if one == two)
    }
}

impl From<usize> for PoolSize {
    fn from(bytes: usize) -> PoolSize {
        PoolSize(Input::Bytes(bytes))
    }
}

impl From<&str> for PoolSize {
    fn from(text: &str) -> PoolSize {
        PoolSize(Input::Text(text.to_owned()))
    }
}

impl From<String> for PoolSize {
    fn from(text: String) -> PoolSize {
        PoolSize(Input::Text(text))
    }
}
