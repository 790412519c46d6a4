//! TopK's payloads of a bucket: what `exchange_select.wgsl` is asked to do.

use super::bucket::{BufferBucket, kernel};
use super::moment;
use crate::batch::{Batch, Part};
use crate::cut::LEVELS;
use lgreco_train::exchange::Moment;

impl BufferBucket {
    /// Records the encoding of all payloads of a bucket that has layers under TopK.
    pub(super) fn encode_topk(&self, batch: &mut Batch<'_>, params: moment::Params) {
        let (plan, on) = (&self.plan, &self.device);
        self.clear_tables(batch);
        batch.dispatch(kernel("refine"), params, &self.of_cuts(), plan.of_values.len());
        batch.clear(&on.bins, on.bins.size());
        batch.clear(&on.blocks, 4 * plan.block_sums as u64);
        self.write_topk(batch, params, plan.buckets > 0);
    }

    /// Records the encoding of layers under TopK whose cuts are lost, of which nothing has been written.
    pub(super) fn encode_lost(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let params = moment::Params { settles: 1, ..moment::Params::of(moment, &self.plan, self.feedback) };
        self.clear_tables(batch);
        for level in 0..LEVELS {
            let params = moment::Params { level, ..params };
            let bindings = [&self.of_values()[..], &[self.of_codes()[0].clone()]].concat();
            batch.dispatch(kernel("settle"), params, &bindings, self.plan.of_values.len());
        }
        self.write_topk(batch, params, false);
    }

    /// Records the clearing of what layers under TopK count in anew.
    fn clear_tables(&self, batch: &mut Batch<'_>) {
        let tables = self.plan.tables();
        batch.clear_from(&self.device.extremes, 4 * tables.start as u64, 4 * tables.len() as u64);
    }

    /// What TopK's cuts are found by.
    fn of_cuts(&self) -> Vec<(u32, Part)> {
        let [extremes, _] = self.of_codes();
        [&self.of_values()[..], &[extremes, (15, (&self.device.entries).into())]].concat()
    }

    /// Records TopK's payloads, once what their cuts are told by is known, and where there are any those of QSGD.
    fn write_topk(&self, batch: &mut Batch<'_>, params: moment::Params, with_codes: bool) {
        let (plan, on) = (&self.plan, &self.device);
        let [extremes, words] = self.of_codes();
        let (blocks, bins, image) =
            ((17, Part::from(&on.blocks)), (18, Part::from(&on.bins)), (16, Part::from(&on.image)));
        let mut counted = [&self.of_cuts()[..], &[blocks.clone(), bins.clone()]].concat();
        counted.extend(with_codes.then_some(words));
        let count = if with_codes { "encode_and_count" } else { "count_kept" };
        batch.dispatch(kernel(count), params, &counted, plan.of_values.len());
        let written = [extremes, (10, (&on.faults).into()), image.clone(), blocks, bins.clone()];
        batch.dispatch(kernel("write_kept"), params, &[&self.of_values()[..], &written].concat(), plan.of_values.len());
        let bindings = [(5, (&on.layers).into()), (6, (&on.of_few).into()), image, bins];
        batch.dispatch(kernel("send_means"), params, &bindings, plan.of_few.len());
    }
}
