//! One worker, which exchanges gradients after the backward pass or while it goes on.

use crate::batch::Batch;
use crate::communicator::Communicator;
use crate::digits::Digits;
use crate::link::{Link, Linked};
use crate::model::Mlp;
use crate::{RATE, SEED};
use lgreco_train::controller::{Config, Controller, Report, Tensor};
use lgreco_train::exchange::{Collective, threads::ThreadCollective};
use lgreco_train::gradient::{Dtype, ValuesMut};
use std::time::{Duration, Instant};

/// An error that may come from another thread.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A layer's, parameter by parameter.
pub type Gradients = Vec<Vec<f32>>;

/// What to train, and how to exchange.
#[derive(Clone)]
pub struct Run {
    pub hidden: Vec<usize>,
    pub images: usize,
    pub steps: u32,
    pub config: Config,
    pub overlapped: bool,
}

/// What came of it.
pub struct Outcome {
    /// The bits of all parameters.
    pub parameters: Vec<u32>,
    /// Bytes of payloads that this worker sent.
    pub bytes: u64,
    /// The same, uncompressed.
    pub uncompressed: u64,
    /// How long each step took, and whether settings changed at it.
    pub steps: Vec<(Duration, bool)>,
}

struct Worker {
    model: Mlp,
    controller: Controller,
    collective: Linked,
    /// One per layer; none for exchanges that block.
    communicators: Vec<Communicator>,
}

impl Run {
    /// Trains on one thread per worker, each behind a link of its own.
    pub fn train(&self, links: &[Link]) -> Result<Vec<Outcome>, Failure> {
        // A group for each layer, and one for what is exchanged by the workers' own threads.
        let groups = self.hidden.len() + 2;
        let mut places: Vec<Vec<Linked>> = links.iter().map(|_| Vec::new()).collect();
        for _ in 0..groups {
            let group = ThreadCollective::group(links.len() as u32);
            for ((places, threads), link) in places.iter_mut().zip(group).zip(links) {
                places.push(Linked { threads, link: link.clone() });
            }
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                places.into_iter().map(|places| scope.spawn(move || self.train_worker(places))).collect();
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a worker panicked")?).collect()
        })
    }

    fn train_worker(&self, mut places: Vec<Linked>) -> Result<Outcome, Failure> {
        // Matrix products on one thread per worker.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        let collective = places.pop().ok_or("no group")?;
        let communicators = places.into_iter().filter(|_| self.overlapped).map(Communicator::new).collect();
        pool.install(|| {
            let model = Mlp::new(&self.hidden, SEED)?;
            let tensors = model.layers().flat_map(|layer| layer.all());
            let tensors: Result<_, _> = tensors.map(|p| Tensor::new(&p.name, &p.dims, Dtype::F32)).collect();
            let controller = Controller::new(self.config.clone(), tensors?, &collective)?;
            Worker { model, controller, collective, communicators }.train(self)
        })
    }
}

impl Worker {
    fn train(&mut self, run: &Run) -> Result<Outcome, Failure> {
        let digits = Digits::load();
        let (rank, world) = (self.collective.rank(), self.collective.world_size());
        let mut outcome = Outcome { parameters: vec![], bytes: 0, uncompressed: 0, steps: vec![] };
        for step in 0..run.steps {
            let batch = digits.training(run.images, SEED, step, rank, world)?;
            let start = Instant::now();
            let (report, means) = match run.overlapped {
                true => self.overlapped(&batch)?,
                false => self.blocking(&batch)?,
            };
            self.model.update(&means, RATE)?;
            outcome.steps.push((start.elapsed(), report.switched));
            outcome.bytes += report.bytes_out;
            outcome.uncompressed += report.bytes_in;
        }
        outcome.parameters = self.model.parameter_bits()?;
        Ok(outcome)
    }

    /// The backward pass, then the exchange; what happened, and each layer's means.
    fn blocking(&mut self, batch: &Batch) -> Result<(Report, Vec<Gradients>), Failure> {
        let mut gradients = Vec::new();
        self.model.backward(batch, |_, of_layer| {
            gradients.insert(0, of_layer);
            Ok(())
        })?;
        let mut views: Vec<_> = gradients.iter_mut().flatten().map(|values| ValuesMut::F32(values)).collect();
        let report = self.controller.step(&mut self.collective, &mut views, RATE.into())?;
        Ok((report, gradients))
    }

    /// Each layer is a bucket, which is exchanged while the layers before it are still in the backward pass.
    fn overlapped(&mut self, batch: &Batch) -> Result<(Report, Vec<Gradients>), Failure> {
        let Worker { model, controller, collective, communicators } = self;
        controller.begin_step(RATE.into())?;
        while let Some(request) = controller.control()? {
            request.perform(collective)?;
        }
        model.backward(batch, |layer, gradients| {
            let bucket = controller.open(&[2 * layer, 2 * layer + 1])?; // weight and bias
            communicators[layer].submit(bucket, gradients)
        })?;
        let mut means = Vec::new();
        for communicator in communicators {
            let (bucket, gradients, outcome) = communicator.wait()?;
            controller.close(bucket)?;
            outcome?;
            means.push(gradients);
        }
        Ok((controller.finish_step()?, means))
    }
}
