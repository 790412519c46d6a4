//! The controller: L-GreCo in the training loop.
//!
//! A trainer creates one [`Controller`] per worker, and calls [`Controller::step`] after every backward pass instead of averaging
//! gradients. The controller handles warm-up, measuring, planning, residuals, PowerSGD's factors and buffers.
//!
//! ```
//! use lgreco_train::controller::{Config, Controller, Tensor};
//! use lgreco_train::exchange::{Collective, threads};
//! use lgreco_train::gradient::{Dtype, ValuesMut};
//! use lgreco_train::search::{Method, Search};
//!
//! // Two workers minimise ½‖x − a‖² and ½‖x − b‖² together; the optimum is the mean of a and b.
//! let target = |rank: u32| (0..4096).map(|i| (i as f32 * (1.0 + rank as f32)).sin()).collect::<Vec<f32>>();
//! let (a, b) = (target(0), target(1));
//! let trained = threads::run(2, |mut worker| {
//!     let target = [&a, &b][worker.rank() as usize];
//!     let mut config = Config::new(Search::new(Method::TopK).with_default(0.1)?);
//!     config.schedule.warmup = 2;
//!     config.schedule.period = 50;
//!     let layers = vec![Tensor::new("x", &[64, 64], Dtype::F32)?];
//!     let mut controller = Controller::new(config, layers, worker.rank(), worker.world_size())?;
//!
//!     let (mut x, learning_rate, mut sent) = (vec![0.0f32; 4096], 0.03, 0);
//!     for _ in 0..300 {
//!         let mut gradient: Vec<f32> = x.iter().zip(target).map(|(x, target)| x - target).collect();
//!         let report = controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], learning_rate)?;
//!         x.iter_mut().zip(&gradient).for_each(|(x, mean)| *x -= learning_rate as f32 * mean);
//!         sent += report.bytes_out;
//!     }
//!     Ok::<_, lgreco_train::Error>((x, sent))
//! });
//! let [(x, sent), (y, _)] = <[_; 2]>::try_from(trained.into_iter().collect::<Result<Vec<_>, _>>()?).unwrap();
//! assert!(x == y && sent < 300 * 4 * 4096 / 5);
//! assert!((0..4096).all(|i| (x[i] - (a[i] + b[i]) / 2.0).abs() < 0.1));
//! # Ok::<(), lgreco_train::Error>(())
//! ```
//!
//! # Policies
//! | [`Policy`] | chooses settings by | budget | uses gradients |
//! |---|---|---|---|
//! | [`Uncompressed`](Policy::Uncompressed) | nothing | none | no |
//! | [`Uniform`](Policy::Uniform) | the search's default | none | no |
//! | [`Fixed`](Policy::Fixed) | the caller's list, or a plan file (`Policy::from_plan`) | none | no |
//! | [`KMeans`](Policy::KMeans) | clusters of layers with similar size and error (CGX) | from the default settings | every period |
//! | [`Accordion`](Policy::Accordion) | change of gradient norms, learning rate | none | every period |
//! | [`Legacy`](Policy::Legacy) | size of layers and phase of training | none | no |
//! | [`LGreco`](Policy::LGreco) | the best plan | from the default settings | every period |
//! | `LGreco` with Accordion | the best plan | from Accordion's levels | every period |
//!
//! Within an error [`Budget`], plans are as small as possible. Within a size budget, plans are as exact as possible. A budget is a
//! multiple of the error or size of the table's default settings, or a number of bits or seconds.
//!
//! With a search over [`Method::Hybrid`](crate::search::Method), L-GreCo also chooses among methods. Policies without a budget
//! decide once, after the warm-up, except Accordion and LEGACY. All policies that use the default can begin with [milder
//! compression](RampUp).
//!
//! # Buckets in flight
//! [`Controller::step`] blocks, and needs all gradients when it begins. A trainer that exchanges during its backward pass performs
//! the parts of the step itself. Such a trainer calls [`begin_step`](Controller::begin_step) and performs the
//! [`control`](Controller::control) requests, which most steps do not have. The trainer then exchanges a [`Bucket`] for each set of
//! layers whose gradients are ready. Several buckets can be exchanged at the same time, on any threads. Each bucket returns
//! requests for collectives. A request contains the memory that its collective reads and writes.
//! [`finish_step`](Controller::finish_step) ends the step. The means are bit for bit the same as with [`Controller::step`].
//!
//! Unlike [`Controller::step`], a trainer that exchanges buckets checks each bucket for NaN and infinity only when the bucket is
//! compressed. Other buckets of the step may already have been exchanged. A bucket with NaN or infinity fails on every rank, or its
//! gradients become zeros or NaN on every rank, according to [`NonFinite`]. [`roll_back`](Residuals::roll_back) undoes a step that
//! a loss scaler skips.
//!
//! # Planning while training goes on
//! At a decision, one rank measures and plans. By default, that rank does so during a call of [`control`](Controller::control),
//! which then takes seconds for large models. With a [`Schedule::lead`] of at least one step, [`take_task`](Planning::take_task)
//! returns the work beforehand, as a task that any thread can run. [`hand_in`](Planning::hand_in) takes the result. All ranks
//! switch at the scheduled step. If the result has not been handed in by then, all ranks switch at the first step after the
//! hand-in. No rank waits for the thread.
//!
//! # A step
//! 1. Each rank sends a message of 32 bytes. With these messages, ranks check that all gradients have the right shapes
//!    and are finite, and that all ranks have the same step and options. If a check fails, every rank gets an error. If
//!    options differ, the error names the difference ([`Error::PeerOption`](crate::Error)). Gradients that are not
//!    finite are an error only under [`NonFinite::Error`]. If the trainer exchanges the buckets itself, ranks send these messages
//!    only at the first step, after a state was loaded, when a decision is due, and before a probe of the link.
//! 2. At the steps of the [`Schedule`], the measuring rank plans. The plan uses the mean of that rank's own
//!    gradients in a window of `window` steps, which ends `lead` steps before the decision. The measuring rank broadcasts the plan,
//!    and all ranks switch before they compress anything in this step.
//! 3. For each bucket, `p = m + g`, the sum of residual and gradient, is compressed and exchanged ([`exchange`](crate::exchange)).
//!    With the decoded payload `ĝ` and the gain `a`, the residual becomes `m + a (g − ĝ)` ([`feedback`](crate::feedback)). The
//!    gradient becomes the mean.
//!
//! Decisions use the measuring rank's *local, uncompressed gradient, without residual*, as Accordion's authors do. This local
//! gradient is one worker's sample of the true gradient, without compression error. A longer window makes the sample more exact.
//!
//! # Around a step
//! * Add weight decay that is part of the gradient *before* the step, so that it is compressed with the gradient, and
//!   the residual keeps its compression error. Apply decoupled weight decay after the step.
//! * Clip by the global norm *after* the step, on the means, which are the same on all ranks. Clip each worker's own gradient
//!   before the step. Never clip the sum of gradient and residual: that would lose gradient mass.
//! * Apply momentum and learning rate after the step. Residuals are in units of the gradient, so learning rates may change.
//! * With gradient accumulation, call the controller only after the last micro-batch.
//!
//! # Guarantees
//! * Every rank has the same means, settings and decisions, bit for bit, after every step. Either all ranks fail at a step, or none
//!   does. If the measuring rank cannot plan, every rank gets the error of that rank.
//! * With error feedback, a gain of 1 and no resets, no gradient mass is lost: within rounding, the sum of the means plus the mean
//!   residual is the sum of the mean gradients. Switches of settings lose no gradient mass either. After a switch to a setting
//!   without feedback, the residual is sent with the next gradient. Steps with NaN or infinity ([`NonFinite`]) are left out of
//!   these sums. With a gain `a` below 1 (ScaleCom's filter, LoCo), a residual is `a` times the values that were not sent. A switch
//!   to another gain, or to a setting without feedback, treats the residual as if it were all of the unsent values.
//! * PowerSGD's `Q` is cut or extended at switches. New columns are drawn from the shared seed.
//! * Memory is allocated at construction, in the first steps under new settings, at decisions and in their windows. Memory is also
//!   allocated at the end of a bucket in flight with a residual, and when states are saved or loaded. Residuals for new settings
//!   are allocated before ranks agree to switch. [`MemoryUse::of`] predicts the sum. If a step can be rolled back
//!   ([`Config::undo`]), each residual takes twice its bytes.

mod accordion;
mod agreement;
mod agreement_state;
mod arena;
mod bucket;
mod buffers;
mod compute;
mod config;
mod control;
mod costs;
mod decision;
mod external;
mod external_timing;
mod feedback;
mod groups;
mod identity;
mod inspect;
mod layer;
mod layer_plan;
mod legacy;
mod lend;
mod lent_layer;
#[cfg(feature = "json")]
mod line;
mod link;
mod load;
mod memory;
mod meter;
mod metrics;
mod observed;
mod par_layers;
mod planner;
mod planning;
mod policy;
mod probe;
mod ramp;
mod residuals;
mod save;
mod schedule;
mod spare;
mod state_format;
mod step;
mod summary;
mod task;
mod tensor;
#[cfg(test)]
mod tests;
mod timing;
pub mod two_level;
mod window;
mod worker;

pub use accordion::Accordion;
pub use bucket::{Bucket, Joined};
pub use config::{Config, NonFinite, Schedule};
pub use decision::{Cause, Decision, Uncompressed};
pub use external::External;
pub use feedback::Feedback;
pub use legacy::Legacy;
#[cfg(feature = "json")]
pub use line::metrics_line;
pub use load::Loaded;
pub use memory::MemoryUse;
pub use metrics::{Metrics, Outcome, Report, Seconds};
pub use observed::Observed;
pub use planning::Planning;
pub use policy::{Budget, Objective, Policy};
pub use ramp::RampUp;
pub use residuals::Residuals;
pub use save::Contents;
pub use summary::Summary;
pub use task::{PlanResult, PlanTask};
pub use tensor::Tensor;
pub use timing::Timing;
pub use worker::Controller;

pub(crate) use agreement::compare;
pub(crate) use buffers::values;
pub(crate) use identity::{Field, fields};
