//! Aggregation: the mean of all workers' compressed gradients, by collectives that the embedder performs.
//!
//! A *bucket* is a list of layers exchanged together: it takes the same few collectives whatever the gradients hold,
//! and many small layers cost one latency, not many. A [`Flight`] is the exchange of one bucket without I/O: each of
//! its steps computes, and then says which [collective](Request) to perform on which memory. So buckets can be under
//! way at the same time, by blocking calls or others, while the backward pass goes on. [`aggregate`] performs them one
//! after the other over a [`Collective`].
//!
//! A flight is a counter in a [`Program`]: a list of [ops](Op), done by a [`Space`] (memory of one kind; here is the
//! [`Host`]'s), and of the [parts](Part) that travel between them. [`Program::rounds`] tells their sizes before
//! anything is sent.
//!
//! | setting ([`Aggregation`]) | collectives | what a worker contributes |
//! |---|---|---|
//! | dense | all-reduce; of large f32 layers one each, in their place | its gradient |
//! | PowerSGD | all-reduce of `P`, all-reduce of `Q` | `P̂ Q_iᵀ`, its own `Q_i` before averaging |
//! | CLT-k | broadcast of the leader's positions, all-reduce of the values there | its values at these positions |
//! | QSGD, EDEN, LoCo, TopK by [`Route::AllGather`] | all-gather of payloads | its decoded payload |
//! | QSGD, EDEN, LoCo, TopK by [`Route::ScatterReduce`] | all-to-all, all-gather of payloads | its decoded payload, see below |
//! | dense by [`Route::Sharded`] | reduce-scatter | its gradient |
//! | QSGD, EDEN, LoCo, TopK by [`Route::Sharded`] | all-to-all of payloads | its decoded payloads |
//! | hard threshold, SIDCo, AdaComp, outside methods | all-gather of whole payloads by every route | its decoded payload |
//!
//! Dense values of small layers, the `P` of all layers and all values at shared positions share one all-reduce, the positions of all
//! layers one broadcast; payloads of all layers share one message: the payloads one after the other, in layer order.
//!
//! # Failures
//! Ranks tell each other how they fare inside these messages: a slip of 16 bytes heads each gathered message, and an
//! all-reduce has one f32 or three bf16 more per rank, which are zero on all others. It says whether the rank's part went well, and a
//! fingerprint of its layers, settings, seed, step and warm-start factors. A rank that fails (a gradient holds NaN,
//! say) or disagrees is thus named on every rank, at the same point of the sequence, and nobody waits for it. Only
//! where lengths might differ, before ranks have [agreed](Agreement) on layers and settings and where values decide
//! them, does an all-gather of 24 bytes per rank come first. A length is believed only up to the most that the layers'
//! payloads may take together, and each payload only if it is as long as its header implies.
//!
//! # Sums
//! What is summed on the wire (dense values, PowerSGD's factors, values at shared positions) travels as f32, or, where
//! [`Moment::reduce_dtype`] says so, as bf16 in half the bytes. A worker's values are rounded before they are sent, and so is
//! its `Q`; it contributes what is left of them, so that a residual keeps what rounding takes from them. How the embedder's
//! network rounds sums, nobody remembers. PowerSGD's `P` is orthonormalised in f32 from its sum, so that rounding it turns
//! the columns a little and takes nothing from a contribution.
//!
//! As f32, dense layers of 16-bit gradients travel in twice the bytes that their payload length and so an error table says.
//!
//! # The mean
//! The decoded contributions are summed in f32 and the sum is divided by the number of workers, once, at the end; values that are
//! summed in their place are divided before. Afterwards every rank holds the same bits, where its gradient was. What a
//! worker's own contribution `ĝ` [leaves](Rest) of its gradient is its next residual (`m' = m + a (g − ĝ)`); the mean of the
//! contributions is the mean, up to rounding, for every setting and route: no gradient is lost, whatever the residuals keep.
//!
//! # Scatter-reduce
//! The elements of a bucket are divided among the ranks (QSGD, LoCo: at bucket boundaries of the quantiser; TopK:
//! `keep` is divided in proportion, at least one per piece). Everybody sends each owner its piece, compressed; the
//! owner adds its own piece uncompressed, compresses the mean, and all-gathers it. The owner contributes its piece plus
//! the error of the second compression times the number of workers, so that its residual makes up for it at the next
//! step.
//!
//! # Shards
//! By [`Route::Sharded`] an exchange ends where every rank has the mean of its [shard](Spec::shards), a range of
//! elements of each layer. PowerSGD and CLT-k make their all-reduces and then only this rank's part of the mean.
//! Payloads of shards are encoded apart, this rank's own like the others, and are not compressed again; TopK's `keep`
//! is divided in proportion, at least one per shard. A worker contributes all of its gradient, whatever its own shard
//! is. Payloads that cannot be cut ([`Aggregation::WholePayloads`]) are gathered from all ranks and decoded by each, so that
//! their traffic and decoding grow with the number of workers.
//!
//! The mean of a shard has the bits of that part of a mean by [`Route::AllGather`] for dense layers, PowerSGD,
//! CLT-k and whole payloads, and for LoCo and QSGD with [nearest](crate::compress::qsgd::Rounding::Nearest) rounding where shards end at
//! bucket boundaries; if the embedder's two sums agree in their bits, too. Stochastic rounding draws other random bits
//! for each shard, and TopK selects within shards.
//!
//! Ranks that fail before they send, and ranks that disagree, are named on every rank as on other routes: slips go to
//! every owner, in a reduce-scatter as numbers behind each shard. What is wrong with what a rank has received for
//! its shard alone (it overflows, say) it alone can know: [`Flight::failed_alone`].
//!
//! # Source
//! Vogels et al., "PowerSGD", NeurIPS 2019, Algorithm 1, with the residual of the authors' later code (own `Q`);
//! Alistarh et al., "QSGD", NeurIPS 2017 (all-gather); Markov et al., "CGX", Middleware 2022 (scatter-reduce); Tang
//! et al., "DoubleSqueeze", ICML 2019 (error feedback of the second compression); Chen et al., "ScaleCom", NeurIPS 2020
//! (CLT-k; all layers of a step have one leader).

mod aggregate;
mod aggregation;
mod collective;
mod division;
mod fingerprint;
mod flight;
mod host;
mod layer;
mod layout;
mod moment;
mod program;
mod request;
mod round;
mod slip;
mod space;
#[cfg(any(test, feature = "threads"))]
pub mod threads;

pub use crate::compress::Aggregation;
pub use aggregate::{aggregate, workspace_len};
pub(crate) use aggregation::{factor_rank, is_gathered};
pub(crate) use collective::Place;
pub use collective::{Collective, CollectiveError};
pub use division::Piece;
pub use flight::Flight;
pub use host::Host;
pub(crate) use host::{request_in, request_of, widen_part};
pub use layer::{Layer, Rest, Spec};
pub use layout::Layout;
pub(crate) use moment::check_reduce_dtype;
pub use moment::{Agreement, Moment, Route};
pub use program::{Op, Part, Program};
pub use request::Request;
pub(crate) use request::share_of_others;
pub use round::Round;
pub(crate) use slip::is_of_others;
pub use slip::{Slip, judge};
pub use space::{RequestOf, Space};
