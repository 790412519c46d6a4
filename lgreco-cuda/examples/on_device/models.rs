//! Tables of whole models, and their exchanges.

use super::*;
use cudarc::driver::sys;
use lgreco_core::rng::Stream;
use lgreco_core::testing::models::resnet_50;
use lgreco_cuda::{Call, DeviceJob};

impl Bench {
    /// The whole tables of ResNet-50 and of a transformer with GPT-2's shapes; `tests/peers/gpu.py` takes the published method's
    /// time for the latter. Where there are fewer values than that takes, some layers of the one, and of the other one block, of
    /// sides an eighth as long.
    pub(super) fn models(&mut self) -> Outcome<()> {
        let is_small = self.values.len() < 3072 * 768;
        let (blocks, part) = if is_small { (1, 8) } else { (37, 1) };
        let block = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
        let shapes = [(50257, 768), (1024, 768)].into_iter().chain(std::iter::repeat_n(block, blocks).flatten());
        let shapes = shapes.map(|(rows, cols)| Shape::new(rows / part, cols / part)).collect::<Result<Vec<_>, _>>()?;
        let mut of_resnet = resnet_50();
        of_resnet.truncate(if is_small { 6 } else { of_resnet.len() });
        self.tables("ResNet-50", &fitting(of_resnet, self.values.len()))?;
        self.tables("the transformer", &fitting(shapes, self.values.len()))
    }

    /// The tables of a model under three methods. Every layer has memory of its own, so that none is in a cache because another
    /// was read.
    pub(super) fn tables(&mut self, model: &str, shapes: &[Shape]) -> Outcome<()> {
        let keeps = |shape: &Shape| (1..=100u32).map(|i| (shape.elements() as u32 / 1000 * i).max(1)).collect();
        let keeps: Vec<Vec<u32>> = shapes.iter().map(keeps).collect();
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let size = self.dtype.bytes();
        let memory_of_all = memory(size * total)?;
        println!("\n{model}: {} layers, {total} values", shapes.len());
        for (name, options) in [("QSGD", 7), ("TopK", 100), ("PowerSGD", 7)] {
            let (mut jobs, mut at) = (Vec::new(), memory_of_all);
            for (&shape, keeps) in shapes.iter().zip(&keeps) {
                let candidates = match name {
                    "QSGD" => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
                    "TopK" => Candidates::TopK { values: Dtype::F32, keeps },
                    _ => Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] },
                };
                let bytes = size * shape.elements();
                // SAFETY: there are as many values, and the layers together are as long as the memory.
                let gradient = unsafe {
                    result::memcpy_dtod_async(at, self.gradient, bytes, std::ptr::null_mut())?;
                    DeviceGradient::new(at, self.dtype, shape)
                }?;
                jobs.push(DeviceJob { gradient, candidates, stream: Stream::default() });
                at += bytes as u64;
            }
            result::ctx::synchronize()?;
            self.backend.reserve(&jobs, &[Call::Measure])?;
            let mut table = vec![f64::NAN; options * jobs.len()];
            let here = CALLS as f64 * seconds(|| Ok(self.backend.measure_device(&jobs, &mut table)?))?;
            // Of a single column PowerSGD leaves nothing but rounding.
            let is_matrix = |layer: &usize| shapes[*layer].rows().min(shapes[*layer].cols()) > 1;
            let matrices: Vec<usize> = (0..shapes.len()).filter(is_matrix).collect();
            for &layer in matrices.first().into_iter().chain(matrices.last()) {
                let (shape, row) = (jobs[layer].gradient.shape(), &table[options * layer..][..options]);
                self.check_rows(name, shape, jobs[layer].candidates, row)?;
            }
            let workspace = self.backend.workspace_bytes(&jobs, &[Call::Measure])? >> 20;
            let of_copy = 100.0 * (size * total) as f64 / here / self.bandwidth;
            println!(
                "{name}: table of {} × {options}: {:.3} ms, {of_copy:.0} % of copy, workspace {workspace} MiB",
                jobs.len(),
                1e3 * here
            );
        }
        // SAFETY: allocated above, and used no more.
        unsafe { sys::cuMemFree_v2(memory_of_all) }.result()?;
        let fits = total <= self.values.len();
        if !fits {
            println!("exchanges: left out, it has more than {} values", self.values.len());
            return Ok(());
        }
        // The gradients are the first values, one layer behind the other.
        let model = format!("{model}: ");
        let few_bits: (&str, fn(Shape) -> Setting) = ("TopK in 4 bits, 1 %", top_in_few_bits);
        for (name, setting) in [("QSGD, 4 bits", qsgd as fn(Shape) -> Setting), ("TopK, 1 %", top), few_bits] {
            self.exchange(&model, name, setting, shapes)?;
        }
        self.sums(&model, "PowerSGD, rank 4", power, shapes)?;
        self.sums(&model, "uncompressed", |_| Setting::Dense, shapes)
    }
}

/// The layers that have as many values at most.
fn fitting(shapes: Vec<Shape>, most: usize) -> Vec<Shape> {
    shapes.into_iter().filter(|shape| shape.elements() <= most).collect()
}
