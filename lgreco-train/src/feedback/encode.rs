//! Classic error feedback in one go: compensate, encode, and what is left is the next residual.

use super::Memory;
use super::plain::{is_finite, plain_values};
use super::step::payload_stream;
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Values};
use crate::internal::payload::{Combine, combine};
use crate::rng::Stream;
use crate::{CoreError, Error};

impl<W: AsRef<[u64]> + AsMut<[u64]>> Memory<W> {
    /// Words of workspace that [`encode`](Memory::encode) needs.
    pub fn encode_workspace_len(&self, setting: &Setting) -> usize {
        let scratch = match setting {
            Setting::Dense | Setting::LoCo(_) => self.shape().elements().div_ceil(2),
            _ => 0,
        };
        scratch.max(setting.encode_workspace_len(self.shape(), Dtype::F32))
    }

    /// [`step`](Memory::step) of classic error feedback in f32 (gain 1) without what the payload decodes to: several times as
    /// fast, because the compensated gradient is made in `next`, and is the next residual once what was sent is taken off.
    /// `next` has as many words as the memory; it then holds the residual of before. The same payload as by
    /// [`step`](Memory::step), the same residual but for the sign of zeros.
    ///
    /// ```
    /// use lgreco_train::compress::{Compressor, Setting, topk::TopK};
    /// use lgreco_train::feedback::{Memory, Residual, Rule};
    /// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
    /// use lgreco_train::rng::Stream;
    /// let (shape, rule) = (Shape::new(3, 1)?, Rule::Residual(Residual::CLASSIC));
    /// let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
    /// let mut memory = Memory::owned(rule, shape)?;
    /// let mut next = vec![0; rule.state_len(shape)];
    /// let mut workspace = vec![0; memory.encode_workspace_len(&setting)];
    /// let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
    /// let gradient = Gradient::new(Values::F32(&[3.0, 2.0, 1.0]), shape)?;
    /// memory.encode(&setting, &gradient, Stream::default(), &mut next, &mut workspace, &mut payload)?;
    /// let mut residual = [0.0; 3];
    /// memory.values(&mut residual)?;
    /// assert_eq!(residual, [0.0, 2.0, 1.0]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::FeedbackRule`] for any other rule, gain or storage, for AdaComp, which sees the gradient itself, too, and
    /// for 16-bit gradients that are not compressed;
    /// otherwise those of [`step`](Memory::step). The memory is then unchanged.
    ///
    /// # Complexity
    /// Encode, and a pass to compensate; for sparse methods as much again as is sent, for others a pass with decoding.
    pub fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        next: &mut W,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        let narrow = *setting == Setting::Dense && gradient.values().dtype() != Dtype::F32;
        if !self.is_plain() || matches!(setting, Setting::AdaComp(_)) || narrow {
            return Err(Error::FeedbackRule { rule: self.rule().name(), needs: "classic error feedback in f32" });
        }
        let shape = self.shape();
        expect_room("state words", self.rule().state_len(shape), next.as_ref().len())?;
        expect_room("workspace words", self.encode_workspace_len(setting), workspace.len())?;
        let left = plain_values(next.as_mut(), shape);
        self.compensate(gradient, left)?;
        let compensated = Gradient::new(Values::F32(left), shape)?;
        let len = setting.encode(&compensated, payload_stream(setting, stream), workspace, payload)?;
        let scratch = bytemuck::cast_slice_mut(workspace);
        combine(&Payload::parse(&payload[..len])?, Combine::Subtract, left, scratch)?;
        if !matches!(setting, Setting::TopK(_) | Setting::QuantisedTopK(_)) && !is_finite(left) {
            return Err(Error::Core(CoreError::Overflow { what: "what is to be remembered" }));
        }
        self.replace(next);
        Ok(len)
    }
}
