//! Averages gradients in two levels, for nodes of several ranks: in f32 or bf16 inside each node, and compressed between nodes.
//!
//! The ranks of a node sum a bucket's gradients, and each rank gets the sums of its shard. Each rank exchanges its shard,
//! compressed, with its *peers*: the ranks with the same local rank on the other nodes. An all-gather inside the node completes the
//! means. So each byte of a payload crosses a node's link `nodes − 1` times, for any number of ranks per node. In an exchange
//! between all ranks, each rank of a node would send its own payload over the node's link `(nodes − 1) · per_node` times.
//!
//! A [`TwoLevel`] has a [`Controller`] for the exchange with the peers, and adds the messages inside the node. The controller's
//! layers are this rank's shards. [`TwoLevel::controller`] returns this controller, which has the plans, metrics and residuals of
//! the shards. Every group of peers plans for its own shards. `division.rs` cuts layers into shards. `messages.rs` and
//! `reduction.rs` have the messages inside the node. `bucket.rs` and `advance.rs` have the order of collectives.
//!
//! The result is the mean of all nodes' means. For the mean of a node, gradients are summed in f32. The sum is divided once and
//! rounded to the layer's type. With the [`reduce_dtype`](crate::search::Search::reduce_dtype) bf16, the ranks of a node send each
//! other their gradients as bf16. Compression errors are the same as those of `nodes` workers that have the nodes' means as
//! gradients.
//!
//! ```
//! use lgreco_train::controller::{Config, Tensor, two_level::{Topology, TwoLevel}};
//! use lgreco_train::exchange::threads;
//! use lgreco_train::gradient::{Dtype, ValuesMut};
//! use lgreco_train::search::{Method, Search};
//!
//! // Two nodes of two ranks.
//! let means = threads::run_nodes(2, 2, |mut node, mut peers| {
//!     let config = Config::new(Search::new(Method::Eden));
//!     let layers = vec![Tensor::new("weight", &[64, 64], Dtype::F32)?];
//!     let place = Topology::of(&node, &peers);
//!     let mut training = TwoLevel::new(config, layers, place)?;
//!     let mut gradient = vec![place.rank() as f32; 4096];
//!     training.step(&mut node, &mut peers, &mut [ValuesMut::F32(&mut gradient)], 0.1)?;
//!     Ok::<_, lgreco_train::Error>(gradient[4095])
//! });
//! assert_eq!(means, [Ok(1.5), Ok(1.5), Ok(1.5), Ok(1.5)]);
//! # Ok::<(), lgreco_train::Error>(())
//! ```
//!
//! # Failures
//! As with [one level](super), all ranks fail at the same call. A step begins with the peers' control requests. One message of 32
//! bytes inside the node follows. With this message, the ranks of a node report to each other whether their groups of peers have
//! begun the step. At the first step, after a state was loaded, and in every blocking step, two more messages of 32 bytes come
//! before this message. The first of these messages is inside the node, and the second among peers. With both messages, ranks
//! compare options, layers and steps.
//!
//! # Memory
//! In addition to the memory of the shards' [`Controller`], a bucket takes memory for a message inside the node, but only while
//! that message is under way. A bucket takes an f32 per element from [`open`](TwoLevel::open) until its gradients are summed, and
//! the bytes of its gradients while means are gathered. Afterwards, other buckets of the step use this memory. Means are stored in
//! the gradients, where peers exchange them. Blocking steps keep memory for the messages of the largest bucket. This memory is
//! allocated at the first step.

mod advance;
mod bucket;
mod control;
mod division;
mod layer;
mod levels;
mod messages;
mod reduction;
mod reshard;
mod saved;
mod step;
mod topology;

use super::groups::Groups;
use super::identity::{Field, checksum, fields};
use super::{Config, Controller, MemoryUse, Tensor};
use crate::Error;
use crate::backend::Backend;
use crate::compress::Setting;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use control::Stage;
use core::ops::Range;
use division::{Division, config_of_shards, setting_of_shard, shards};
use messages::Messages;

pub use bucket::Bucket;
pub use levels::{Levels, LevelsBucket};
pub use saved::{is_state, load_without_nodes};
pub use topology::{Group, Topology};

/// One rank's controller for two levels. A [`TwoLevel`] is used like a [`Controller`], with two groups.
///
/// The [module](self) has an example of blocking calls. This example has a bucket per layer:
///
/// ```
/// use lgreco_train::controller::{Config, Tensor, two_level::{Group, Topology, TwoLevel}};
/// use lgreco_train::exchange::threads;
/// use lgreco_train::gradient::{Dtype, ValuesMut};
/// use lgreco_train::search::{Method, Search};
///
/// let means = threads::run_nodes(2, 2, |mut node, mut peers| {
///     let layers = ["fc1", "fc2"].map(|name| Tensor::new(name, &[8, 8], Dtype::F32));
///     let layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
///     let place = Topology::of(&node, &peers);
///     let mut training = TwoLevel::new(Config::new(Search::new(Method::Qsgd)), layers, place)?;
///
///     training.begin_step(0.1)?;
///     while let Some((group, request)) = training.control()? {
///         request.perform(if group == Group::Node { &mut node } else { &mut peers })?;
///     }
///     let mut gradients = [[1.0; 64], [place.rank() as f32; 64]];
///     for layer in [1, 0] {
///         let mut bucket = training.open(&[layer])?;
///         let mut values = [ValuesMut::F32(&mut gradients[layer])];
///         bucket.submit(&mut values)?;
///         while let Some((group, request)) = bucket.next(&mut values)? {
///             request.perform(if group == Group::Node { &mut node } else { &mut peers })?;
///         }
///         training.close(bucket)?;
///     }
///     training.finish_step()?;
///     Ok::<_, lgreco_train::Error>(gradients.map(|values| values[0]))
/// });
/// assert_eq!(means, [Ok([1.0, 1.5]); 4]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct TwoLevel {
    controller: Controller,
    topology: Topology,
    /// The whole layers.
    layers: Arc<[Tensor]>,
    /// The configuration that the caller has given.
    config: Config,
    /// Checksum of configuration, layers and topology.
    identity: u64,
    /// Sets of layers that the node's ranks agreed to exchange as one bucket.
    pub(super) agreed: BTreeSet<Vec<usize>>,
    stage: Stage,
    /// Whether the ranks of the node have compared their options since this value was created or loaded.
    met: bool,
    /// The learning rate of the step that begins.
    rate: f64,
    /// The reason why the step cannot begin, if the node has found one.
    failure: Option<Error>,
    /// Messages of the node's ranks before a step.
    words: Vec<u64>,
    /// Memory that is enough for each bucket of blocking steps, which are exchanged one at a time. `None` before the first blocking
    /// step.
    blocking: Option<Messages>,
}

impl TwoLevel {
    /// Creates the controller of the rank at `topology`, for a model with the layers `tensors`. All ranks must give the same
    /// configuration and layers. [`Config::measuring_rank`] is the number of a node. Each rank of that node makes the plans for its
    /// [peers](self), the ranks of the same local rank on the other nodes. [`min_elements`](crate::search::Search::min_elements)
    /// and the settings of [`Policy::Fixed`](super::Policy) are for whole layers. Both are scaled to the size of shards.
    ///
    /// # Errors
    /// The errors of [`Controller::new`]; [`CoreError::Parameter`](crate::CoreError::Parameter) for a local rank not below the
    /// ranks per node, for a node not below the number of nodes, and for [`Route::Sharded`](crate::exchange::Route).
    ///
    /// # Complexity
    /// That of [`Controller::new`].
    pub fn new(config: Config, tensors: Vec<Tensor>, topology: Topology) -> Result<TwoLevel, Error> {
        topology.check()?;
        let of_shards = config_of_shards(&config, &tensors, &topology)?;
        let mut controller = Controller::new(of_shards, shards(&tensors, &topology)?, topology.node, topology.nodes)?;
        // The shards' controller gets the same groups of layers, so that its memory is enough for these buckets.
        controller.scheduler.groups = Groups::new(&tensors, config.bucket_bytes);
        let mut training = TwoLevel {
            controller,
            topology,
            layers: tensors.into(),
            config,
            identity: 0,
            agreed: BTreeSet::new(),
            stage: Stage::Idle,
            met: false,
            rate: 0.0,
            failure: None,
            words: vec![],
            blocking: None,
        };
        training.identity = checksum(&training.fields());
        Ok(training)
    }

    /// Measures on this backend instead of the portable one, like [`Controller::with_backend`].
    pub fn with_backend(self, backend: Box<dyn Backend + Send>) -> TwoLevel {
        TwoLevel { controller: self.controller.with_backend(backend), ..self }
    }

    /// This rank's shard of layer `layer`, as a range of the layer's elements. `None` if the model has no such layer.
    ///
    /// ```
    /// # use lgreco_train::controller::{Config, Tensor, two_level::{Topology, TwoLevel}};
    /// # use lgreco_train::{gradient::Dtype, search::{Method, Search}};
    /// let place = Topology { nodes: 2, node: 0, per_node: 2, local: 1 };
    /// let layers = vec![Tensor::new("weight", &[5, 10], Dtype::F32)?];
    /// let training = TwoLevel::new(Config::new(Search::new(Method::Eden)), layers, place)?;
    /// assert_eq!(training.shard(0), Some(30..50)); // rows 3 and 4
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn shard(&self, layer: usize) -> Option<Range<usize>> {
        self.shards(layer)?.nth(self.topology.local as usize)
    }

    /// The shards of layer `layer` on all ranks of a node, in the order of local ranks. `None` if the model has no such layer.
    ///
    /// ```
    /// # use lgreco_train::controller::{Config, Tensor, two_level::{Topology, TwoLevel}};
    /// # use lgreco_train::{gradient::Dtype, search::{Method, Search}};
    /// let place = Topology { nodes: 2, node: 0, per_node: 2, local: 1 };
    /// let layers = vec![Tensor::new("weight", &[5, 10], Dtype::F32)?];
    /// let training = TwoLevel::new(Config::new(Search::new(Method::Eden)), layers, place)?;
    /// assert!(training.shards(0).is_some_and(|shards| shards.eq([0..30, 30..50])));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn shards(&self, layer: usize) -> Option<impl Iterator<Item = Range<usize>>> {
        let per_node = self.topology.per_node;
        let division = Division::new(self.layers.get(layer)?.shape(), per_node);
        Some((0..per_node).map(move |local| division.range(local)))
    }

    /// This rank's position among the nodes.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// The layers that the caller has given.
    pub fn tensors(&self) -> &[Tensor] {
        &self.layers
    }

    /// The controller that exchanges this rank's shards with its peers.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The [controller](TwoLevel::controller) as a mutable reference, to change plans and residuals between steps. For steps and
    /// saved states, call the methods of [`TwoLevel`] instead.
    pub fn controller_mut(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// Gives new settings under [`Policy::Fixed`](super::Policy), one per whole layer, like
    /// [`Planning::set_settings`](super::Planning).
    ///
    /// # Errors
    /// The errors of [`Planning::set_settings`](super::Planning).
    pub fn set_settings(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        let of_shard = |(at, setting): (usize, Setting)| match self.layers.get(at) {
            Some(tensor) => setting_of_shard(setting, tensor.shape(), &self.topology),
            None => setting,
        };
        let settings = settings.into_iter().enumerate().map(of_shard).collect();
        self.controller.planning().set_settings(settings)
    }

    /// Predicts the bytes that a run takes for the shards and the messages inside the node, like [`MemoryUse::of`]. `bucket_bytes`
    /// counts whole gradients. At most two of the `at_once` buckets are in a message inside the node at the same time; see
    /// [`Bucket::next_but_last`].
    ///
    /// # Errors
    /// The errors of [`MemoryUse::of`].
    pub fn memory(&self, bucket_bytes: Option<usize>, at_once: usize) -> Result<MemoryUse, Error> {
        let groups = bucket_bytes.map(|bytes| Groups::new(&self.layers, bytes));
        let ranges = &groups.as_ref().unwrap_or(&self.controller.scheduler.groups).ranges;
        let dtype = self.config.search.reduce_dtype;
        let words = |range: &Range<usize>| Messages::words_of(&self.list(range.clone()), &self.topology, dtype);
        let messages: Vec<u64> = ranges.iter().map(|range| 8 * words(range) as u64).collect();
        MemoryUse::of_groups(&self.controller, groups.as_ref(), at_once, &messages)
    }

    /// The options and layers that the ranks of a node must have in common.
    fn fields(&self) -> Vec<Field> {
        let mut all = fields(&self.config, &self.layers, self.topology.world_size());
        all.push(Field::whole("ranks per node", self.topology.per_node.into()));
        all
    }
}
