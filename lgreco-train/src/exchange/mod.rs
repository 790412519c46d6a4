//! Aggregation: the mean of all workers' compressed gradients, by collectives that the caller performs.
//!
//! A *bucket* is a list of layers that are exchanged together. The collectives of a bucket depend on settings and shapes, not on
//! values, and many small layers share the latency of a few collectives. A [`Flight`] is the exchange of one bucket without I/O: it
//! computes, and then asks the caller for the next [collective](Request). So several buckets can be exchanged at the same time
//! during the backward pass, by blocking or non-blocking calls. [`aggregate`] performs all collectives of a bucket over a
//! [`Collective`].
//!
//! A [`Program`] describes the exchange of one bucket. The flight executes the program as a list of [ops](Op), which compute, and
//! of collectives, which send [parts](Part). A [`Space`] is the memory of one bucket on one rank, and executes the ops there.
//! [`Host`] is a [`Space`] in host memory. [`Program::rounds`] gives the sizes of all parts before anything is sent.
//!
//! | setting ([`Aggregation`]) | collectives | what a worker contributes |
//! |---|---|---|
//! | dense | all-reduce; a separate one for each large f32 layer, in the layer's own memory | its gradient |
//! | PowerSGD | all-reduce of `P`, all-reduce of `Q` | `P̂ Q_iᵀ`, its own `Q_i` before averaging |
//! | CLT-k | broadcast of the leader's positions, all-reduce of the values there | its values at these positions |
//! | QSGD, EDEN, LoCo, TopK by [`Route::AllGather`] | all-gather of payloads | its decoded payload |
//! | QSGD, EDEN, LoCo, TopK by [`Route::ScatterReduce`] | all-to-all, all-gather of payloads | its decoded payload, see below |
//! | dense by [`Route::Sharded`] | reduce-scatter | its gradient |
//! | QSGD, EDEN, LoCo, TopK by [`Route::Sharded`] | all-to-all of payloads | its decoded payloads |
//! | hard threshold, SIDCo, AdaComp, outside methods | all-gather of whole payloads by every route | its decoded payload |
//!
//! Dense values of small layers, the `P` of all layers and all values at shared positions share one all-reduce. If all layers of a
//! bucket are dense and their values are one piece of memory, one all-reduce may sum them in place ([`Spec::joined`]). The positions
//! of all layers share one broadcast. The payloads of all layers share one message, in layer order.
//!
//! # Failures
//! Ranks exchange their status inside the messages of the collectives. A gathered message begins with a status record ([`Slip`]) of
//! 16 bytes. An all-reduce has one additional f32, or three additional bf16, for each rank's record. In the place of this record,
//! all other ranks have zeros. The record has the rank's error code and a fingerprint of its layers, settings, seed, step and
//! warm-start factors. So all ranks can name a rank that fails or disagrees, at the same point of the sequence, and no rank waits
//! for such a rank. Until ranks have [agreed](Agreement) on layers and settings, an additional all-gather of 24 bytes per rank
//! comes first. This all-gather also comes first if the lengths of messages depend on values. A message is accepted only up to the
//! largest length that its payloads may have together. A payload is accepted only if it has the length that its header states.
//!
//! # Sums
//! Dense values, PowerSGD's factors and values at shared positions are summed on the wire as f32, or as bf16 in half
//! the bytes if [`Moment::reduce_dtype`] says so. A worker's values, and its `Q`, are rounded before they are sent. A worker's
//! contribution is the rounded values, so the worker's residual keeps the rounding error. No residual contains the rounding of sums
//! in the caller's network. PowerSGD's `P` is summed over the workers, and the sum is orthonormalised in f32 to `P̂`. So rounding
//! `P` only turns the columns of `P̂` a little. No gradient mass is lost, because every worker computes its `Q_i` and its
//! contribution from the same `P̂`.
//!
//! The length of an uncompressed payload, also in error tables, counts 2 bytes per 16-bit value. Sums in f32 take twice as many
//! bytes.
//!
//! # The mean
//! The decoded contributions are summed in f32, and the sum is divided by the number of workers once, at the end.
//! Before the sum, dense values are multiplied by a power of two, so that sums of finite values stay finite.
//! Afterwards, the mean has replaced the gradient, with the same bits on every rank. A worker's values minus its own
//! contribution `ĝ` are its [next residual](Rest). With gradient `g`, residual `m` and a gain `a`, the next residual is
//! `m + a (g − ĝ)`. For every setting and route, the resulting mean is the mean of the contributions, up to rounding.
//! So no gradient mass is lost.
//!
//! # Scatter-reduce
//! The elements of a bucket are divided among the ranks. QSGD and LoCo are cut at bucket boundaries of the quantiser.
//! TopK's `keep` is divided in proportion, at least one per piece. The rank that averages a part is the owner of the part. Every
//! rank compresses each owner's piece and sends it. The owner adds its own piece uncompressed, and compresses the mean. An
//! all-gather sends the compressed means to all ranks. With `n` workers, the mean `µ` and its decoded payload `d`, the owner's
//! contribution is its piece plus `n (d − µ)`. So the owner's residual corrects the error of the second compression in the next
//! step.
//!
//! # Shards
//! With [`Route::Sharded`], an exchange ends when every rank has the mean of its [shard](Spec::shards), a range of elements of each
//! layer. PowerSGD and CLT-k perform their all-reduces, and then compute only this rank's part of the mean. Payloads of shards are
//! encoded separately, including this rank's own, and are not compressed again. TopK's `keep` is divided in proportion, at least
//! one per shard. A worker's contribution is all of its gradient, not only its own shard. All ranks gather and decode payloads that
//! cannot be cut ([`Aggregation::WholePayloads`]). Traffic and decoding of such whole payloads grow with the number of workers.
//!
//! For dense layers, PowerSGD, CLT-k and whole payloads, the mean of a shard has the same bits as that part of the mean with
//! [`Route::AllGather`]. The bits are also the same for LoCo, and for QSGD with [nearest](crate::compress::qsgd::Rounding::Nearest)
//! rounding, if shards end at bucket boundaries. In all of these cases, the caller's all-reduce and reduce-scatter must give the
//! same bits. Stochastic rounding draws other random bits for each shard, and TopK selects within shards.
//!
//! Every rank can name ranks that fail before they send, and ranks that disagree, as with other routes. Status records go to every
//! owner. In a reduce-scatter, the status records are numbers after each rank's part. Only the owner of a shard can find an error
//! in the data that it has received for the shard, such as an overflow: [`Flight::failed_alone`].
//!
//! # Source
//! Vogels et al., "PowerSGD", NeurIPS 2019, Algorithm 1, with the residual of the authors' later code (own `Q`);
//! Alistarh et al., "QSGD", NeurIPS 2017 (all-gather); Markov et al., "CGX", Middleware 2022 (scatter-reduce); Tang
//! et al., "DoubleSqueeze", ICML 2019 (error feedback of the second compression); Chen et al., "ScaleCom", NeurIPS 2020
//! (CLT-k; all layers of a step have one leader).

mod aggregate;
mod collective;
mod division;
mod flight;
mod host;
mod layer;
mod layout;
mod moment;
mod program;
mod request;
mod slip;
mod space;
mod spec;
#[cfg(any(test, feature = "threads"))]
pub mod threads;

pub use crate::compress::Aggregation;
pub use aggregate::{aggregate, workspace_len};
pub(crate) use collective::Place;
pub use collective::{Collective, CollectiveError};
pub use division::Piece;
pub use flight::Flight;
pub use host::Host;
pub(crate) use host::{request_in, request_of, scale_part};
pub use layer::{Layer, Rest};
pub(crate) use layout::IN_PLACE;
pub use layout::Layout;
pub(crate) use moment::check_reduce_dtype;
pub use moment::{Agreement, Moment, Route};
pub use program::{Op, Part, Program};
pub(crate) use request::share_of_others;
pub use request::{Request, Round};
pub(crate) use slip::is_of_others;
pub use slip::{Slip, judge};
pub use space::{RequestOf, Space};
pub use spec::Spec;
pub(crate) use spec::{factor_len, factor_rank, is_gathered};
