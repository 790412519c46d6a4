//! Encoder and decoder of one layer of a plan.

use crate::backend::grow;
use crate::compress::{Compressor, Setting, wire::Payload};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Result, error::expect_len};
use alloc::vec;
use alloc::vec::Vec;

/// Encodes and decodes one layer of a model with its setting in a [plan](crate::ModelPlan). A codec is cheap to copy
/// and owns no buffers.
///
/// ```
/// use lgreco::{Model, rng::Stream};
/// let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
/// let model = Model::new([("weight", [64, 64], &weight[..])])?;
/// let codec = lgreco::plan(&model).solve()?.codecs()[0];
/// // With memory of the caller: nothing is allocated.
/// let (mut workspace, mut payload) = (vec![0; codec.workspace_len()], vec![0; codec.payload_len()]);
/// let len = codec.encode_into(&model.gradient(0), Stream::default(), &mut workspace, &mut payload)?;
/// let mut decoded = vec![0.0; 4096];
/// codec.decode_into(&payload[..len], &mut decoded)?;
/// // Or with memory that is allocated.
/// assert_eq!(codec.encode(&model.gradient(0), Stream::default())?, payload[..len]);
/// assert_eq!(codec.decode(&payload[..len])?, decoded);
/// let narrow = Model::new([("weight", [128, 32], &weight[..])])?;
/// assert!(lgreco::plan(&narrow).solve()?.codecs()[0].decode(&payload[..len]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    pub(crate) setting: Setting,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
    /// Index of the layer in its model.
    pub(crate) index: u32,
    pub(crate) payload_len: usize,
}

impl Codec {
    /// The setting.
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// The shape of the layer's gradient.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Largest length of a payload in bytes. Every payload has exactly this length, unless the length [depends on the
    /// values](Compressor::has_fixed_len).
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// 8-byte words of workspace that [`encode_into`](Codec::encode_into) needs.
    pub fn workspace_len(&self) -> usize {
        self.setting.encode_workspace_len(self.shape, self.dtype)
    }

    /// Encodes a gradient into a new payload. Random bits come from `stream`, with its field `layer` replaced by the
    /// layer's index.
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`], such as [`Error::NonFinite`](crate::Error::NonFinite) with the first NaN
    /// or infinity. `Length` for a gradient of another shape. `OutOfMemory` when the workspace cannot be allocated.
    pub fn encode(&self, gradient: &Gradient<'_>, stream: Stream) -> Result<Vec<u8>> {
        let (mut workspace, mut payload) = (Vec::new(), vec![0; self.payload_len]);
        grow(&mut workspace, self.workspace_len())?;
        let len = self.encode_into(gradient, stream, &mut workspace, &mut payload)?;
        payload.truncate(len);
        Ok(payload)
    }

    /// Encodes a gradient into the front of `payload`, and returns the payload's length in bytes. Allocates nothing.
    ///
    /// # Errors
    /// The errors of [`encode`](Codec::encode).
    pub fn encode_into(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        expect_len("rows of the gradient", self.shape.rows(), gradient.shape().rows())?;
        expect_len("columns of the gradient", self.shape.cols(), gradient.shape().cols())?;
        self.setting.encode(gradient, Stream { layer: self.index, ..stream }, workspace, payload)
    }

    /// Decodes a payload into a new vector. Arbitrary bytes never cause a panic.
    ///
    /// # Errors
    /// The errors of [`decode`](crate::compress::decode). `PayloadHeader` for a payload of another method, `Length` for a
    /// payload of another shape.
    pub fn decode(&self, payload: &[u8]) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.shape.elements()];
        self.decode_into(payload, &mut values)?;
        Ok(values)
    }

    /// Decodes a payload into `values`. Allocates nothing.
    ///
    /// # Errors
    /// The errors of [`decode`](Codec::decode).
    pub fn decode_into(&self, payload: &[u8], values: &mut [f32]) -> Result<()> {
        let payload = Payload::parse(payload)?;
        expect_len("rows of the payload's tensor", self.shape.rows(), payload.header.shape.rows())?;
        expect_len("columns of the payload's tensor", self.shape.cols(), payload.header.shape.cols())?;
        self.setting.decode(&payload, values)
    }
}
