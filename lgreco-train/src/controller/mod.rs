//! The controller: L-GreCo in the training loop.
//!
//! A trainer makes one [`Controller`] per worker and calls [`Controller::step`] after every backward pass, in place of
//! averaging gradients. Warm-up, measuring, planning, residuals, PowerSGD's factors and buffers are inside.
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
//! | [`Policy`] | decides by | budget | looks at gradients |
//! |---|---|---|---|
//! | [`Uncompressed`](Policy::Uncompressed) | nothing | none | no |
//! | [`Uniform`](Policy::Uniform) | the search's default | none | no |
//! | [`Fixed`](Policy::Fixed) | the caller's list, or a plan file (`Policy::from_plan`) | none | no |
//! | [`KMeans`](Policy::KMeans) | clusters of size and error (CGX) | that of the default | every period |
//! | [`Accordion`](Policy::Accordion) | change of gradient norms, learning rate | none | every period |
//! | [`Legacy`](Policy::Legacy) | size of layers and phase of training | none | no |
//! | [`LGreco`](Policy::LGreco) | the best plan | that of the default | every period |
//! | `LGreco` with Accordion | the best plan | that of Accordion's levels | every period |
//!
//! A [`Budget`] is one of error, within which plans are as small as possible, or one of size, within which they are as exact as
//! possible; it is a multiple of what the settings of the table have, or a number of bits or seconds.
//!
//! A search over [`Method::Hybrid`](crate::search::Method) makes L-GreCo choose among methods, too. Policies without a
//! budget decide once, after the warm-up, but for Accordion and LEGACY, and all that go by the default may begin
//! [milder](RampUp).
//!
//! # Buckets in flight
//! [`Controller::step`] blocks, and begins when all gradients are there. A trainer that exchanges while its backward pass goes
//! on makes the same steps itself: [`begin_step`](Controller::begin_step), the [`control`](Controller::control) requests (none
//! at most steps), then a [`Bucket`] for whatever layers have their gradients, any number at a time and on any threads, and
//! [`finish_step`](Controller::finish_step). Each bucket says which collectives to perform on which memory. The means are the
//! same bits. What differs: gradients that are not finite are found only when their bucket is compressed, so other buckets of
//! the step may have been exchanged; the bucket then becomes NaN on every rank, or zeros where the step is [skipped](NonFinite::Skip). [`roll_back`](Residuals::roll_back) takes a
//! step back that a loss scaler skips.
//!
//! # Planning while training goes on
//! At a decision, one rank measures and plans; [`control`](Controller::control) does it during the call, for seconds with
//! large models, unless somebody else does. With a [`Schedule::lead`] of some steps,
//! [`take_plan_task`](Planning::take_task) gives that rank the work beforehand, to be run on any thread, and
//! [`hand_in`](Planning::hand_in) takes the result. Settings change at the step of the schedule, on all ranks, or at the
//! first one after it at which the result is there: nobody waits for it.
//!
//! # A step
//! 1. Ranks agree (32 bytes each) that all have gradients of the right shapes, all finite, at the same step, and the same options;
//!    if not, all of them name what differs ([`Error::PeerOption`](crate::Error)). Steps made of buckets begin so where a decision
//!    is due, at the first step, and after a state was loaded, which all ranks do or none.
//! 2. At step `warmup`, and every `period` steps from there: the measuring rank measures the mean of its own last
//!    `window` gradients (but for the `lead` last), plans and broadcasts; all ranks then switch before anything of the step
//!    is compressed.
//! 3. Per bucket: `p = m + g` is compressed and exchanged ([`exchange`](crate::exchange)), the residual becomes `m + a (g − ĝ)` ([`feedback`](crate::feedback)), the gradient becomes the mean.
//!
//! What decides is the measuring rank's *local, uncompressed gradient, without residual*, as Accordion's authors do it: no
//! compression error contaminates it. It is one worker's sample of the true gradient; a longer window makes it a better
//! one.
//!
//! # Around a step
//! * Weight decay that is part of the gradient is added *before*, so that it goes through the residual like the rest;
//!   decoupled weight decay comes after.
//! * Clipping by the global norm comes *after*, on the means, which all ranks have. Clipping each worker's own gradient
//!   comes before. The sum of gradient and residual is never clipped: that would lose mass.
//! * Momentum and learning rate come after. Residuals are in units of the gradient, so learning rates may change.
//! * With gradient accumulation, call it after the last micro-batch only.
//!
//! # What is promised
//! * Every rank has the same means, settings and decisions, bit for bit, after every step, and all ranks fail at the same
//!   step or none. A measuring rank that cannot plan is an error on every rank.
//! * No gradient mass is lost where feedback is on, with a gain of 1 and no resets: the sum of the means plus the mean
//!   residual is the sum of the mean gradients, within rounding, over any switches. Under a setting without feedback what
//!   is left of a residual goes out with the next gradient. Steps of [`NonFinite`] gradients are left out of the sum. With
//!   a gain `a` below 1 (ScaleCom's filter, LoCo) a residual is `a` times what has not been sent, and a switch to another
//!   gain, or to none, takes it for the whole.
//! * PowerSGD's `Q` is cut or extended at switches, the new columns being drawn from the shared seed.
//! * Allocation happens at construction, in the first steps under other settings, at decisions and their windows, when a bucket
//!   in flight ends whose residual is kept, and when state is saved or loaded. Residuals that a decision needs are there before
//!   ranks agree to switch. [`Controller::memory`] tells beforehand how much it is. A residual takes its bytes once, or twice where a step may be rolled back ([`Config::undo`]).

mod accordion;
mod agreement;
mod arena;
mod bucket;
mod buffers;
mod check;
mod codes;
mod compute;
mod config;
mod control;
mod costs;
mod decide;
mod decision;
mod elsewhere;
mod feedback;
mod groups;
mod identity;
mod inspect;
mod layer;
mod layer_plan;
mod legacy;
mod lend;
#[cfg(feature = "json")]
mod line;
mod link;
mod memory;
mod message;
mod meter;
mod metered;
mod metrics;
mod observed;
mod offers;
#[cfg(feature = "json")]
mod planned;
mod planner;
mod planning;
mod ramp;
mod residuals;
mod restore;
mod save;
mod saved;
mod spread;
mod stage;
mod step;
mod task;
mod tensor;
#[cfg(test)]
mod tests;
mod timing;
mod turn;
pub mod two_level;
mod view;
mod window;

pub use bucket::Bucket;
pub use config::{Accordion, Budget, Config, NonFinite, Objective, Policy, Schedule};
pub use decision::{Cause, Decision, Uncompressed};
pub use elsewhere::Elsewhere;
pub use feedback::Feedback;
pub use legacy::Legacy;
#[cfg(feature = "json")]
pub use line::metrics_line;
pub use memory::MemoryUse;
pub use metrics::{Metrics, Outcome, Report, Seconds};
pub use observed::Observed;
pub use planning::Planning;
pub use ramp::RampUp;
pub use residuals::Residuals;
pub use restore::Loaded;
pub use save::Contents;
pub use step::Controller;
pub use task::{PlanResult, PlanTask};
pub use tensor::Tensor;
pub use timing::Timing;
