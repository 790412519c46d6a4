//! Measures error tables and exchanges of whole models.

use super::*;
use lgreco::rng::Stream;
use lgreco_cuda::{Call, DeviceJob};
use lgreco_testing::models::resnet_50;

impl Bench {
    /// The layer shapes of ResNet-50 and of a transformer with GPT-2's shapes. `tests/peers/gpu.py` measures the
    /// published method on the same transformer. If the benchmark has fewer than 3072 · 768 values, the models are
    /// smaller: the first six layers of ResNet-50, and one block of the transformer with an eighth of each dimension.
    /// Layers that have more values than the benchmark are left out.
    fn models(&self) -> Outcome<[(&'static str, Vec<Shape>); 2]> {
        let is_small = self.values.len() < 3072 * 768;
        let (blocks, part) = if is_small { (1, 8) } else { (37, 1) };
        let block = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
        let shapes = [(50257, 768), (1024, 768)].into_iter().chain(std::iter::repeat_n(block, blocks).flatten());
        let shapes = shapes.map(|(rows, cols)| Shape::new(rows / part, cols / part)).collect::<Result<Vec<_>, _>>()?;
        let mut of_resnet = resnet_50();
        of_resnet.truncate(if is_small { 6 } else { of_resnet.len() });
        let fitting = |shapes: Vec<Shape>| {
            shapes.into_iter().filter(|shape| shape.elements() <= self.values.len()).collect::<Vec<Shape>>()
        };
        Ok([("ResNet-50", fitting(of_resnet)), ("the transformer", fitting(shapes))])
    }

    /// Measures the error tables of all models.
    pub(super) fn tables(&mut self) -> Outcome<()> {
        self.models()?.iter().try_for_each(|(model, shapes)| self.table(model, shapes))
    }

    /// Measures a model's error tables under three methods. Every layer has separate memory, so that reading one layer
    /// does not bring another into the cache.
    fn table(&mut self, model: &str, shapes: &[Shape]) -> Outcome<()> {
        let keeps = |shape: &Shape| (1..=100u32).map(|i| (shape.elements() as u32 / 1000 * i).max(1)).collect();
        let keeps: Vec<Vec<u32>> = shapes.iter().map(keeps).collect();
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let size = self.dtype.bytes();
        let of_all = Memory::new(size * total)?;
        println!("{model}: {} layers, {total} values", shapes.len());
        for (name, options) in [("QSGD", 7), ("TopK", 100), ("PowerSGD", 7)] {
            let (mut jobs, mut at) = (Vec::new(), of_all.at());
            for (&shape, keeps) in shapes.iter().zip(&keeps) {
                let candidates = match name {
                    "QSGD" => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
                    "TopK" => Candidates::TopK { values: Dtype::F32, keeps },
                    _ => Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] },
                };
                let bytes = size * shape.elements();
                self.clock.copy(at, self.gradient.at(), bytes)?;
                // SAFETY: `of_all` has the length of all layers together, so each layer's address has enough values.
                let gradient = unsafe { DeviceGradient::new(at, self.dtype, shape) }?;
                jobs.push(DeviceJob { gradient, candidates, stream: Stream::default() });
                at += bytes as u64;
            }
            self.backend.reserve(&jobs, &[Call::Measure])?;
            let mut table = vec![f64::NAN; options * jobs.len()];
            let here = host_seconds(|| Ok(self.backend.measure_device(&jobs, &mut table)?))?;
            // PowerSGD of a single column has only rounding errors, so vectors are not compared.
            let is_matrix = |layer: &usize| shapes[*layer].rows().min(shapes[*layer].cols()) > 1;
            let matrices: Vec<usize> = (0..shapes.len()).filter(is_matrix).collect();
            for &layer in matrices.first().into_iter().chain(matrices.last()) {
                let (shape, row) = (jobs[layer].gradient.shape(), &table[options * layer..][..options]);
                self.check_rows(name, shape, jobs[layer].candidates, row)?;
            }
            let workspace = self.backend.workspace_bytes(&jobs, &[Call::Measure])? >> 20;
            let of_copy = 100.0 * (size * total) as f64 / here / self.bandwidth;
            println!(
                "{}: table of {} × {options}: {:.3} ms, {of_copy:.0} % of copy, workspace {workspace} MiB",
                self.named(name),
                jobs.len(),
                1e3 * here
            );
        }
        Ok(())
    }

    /// Measures exchanges of all models. The layers of a model take the benchmark's first values, one layer after
    /// another.
    pub(super) fn steps_of_models(&mut self) -> Outcome<()> {
        for (model, shapes) in self.models()? {
            let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
            println!("{model}: {} layers, {total} values", shapes.len());
            if total > self.values.len() {
                println!("{model}: left out, it has more than {} values", self.values.len());
                continue;
            }
            let model = format!("{model}, ");
            self.exchange(&model, "QSGD, 4 bits", qsgd, &shapes)?;
            self.exchange(&model, "EDEN, 3 bits", eden, &shapes)?;
            self.exchange(&model, "TopK, 1 %", top, &shapes)?;
            self.exchange(&model, "TopK in 4 bits, 1 %", top_in_few_bits, &shapes)?;
            self.sums(&model, "PowerSGD, rank 4", power, &shapes)?;
            self.sums(&model, "uncompressed", |_| Setting::Dense, &shapes)?;
        }
        Ok(())
    }
}
