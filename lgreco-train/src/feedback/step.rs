//! One step: what is compressed, the message, what is remembered; and the receiving end of EF21.

use super::kernels::Update;
use super::{Memory, Rule, mixed};
use crate::compress::{Compressor, Setting, decode};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use crate::rng::Stream;
use crate::{CoreError, Error};

/// First byte of an EF21+ message.
const CORRECTS: u8 = 0;
const REPLACES: u8 = 1;

impl<W: AsRef<[u64]> + AsMut<[u64]>> Memory<W> {
    /// Number of bytes of a message: the payload under `setting` for gradients of this element type, and one more for
    /// EF21+. Exact or a bound as [`Compressor::payload_len`].
    ///
    /// # Errors
    /// Those of [`Compressor::payload_len`]; [`Error::FeedbackRule`] for EF-mixed with another method than TopK, and for
    /// EF21 and EF21+ with methods that are no contractions whatever the values.
    pub fn message_len(&self, setting: &Setting, dtype: Dtype) -> Result<usize, Error> {
        self.rule.check_method(setting)?;
        Ok(setting.payload_len(self.shape, dtype)? + matches!(self.rule, Rule::Ef21Plus) as usize)
    }

    /// Words of workspace that [`step`](Memory::step) needs.
    ///
    /// # Errors
    /// Those of [`message_len`](Memory::message_len).
    pub fn workspace_len(&self, setting: &Setting, dtype: Dtype) -> Result<usize, Error> {
        let message = self.message_len(setting, dtype)?;
        let n = self.shape.elements();
        let encode = |dtype| setting.encode_workspace_len(self.shape, dtype);
        let encode = encode(Dtype::F32).max(encode(dtype)).max(narrow_words(setting, dtype, n));
        Ok(match self.rule {
            Rule::Residual(_) | Rule::Ef21 => encode,
            Rule::Mixed(_) => n.div_ceil(2) + encode,
            Rule::Ef21Plus => message.div_ceil(8) + encode,
        })
    }

    /// Compresses `gradient` with what is remembered into `message`, remembers what that leaves out, and returns the
    /// message's length. `decoded` receives what the message decodes to. For EF21+ a message is one byte (0: corrects,
    /// 1: replaces) before the payload, else it is the payload.
    ///
    /// AdaComp sees the gradient as well as what it is compensated to. An uncompressed payload ([`Setting::Dense`]) has
    /// the gradient's element type, as it has without memory: what f16 or bf16 round off is remembered.
    ///
    /// ```
    /// use lgreco_train::compress::{Setting, topk::TopK};
    /// use lgreco_train::feedback::{Memory, Rule};
    /// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
    /// use lgreco_train::rng::Stream;
    /// let (shape, setting) = (Shape::new(3, 1)?, Setting::TopK(TopK { keep: 1, values: Dtype::F32 }));
    /// let mut memory = Memory::owned(Rule::Ef21, shape)?;
    /// let gradient = Gradient::new(Values::F32(&[3.0, 2.0, 1.0]), shape)?;
    /// let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)?];
    /// let mut message = vec![0; memory.message_len(&setting, Dtype::F32)?];
    /// let mut correction = [0.0; 3];
    /// for expected in [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]] {
    ///     memory.step(&setting, &gradient, Stream::default(), &mut workspace, &mut message, &mut correction)?;
    ///     assert_eq!(correction, expected); // silent once the receiver knows the gradient
    /// }
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::NonFinite`] with the gradient's first offender; [`CoreError::Overflow`] when the gradient with what
    /// is remembered, or what would be remembered, leaves the range of its format; [`CoreError::ElementOverflow`] when
    /// a value does not fit the payload's; [`Error::FeedbackRule`] as for [`message_len`](Memory::message_len);
    /// [`CoreError::Length`] and those of [`Compressor::encode`]. The memory is then unchanged.
    ///
    /// # Complexity
    /// Encode, decode and three passes; for EF21+ two encodes, two or three decodes and six passes.
    pub fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        message: &mut [u8],
        decoded: &mut [f32],
    ) -> Result<usize, Error> {
        let dtype = gradient.values().dtype();
        self.check_shape(gradient.shape())?;
        let room = self.message_len(setting, dtype)?;
        expect_room("message bytes", room, message.len())?;
        expect_room("workspace words", self.workspace_len(setting, dtype)?, workspace.len())?;
        expect_len("decoded values", self.shape.elements(), decoded.len())?;
        let message = &mut message[..room];
        if let Rule::Ef21Plus = self.rule {
            return self.step_plus(setting, gradient, stream, workspace, message, decoded);
        }
        self.offer(gradient, decoded)?;
        if let (Rule::Mixed(_), Setting::TopK(top)) = (self.rule, setting) {
            mixed::restrict(self, top.keep, gradient, workspace, decoded)?;
        }
        let len = match setting {
            Setting::AdaComp(ada) => {
                let compensated = Gradient::new(Values::F32(decoded), self.shape)?;
                ada.encode_compensated(&compensated, gradient, message)?
            }
            _ => encode(setting, self.shape, decoded, dtype, stream, workspace, message)?,
        };
        decode(&message[..len], decoded)?;
        self.advance(self.rule.update(), gradient, decoded, stream)?;
        Ok(len)
    }

    /// The better of a correction and a replacement; a correction, when both are as good.
    fn step_plus(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        message: &mut [u8],
        decoded: &mut [f32],
    ) -> Result<usize, Error> {
        let (flag, payload) = message.split_at_mut(1);
        let (replacement, workspace) = workspace.split_at_mut(payload.len().div_ceil(8));
        let replacement = &mut bytemuck::cast_slice_mut::<u64, u8>(replacement)[..payload.len()];
        let distance = |memory: &Self, decoded: &[f32], from_memory| with_elements!(gradient.values(), g => memory.squared_distance(g, decoded, from_memory));

        let replacement_len = setting.encode(gradient, payload_stream(setting, stream), workspace, replacement)?;
        decode(&replacement[..replacement_len], decoded)?;
        let replaced = distance(self, decoded, false);
        self.offer(gradient, decoded)?;
        let mut len = encode(setting, self.shape, decoded, gradient.values().dtype(), stream, workspace, payload)?;
        decode(&payload[..len], decoded)?;
        let update = if replaced < distance(self, decoded, true) {
            len = replacement_len;
            payload[..len].copy_from_slice(&replacement[..len]);
            decode(&payload[..len], decoded)?;
            flag[0] = REPLACES;
            Update::Replace
        } else {
            flag[0] = CORRECTS;
            Update::Correct
        };
        self.advance(update, gradient, decoded, stream)?;
        Ok(1 + len)
    }

    /// The receiving end of EF21 and EF21+: applies a sender's message to the copy of its estimate, which both ends
    /// started from the same values, and writes the new estimate. Both ends stay equal bit for bit as long as every
    /// message arrives once and in order; [`steps`](Memory::steps) counts them.
    ///
    /// ```
    /// use lgreco_train::compress::{Setting, topk::TopK};
    /// use lgreco_train::feedback::{Memory, Rule};
    /// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
    /// use lgreco_train::rng::Stream;
    /// let (shape, setting) = (Shape::new(3, 1)?, Setting::TopK(TopK { keep: 2, values: Dtype::F32 }));
    /// let end = || Memory::owned(Rule::Ef21Plus, shape);
    /// let (mut sender, mut receiver) = (end()?, end()?);
    /// let mut workspace = vec![0; sender.workspace_len(&setting, Dtype::F32)?];
    /// let mut message = vec![0; sender.message_len(&setting, Dtype::F32)?];
    /// let (mut decoded, mut estimate) = ([0.0; 3], [0.0; 3]);
    /// for gradient in [[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 8.0, 9.0]] {
    ///     let gradient = Gradient::new(Values::F32(&gradient), shape)?;
    ///     let len = sender.step(&setting, &gradient, Stream::default(), &mut workspace, &mut message, &mut decoded)?;
    ///     receiver.receive(&message[..len], &mut estimate)?;
    /// }
    /// assert_eq!(estimate, [0.0, 8.0, 9.0]); // the last message replaced the estimate
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`decode`]; [`CoreError::PayloadBody`] when the message starts with neither 0 nor 1 (EF21+) or has
    /// another shape; [`CoreError::Overflow`]; [`Error::FeedbackRule`] for rules that send to receivers without memory.
    /// The estimate is then unchanged.
    pub fn receive(&mut self, message: &[u8], estimate: &mut [f32]) -> Result<(), Error> {
        let (update, payload) = match (self.rule, message) {
            (Rule::Ef21, payload) => (Update::Correct, payload),
            (Rule::Ef21Plus, [CORRECTS, payload @ ..]) => (Update::Correct, payload),
            (Rule::Ef21Plus, [REPLACES, payload @ ..]) => (Update::Replace, payload),
            (Rule::Ef21Plus, _) => {
                return Err(Error::Core(CoreError::PayloadBody { what: "it neither corrects nor replaces" }));
            }
            _ => return Err(Error::FeedbackRule { rule: self.rule.name(), needs: "no receiving memory" }),
        };
        expect_len("estimate", self.shape.elements(), estimate.len())?;
        if decode(payload, estimate)?.shape != self.shape {
            return Err(Error::Core(CoreError::PayloadBody { what: "its shape is not that of the memory" }));
        }
        let nothing = Gradient::new(Values::F32(&[]), Shape::new(0, 0)?)?;
        self.advance(update, &nothing, estimate, Stream::default())?;
        self.values(estimate)
    }
}

/// The stream that [`Memory::step`] encodes with: `stream`, but for PowerSGD another seed at every step, the same on
/// all ranks.
///
/// What PowerSGD leaves out is invisible to the start matrix `Q` it used: `(I − P̂ P̂ᵀ) p Q = 0`. With one power
/// iteration from the same `Q` at every step it would never be sent, and the memory would grow for ever. So `Q` must
/// change: be drawn afresh, as here, or be the last step's (warm start).
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

/// Whether payloads depend on the element type of what is compressed.
const fn narrows(setting: &Setting, dtype: Dtype) -> bool {
    matches!(setting, Setting::Dense) && dtype.bytes() == 2
}

const fn narrow_words(setting: &Setting, dtype: Dtype, elements: usize) -> usize {
    if narrows(setting, dtype) { elements.div_ceil(4) } else { 0 }
}

/// Encodes `offered` into a payload like that of a gradient of type `dtype`.
fn encode(
    setting: &Setting,
    shape: Shape,
    offered: &[f32],
    dtype: Dtype,
    stream: Stream,
    workspace: &mut [u64],
    payload: &mut [u8],
) -> Result<usize, Error> {
    let (narrow, rest) = workspace.split_at_mut(narrow_words(setting, dtype, offered.len()));
    let values = match dtype {
        Dtype::F16 if narrows(setting, dtype) => Values::F16(narrowed::<F16>(offered, narrow)?),
        Dtype::Bf16 if narrows(setting, dtype) => Values::Bf16(narrowed::<Bf16>(offered, narrow)?),
        _ => Values::F32(offered),
    };
    Ok(setting.encode(&Gradient::new(values, shape)?, payload_stream(setting, stream), rest, payload)?)
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
