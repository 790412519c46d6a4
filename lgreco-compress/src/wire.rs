//! The 16-byte header at the start of every payload. All fields are little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | magic, `0x4c` (`L`) |
//! | 1 | version, 1 |
//! | 2 | [`Method`] |
//! | 3 | `variant`: the method's small parameters (bit width, scale, value type) |
//! | 4..8 | `parameter`: bucket size (QSGD), kept values (TopK), rank (PowerSGD), values sent (AdaComp), group size (LoCo), bits (EDEN), 0 (dense) |
//! | 8..12 | rows of the tensor |
//! | 12..16 | columns of the tensor |
//!
//! [`Payload::parse`] checks the header. Each method checks that the body has the length that the header implies, and
//! that no position is outside the tensor. Payloads of outside methods also state the length of their body. So a
//! payload's length can be read from its first bytes, and payloads can be concatenated
//! ([`stated_len`](super::stated_len)).
//!
//! Most methods have one length per shape and element type (`has_fixed_len`), known before encoding. For hard
//! thresholds, SIDCo and AdaComp, the length depends on the values. For lengths that depend on the values,
//! `payload_len` is an upper bound, and buffers have this length. Error tables hold measured lengths. In an exchange,
//! an all-gather of 24 bytes announces every worker's length, and each message is only as long as needed. Receivers
//! refuse lengths above the bound.
//!
//! All sizes include every byte that a worker sends for the layer, including the header. Tests compare the sizes with
//! the encoder's payloads.

use crate::gradient::Shape;
use crate::{Error, Result};
use lgreco_core::method::FIRST_ID;

/// Bytes of the header.
pub const HEADER_LEN: usize = 16;
/// First byte of every payload.
pub const MAGIC: u8 = b'L';
/// Second byte of every payload.
pub const VERSION: u8 = 1;

/// The compression method in the header.
///
/// ```
/// # use lgreco_compress::wire::Method;
/// assert_eq!([Method::Dense, Method::Qsgd, Method::TopK, Method::PowerSgd].map(Method::id), [0, 1, 2, 3]);
/// assert_eq!([Method::AdaComp, Method::LoCo, Method::QuantisedTopK, Method::Eden].map(Method::id), [4, 5, 6, 10]);
/// assert_eq!(Method::Own(0x80).id(), 0x80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Uncompressed values.
    Dense,
    /// Values quantised in buckets.
    Qsgd,
    /// The largest magnitudes, with their positions.
    TopK,
    /// A product of two thin matrices.
    PowerSgd,
    /// One magnitude, with signs and positions.
    AdaComp,
    /// 4-bit codes in groups.
    LoCo,
    /// The largest magnitudes, each as a sign and a bin, with their positions.
    QuantisedTopK,
    /// Codes of rotated blocks of values.
    Eden,
    /// A method from outside lgreco, with this id.
    Own(u8),
}

const METHODS: [Method; 8] = [
    Method::Dense,
    Method::Qsgd,
    Method::TopK,
    Method::PowerSgd,
    Method::AdaComp,
    Method::LoCo,
    Method::QuantisedTopK,
    Method::Eden,
];

impl Method {
    /// Number of the method in the header.
    pub const fn id(self) -> u8 {
        match self {
            Method::Dense => 0,
            Method::Qsgd => 1,
            Method::TopK => 2,
            Method::PowerSgd => 3,
            Method::AdaComp => 4,
            Method::LoCo => 5,
            Method::QuantisedTopK => 6,
            // Ids 7 to 9 belong to settings with payloads in TopK's format.
            Method::Eden => 10,
            Method::Own(id) => id,
        }
    }

    /// The method with this number, if there is one.
    pub(super) fn from_id(id: u8) -> Option<Method> {
        if id >= FIRST_ID { Some(Method::Own(id)) } else { METHODS.into_iter().find(|method| method.id() == id) }
    }
}

/// A payload's header.
///
/// ```
/// use lgreco_compress::wire::{HEADER_LEN, Header, Method, Payload};
/// use lgreco_core::gradient::Shape;
/// let header = Header { method: Method::TopK, variant: 0, parameter: 41, shape: Shape::new(64, 64)? };
/// let mut payload = [0; HEADER_LEN];
/// header.write(&mut payload)?;
/// assert_eq!(Payload::parse(&payload)?.header, header);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The method that compressed the tensor.
    pub method: Method,
    /// The method's small parameters.
    pub variant: u8,
    /// The method's large parameter.
    pub parameter: u32,
    /// Shape of the tensor.
    pub shape: Shape,
}

impl Header {
    /// Writes the header into the first [`HEADER_LEN`] bytes of `payload`.
    ///
    /// # Errors
    /// [`Error::Length`] when `payload` is shorter.
    pub fn write(&self, payload: &mut [u8]) -> Result<()> {
        crate::error::expect_room("payload bytes", HEADER_LEN, payload.len())?;
        payload[..4].copy_from_slice(&[MAGIC, VERSION, self.method.id(), self.variant]);
        payload[4..8].copy_from_slice(&self.parameter.to_le_bytes());
        payload[8..12].copy_from_slice(&(self.shape.rows() as u32).to_le_bytes());
        payload[12..16].copy_from_slice(&(self.shape.cols() as u32).to_le_bytes());
        Ok(())
    }

    /// Returns an error unless the header has this method.
    pub(super) fn expect_method(&self, method: Method) -> Result<()> {
        expect("method", method.id().into(), self.method.id().into())
    }

    /// Returns an error unless the header has this variant.
    pub(super) fn expect_variant(&self, variant: u8) -> Result<()> {
        expect("variant", variant.into(), self.variant.into())
    }

    /// Returns an error unless the header has this parameter.
    pub(super) fn expect_parameter(&self, parameter: u32) -> Result<()> {
        expect("parameter", parameter.into(), self.parameter.into())
    }
}

/// Bytes of a payload whose body has `body` bytes.
pub(super) fn payload_len(body: u64, shape: Shape) -> Result<usize> {
    let len = usize::try_from(HEADER_LEN as u64 + body);
    len.map_err(|_| Error::TooManyElements { rows: shape.rows(), cols: shape.cols() })
}

fn expect(what: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::PayloadHeader { what, expected, found }) }
}

/// A payload whose header has been checked.
///
/// ```
/// use lgreco_compress::wire::Payload;
/// let bytes = [b'L', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0x00, 0x3c]; // one dense f16
/// let payload = Payload::parse(&bytes)?;
/// assert_eq!((payload.header.shape.elements(), payload.body), (1, [0x00, 0x3c].as_slice()));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// The header.
    pub header: Header,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Splits bytes into header and body.
    ///
    /// # Errors
    /// [`Error::Length`] when there are fewer bytes than a header. [`Error::PayloadHeader`] on a wrong magic number or
    /// version. [`Error::PayloadField`] on an unknown method. [`Error::TooManyElements`] on a shape of 2^32 elements or
    /// more.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        crate::error::expect_room("payload bytes", HEADER_LEN, bytes.len())?;
        let (header, body) = bytes.split_at(HEADER_LEN);
        expect("magic", MAGIC.into(), header[0].into())?;
        expect("version", VERSION.into(), header[1].into())?;
        let method = Method::from_id(header[2]).ok_or(Error::PayloadField {
            what: "method",
            largest: Method::Eden.id().into(),
            found: header[2] as u64,
        })?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let shape = Shape::new(word(8) as usize, word(12) as usize)?;
        Ok(Payload { header: Header { method, variant: header[3], parameter: word(4), shape }, body })
    }

    /// The body, if it has exactly `expected` bytes.
    ///
    /// # Errors
    /// [`Error::Length`] when the body has more or fewer bytes.
    pub fn body_of_len(&self, expected: usize) -> Result<&'a [u8]> {
        crate::error::expect_len("payload body bytes", expected, self.body.len())?;
        Ok(self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_strangers_are_refused() {
        let header = Header { method: Method::TopK, variant: 3, parameter: 77, shape: Shape::new(5, 9).unwrap() };
        let mut bytes = [0u8; HEADER_LEN + 2];
        header.write(&mut bytes).unwrap();
        let payload = Payload::parse(&bytes).unwrap();
        assert_eq!((payload.header, payload.body.len()), (header, 2));
        for (at, value) in [(0, b'M'), (1, 2), (2, 9)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert!(matches!(
                Payload::parse(&wrong),
                Err(Error::PayloadHeader { .. } | Error::PayloadField { what: "method", largest: 10, found: 9 })
            ));
        }
        assert!(matches!(Payload::parse(&bytes[..15]), Err(Error::Length { .. })));
    }
}
