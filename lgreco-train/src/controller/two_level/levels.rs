//! One interface for one level and for two levels, for the C and Python bindings. Callers of these bindings choose the number of
//! levels at run time.

use super::{Bucket, Group, Topology, TwoLevel, is_state, load_without_nodes};
use crate::Error;
use crate::backend::Backend;
use crate::compress::Setting;
use crate::controller::{self, Config, Contents, Controller, Joined, Loaded, MemoryUse, Report, Summary, Tensor};
use crate::exchange::{Request, Round};
use crate::gradient::ValuesMut;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

/// A controller of one level or of two levels. A request without a group is for the group of all ranks.
///
/// ```
/// use lgreco_train::controller::{Config, two_level::{Levels, Topology}};
/// use lgreco_train::search::{Method, Search};
/// let config = || Config::new(Search::new(Method::Eden));
/// let place = Topology { nodes: 2, node: 0, per_node: 4, local: 1 };
/// let mut levels = [Levels::new(config(), vec![], [1, 8], None)?, Levels::new(config(), vec![], [1, 8], Some(place))?];
/// for levels in &mut levels {
///     levels.begin_step(0.1)?;
///     assert!(levels.control()?.is_some()); // ranks compare their options
/// }
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[expect(clippy::large_enum_variant, reason = "a program has few")]
pub enum Levels {
    /// All ranks exchange with each other.
    One(Controller),
    /// Nodes exchange with each other.
    Two(TwoLevel),
}

/// A bucket of [`Levels`].
#[expect(clippy::large_enum_variant, reason = "a bucket is where it is opened")]
pub enum LevelsBucket {
    /// A bucket of all ranks.
    One(controller::Bucket),
    /// A bucket of nodes.
    Two(Bucket),
}

impl Levels {
    /// Creates the controller of rank `rank` among `world` ranks or, with `place`, of the rank at this position among nodes.
    ///
    /// # Errors
    /// The errors of [`Controller::new`] and [`TwoLevel::new`].
    pub fn new(
        config: Config,
        tensors: Vec<Tensor>,
        [rank, world]: [u32; 2],
        place: Option<Topology>,
    ) -> Result<Levels, Error> {
        Ok(match place {
            None => Levels::One(Controller::new(config, tensors, rank, world)?),
            Some(place) => Levels::Two(TwoLevel::new(config, tensors, place)?),
        })
    }

    /// Measures on this backend instead of the portable one.
    pub fn with_backend(self, backend: Box<dyn Backend + Send>) -> Levels {
        match self {
            Levels::One(controller) => Levels::One(controller.with_backend(backend)),
            Levels::Two(training) => Levels::Two(training.with_backend(backend)),
        }
    }

    /// The controller: of whole layers with one level, and of this rank's shards with two levels.
    pub fn controller(&self) -> &Controller {
        match self {
            Levels::One(controller) => controller,
            Levels::Two(training) => training.controller(),
        }
    }

    /// The [controller](Levels::controller) as a mutable reference, to change plans and residuals between steps.
    pub fn controller_mut(&mut self) -> &mut Controller {
        match self {
            Levels::One(controller) => controller,
            Levels::Two(training) => training.controller_mut(),
        }
    }

    /// The layers that the caller has given.
    pub fn tensors(&self) -> &[Tensor] {
        match self {
            Levels::One(controller) => controller.tensors(),
            Levels::Two(training) => training.tensors(),
        }
    }

    /// This rank's shard of a layer, as a range of the layer's elements. With one level, the range has all elements. `None` if
    /// the model has no such layer.
    pub fn shard(&self, layer: usize) -> Option<Range<usize>> {
        match self {
            Levels::One(controller) => Some(0..controller.tensors().get(layer)?.shape().elements()),
            Levels::Two(training) => training.shard(layer),
        }
    }

    /// The present settings in one line; see [`Summary`]. With two levels, layers and bytes refer to this rank's
    /// shards.
    pub fn summary(&self) -> String {
        match self {
            Levels::One(controller) => Summary::of(controller).to_string(),
            Levels::Two(training) => {
                let (Topology { nodes, per_node, .. }, shards) =
                    (training.topology(), Summary::of(training.controller()));
                format!("two levels, {nodes} nodes of {per_node} ranks, each rank's shards: {shards}")
            }
        }
    }

    /// Number of ranks per node; 1 without nodes.
    pub fn per_node(&self) -> u32 {
        match self {
            Levels::One(_) => 1,
            Levels::Two(training) => training.topology().per_node,
        }
    }

    /// Begins a step.
    ///
    /// # Errors
    /// The errors of [`Controller::begin_step`].
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), Error> {
        match self {
            Levels::One(controller) => controller.begin_step(learning_rate),
            Levels::Two(training) => training.begin_step(learning_rate),
        }
    }

    /// The next control request, with its group.
    ///
    /// # Errors
    /// The errors of [`Controller::control`] and [`TwoLevel::control`].
    pub fn control(&mut self) -> Result<Option<(Option<Group>, Request<'_>)>, Error> {
        Ok(match self {
            Levels::One(controller) => controller.control()?.map(|request| (None, request)),
            Levels::Two(training) => training.control()?.map(|(group, request)| (Some(group), request)),
        })
    }

    /// Lends a bucket.
    ///
    /// # Errors
    /// The errors of [`Controller::open`].
    pub fn open(&mut self, layers: &[usize]) -> Result<LevelsBucket, Error> {
        Ok(match self {
            Levels::One(controller) => LevelsBucket::One(controller.open(layers)?),
            Levels::Two(training) => LevelsBucket::Two(training.open(layers)?),
        })
    }

    /// Lends this rank's shards of these layers, for an exchange only between this rank and its peers. The caller has summed the
    /// gradients of the node's ranks. With one level, whole layers are lent.
    ///
    /// # Errors
    /// The errors of [`Controller::open`].
    pub fn open_shards(&mut self, layers: &[usize]) -> Result<LevelsBucket, Error> {
        Ok(LevelsBucket::One(self.controller_mut().open(layers)?))
    }

    /// Takes a bucket back.
    ///
    /// # Errors
    /// The errors of [`Controller::close`].
    pub fn close(&mut self, bucket: LevelsBucket) -> Result<(), Error> {
        match (self, bucket) {
            (levels, LevelsBucket::One(bucket)) => levels.controller_mut().close(bucket),
            (Levels::Two(training), LevelsBucket::Two(bucket)) => training.close(bucket),
            _ => Err(Error::StepOrder {
                what: "the bucket is not lent by this controller",
                expected: "a bucket of this controller and step",
            }),
        }
    }

    /// Ends the step.
    ///
    /// # Errors
    /// The errors of [`Controller::finish_step`].
    pub fn finish_step(&mut self) -> Result<Report, Error> {
        match self {
            Levels::One(controller) => controller.finish_step(),
            Levels::Two(training) => training.finish_step(),
        }
    }

    /// Gives up the present step.
    ///
    /// # Errors
    /// The errors of [`Controller::abandon_step`].
    pub fn abandon_step(&mut self) -> Result<(), Error> {
        match self {
            Levels::One(controller) => controller.abandon_step(),
            Levels::Two(training) => training.abandon_step(),
        }
    }

    /// This rank's state as bytes.
    ///
    /// # Errors
    /// The errors of [`Controller::save`].
    pub fn save_only(&self, contents: Contents) -> Result<Vec<u8>, Error> {
        match self {
            Levels::One(controller) => controller.save_only(contents),
            Levels::Two(training) => training.save_only(contents),
        }
    }

    /// A part of this rank's state.
    ///
    /// # Errors
    /// The errors of [`Controller::save_part`].
    ///
    /// # Panics
    /// If the model has no layer `layer`.
    pub fn save_part(&self, layer: Option<usize>, contents: Contents) -> Result<Vec<u8>, Error> {
        match self {
            Levels::One(controller) => controller.save_part(layer, contents),
            Levels::Two(training) => training.save_part(layer, contents),
        }
    }

    /// Continues from saved states, with or without nodes.
    ///
    /// # Errors
    /// The errors of [`Controller::load`] and [`TwoLevel::load`].
    pub fn load(&mut self, plan: &[&[u8]], residuals: &[&[u8]]) -> Result<Loaded, Error> {
        match self {
            Levels::Two(training) => training.load(plan, residuals),
            Levels::One(controller) => match plan.iter().chain(residuals).any(|state| is_state(state)) {
                true => load_without_nodes(controller, plan, residuals),
                false => controller.load(plan, residuals),
            },
        }
    }

    /// Gives new settings, one per whole layer, under a fixed policy.
    ///
    /// # Errors
    /// The errors of [`Planning::set_settings`](controller::Planning::set_settings).
    pub fn set_settings(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        match self {
            Levels::One(controller) => controller.planning().set_settings(settings),
            Levels::Two(training) => training.set_settings(settings),
        }
    }

    /// Predicts the bytes that a run takes, like [`MemoryUse::of`]. `at_once` buckets are in flight, each with `bucket_bytes`
    /// of whole gradients.
    ///
    /// # Errors
    /// The errors of [`MemoryUse::of`].
    pub fn memory(&self, bucket_bytes: Option<usize>, at_once: usize) -> Result<MemoryUse, Error> {
        match self {
            Levels::One(controller) => MemoryUse::of(controller, bucket_bytes, at_once),
            Levels::Two(training) => training.memory(bucket_bytes, at_once),
        }
    }
}

impl LevelsBucket {
    /// The layers, in the order of their gradients.
    pub fn layers(&self) -> Vec<usize> {
        match self {
            LevelsBucket::One(bucket) => bucket.layers().collect(),
            LevelsBucket::Two(bucket) => bucket.layers().collect(),
        }
    }

    /// The collectives that [`next`](LevelsBucket::next) will ask for.
    ///
    /// # Errors
    /// The errors of [`Bucket::rounds`](controller::Bucket::rounds).
    pub fn rounds(&self) -> Result<Vec<(Option<Group>, Round)>, Error> {
        Ok(match self {
            LevelsBucket::One(bucket) => bucket.rounds()?.map(|round| (None, round)).collect(),
            LevelsBucket::Two(bucket) => {
                bucket.rounds()?.into_iter().map(|(group, round)| (Some(group), round)).collect()
            }
        })
    }

    /// Declares that a layer has no gradient on this rank.
    ///
    /// # Errors
    /// The errors of [`Bucket::withhold`](controller::Bucket::withhold).
    pub fn withhold(&mut self, layer: usize) -> Result<(), Error> {
        match self {
            LevelsBucket::One(bucket) => bucket.withhold(layer),
            LevelsBucket::Two(bucket) => bucket.withhold(layer),
        }
    }

    /// Takes the gradients of this step.
    ///
    /// # Errors
    /// The errors of [`Bucket::submit`](controller::Bucket::submit).
    pub fn submit(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        match self {
            LevelsBucket::One(bucket) => bucket.submit(gradients),
            LevelsBucket::Two(bucket) => bucket.submit(gradients),
        }
    }

    /// Declares that this rank has no gradients.
    ///
    /// # Errors
    /// The errors of [`Bucket::submit_failure`](controller::Bucket::submit_failure).
    pub fn submit_failure(&mut self, failure: Error) -> Result<(), Error> {
        match self {
            LevelsBucket::One(bucket) => bucket.submit_failure(failure),
            LevelsBucket::Two(bucket) => bucket.submit_failure(failure),
        }
    }

    /// The next collective, with its group.
    ///
    /// # Errors
    /// The errors of [`Bucket::next`](controller::Bucket::next).
    pub fn next<'b>(
        &'b mut self,
        gradients: &'b mut [ValuesMut<'_>],
    ) -> Result<Option<(Option<Group>, Request<'b>)>, Error> {
        Ok(match self {
            LevelsBucket::One(bucket) => bucket.next(gradients)?.map(|request| (None, request)),
            LevelsBucket::Two(bucket) => bucket.next(gradients)?.map(|(group, request)| (Some(group), request)),
        })
    }

    /// Declares that the gradients lie in one piece of memory; see [`Bucket::join`](controller::Bucket::join). Returns false with
    /// two levels.
    ///
    /// # Errors
    /// The errors of [`Bucket::join`](controller::Bucket::join).
    pub fn join(&mut self) -> Result<bool, Error> {
        match self {
            LevelsBucket::One(bucket) => bucket.join(),
            LevelsBucket::Two(_) => Ok(false),
        }
    }

    /// Like [`next`](LevelsBucket::next), for a bucket that may be [joined](LevelsBucket::join). With two levels, also returns `None`
    /// before the bucket's last collective; see [`Bucket::next_but_last`].
    ///
    /// # Errors
    /// The errors of [`Bucket::next`](controller::Bucket::next).
    pub fn next_joined<'b>(
        &'b mut self,
        gradients: &'b mut [ValuesMut<'_>],
    ) -> Result<Option<(Option<Group>, Joined<'b>)>, Error> {
        Ok(match self {
            LevelsBucket::One(bucket) => bucket.next_joined(gradients)?.map(|joined| (None, joined)),
            LevelsBucket::Two(bucket) => {
                bucket.next_but_last(gradients)?.map(|(group, request)| (Some(group), Joined::Request(request)))
            }
        })
    }

    /// Whether [`next_joined`](LevelsBucket::next_joined) has reached the bucket's last collective. False with one level.
    pub fn is_paused(&self) -> bool {
        matches!(self, LevelsBucket::Two(bucket) if bucket.is_paused())
    }
}
