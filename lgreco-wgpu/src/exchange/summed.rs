//! What of a bucket is summed on the wire, in memory of the host: values, then the ranks' slips.

use lgreco_train::exchange::{Moment, Request, Slip, judge};
use lgreco_train::gradient::{Bf16, Dtype, Element};

/// The memory of one all-reduce.
#[derive(Debug, Default)]
pub(super) struct Summed {
    /// Without slips.
    len: usize,
    /// As f32: behind them, where sums travel as such, slips.
    pub(super) values: Vec<f32>,
    /// The same as bf16.
    halves: Vec<Bf16>,
}

impl Summed {
    /// Memory for so many values and ranks.
    pub(super) fn new(len: usize, world: usize) -> Summed {
        Summed { len, values: vec![0.0; len + world], halves: Vec::new() }
    }

    /// Puts this rank's values, which end what has been `read` from the device, and its slip behind them. Of a rank that has
    /// failed before, nothing has been read.
    pub(super) fn put(&mut self, read: &[u8], slip: Slip, moment: &Moment) {
        let (len, rank, world) = (self.len, moment.rank as usize, moment.world_size as usize);
        if let Some(from) = read.len().checked_sub(4 * len) {
            bytemuck::cast_slice_mut(&mut self.values[..len]).copy_from_slice(&read[from..]);
        }
        if moment.reduce_dtype == Dtype::Bf16 {
            self.halves.resize(len + 3 * world, Bf16(0));
            self.halves.iter_mut().zip(&self.values[..len]).for_each(|(half, &value)| *half = Bf16::from_f32(value));
            self.halves[len..].fill(Bf16(0));
            self.halves[len + 3 * rank..][..3].copy_from_slice(&slip.to_bf16_sum());
        } else {
            self.values[len..].fill(0.0);
            self.values[len + rank] = slip.to_sum();
        }
    }

    /// The collective.
    pub(super) fn request(&mut self, moment: &Moment) -> Request<'_> {
        match moment.reduce_dtype {
            Dtype::Bf16 => Request::AllReduceSumBf16 { values: &mut self.halves },
            _ => Request::AllReduceSum { values: &mut self.values },
        }
    }

    /// Hears how all ranks fare; the sums are then f32.
    pub(super) fn judge(
        &mut self,
        own: Option<lgreco_train::Error>,
        moment: &Moment,
    ) -> Result<(), lgreco_train::Error> {
        if moment.reduce_dtype != Dtype::Bf16 {
            return judge(own, self.values[self.len..].iter().map(|&slip| Slip::of_sum(slip)));
        }
        let (values, slips) = self.halves.split_at(self.len);
        judge(own, slips.as_chunks().0.iter().map(|&slip| Slip::of_bf16_sum(slip)))?;
        self.values.iter_mut().zip(values).for_each(|(value, half)| *value = half.to_f32());
        Ok(())
    }
}
