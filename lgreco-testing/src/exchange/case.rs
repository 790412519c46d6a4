//! A bucket and each worker's gradients, exchanged in host memory and on a device.

use super::device::Device;
use super::{STALE, bits};
use lgreco_train::Error;
use lgreco_train::compress::Setting;
use lgreco_train::compress::powersgd::effective_rank;
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{
    Agreement, Collective, Flight, Host, Layer, Moment, Request, Rest, Round, Route, Space, Spec, workspace_len,
};
use lgreco_train::gradient::{Dtype, Shape, ValuesMut};

/// A bucket and each worker's gradients.
#[derive(Clone, Debug)]
pub struct Case {
    /// The layers.
    pub layers: Vec<(Setting, Shape)>,
    /// Values by worker and layer.
    pub gradients: Vec<Vec<Vec<f32>>>,
    /// The route of payloads.
    pub route: Route,
    /// Element type of sums on the network.
    pub reduce_dtype: Dtype,
    /// Seed of the run.
    pub seed: u64,
    /// Optimiser step.
    pub step: u32,
}

/// A worker's results, by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The mean.
    pub mean: Vec<Vec<f32>>,
    /// The gradient minus the worker's contribution.
    pub rest: Vec<Vec<f32>>,
    /// The worker's contribution, computed as the gradient minus `rest`.
    pub own: Vec<Vec<f32>>,
    /// PowerSGD's factors for the next step.
    pub factors: Vec<Vec<f32>>,
}

impl Outcome {
    pub(super) fn bits(&self) -> Vec<u32> {
        [&self.mean, &self.rest, &self.factors].into_iter().flatten().flat_map(|values| bits(values)).collect()
    }
}

impl Case {
    /// Number of workers.
    pub fn world(&self) -> u32 {
        self.gradients.len() as u32
    }

    fn zeros(&self) -> Vec<Vec<f32>> {
        self.layers.iter().map(|(_, shape)| vec![0.0; shape.elements()]).collect()
    }

    /// PowerSGD's factors for a cold start: zeros.
    fn cold(&self) -> Vec<Vec<f32>> {
        let zeros = self.layers.iter().map(|(setting, shape)| match setting {
            Setting::PowerSgd(c) => vec![0.0; shape.cols() * effective_rank(*shape, c.rank)],
            _ => vec![],
        });
        zeros.collect()
    }

    fn moment(&self, rank: u32) -> Moment {
        let (world_size, route, seed, step) = (self.world(), self.route, self.seed, self.step);
        Moment { rank, world_size, route, reduce_dtype: self.reduce_dtype, seed, step, terms: 0 }
    }

    fn words(&self, shards: &[Vec<u64>]) -> Result<usize, Error> {
        workspace_len(self.specs(shards).into_iter(), self.route, self.world())
    }

    /// Ends of the shards, by layer. Three kinds of shards take turns: rows in equal chunks (FSDP), equal ranges of the
    /// flat bucket (ZeRO), and the whole layer for the last rank.
    pub fn shards(&self) -> Vec<Vec<u64>> {
        let world = u64::from(self.world());
        let all: u64 = self.layers.iter().map(|(_, shape)| shape.elements() as u64).sum();
        let mut first = 0;
        let ends = self.layers.iter().enumerate().map(|(layer, (_, shape))| {
            let (elements, rows) = (shape.elements() as u64, shape.rows() as u64);
            let before = first;
            first += elements;
            let end = |rank: u64| match (layer as u64 + self.seed) % 3 {
                0 => (rows.div_ceil(world) * (rank + 1)).min(rows) * shape.cols() as u64,
                1 => (all * (rank + 1) / world).saturating_sub(before).min(elements),
                _ if rank + 1 == world => elements,
                _ => 0,
            };
            (0..world).map(end).collect()
        });
        ends.collect()
    }

    fn specs<'a>(&self, shards: &'a [Vec<u64>]) -> Vec<Spec<'a>> {
        let layers = (0..).zip(&self.layers).zip(shards);
        let spec = |((index, &(setting, shape)), shards): ((u32, &(Setting, Shape)), &'a Vec<u64>)| {
            let shards = if self.route == Route::Sharded { &shards[..] } else { &[] };
            Spec { index, shards, ..Spec::from((setting, shape, Dtype::F32)) }
        };
        layers.map(spec).collect()
    }

    /// With shards, replaces every rank's mean by the concatenated means of all ranks.
    pub(super) fn assembled(&self, mut outcomes: Vec<Result<Outcome, Error>>) -> Vec<Result<Outcome, Error>> {
        if self.route == Route::Sharded && outcomes.iter().all(Result::is_ok) {
            let all = || outcomes.iter().flatten();
            let mean = |layer: usize| all().flat_map(|outcome| outcome.mean[layer].iter().copied()).collect();
            let means: Vec<Vec<f32>> = (0..self.layers.len()).map(mean).collect();
            outcomes.iter_mut().flatten().for_each(|outcome| outcome.mean = means.clone());
        }
        outcomes
    }

    /// Runs the exchange as `collective`'s rank, from the warm-start factors `factors`; `None` is a cold start.
    ///
    /// # Panics
    /// Panics if a collective, or its size, differs from the announced one.
    ///
    /// # Errors
    /// Returns the errors of [`Flight`].
    pub fn exchange(&self, collective: &mut impl Collective, factors: Option<Vec<Vec<f32>>>) -> Result<Outcome, Error> {
        let factors = factors.unwrap_or_else(|| self.cold());
        let (rank, shards) = (collective.rank(), self.shards());
        let specs = self.specs(&shards);
        let (mut values, mut factors) = (self.gradients[rank as usize].clone(), factors);
        let mut rest = self.zeros();
        let mut layers = Vec::new();
        for (((spec, values), rest), factor) in specs.iter().zip(&mut values).zip(&mut rest).zip(&mut factors) {
            let &Spec { index, setting, shape, shards, .. } = spec;
            let layer = Layer::new(index, setting, shape, ValuesMut::F32(values), Rest::Beside(rest));
            layers.push(Layer { factor, ..layer.with_shards(shards) });
        }
        let mut host = Host { layers: &mut layers, workspace: &mut vec![STALE; self.words(&shards)?], scratch: None };
        let mut flight = Flight::begin(&mut host, self.moment(rank), Agreement::Needed, None)?;
        let announced: Vec<Round> = flight.program().rounds(host.layers()).map(|(_, round)| round).collect();
        let mut announced = announced.into_iter();
        while let Some(request) = flight.next(&mut host)? {
            check_round(announced.next(), &request, self.world() as usize, rank as usize);
            request.perform(collective)?;
        }
        assert_eq!(announced.next(), None, "a collective was announced that did not come");
        Ok(self.outcome(&specs, rank, values, rest, factors))
    }

    /// Makes the outcome from the means, and from `rest`, which is each gradient minus this rank's contribution.
    fn outcome(
        &self,
        specs: &[Spec<'_>],
        rank: u32,
        values: Vec<Vec<f32>>,
        rest: Vec<Vec<f32>>,
        factors: Vec<Vec<f32>>,
    ) -> Outcome {
        let wanted = |(spec, values): (&Spec<'_>, Vec<f32>)| match self.route {
            Route::Sharded => values[spec.shard(rank)].to_vec(),
            _ => values,
        };
        let own =
            self.gradients[rank as usize].iter().zip(&rest).map(|(values, rest)| difference(values, rest)).collect();
        Outcome { mean: specs.iter().zip(values).map(wanted).collect(), rest, own, factors }
    }

    /// Like [`exchange`](Case::exchange), on a device. The exchange may wait for the device only at the end, unless
    /// payload lengths depend on the values.
    ///
    /// # Panics
    /// Panics if the exchange has waited for the device.
    ///
    /// # Errors
    /// Returns the errors of [`Flight`].
    pub fn exchange_on_device(&self, collective: &mut impl Collective) -> Result<Outcome, Error> {
        let (rank, shards) = (collective.rank(), self.shards());
        let (gradients, specs) = (&self.gradients[rank as usize], self.specs(&shards));
        let words = self.words(&shards)?;
        let mut device = Device::new(collective, specs.clone(), gradients, &self.cold(), words);
        let mut flight = Flight::begin(&mut device, self.moment(rank), Agreement::Reached, None)?;
        loop {
            let (buffer, lens) = match flight.next(&mut device)? {
                None => break,
                Some(
                    Request::AllReduceSum { values: buffer }
                    | Request::AllReduceSumBf16 { values: buffer }
                    | Request::AllGather { buffer }
                    | Request::Broadcast { bytes: buffer, .. },
                ) => (buffer, None),
                Some(Request::AllGatherEach { lens, buffer }) => (buffer, Some(lens.to_vec())),
                Some(Request::ReduceScatterSum { lens, values } | Request::ReduceScatterSumBf16 { lens, values }) => {
                    (values, Some(lens.to_vec()))
                }
                Some(Request::AllToAll { send, send_lens, .. }) => (send, Some(send_lens.to_vec())),
            };
            let program = *flight.program();
            device.enqueue(buffer, lens, &program);
        }
        assert!(device.waits == 0 || flight.program().layout.varies, "a flight has waited for its device");
        let (values, rest, factors) = device.finish()?;
        Ok(self.outcome(&specs, rank, values, rest, factors))
    }

    /// Runs the exchange on threads; returns outcomes by rank. With shards, every rank's outcome has the means of all
    /// ranks.
    pub fn run(&self) -> Vec<Result<Outcome, Error>> {
        self.assembled(threads::run(self.world(), |mut worker: ThreadCollective| self.exchange(&mut worker, None)))
    }

    /// Like [`run`](Case::run), on devices.
    pub fn run_on_devices(&self) -> Vec<Result<Outcome, Error>> {
        self.assembled(threads::run(self.world(), |mut worker| self.exchange_on_device(&mut worker)))
    }
}

/// Differences of f32 values.
pub(super) fn difference(values: &[f32], others: &[f32]) -> Vec<f32> {
    values.iter().zip(others).map(|(x, y)| x - y).collect()
}

/// Asserts that a request is the announced one.
fn check_round(announced: Option<Round>, request: &Request<'_>, world: usize, rank: usize) {
    let round = match request {
        Request::AllReduceSum { values } => Round::AllReduceSum { values: values.len() },
        Request::AllReduceSumBf16 { values } => Round::AllReduceSumBf16 { values: values.len() },
        Request::AllGather { buffer } => Round::AllGather { bytes: buffer.len() / world },
        Request::Broadcast { bytes, .. } => Round::Broadcast { bytes: bytes.len() },
        Request::AllToAll { send, received, .. } => Round::AllToAll { send: send.len(), received: received.len() },
        Request::ReduceScatterSum { lens, values } => {
            assert_eq!(lens.iter().sum::<u64>(), values.len() as u64);
            Round::ReduceScatterSum { values: values.len(), own: lens[rank] as usize }
        }
        Request::ReduceScatterSumBf16 { lens, values } => {
            assert_eq!(lens.iter().sum::<u64>(), values.len() as u64);
            Round::ReduceScatterSumBf16 { values: values.len(), own: lens[rank] as usize }
        }
        Request::AllGatherEach { buffer, .. } => match announced {
            Some(Round::AllGatherEach { bytes, exact: false }) if buffer.len() <= bytes => return,
            _ => Round::AllGatherEach { bytes: buffer.len(), exact: true },
        },
    };
    assert_eq!(announced, Some(round), "another collective was announced");
}
