//! *Output*: the bytes of a message that is encoded.

use postcard::ser_flavors::Flavor;

/// The longest piece that is appended byte by byte: that of a number of 64 bits. A call of `memcpy`
/// for each number takes a tenth of the time of a call.
const SHORT: usize = 10;

/// Appends to a vector.
pub(super) struct Output<'a>(pub(super) &'a mut Vec<u8>);

impl Flavor for Output<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() <= SHORT {
            bytes.iter().for_each(|byte| self.0.push(*byte));
        } else {
            self.0.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
