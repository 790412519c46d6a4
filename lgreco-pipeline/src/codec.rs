//! The compressor of one direction, without memory: encodes a batch of samples as a message body, and decodes it.

use super::rotated;
use super::sparse::Sparse;
use super::symmetric::{Scope, Symmetric};
use super::values::{get_all, put_all};
use crate::compress::qsgd::{Qsgd, Rounding, Scale};
use crate::gradient::{Dtype, Shape};
use crate::rng::Stream;
use crate::{CoreError, Error};
use lgreco::compress::select;
use lgreco::compress::topk;
use lgreco::error::{expect_len, expect_room};

/// The values that share one grid of a min–max quantiser.
///
/// ```
/// use lgreco_pipeline::{Codec, Tile};
/// let len = |tile| Codec::MinMax { bits: 4, tile }.body_len(2, 100);
/// assert_eq!((len(Tile::Batch)?, len(Tile::Elements(50))?), (8 + 100, 2 * (2 * 8 + 50)));
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// The whole batch. A single outlier makes the grid coarse for all values of the batch.
    Batch,
    /// A tile has this number of consecutive values of one sample, at least 1. A sample's last tile may be shorter. The
    /// decoded values of a sample do not depend on other samples.
    Elements(u32),
}

/// The compressor of a batch (samples × features). Every codec is deterministic, and decodes a batch of zeros to zeros.
///
/// # Complexity
/// O(samples · features) to encode or decode.
///
/// ```
/// use lgreco_pipeline::{Codec, Tile};
/// let (samples, features) = (2, 4);
/// let batch = [0.0, 1.0, 2.0, 3.0, -1.0, -1.0, -1.0, -1.0];
/// let codec = Codec::MinMax { bits: 2, tile: Tile::Elements(4) };
/// let mut body = vec![0; codec.body_len(samples, features)?];
/// codec.encode(&batch, features, &[], &mut [], &mut body)?;
/// assert_eq!(body.len(), 2 * (8 + 1)); // per sample: minimum, maximum and four codes of two bits
/// let mut decoded = [f32::NAN; 8];
/// codec.decode(&body, features, &[], &mut decoded)?;
/// assert_eq!(decoded, batch);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
///
/// # Source
/// Rudakov et al., arXiv 2401.07788, §2 (min–max, TopK per sample, shared indices). Wang et al., "AQ-SGD", NeurIPS 2022
/// (symmetric). Vargaftik et al., "EDEN", ICML 2022. Deviations: Min–max rounds ties to the larger level instead of to
/// even, and sends constant tiles exactly. TopK keeps exactly `keep` values, and of equal magnitudes the first ones.
/// The paper's TopK drops all values whose magnitude equals the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// The values without compression.
    Dense {
        /// Type in which the values are sent, rounded to nearest.
        values: Dtype,
    },
    /// Codes on an evenly spaced grid from a tile's smallest to its largest value. The smallest and the largest value
    /// are exact. Sends two f32 per tile. Zero is exact only if it is the smallest or the largest value, as in the
    /// output of a ReLU.
    MinMax {
        /// Bits per value, 1 to 8.
        bits: u8,
        /// The values that share a grid.
        tile: Tile,
    },
    /// Codes on a grid that is symmetric about zero. Zero is exact.
    Symmetric {
        /// Bits per value, 2 to 8. With one bit, the grid would consist of −scale and 0.
        bits: u8,
        /// The values that share a scale.
        scope: Scope,
        /// Type of the scales, [`Dtype::F32`] or [`Dtype::Bf16`].
        scale: Dtype,
    },
    /// [EDEN](crate::compress::eden) on the whole batch as one tensor. It is unbiased. EDEN's random signs have a
    /// checksum of the batch as their seed. So the decoded values of a sample depend on the whole batch, in training
    /// and in evaluation.
    Eden {
        /// Bits per value, 1 to 8.
        bits: u8,
    },
    /// The values of largest magnitude of each sample, with their positions. Of equal magnitudes, the first ones are
    /// kept.
    TopK {
        /// Number of values kept per sample, 1 to the number of features. [`Codec::top_k`] takes a fraction.
        keep: u32,
        /// Type in which the values are sent, rounded to nearest.
        values: Dtype,
    },
    /// For gradients only: the gradient's values at the positions that the forward [`TopK`](Codec::TopK) of the same
    /// micro-batch kept. These values are the exact derivative of the forward selection. No positions are sent.
    SharedIndex {
        /// The `keep` of the forward codec.
        keep: u32,
        /// Type in which the values are sent, rounded to nearest.
        values: Dtype,
    },
}

impl Codec {
    /// Number of bytes that [`to_bytes`](Codec::to_bytes) returns.
    pub const BYTES: usize = 8;

    /// TopK that keeps the fraction `density` in (0, 1] of each sample: `max(1, N − ⌊N (1 − density)⌋)` of `N`
    /// features, computed in f64.
    ///
    /// # Errors
    /// [`CoreError::Parameter`] when `density` is outside (0, 1] or there are no features.
    /// [`CoreError::TooManyElements`] for 2^32 features or more.
    ///
    /// ```
    /// use lgreco_pipeline::{Codec, gradient::Dtype};
    /// assert_eq!(Codec::top_k(0.5, 7, Dtype::F32)?, Codec::TopK { keep: 4, values: Dtype::F32 });
    /// # Ok::<(), lgreco_pipeline::Error>(())
    /// ```
    pub fn top_k(density: f64, features: usize, values: Dtype) -> Result<Codec, Error> {
        CoreError::require(density > 0.0 && density <= 1.0, "density", density, "in (0, 1]")?;
        let n = Shape::new(1, features)?.elements() as u32;
        let dropped = (n as f64 * (1.0 - density)) as u32;
        let codec = Codec::TopK { keep: (n - dropped).max(1), values };
        codec.check(features)?;
        Ok(codec)
    }

    fn sparse(keep: u32, values: Dtype, features: usize) -> Sparse {
        Sparse { keep, values, features }
    }

    /// Returns an error unless the parameters are in range for samples of `features` values.
    ///
    /// # Errors
    /// [`CoreError::Parameter`], with the name of the parameter out of range. [`CoreError::TooManyElements`] for 2^32
    /// features or more.
    pub fn check(&self, features: usize) -> Result<(), Error> {
        Shape::new(1, features)?;
        CoreError::require(features > 0, "features", 0.0, "at least 1")?;
        match *self {
            Codec::Dense { .. } => Ok(()),
            Codec::MinMax { bits, tile } => Ok(quantiser(bits, tile, features).check()?),
            Codec::Eden { bits } => rotated::body_len(bits, 1, features).map(drop),
            Codec::Symmetric { bits, scope, scale } => {
                CoreError::require((2..=8).contains(&bits), "bits of a symmetric quantiser", bits.into(), "2 to 8")?;
                CoreError::require(scale != Dtype::F16, "type of the scales", 1.0, "f32 (0) or bf16 (2)")?;
                match scope {
                    Scope::Sample => Ok(()),
                    Scope::Channel { channels } => {
                        let divides = channels > 0 && features.is_multiple_of(channels as usize);
                        Ok(CoreError::require(
                            divides,
                            "channels",
                            channels.into(),
                            "a divisor of the number of features",
                        )?)
                    }
                }
            }
            Codec::TopK { keep, .. } | Codec::SharedIndex { keep, .. } => Ok(topk::check_keep(keep, features)?),
        }
    }

    /// Exact number of bytes of a body for `samples` samples of `features` values. The number does not depend on the
    /// values.
    ///
    /// # Errors
    /// The errors of [`check`](Codec::check), and [`CoreError::TooManyElements`] for 2^32 elements or more.
    pub fn body_len(&self, samples: usize, features: usize) -> Result<usize, Error> {
        self.check(features)?;
        let elements = Shape::new(samples, features)?.elements();
        let times = |len: u64| {
            let bytes = len.checked_mul(samples as u64).and_then(|bytes| isize::try_from(bytes).ok());
            bytes
                .map(|bytes| bytes as usize)
                .ok_or(Error::Core(CoreError::TooManyElements { rows: samples, cols: features }))
        };
        match *self {
            Codec::Dense { values } => times(values.bytes() as u64 * features as u64),
            Codec::MinMax { .. } if samples == 0 => Ok(0),
            Codec::MinMax { bits, tile: Tile::Batch } => Ok(quantiser(bits, Tile::Batch, elements).body_len(elements)?),
            Codec::MinMax { bits, tile } => times(quantiser(bits, tile, features).body_len(features)? as u64),
            Codec::Symmetric { bits, scope, scale } => Ok(Symmetric { bits, scope, scale, features }.body_len(samples)),
            Codec::Eden { bits } => rotated::body_len(bits, samples, features),
            Codec::TopK { keep, values } => times(Codec::sparse(keep, values, features).top_len()),
            Codec::SharedIndex { keep, values } => times(Codec::sparse(keep, values, features).gathered_len()),
        }
    }

    /// Number of bytes that suffice for the body of every batch with at most this many samples.
    pub(super) fn longest_body(&self, samples: usize, features: usize) -> Result<usize, Error> {
        match *self {
            Codec::Eden { bits } => rotated::longest_body(bits, samples, features),
            _ => self.body_len(samples, features),
        }
    }

    /// Number of bytes of the indices that shared-index takes from a TopK body. Returns 0 if this codec is not TopK.
    ///
    /// # Errors
    /// The errors of [`body_len`](Codec::body_len).
    pub fn indices_len(&self, samples: usize, features: usize) -> Result<usize, Error> {
        self.body_len(samples, features)?;
        Ok(match *self {
            Codec::TopK { keep, values } => samples * Codec::sparse(keep, values, features).indices_len() as usize,
            _ => 0,
        })
    }

    /// Copies the indices out of a TopK body, for shared-index. Does nothing for other codecs.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `body` or `indices` has the wrong length. Also the errors of
    /// [`body_len`](Codec::body_len).
    ///
    /// ```
    /// use lgreco_pipeline::{Codec, gradient::Dtype};
    /// let forward = Codec::TopK { keep: 2, values: Dtype::F32 };
    /// let backward = Codec::SharedIndex { keep: 2, values: Dtype::F32 };
    /// let mut body = vec![0; forward.body_len(1, 4)?];
    /// forward.encode(&[9.0, 1.0, 2.0, -3.0], 4, &[], &mut [0; 2], &mut body)?;
    /// let mut indices = vec![0; forward.indices_len(1, 4)?];
    /// forward.indices(&body, 4, &mut indices)?;
    ///
    /// let mut values = vec![0; backward.body_len(1, 4)?];
    /// backward.encode(&[0.1, 0.2, 0.3, 0.4], 4, &indices, &mut [], &mut values)?;
    /// let mut gradient = [f32::NAN; 4];
    /// backward.decode(&values, 4, &indices, &mut gradient)?;
    /// assert_eq!(gradient, [0.1, 0.0, 0.0, 0.4]);
    /// # Ok::<(), lgreco_pipeline::Error>(())
    /// ```
    pub fn indices(&self, body: &[u8], features: usize, indices: &mut [u8]) -> Result<(), Error> {
        self.check(features)?;
        if let Codec::TopK { keep, values } = *self {
            let sparse = Codec::sparse(keep, values, features);
            let samples = body.len() / sparse.top_len() as usize;
            expect_len("body bytes", self.body_len(samples, features)?, body.len())?;
            expect_len("indices", self.indices_len(samples, features)?, indices.len())?;
            sparse.copy_indices(body, indices);
        }
        Ok(())
    }

    /// Words (of 64 bits) of workspace that [`encode`](Codec::encode) needs, for any number of samples.
    pub fn workspace_len(&self, features: usize) -> usize {
        match *self {
            Codec::TopK { .. } => select::workspace_len(features),
            Codec::Symmetric { bits, scope, scale } => Symmetric { bits, scope, scale, features }.workspace_len(),
            _ => 0,
        }
    }

    /// Compresses `values` into `body`. `values` has `features` values per sample. `body` has exactly
    /// [`body_len`](Codec::body_len) bytes. For shared-index, `indices` are the indices in the forward body. For other
    /// codecs, `indices` is empty. After an error, `body` must not be used.
    ///
    /// # Errors
    /// [`CoreError::NonFinite`] with the first NaN or infinity. [`CoreError::ElementOverflow`] when a value does not
    /// fit the type in which it is sent. [`CoreError::Overflow`] when EDEN's values are above 2^94.
    /// [`CoreError::Length`] when a buffer has the wrong length. Also the errors of [`body_len`](Codec::body_len).
    pub fn encode(
        &self,
        values: &[f32],
        features: usize,
        indices: &[u8],
        workspace: &mut [u64],
        body: &mut [u8],
    ) -> Result<(), Error> {
        self.check_lens(values.len(), features, indices, body)?;
        expect_room("workspace words", self.workspace_len(features), workspace.len())?;
        select::check_finite(values)?;
        let encoded = match *self {
            Codec::Dense { values: dtype } => put_all(dtype, values, body),
            Codec::MinMax { bits, tile } => {
                let span = span(tile, values.len(), features);
                let qsgd = quantiser(bits, tile, span);
                let parts = values.chunks(span).zip(body.chunks_mut(qsgd.body_len(span)?));
                parts.into_iter().try_for_each(|(values, body)| qsgd.encode_body(values, Stream::default(), body))
            }
            Codec::Symmetric { bits, scope, scale } => {
                Symmetric { bits, scope, scale, features }.encode(values, workspace, body);
                Ok(())
            }
            Codec::Eden { bits } => rotated::encode(bits, values, features, body),
            Codec::TopK { keep, values: dtype } => {
                Codec::sparse(keep, dtype, features).encode_top(values, workspace, body)
            }
            Codec::SharedIndex { keep, values: dtype } => {
                Codec::sparse(keep, dtype, features).gather(values, indices, body)
            }
        };
        Ok(encoded?)
    }

    /// Decodes a body into `values`. Any bytes may be given: a body that no encoder writes gives an error. After an
    /// error, `values` must not be used.
    ///
    /// # Errors
    /// [`CoreError::PayloadBody`] on a body that no encoder writes. [`CoreError::Overflow`] when a value of EDEN does
    /// not fit f32. [`CoreError::Length`] when a buffer has the wrong length. Also the errors of
    /// [`body_len`](Codec::body_len).
    pub fn decode(&self, body: &[u8], features: usize, indices: &[u8], values: &mut [f32]) -> Result<(), Error> {
        self.check_lens(values.len(), features, indices, body)?;
        let decoded = match *self {
            Codec::Dense { values: dtype } => get_all(dtype, body, values),
            Codec::MinMax { bits, tile } => {
                let span = span(tile, values.len(), features);
                let qsgd = quantiser(bits, tile, span);
                let mut parts = values.chunks_mut(span).zip(body.chunks(qsgd.body_len(span)?));
                parts.try_for_each(|(values, body)| qsgd.decode_body(body, values))
            }
            Codec::Symmetric { bits, scope, scale } => Symmetric { bits, scope, scale, features }.decode(body, values),
            Codec::Eden { bits } => rotated::decode(bits, body, features, values),
            Codec::TopK { keep, values: dtype } => Codec::sparse(keep, dtype, features).decode_top(body, values),
            Codec::SharedIndex { keep, values: dtype } => {
                Codec::sparse(keep, dtype, features).scatter(body, indices, values)
            }
        };
        Ok(decoded?)
    }

    fn check_lens(&self, values: usize, features: usize, indices: &[u8], body: &[u8]) -> Result<(), Error> {
        self.check(features)?;
        let samples = values / features;
        expect_len("values, whole samples", samples * features, values)?;
        expect_len("body bytes", self.body_len(samples, features)?, body.len())?;
        let shared = match *self {
            Codec::SharedIndex { keep, values } => Codec::TopK { keep, values }.indices_len(samples, features)?,
            _ => 0,
        };
        Ok(expect_len("indices", shared, indices.len())?)
    }

    /// The codec and its parameters in 8 bytes: kind, bits, element type and scope, then a little-endian 32-bit
    /// parameter.
    pub fn to_bytes(&self) -> [u8; Codec::BYTES] {
        let (head, parameter) = match *self {
            Codec::Dense { values } => ([0, 0, values as u8, 0], 0),
            Codec::MinMax { bits, tile: Tile::Batch } => ([1, bits, 0, 0], 0),
            Codec::MinMax { bits, tile: Tile::Elements(count) } => ([1, bits, 0, 1], count),
            Codec::Symmetric { bits, scope: Scope::Sample, scale } => ([2, bits, scale as u8, 0], 0),
            Codec::Symmetric { bits, scope: Scope::Channel { channels }, scale } => {
                ([2, bits, scale as u8, 1], channels)
            }
            Codec::TopK { keep, values } => ([3, 0, values as u8, 0], keep),
            Codec::SharedIndex { keep, values } => ([4, 0, values as u8, 0], keep),
            Codec::Eden { bits } => ([5, bits, 0, 0], 0),
        };
        let mut bytes = [0; Codec::BYTES];
        bytes[..4].copy_from_slice(&head);
        bytes[4..].copy_from_slice(&u32::to_le_bytes(parameter));
        bytes
    }

    /// The codec that [`to_bytes`](Codec::to_bytes) wrote as `bytes`, or `None` if no codec is written as these bytes.
    /// Does not check the parameters.
    pub fn from_bytes(bytes: [u8; Codec::BYTES]) -> Option<Codec> {
        let [kind, bits, dtype, scope, parameter @ ..] = bytes;
        let parameter = u32::from_le_bytes(parameter);
        let dtype = Dtype::from_code(dtype).ok()?;
        let codec = match (kind, scope) {
            (0, 0) => Codec::Dense { values: dtype },
            (1, 0) => Codec::MinMax { bits, tile: Tile::Batch },
            (1, 1) => Codec::MinMax { bits, tile: Tile::Elements(parameter) },
            (2, 0) => Codec::Symmetric { bits, scope: Scope::Sample, scale: dtype },
            (2, 1) => Codec::Symmetric { bits, scope: Scope::Channel { channels: parameter }, scale: dtype },
            (3, 0) => Codec::TopK { keep: parameter, values: dtype },
            (4, 0) => Codec::SharedIndex { keep: parameter, values: dtype },
            (5, 0) => Codec::Eden { bits },
            _ => return None,
        };
        // Fields that the codec does not use must be zero.
        (codec.to_bytes() == bytes).then_some(codec)
    }
}

/// Number of values that one call of the min–max quantiser takes: a sample, or the whole batch.
fn span(tile: Tile, elements: usize, features: usize) -> usize {
    match tile {
        Tile::Batch => elements.max(1),
        Tile::Elements(_) => features,
    }
}

/// The min–max quantiser of `span` values.
fn quantiser(bits: u8, tile: Tile, span: usize) -> Qsgd {
    let bucket = match tile {
        Tile::Batch => span as u32,
        Tile::Elements(count) => count,
    };
    Qsgd { bits, bucket, scale: Scale::MinMax, rounding: Rounding::Nearest }
}
