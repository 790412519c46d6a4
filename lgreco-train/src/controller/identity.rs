//! Everything that must be the same on all ranks, as named fields, so that an error can name the difference.

use super::decision::LayerSetting;
use super::{Budget, Config, Feedback, Objective, Policy, RampUp, Schedule, Tensor};
use crate::checksum::Hash;
use crate::compress::Setting;
use crate::compress::method;
use crate::error::OptionValue;
use crate::exchange::Route;
use crate::feedback::{Residual, Storage};
use crate::gradient::Dtype;
use crate::plan::Solver;
use crate::search::{Method, Metric, Search};
use alloc::vec;
use alloc::vec::Vec;

/// The meaning of the word of a [`Field`].
#[derive(Clone, Copy)]
enum Kind {
    /// A number; [`NONE`] for none.
    Whole,
    /// The bits of an f64; NaN for none.
    Real,
    /// An index into this list of names.
    Name(&'static [&'static str]),
    /// One of the [`NAME`] consecutive fields that together hold a name; numbered from 0. If there is no name, all of
    /// these fields are zeros.
    Text(usize),
    /// The checksum of a value that does not fit a word.
    Checksum,
}

const NONE: u64 = u64::MAX;

/// A value that must be the same on all ranks. Every rank has the same fields in the same order.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub name: &'static str,
    kind: Kind,
    /// This rank's value.
    pub word: u64,
}

impl Field {
    pub(crate) const fn whole(name: &'static str, word: u64) -> Field {
        Field { name, kind: Kind::Whole, word }
    }

    pub(crate) fn real(name: &'static str, value: f64) -> Field {
        Field { name, kind: Kind::Real, word: value.to_bits() }
    }

    pub(crate) const fn named(name: &'static str, names: &'static [&'static str], index: u64) -> Field {
        Field { name, kind: Kind::Name(names), word: index }
    }

    pub(crate) fn checksum(name: &'static str, words: impl IntoIterator<Item = u64>) -> Field {
        Field { name, kind: Kind::Checksum, word: words.into_iter().fold(Hash::START, Hash::add).0 }
    }

    /// The value that a rank's word encodes.
    pub(super) fn value(&self, word: u64) -> OptionValue {
        match self.kind {
            Kind::Whole if word == NONE => OptionValue::None,
            Kind::Real if f64::from_bits(word).is_nan() => OptionValue::None,
            Kind::Whole => OptionValue::Whole(word),
            Kind::Real => OptionValue::Real(f64::from_bits(word)),
            Kind::Name(names) => names.get(word as usize).map_or(OptionValue::Whole(word), |&it| OptionValue::Name(it)),
            // `value_of` reads all parts of a name.
            Kind::Text(_) | Kind::Checksum => OptionValue::Checksum(word),
        }
    }
}

/// The checksum of all fields, and of the version of lgreco.
pub(super) fn checksum(fields: &[Field]) -> u64 {
    version().chain(fields.iter().copied()).fold(Hash::START, |hash, field| hash.add(field.word)).0
}

const METHODS: [&str; Method::ALL.len()] = {
    let mut names = [""; Method::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Method::ALL[index].name();
        index += 1;
    }
    names
};
const METRICS: [&str; 2] = [Metric::L2.name(), Metric::SquaredL2.name()];
const DTYPES: [&str; 3] = [Dtype::F32.name(), Dtype::F16.name(), Dtype::Bf16.name()];
const POLICIES: [&str; 7] = ["uncompressed", "uniform", "fixed", "k-means", "accordion", "legacy", "l-greco"];
const RESIDUALS: [&str; 4] = ["none", "f32", "bf16", "int8"];

/// The fields of configuration and layers.
pub(crate) fn fields(config: &Config, tensors: &[Tensor], world: u32) -> Vec<Field> {
    let mut fields = vec![
        Field::whole("number of ranks", world.into()),
        Field::whole("number of layers", tensors.len() as u64),
        Field::checksum("names of the layers", tensors.iter().flat_map(|tensor| of_bytes(tensor.name.as_bytes()))),
        Field::checksum("shapes of the layers", tensors.iter().flat_map(|tensor| of_sizes(&tensor.dims))),
        Field::checksum("element types of the layers", tensors.iter().map(|tensor| tensor.dtype as u64)),
        Field::checksum("shards of the layers", tensors.iter().flat_map(|tensor| tensor.shards.iter().copied())),
    ];
    search(config, &mut fields);
    policy(config, &mut fields);
    budget(config, &mut fields);
    schedule(config, &mut fields);
    exchange(config, &mut fields);
    fields
}

fn of_bytes(name: &[u8]) -> impl Iterator<Item = u64> + '_ {
    core::iter::once(name.len() as u64).chain(name.iter().copied().map(u64::from))
}

fn of_sizes(sizes: &[usize]) -> impl Iterator<Item = u64> + '_ {
    core::iter::once(sizes.len() as u64).chain(sizes.iter().map(|&size| size as u64))
}

/// Number of fields that hold a name.
const NAME: usize = method::MAX_NAME / 8;

/// The fields that hold a name, which is cut if it is too long.
fn named_text(name: &'static str, text: &str) -> impl Iterator<Item = Field> + use<> {
    let mut bytes = [0; 8 * NAME];
    bytes.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    let words: [u64; NAME] =
        core::array::from_fn(|part| bytes.as_chunks::<8>().0.get(part).map_or(0, |word| u64::from_le_bytes(*word)));
    words.into_iter().enumerate().map(move |(part, word)| Field { name, kind: Kind::Text(part), word })
}

/// The fields with the version of lgreco.
pub(super) fn version() -> impl Iterator<Item = Field> {
    named_text("version of lgreco", env!("CARGO_PKG_VERSION"))
}

/// Adds, for each id, the name of the outside method with that id, so that ranks compare methods by their names.
fn outside(search: &Search, fields: &mut Vec<Field>) {
    for id in method::FIRST_ID..=u8::MAX {
        let name = search.methods.find(id).map_or("", |method| method.name());
        fields.extend(named_text("outside method", name));
    }
}

/// The value of field `at` on the rank that has sent `words`, which are little-endian.
pub(super) fn value_of(fields: &[Field], at: usize, words: &[u64]) -> OptionValue {
    let Kind::Text(part) = fields[at].kind else { return fields[at].value(u64::from_le(words[at])) };
    let name: [u64; NAME] = core::array::from_fn(|index| u64::from_le(words[at - part + index]));
    if name == [0; NAME] { OptionValue::None } else { OptionValue::Text(name) }
}

fn of_setting(setting: &Setting) -> impl Iterator<Item = u64> + use<> {
    let (id, parameters) = setting.data();
    core::iter::once(id.into()).chain(parameters.map(u64::from))
}

fn search(config: &Config, fields: &mut Vec<Field>) {
    let search = &config.search;
    outside(search, fields);
    let method = Method::ALL.iter().position(|&method| method == search.method()).unwrap_or_default();
    fields.extend([
        Field::whole("seed", search.seed),
        Field::named("method", &METHODS, method as u64),
        Field::real("default parameter of the method", search.default_parameter()),
        Field::checksum("parameters that are searched", [search.checksum()]),
        Field::checksum("settings offered beside", search.beside.iter().flat_map(of_setting)),
        Field::named("metric", &METRICS, search.metric as u64),
        Field::whole("min_elements", search.min_elements as u64),
        Field::whole("workers that the metric counts", search.workers.map_or(NONE, |workers| workers.get().into())),
        Field::named("reduce_dtype", &DTYPES, search.reduce_dtype as u64),
    ]);
}

fn policy(config: &Config, fields: &mut Vec<Field>) {
    let (mut clusters, mut legacy, mut fixed) = (NONE, vec![], vec![]);
    let mut solver = None;
    let policy = match &config.policy {
        Policy::Uncompressed => 0,
        Policy::Uniform => 1,
        Policy::Fixed(settings) => {
            fixed = settings.iter().flat_map(|&setting| LayerSetting::chosen(setting).encode()).collect();
            2
        }
        Policy::KMeans { clusters: found } => {
            clusters = *found as u64;
            3
        }
        Policy::Accordion(_) => 4,
        Policy::Legacy(levels) => {
            legacy = levels.words().collect();
            5
        }
        Policy::LGreco { solver: found, .. } => {
            solver = Some(*found);
            6
        }
    };
    let (solver, limit) = match solver {
        Some(Solver::Exact(limits)) => (1, limits.states as u64),
        Some(Solver::Dp { levels }) => (2, levels.into()),
        _ => (0, NONE),
    };
    let accordion = config.accordion();
    let of_accordion = |value: fn(super::Accordion) -> f64| accordion.map_or(f64::NAN, value);
    fields.extend([
        Field::named("policy", &POLICIES, policy),
        Field::checksum("settings of the fixed policy", fixed),
        Field::whole("clusters of k-means", clusters),
        Field::real("Accordion's low compression", of_accordion(|accordion| accordion.low)),
        Field::real("Accordion's high compression", of_accordion(|accordion| accordion.high)),
        Field::real("Accordion's eta", of_accordion(|accordion| accordion.eta)),
        Field::real("Accordion's drop", of_accordion(|accordion| accordion.drop)),
        Field::checksum("LEGACY's sizes, levels and steps", legacy),
        Field::named("solver", &["none", "exact", "dp"], solver),
        Field::whole("states or levels of the solver", limit),
    ]);
}

fn budget(config: &Config, fields: &mut Vec<Field>) {
    let (kind, bits, seconds) = match config.budget {
        Budget::Error => (0, NONE, f64::NAN),
        Budget::Size => (1, NONE, f64::NAN),
        Budget::Bits(bits) => (2, bits, f64::NAN),
        Budget::Seconds(seconds) => (3, NONE, seconds),
    };
    let objective = match config.objective {
        Objective::Bits => 0,
        Objective::MeasuredSeconds => 1,
    };
    fields.extend([
        Field::named("objective", &["bits", "measured seconds"], objective),
        Field::named("budget", &["error", "size", "bits", "seconds"], kind),
        Field::whole("budget in bits", bits),
        Field::real("budget in seconds", seconds),
        Field::real("alpha", config.alpha),
    ]);
}

fn schedule(config: &Config, fields: &mut Vec<Field>) {
    let Schedule { warmup, period, window, lead } = config.schedule;
    let ramp_up = config.ramp_up;
    fields.extend([
        Field::whole("warm-up", warmup),
        Field::whole("period", period),
        Field::whole("window", window),
        Field::whole("lead", lead),
        Field::real("first default of the ramp-up", ramp_up.map_or(f64::NAN, |RampUp { first, .. }| first)),
        Field::whole("steps of the ramp-up", ramp_up.map_or(NONE, |RampUp { steps, .. }| steps)),
    ]);
}

fn exchange(config: &Config, fields: &mut Vec<Field>) {
    let Feedback { qsgd, loco, others } = config.feedback;
    let residual = |names: [&'static str; 3], residual: Option<Residual>| {
        let storage = residual.map_or(0, |Residual { storage, .. }| match storage {
            Storage::F32 => 1,
            Storage::Bf16 => 2,
            Storage::Int8 => 3,
        });
        [
            Field::named(names[0], &RESIDUALS, storage),
            Field::real(names[1], residual.map_or(f64::NAN, |residual| residual.gain.into())),
            Field::whole(names[2], residual.map_or(NONE, |residual| residual.reset_every.into())),
        ]
    };
    fields.extend(residual(["residual under qsgd", "gain under qsgd", "reset_every under qsgd"], qsgd));
    fields.extend(residual(["residual under loco", "gain under loco", "reset_every under loco"], loco));
    fields.extend(residual(["residual", "gain of the residual", "reset_every of the residual"], others));
    let route = match config.route {
        Route::AllGather => 0,
        Route::ScatterReduce => 1,
        Route::Sharded => 2,
    };
    fields.extend([
        Field::named("non_finite", &["error", "skip", "pass through"], config.non_finite as u64),
        Field::named("undo", &["no", "yes"], config.undo.into()),
        Field::named("route", &["all-gather", "scatter-reduce", "sharded"], route),
        Field::whole("bucket_bytes", config.bucket_bytes as u64),
        Field::whole("measuring rank", config.measuring_rank.into()),
        Field::whole("metrics_every", config.metrics_every),
    ]);
}
