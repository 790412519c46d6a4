//! An optional checksum at the end of a payload, for networks and files that may change bits unnoticed.

use crate::Error;
use crate::checksum;
use crate::error::expect_room;

/// Bytes that [`seal`] adds to a payload. Sizes in tables and plans do not include these bytes.
pub const SEAL_LEN: usize = checksum::LEN;

/// Writes a checksum of `payload[..len]` to the [`SEAL_LEN`] bytes after it. Returns the length of payload and checksum
/// in bytes. [`unseal`] refuses a payload that changed after [`seal`]. Without a checksum, a changed bit is found only
/// if it makes the payload unreadable. Most changed codes and values decode without an error, to wrong numbers.
///
/// ```
/// use lgreco_core::Error;
/// use lgreco_compress::{SEAL_LEN, seal, unseal};
/// let mut message = [1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]; // a payload of 3 bytes, and memory for the checksum
/// assert_eq!(seal(&mut message, 3)?, 3 + SEAL_LEN);
/// assert_eq!(unseal(&message)?, [1, 2, 3]);
/// message[1] ^= 4;
/// assert!(matches!(unseal(&message), Err(Error::Checksum { .. })));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `payload` is shorter than `len` bytes and the checksum. Nothing is written then.
///
/// # Complexity
/// One pass over `len` bytes.
pub fn seal(payload: &mut [u8], len: usize) -> Result<usize, Error> {
    let sealed = len.saturating_add(SEAL_LEN);
    expect_room("payload bytes", sealed, payload.len())?;
    checksum::seal(&mut payload[..sealed]);
    Ok(sealed)
}

/// Checks a message from [`seal`], and returns the payload in it. The message may be any bytes.
///
/// # Errors
/// [`Error::Checksum`] when a bit of the payload or the checksum has changed, or when the end is missing.
/// [`Error::Length`] when there are fewer bytes than a checksum has.
///
/// # Complexity
/// O(bytes), one pass.
pub fn unseal(sealed: &[u8]) -> Result<&[u8], Error> {
    expect_room("payload bytes", SEAL_LEN, sealed.len())?;
    checksum::open(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::{Dtype, Gradient, Shape, Values};
    use crate::rng::Stream;
    use crate::{Compressor, Setting, decode, qsgd::Qsgd};
    use alloc::vec;

    #[test]
    fn every_flipped_bit_of_a_sealed_payload_is_refused() {
        let shape = Shape::new(5, 3).unwrap();
        let setting = Setting::Qsgd(Qsgd { bits: 4, bucket: 8, ..Qsgd::default() });
        let values: [f32; 15] = core::array::from_fn(|i| i as f32 - 7.0);
        let gradient = Gradient::new(Values::F32(&values), shape).unwrap();
        let len = setting.payload_len(shape, Dtype::F32).unwrap();
        let mut sealed = vec![0; len + SEAL_LEN];
        setting.encode(&gradient, Stream::default(), &mut [], &mut sealed).unwrap();
        let short = sealed.len() - 1;
        let before = sealed.clone();
        assert!(matches!(seal(&mut sealed[..short], len), Err(Error::Length { .. })));
        assert_eq!(sealed, before);
        assert!(matches!(seal(&mut sealed, usize::MAX), Err(Error::Length { .. })));
        assert_eq!(seal(&mut sealed, len), Ok(sealed.len()));
        for bit in 0..8 * sealed.len() {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(unseal(&changed), Err(Error::Checksum { .. })), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert!(unseal(&sealed[..len]).is_err(), "{len} bytes");
        }
        let mut decoded = [f32::NAN; 15];
        decode(unseal(&sealed).unwrap(), &mut decoded).unwrap();
        assert!(decoded.iter().all(|x| x.is_finite()));
    }
}
