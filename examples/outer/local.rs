//! A worker that trains separately. At intervals, the workers average their parameters.

use crate::optimiser::Optimiser;
use crate::schemes::Scheme;
use crate::sparse_loco::SparseLoCo;
use crate::task::{Model, Task};
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::controller::{Budget, Config, Policy, Schedule, Tensor};
use lgreco_train::exchange::Collective;
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::outer::{Outer, OuterStep};
use lgreco_train::search::{Method, Range, Search, Width};
use std::error::Error;

/// An error that may come from another thread.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A worker between two steps.
pub struct Local<'a, C> {
    task: &'a Task,
    seed: u64,
    collective: C,
    model: Model,
    optimiser: Optimiser,
    averaging: Averaging,
    step: u32,
    every: u32,
    /// Bytes that the worker has sent.
    pub bytes: u64,
}

enum Averaging {
    Outer(Box<OuterStep>),
    SparseLoCo(SparseLoCo, Vec<Vec<f32>>),
}

const WIDTHS: [Width; 7] =
    [Width::Full, Width::Bits(8), Width::Bits(6), Width::Bits(5), Width::Bits(4), Width::Bits(3), Width::Bits(2)];

/// Configuration of the controller of outer steps.
fn config(scheme: Scheme, width: u8, seed: u64, shapes: &[Shape]) -> Result<Config, lgreco_train::Error> {
    let elements: usize = shapes.iter().map(|shape| shape.elements()).sum();
    let Scheme::Bits(bits) = scheme else {
        let mut config = Config::new(Search::new(Method::TopK));
        config.policy = match scheme {
            Scheme::Uniform(bits) => Policy::Fixed(uniform(bits, width, shapes)?),
            Scheme::Joined(bits) => Policy::Fixed(uniform(bits, width, &[Shape::new(elements, 1)?])?),
            _ => Policy::Uncompressed,
        };
        return Ok(config);
    };
    // Before the first plan, a kept element takes about 50 bits: its full value and a position.
    let mut search = Search::new(Method::TopK)
        .with_default(bits / 50.0)?
        .with_range(Range { first: 0.002, last: 0.06, step: 0.002 })?
        .with_widths(&WIDTHS)?;
    (search.min_elements, search.seed) = (1, seed);
    let mut config = Config::new(search);
    config.budget = Budget::Bits((bits * elements as f64) as u64);
    config.schedule = Schedule { warmup: 2, period: 4, window: 2, lead: 0 };
    config.metrics_every = 0;
    Ok(config)
}

/// Makes settings with the same density for every layer, in `width` bits per value.
fn uniform(bits: f64, width: u8, shapes: &[Shape]) -> Result<Vec<Setting>, lgreco_train::Error> {
    let of = |density: f64, shape: &Shape| {
        let keep = (density * shape.elements() as f64).ceil() as u32;
        Setting::QuantisedTopK(QuantisedTopK { keep, bits: width })
    };
    let most: f64 = bits * shapes.iter().map(|shape| shape.elements()).sum::<usize>() as f64;
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        let sizes = shapes.iter().map(|shape| of(middle, shape).payload_len(*shape, Dtype::F32));
        let size: usize = sizes.sum::<Result<usize, _>>()?;
        *if 8.0 * size as f64 <= most { &mut low } else { &mut high } = middle;
    }
    Ok(shapes.iter().map(|shape| of(low, shape)).collect())
}

impl<'a, C: Collective> Local<'a, C> {
    /// A worker before the first step.
    pub fn new(
        task: &'a Task,
        seed: u64,
        scheme: Scheme,
        width: u8,
        outer: Outer,
        mut collective: C,
    ) -> Result<Self, Failure> {
        let model = task.model(seed)?;
        let parameters = model.parameters.all();
        // Vectors are compressed too, as matrices with one column.
        let dims = parameters.iter().map(|parameter| match parameter.dims[..] {
            [len] => vec![len, 1],
            ref dims => dims.to_vec(),
        });
        let dims: Vec<Vec<usize>> = dims.collect();
        let lens = || dims.iter().map(|dims| dims.iter().product());
        let optimiser = Optimiser::new(task.optimizer, lens());
        let mut values = model.parameters.values()?;
        let averaging = match scheme {
            Scheme::SparseLoCo => Averaging::SparseLoCo(SparseLoCo::new(outer, dims), values),
            _ => {
                let tensors = parameters.iter().zip(&dims).map(|(p, dims)| Tensor::new(&p.name, dims, Dtype::F32));
                let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
                let shapes: Vec<Shape> = tensors.iter().map(Tensor::shape).collect();
                let config = config(scheme, width, seed, &shapes)?;
                let mut views: Vec<&mut [f32]> = values.iter_mut().map(|values| &mut values[..]).collect();
                Averaging::Outer(Box::new(OuterStep::new(outer, config, tensors, &mut views, &mut collective)?))
            }
        };
        let every = outer.every as u32;
        Ok(Local { task, seed, collective, model, optimiser, averaging, step: 0, every, bytes: 0 })
    }

    /// Trains until `end` steps are done.
    pub fn train(&mut self, end: u32) -> Result<(), Failure> {
        while self.step < end {
            let (rank, world) = (self.collective.rank(), self.collective.world_size());
            let batch = self.task.training(self.seed, self.step, rank, world)?;
            let gradients = self.model.parameters.gradients(&self.model.loss(&batch)?.backward()?)?;
            let mut values = self.model.parameters.values()?;
            self.optimiser.step(&mut values, &gradients, self.task.rate(self.step));
            self.step += 1;
            self.average(&mut values)?;
            self.model.parameters.set(&values)?;
        }
        Ok(())
    }

    fn average(&mut self, values: &mut Vec<Vec<f32>>) -> Result<(), Failure> {
        self.bytes += match &mut self.averaging {
            Averaging::Outer(outer) => {
                let mut views: Vec<&mut [f32]> = values.iter_mut().map(|values| &mut values[..]).collect();
                outer.step(&mut self.collective, &mut views)?.map_or(0, |report| report.bytes_out)
            }
            Averaging::SparseLoCo(payload, starts) if self.step.is_multiple_of(self.every) => {
                let bytes = payload.step(&mut self.collective, starts, values)?;
                values.clone_from(starts);
                bytes
            }
            Averaging::SparseLoCo(..) => 0,
        };
        Ok(())
    }

    /// The mean loss on data that no worker trains on, in nats; the workers share the evaluation.
    pub fn validate(&mut self) -> Result<f32, Failure> {
        let batches = self.task.validation()?;
        let (rank, world) = (self.collective.rank() as usize, self.collective.world_size() as usize);
        let mut sum = [0.0];
        for batch in batches.iter().skip(rank).step_by(world) {
            sum[0] += self.model.loss(batch)?.to_scalar::<f32>()?;
        }
        self.collective.all_reduce_sum(&mut sum)?;
        Ok(sum[0] / batches.len() as f32)
    }

    /// The bits of all parameters.
    pub fn parameter_bits(&self) -> Result<Vec<u32>, Failure> {
        Ok(self.model.parameters.values()?.iter().flatten().map(|x| x.to_bits()).collect())
    }
}
