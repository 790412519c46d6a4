//! Computes the seconds of every option from measurements.

use super::buffers::{grow, values, workspace};
use super::compute::{Compute, DENSE, work};
use super::link::Line;
use super::observed::Means;
use super::window::Typed;
use super::{Tensor, Timing};
use crate::Error;
use crate::backend::Backend;
use crate::compress::wire::Payload;
use crate::compress::{Aggregation, Compressor, Setting};
use crate::exchange::{Route, factor_rank, share_of_others};
use crate::gradient::{Dtype, Gradient};
use crate::rng::Stream;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use lgreco::error::expect_room;

/// The measured costs from which a decision under [`Objective::MeasuredSeconds`](super::Objective) is made, on the slowest rank.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub line: Line,
    pub compute: Compute,
    pub route: Route,
    pub reduce_dtype: Dtype,
    pub world: u32,
    /// Whether the plan task times methods by trials. Otherwise, the caller has timed the methods on a device.
    pub tries: bool,
    /// The present settings, by layer.
    pub present: Vec<Setting>,
    /// Layers and settings whose payload length depends on the values, with the measured bits.
    pub lens: Vec<(usize, Setting, u64)>,
    /// Number of elements of all layers.
    pub elements: f64,
    /// Seconds of a typical step's exchange.
    pub measured: f64,
    /// The part of `measured` that is computing.
    pub computing: f64,
}

/// Minimum relative gain before a layer starts to be compressed.
const MARGIN: f64 = 0.1;
/// Minimum gain before all layers start to be compressed, as a fraction of the present seconds of an exchange.
const GAIN: f64 = 0.03;
/// Largest layer, in elements, that is used for a trial, unless all layers are larger.
const TRIAL: usize = 1 << 18;

/// A trial of a method: its cost family, its estimated and its measured seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub family: usize,
    pub work: f64,
    pub seconds: f64,
}

impl Costs {
    /// Number of payloads of a layer that a rank decodes.
    pub(super) fn payloads(setting: &Setting, route: Route, world: u32) -> f64 {
        match route {
            _ if setting.traits().aggregation == Aggregation::WholePayloads => f64::from(world),
            Route::AllGather => f64::from(world),
            Route::ScatterReduce => 2.0,
            Route::Sharded => 1.0,
        }
    }

    /// Bytes that a rank sends for a layer whose payload has `bits` bits.
    fn wire_bytes(&self, setting: &Setting, tensor: &Tensor, bits: u64) -> f64 {
        let (others, payload, shape) = (share_of_others(self.world), (bits / 8) as f64, tensor.shape);
        let summed = |values: usize| (self.reduce_dtype.bytes() * values) as f64;
        let (elements, gathered) = (shape.elements(), payload * f64::from(self.world));
        others
            * match setting.traits().aggregation {
                Aggregation::AllReduce if self.route == Route::Sharded => summed(elements),
                Aggregation::AllReduce => 2.0 * summed(elements),
                Aggregation::FactorAllReduce => {
                    2.0 * summed(factor_rank(setting, shape) * (shape.rows() + shape.cols()))
                }
                // Positions travel once. Values travel twice: before and after they are summed.
                Aggregation::SharedPositions => 1.5 * payload,
                Aggregation::WholePayloads => gathered,
                Aggregation::Payloads => match self.route {
                    Route::AllGather => gathered,
                    Route::ScatterReduce => 2.0 * payload,
                    Route::Sharded => payload,
                },
            }
    }

    fn computing(&self, setting: &Setting, tensor: &Tensor) -> f64 {
        self.compute.seconds(setting, tensor.shape, Costs::payloads(setting, self.route, self.world))
    }

    /// Seconds of a layer under a setting.
    pub(super) fn seconds(&self, setting: &Setting, tensor: &Tensor, bits: u64) -> f64 {
        self.wire_bytes(setting, tensor, bits) * self.line.per_byte + self.computing(setting, tensor)
    }

    /// Like [`seconds`](Costs::seconds), plus the minimum gain if the layer is uncompressed now and this setting compresses it.
    pub(super) fn seconds_with_margin(&self, layer: usize, setting: &Setting, tensor: &Tensor, bits: u64) -> f64 {
        let seconds = self.seconds(setting, tensor, bits);
        let is_dense = |setting: &Setting| *setting == Setting::Dense;
        if !is_dense(&self.present[layer]) || is_dense(setting) {
            return seconds;
        }
        let share = tensor.shape.elements() as f64 / self.elements.max(1.0);
        seconds * (1.0 + MARGIN) + GAIN * self.measured * share
    }

    /// Times one encoding and decoding per cost family of `options` (pairs of layer and setting) on `backend`. Layers are left out
    /// if a device has their means.
    pub(super) fn try_out<'a>(
        &mut self,
        options: impl Iterator<Item = (usize, &'a Setting)> + Clone,
        tensors: &[Tensor],
        means: &Means<'_, '_>,
        clock: fn() -> f64,
        backend: &mut dyn Backend,
    ) -> Result<Vec<Trial>, Error> {
        let mut trials = vec![];
        let mut families: BTreeSet<usize> = options.clone().map(|(_, setting)| setting.traits().cost.family).collect();
        families.remove(&DENSE);
        for wanted in families {
            let elements = |layer: usize| tensors[layer].shape.elements();
            // The largest layer within the limit `TRIAL`, or the smallest layer if all are larger than the limit.
            let order = |layer: usize| match elements(layer) {
                small if small <= TRIAL => (true, small),
                large => (false, usize::MAX - large),
            };
            let is_here = |layer: usize| means.here(layer).is_some();
            let of_family =
                options.clone().filter(|&(layer, setting)| setting.traits().cost.family == wanted && is_here(layer));
            let layer = of_family.clone().map(|(layer, _)| layer).max_by_key(|&layer| order(layer));
            let Some((layer, mean)) = layer.and_then(|layer| Some((layer, means.here(layer)?))) else { continue };
            let settings: Vec<&Setting> = of_family.filter(|option| option.0 == layer).map(|option| option.1).collect();
            let setting = settings[settings.len() / 2];
            let seconds = self.trial(setting, layer, &tensors[layer], mean, clock, backend)?;
            let work = work(setting, tensors[layer].shape, Costs::payloads(setting, self.route, self.world));
            self.compute.try_out(wanted, work, seconds);
            trials.push(Trial { family: wanted, work, seconds });
        }
        Ok(trials)
    }

    fn trial(
        &self,
        setting: &Setting,
        layer: usize,
        tensor: &Tensor,
        mean: &Typed<'_>,
        clock: fn() -> f64,
        backend: &mut dyn Backend,
    ) -> Result<f64, Error> {
        let (shape, dtype) = (tensor.shape, tensor.dtype);
        let gradient = Gradient::new(mean.values(), shape)?;
        let mut workspace = workspace(setting.encode_workspace_len(shape, dtype))?;
        let mut payload = Vec::new();
        grow(&mut payload, setting.payload_len(shape, dtype)?)?;
        let mut decoded = values(shape.elements())?;
        let stream = Stream { layer: layer as u32, ..Stream::default() };
        let mut least = [f64::INFINITY; 2];
        // The first run warms up caches.
        for _ in 0..2 {
            let start = clock();
            let len = backend.encode(setting, &gradient, stream, &mut workspace, &mut payload)?;
            let encoded = clock();
            expect_room("payload bytes for the length that the backend returned", len, payload.len())?;
            match setting {
                Setting::Own(_) => setting.decode(&Payload::parse(&payload[..len])?, &mut decoded)?,
                _ => backend.decode(&payload[..len], &mut decoded)?,
            }
            let found = [encoded - start, clock() - encoded];
            least.iter_mut().zip(found).for_each(|(least, seconds)| *least = least.min(seconds));
        }
        Ok(least[0] + least[1] * Costs::payloads(setting, self.route, self.world))
    }

    /// Bits of a layer's payload. If a payload's length depends on its values, returns the measured bits. Without a measurement of
    /// this setting, returns the largest possible number.
    fn bits(&self, layer: usize, setting: &Setting, tensor: &Tensor) -> Result<u64, Error> {
        let varying = self.lens.iter().filter(|_| !setting.has_fixed_len());
        let measured = varying.filter(|(of, known, _)| *of == layer && known == setting).map(|(.., bits)| *bits).next();
        let most = || setting.exchanged_len(tensor.shape, tensor.dtype, self.reduce_dtype);
        Ok(measured.map_or_else(|| most().map(|len| 8 * len as u64), Ok)?)
    }

    /// The timing that a decision reports: measured seconds, and expected seconds. `settings` has the plan's settings and the
    /// default settings.
    pub(super) fn timing(&self, tensors: &[Tensor], settings: [&[Setting]; 2]) -> Result<Timing, Error> {
        let of = |settings: &[Setting]| -> Result<f64, Error> {
            let (mut wire, mut computing) = (self.line.constant, 0.0);
            for (layer, (setting, tensor)) in settings.iter().zip(tensors).enumerate() {
                let bits = self.bits(layer, setting, tensor)?;
                wire += self.wire_bytes(setting, tensor, bits) * self.line.per_byte;
                computing += self.computing(setting, tensor);
            }
            Ok(wire.max(0.0) + computing)
        };
        let [plan, default] = settings;
        let layers = plan.iter().zip(tensors);
        Ok(Timing {
            measured: self.measured,
            computing: self.computing,
            seconds_per_byte: self.line.per_byte,
            plan: of(plan)?,
            plan_computing: layers.map(|(setting, tensor)| self.computing(setting, tensor)).sum(),
            default: of(default)?,
            uncompressed: of(&vec![Setting::Dense; tensors.len()])?,
            compressed: plan.iter().filter(|&&setting| setting != Setting::Dense).count() as u32,
            layers: tensors.len() as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CoreError;
    use crate::backend::{Job, JobError};
    use crate::compress::hard_threshold::HardThreshold;
    use crate::compress::topk::TopK;

    fn costs(lens: &[(usize, Setting, u64)]) -> Costs {
        Costs {
            line: Line { constant: 0.0, per_byte: 1.0 },
            compute: Compute::default(),
            route: Route::AllGather,
            reduce_dtype: Dtype::F32,
            world: 2,
            tries: false,
            present: vec![Setting::Dense; 2],
            lens: lens.to_vec(),
            elements: 8192.0,
            measured: 0.0,
            computing: 0.0,
        }
    }

    /// A backend that returns a longer length than the payload has room for.
    struct TooLong;

    impl Backend for TooLong {
        fn workspace_len(&self, _: &[Job<'_>]) -> usize {
            0
        }
        fn measure(&mut self, _: &[Job<'_>], _: &mut [u64], _: &mut [f64]) -> Result<(), JobError> {
            Ok(())
        }
        fn encode(
            &mut self,
            _: &Setting,
            _: &Gradient<'_>,
            _: Stream,
            _: &mut [u64],
            payload: &mut [u8],
        ) -> Result<usize, CoreError> {
            Ok(payload.len() + 1)
        }
    }

    #[test]
    fn a_length_above_the_payloads_room_is_an_error() {
        let tensor = Tensor::new("a", &[64, 64], Dtype::F32).unwrap();
        let (top, mean) = (Setting::TopK(TopK { keep: 16, values: Dtype::F32 }), [1.0; 4096]);
        let error = costs(&[]).trial(&top, 0, &tensor, &Typed::F32(&mean), || 0.0, &mut TooLong).unwrap_err();
        assert!(matches!(error, Error::Core(CoreError::Length { .. })), "{error}");
    }

    /// If the length of a payload depends on its values, a plan's expected seconds use the measured length.
    #[test]
    fn measured_lengths_count() {
        let tensors =
            [Tensor::new("a", &[64, 64], Dtype::F32).unwrap(), Tensor::new("b", &[64, 64], Dtype::F32).unwrap()];
        let hard = Setting::HardThreshold(HardThreshold { lambda: 0.5, values: Dtype::F32 });
        let top = Setting::TopK(TopK { keep: 16, values: Dtype::F32 });
        let seconds = |lens: &[_], settings: [Setting; 2]| {
            let timing = costs(lens).timing(&tensors, [&settings, &[Setting::Dense; 2]]).unwrap();
            (timing.plan - timing.plan_computing).round()
        };
        let most = hard.payload_len(tensors[0].shape, Dtype::F32).unwrap() as f64;
        // With two ranks, each byte of a payload crosses the link once.
        assert_eq!(seconds(&[], [hard; 2]), 2.0 * most);
        assert_eq!(seconds(&[(1, hard, 8 * 100)], [hard; 2]), most + 100.0);
        let fixed = top.payload_len(tensors[0].shape, Dtype::F32).unwrap() as f64;
        assert_eq!(seconds(&[(0, hard, 8 * 100)], [hard, top]), 100.0 + fixed);
    }
}
