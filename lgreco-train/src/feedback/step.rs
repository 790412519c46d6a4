//! One step of error feedback: the compressor's input, the payload, and the next residual.

use super::Memory;
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting};
use crate::gradient::{Bf16, Dtype, Element, F16, Gradient, Values};
use crate::rng::Stream;
use crate::{CoreError, Error};
use lgreco::error::{expect_len, expect_room};

impl<W: AsRef<[u64]> + AsMut<[u64]>> Memory<W> {
    /// Words of workspace that [`step`](Memory::step) needs.
    pub fn workspace_len(&self, setting: &Setting, dtype: Dtype) -> usize {
        let encode = |dtype| setting.encode_workspace_len(self.shape, dtype);
        encode(Dtype::F32).max(encode(dtype)).max(narrow_words(setting, dtype, self.shape.elements()))
    }

    /// Adds the residual to `gradient`, compresses the sum into `payload`, updates the residual, and returns the payload's length.
    /// `decoded` receives the decoded payload.
    ///
    /// AdaComp gets both the gradient and the sum. An uncompressed payload ([`Setting::Dense`]) has the gradient's element type, as
    /// without error feedback. For such a payload, the residual keeps the error of rounding to f16 or bf16.
    ///
    /// ```
    /// use lgreco_train::compress::{Compressor, Setting, topk::TopK};
    /// use lgreco_train::feedback::{Memory, Residual};
    /// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
    /// use lgreco_train::rng::Stream;
    /// let (shape, setting) = (Shape::new(3, 1)?, Setting::TopK(TopK { keep: 1, values: Dtype::F32 }));
    /// let mut memory = Memory::owned(Residual::CLASSIC, shape)?;
    /// let gradient = Gradient::new(Values::F32(&[3.0, 2.0, 1.0]), shape)?;
    /// let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)];
    /// let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
    /// let mut sent = [0.0; 3];
    /// for expected in [[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [6.0, 0.0, 0.0], [0.0, 4.0, 0.0]] {
    ///     memory.step(&setting, &gradient, Stream::default(), &mut workspace, &mut payload, &mut sent)?;
    ///     assert_eq!(sent, expected);
    /// }
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::NonFinite`] with the gradient's first element that is not finite; [`CoreError::Overflow`] when the sum of
    /// gradient and residual, or the next residual, exceeds the range of its format; [`CoreError::ElementOverflow`] when a value
    /// does not fit the payload's format; [`CoreError::Length`] and the errors of [`Compressor::encode`]. On failure, the memory is
    /// unchanged.
    ///
    /// # Complexity
    /// Encoding, decoding, and three passes.
    pub fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
        decoded: &mut [f32],
    ) -> Result<usize, Error> {
        let dtype = gradient.values().dtype();
        self.check_shape(gradient.shape())?;
        let offered = if narrows(setting, dtype) { dtype } else { Dtype::F32 };
        let room = setting.payload_len(self.shape, offered)?;
        expect_room("message bytes", room, payload.len())?;
        expect_room("workspace words", self.workspace_len(setting, dtype), workspace.len())?;
        expect_len("decoded values", self.shape.elements(), decoded.len())?;
        let payload = &mut payload[..room];
        self.compensate(gradient, decoded)?;
        let (narrow, rest) = workspace.split_at_mut(narrow_words(setting, dtype, decoded.len()));
        let values = match dtype {
            Dtype::F16 if narrows(setting, dtype) => Values::F16(narrowed::<F16>(decoded, narrow)?),
            Dtype::Bf16 if narrows(setting, dtype) => Values::Bf16(narrowed::<Bf16>(decoded, narrow)?),
            _ => Values::F32(decoded),
        };
        let (offered, stream_of_payload) = (Gradient::new(values, self.shape)?, payload_stream(setting, stream));
        let len = setting.encode_with_gradient(&offered, gradient, stream_of_payload, rest, payload)?;
        setting.decode(&Payload::parse(&payload[..len])?, decoded)?;
        self.update(gradient, decoded, stream)?;
        Ok(len)
    }
}

/// The random stream with which [`Memory::step`] encodes. The result is `stream`, except that PowerSGD's seed changes from step to
/// step, in the same way on all ranks.
///
/// The start matrix `Q` maps PowerSGD's error to zero: `(I − P̂ P̂ᵀ) p Q = 0`. With one power iteration from the same `Q` in every
/// step, the error would never be sent, and the memory would grow for ever. So `Q` must change: this function draws `Q` anew in
/// every step, and an exchange takes `Q` from the last step (warm start).
///
/// ```
/// use lgreco_train::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd};
/// use lgreco_train::feedback::payload_stream;
/// use lgreco_train::rng::Stream;
/// let stream = Stream { seed: 7, step: 3, layer: 0, rank: 1 };
/// assert_eq!(payload_stream(&Setting::Qsgd(Qsgd::default()), stream), stream);
/// let power = Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 });
/// assert_ne!(payload_stream(&power, stream).seed, payload_stream(&power, Stream { step: 4, ..stream }).seed);
/// ```
///
/// # Source
/// Vogels et al. 2019, §4.2: without warm start, a new random `Q` per step.
pub fn payload_stream(setting: &Setting, stream: Stream) -> Stream {
    match setting {
        Setting::PowerSgd(_) => Stream {
            seed: stream.seed.wrapping_add((stream.step as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            ..stream
        },
        _ => stream,
    }
}

/// Whether payloads depend on the element type of the compressor's input.
const fn narrows(setting: &Setting, dtype: Dtype) -> bool {
    matches!(setting, Setting::Dense) && dtype.bytes() == 2
}

const fn narrow_words(setting: &Setting, dtype: Dtype, elements: usize) -> usize {
    if narrows(setting, dtype) { elements.div_ceil(4) } else { 0 }
}

fn narrowed<'a, T: Element>(wide: &[f32], words: &'a mut [u64]) -> Result<&'a [T], Error> {
    let narrow = &mut bytemuck::cast_slice_mut::<u64, T>(words)[..wide.len()];
    for (index, (&value, narrow)) in wide.iter().zip(narrow.iter_mut()).enumerate() {
        *narrow = T::from_f32(value);
        if !narrow.to_f32().is_finite() {
            return Err(Error::Core(CoreError::ElementOverflow { index, value }));
        }
    }
    Ok(narrow)
}
