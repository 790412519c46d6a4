//! A worker that exchanges gradients after the backward pass or during it.

use crate::batch::Batch;
use crate::digits::Digits;
use crate::link::{Link, Linked};
use crate::model::Mlp;
use crate::optimiser::{Kind, Optimiser};
use lgreco_train::controller::{Config, Controller, Report, Tensor};
use lgreco_train::exchange::{Collective, threads::ThreadCollective};
use lgreco_train::gradient::{Dtype, ValuesMut};
use std::time::{Duration, Instant};

/// An error that may come from another thread.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The model to train, and the way of exchanging.
pub struct Run {
    pub hidden: Vec<usize>,
    pub images: usize,
    pub steps: u32,
    pub config: Config,
    pub overlapped: bool,
}

/// The result of a run on one worker.
#[derive(Default)]
pub struct Outcome {
    pub parameter_bits: Vec<u32>,
    /// Bytes that this worker sent. `uncompressed` is the number of bytes without compression.
    pub bytes: u64,
    pub uncompressed: u64,
    /// The duration of each step, and whether settings changed at it.
    pub steps: Vec<(Duration, bool)>,
}

const SEED: u64 = 1;
const RATE: f32 = 0.02;

impl Run {
    /// Trains with one worker thread per link.
    pub fn train(&self, links: &[Link]) -> Result<Vec<Outcome>, Failure> {
        let mut places: Vec<Vec<Linked>> = links.iter().map(|_| Vec::new()).collect();
        // Makes one group for the ranks' agreement and for blocking steps. Each layer also has a group, so that layers
        // do not wait for each other.
        for _ in 0..self.hidden.len() + 2 {
            let group = ThreadCollective::group(links.len() as u32).into_iter().zip(links);
            let linked = group.map(|(threads, link)| Linked { threads, link: link.clone() });
            places.iter_mut().zip(linked).for_each(|(places, linked)| places.push(linked));
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = places.into_iter().map(|places| scope.spawn(|| self.train_one(places))).collect();
            workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect()
        })
    }

    fn train_one(&self, mut places: Vec<Linked>) -> Result<Outcome, Failure> {
        let (rank, world) = (places[0].rank(), places[0].world_size());
        let model = Mlp::new(&self.hidden, SEED)?;
        let tensors = model.0.all().iter().map(|p| Tensor::new(&p.name, &p.dims, Dtype::F32));
        let mut controller = Controller::new(
            self.config.clone(),
            tensors.collect::<Result<_, _>>()?,
            places[0].rank(),
            places[0].world_size(),
        )?;
        let mut optimiser = Optimiser::new(Kind::Sgd, model.0.all().iter().map(|p| p.dims.iter().product()));
        let (digits, mut outcome) = (Digits::load(), Outcome::default());
        // Each worker computes matrix products on one thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        for step in 0..self.steps {
            let batch = digits.training(self.images, SEED, step, rank, world)?;
            let start = Instant::now();
            let (report, means) = pool.install(|| match self.overlapped {
                true => overlapped(&model, &batch, &mut controller, &mut places),
                false => blocking(&model, &batch, &mut controller, &mut places[0]),
            })?;
            outcome.steps.push((start.elapsed(), report.switched));
            outcome.bytes += report.bytes_out;
            outcome.uncompressed += report.bytes_in;
            let mut values = model.0.values()?;
            optimiser.step(&mut values, &means, RATE);
            model.0.set(&values)?;
        }
        outcome.parameter_bits = model.0.values()?.iter().flatten().map(|x| x.to_bits()).collect();
        Ok(outcome)
    }
}

/// The report of a step, and the mean gradients.
type Exchanged = Result<(Report, Vec<Vec<f32>>), Failure>;

/// Runs the backward pass, and then the exchange.
fn blocking(model: &Mlp, batch: &Batch, controller: &mut Controller, own: &mut Linked) -> Exchanged {
    let mut gradients = model.gradients(batch)?;
    let mut views: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
    let report = controller.step(own, &mut views, RATE.into())?;
    Ok((report, gradients))
}

/// Makes each layer a bucket. Another thread exchanges the bucket while the backward pass continues with earlier
/// layers.
fn overlapped(model: &Mlp, batch: &Batch, controller: &mut Controller, places: &mut [Linked]) -> Exchanged {
    let (own, of_layers) = places.split_first_mut().ok_or("no group")?;
    controller.begin_step(RATE.into())?;
    while let Some(request) = controller.control()? {
        request.perform(own)?;
    }
    let mut means = Vec::new();
    std::thread::scope(|scope| {
        let (mut places, mut threads) = (of_layers.iter_mut(), Vec::new());
        model.backward(batch, |layer, mut gradients| {
            let mut bucket = controller.open(&[2 * layer, 2 * layer + 1])?; // weight and bias
            let place = places.next().ok_or("more layers than groups")?;
            threads.push(scope.spawn(move || {
                let mut views: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
                bucket.submit(&mut views)?;
                while let Some(request) = bucket.next(&mut views)? {
                    request.perform(place)?;
                }
                Ok::<_, Failure>((bucket, gradients))
            }));
            Ok(())
        })?;
        for thread in threads {
            let (bucket, of_layer) = thread.join().map_err(|_| "a bucket's thread panicked")??;
            controller.close(bucket)?;
            means.splice(..0, of_layer);
        }
        Ok::<_, Failure>(())
    })?;
    Ok((controller.finish_step()?, means))
}
