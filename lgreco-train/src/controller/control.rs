//! A step from beginning to end: the agreement of all ranks before its buckets, and the report after them.

use super::agreement::{self, Heard};
use super::agreement_state::{BROKEN, Stage, StepTotals};
use super::decision::{Decided, LayerSetting};
use super::groups::forget_many;
use super::layer::{BucketStatus, Undo};
use super::meter::{Meter, Sample};
use super::probe::Probe;
use super::schedule::Due;
use super::{Cause, Controller, Decision, NonFinite, Outcome, Report, Seconds, Tensor};
use crate::checksum::Hash;
use crate::exchange::{Request, share_of_others};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

impl Controller {
    /// Begins a step. All ranks must call this method with the same `learning_rate`, which only Accordion uses. Then perform the
    /// [control requests](Controller::control) if there are any, exchange the [buckets](Controller::open) in any order, and call
    /// [`finish_step`](Controller::finish_step). This call never waits.
    ///
    /// [`Controller::step`] does all of this with blocking collectives. [`Controller::step`] also checks all gradients before it
    /// exchanges any of them.
    ///
    /// If the learning rate is negative or not finite, the messages report the error to all ranks, so that no rank waits for this
    /// one. The control requests of this step then fail on all ranks. If the step has no control requests, the first bucket fails.
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), Error> {
        self.begin(learning_rate, None)
    }

    /// Begins a step. If `local` is given, the step begins with an agreement. `Ok(true)` means that a gradient of this rank is not
    /// finite. `Err` has this rank's error.
    pub(super) fn begin(&mut self, learning_rate: f64, local: Option<Result<bool, Error>>) -> Result<(), Error> {
        self.control.expect_idle()?;
        forget_many(&mut self.agreed);
        if self.world == 1 {
            // With a single rank, there are no other ranks to agree with.
            self.scheduler.given = self.scheduler.given.in_agreement();
        }
        // If only some ranks could not read a message, this count differs, and the ranks find out in this step.
        self.scheduler.unread += u64::from(core::mem::take(&mut self.totals.unread));
        let (due, probes) = (self.scheduler.is_due(), self.probes());
        self.control.began = self.now();
        self.totals = StepTotals { late: self.late, ..StepTotals::default() };
        let control = &mut self.control;
        let may_differ = (self.world > 1 && !control.met) || self.scheduler.config.accordion().is_some();
        control.asks = local.is_some() || due || probes || may_differ;
        let rate = check_rate(learning_rate);
        if control.asks {
            control.local = self.late.map_or(Ok(()), Err).and(rate).and(local.unwrap_or(Ok(false)));
            self.scheduler.given = self.scheduler.given.in_agreement();
        } else {
            // The first bucket reports the error to the other ranks.
            (control.local, self.late) = (Ok(false), self.late.or(rate.err()));
        }
        (control.answers, control.switched) = (0, false);
        if rate.is_ok() {
            self.scheduler.rate = learning_rate;
        }
        control.stage = Stage::Begun;
        Ok(())
    }

    /// Advances the agreement of all ranks before the buckets of a step, and returns its next collective. The previous collective
    /// must be complete. `None` means that the agreement is complete. In most steps, the first call returns `None`. At the first
    /// step, and after a state was loaded, ranks compare their options. If a decision is due, the measuring rank measures and plans
    /// during this call, and broadcasts the plan. After the broadcast, ranks agree to switch to the plan.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The step has then not begun, and may be begun again. The errors of search and solver when
    /// a decision fails; [`Error::Peer`], [`Error::PeerPlan`], [`Error::PeerMessage`]; [`Error::PeerOption`] with the first
    /// difference between ranks; [`Error::NoMessage`]; [`Error::StepOrder`] when no step is under way.
    pub fn control(&mut self) -> Result<Option<Request<'_>>, Error> {
        self.advance_control()?;
        Ok(self.control_request())
    }

    /// Advances to the next control request, and returns whether there is a request.
    pub(super) fn advance_control(&mut self) -> Result<bool, Error> {
        let stage = self.advance().inspect_err(|_| {
            self.scheduler.given = self.scheduler.given.not_agreed();
            self.control.cancel();
        })?;
        Ok(stage != Stage::Open)
    }

    /// The control request of the current stage.
    pub(super) fn control_request(&mut self) -> Option<Request<'_>> {
        let control = &mut self.control;
        match control.stage {
            Stage::Fields => Some(Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut control.plan) }),
            Stage::Agreement | Stage::Switch => {
                Some(Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut control.words) })
            }
            Stage::Plan => {
                let bytes = bytemuck::cast_slice_mut(&mut control.plan);
                Some(Request::Broadcast { root: self.scheduler.config.measuring_rank, bytes })
            }
            Stage::Probe => {
                let now = self.scheduler.config.clock.map_or(0.0, |clock| clock());
                let probe = control.probe.as_mut();
                probe.map(|probe| Request::AllGather { buffer: bytemuck::cast_slice_mut(probe.send(now)) })
            }
            _ => None,
        }
    }

    /// Ends the step, after all of its buckets were exchanged and closed. Layers that were in no bucket keep their residuals.
    ///
    /// # Errors
    /// [`Error::InFlight`] while a bucket has a layer; [`Error::StepOrder`] when no step is under way.
    pub fn finish_step(&mut self) -> Result<Report, Error> {
        self.control.expect_open()?;
        self.expect_taken_back()?;
        let (step, totals) = (self.scheduler.step, self.totals);
        let switched = self.control.switched;
        let has_bucket = |status| self.states.iter().any(|state| state.status == status);
        let given_up = has_bucket(BucketStatus::GivenUp);
        if given_up {
            self.late = self.late.or(Some(GIVEN_UP));
        }
        let skipped = totals.broken && self.scheduler.config.non_finite == NonFinite::Skip;
        let outcome = match given_up || has_bucket(BucketStatus::Failed) {
            true => Outcome::Failed,
            false if skipped => Outcome::Skipped,
            false if totals.broken => Outcome::PassedThrough,
            false => Outcome::Exchanged,
        };
        if skipped {
            // The callers apply no mean of a skipped step, not even the means of buckets without NaN, so all residuals are
            // restored. A bucket may have failed on this rank only, while the other ranks skip the step. So a rank with a failed
            // bucket restores its residuals, too.
            self.states.iter_mut().for_each(|state| state.undo());
        }
        if totals.not_finite {
            self.non_finite += 1;
        }
        let bytes_in = self.scheduler.tensors.iter().map(Tensor::bytes).sum();
        let seconds = totals.planned.zip(self.now());
        let seconds = seconds.map(|((planning, start), end)| Seconds { planning, exchange: end - start });
        let exchanged =
            outcome == Outcome::Exchanged && self.states.iter().any(|state| state.status == BucketStatus::Exchanged);
        match (&mut self.scheduler.meter, seconds) {
            (Some(meter), _) if meter.elsewhere => {
                (self.totals.unmetered, self.totals.in_window) = (exchanged, self.scheduler.watches);
            }
            (Some(meter), Some(seconds)) if exchanged => {
                let StepTotals { wire: bytes, computing, .. } = totals;
                meter.record(Sample { bytes, seconds: seconds.exchange, computing });
            }
            _ => {}
        }
        if totals.told {
            self.scheduler.given = self.scheduler.given.in_agreement();
        }
        self.end_step();
        Ok(Report { step, outcome, switched, bytes_in, bytes_out: totals.bytes_out, seconds })
    }

    /// Gives up the present step because a collective has failed. The step may be begun again. With [`undo`](super::Config::undo),
    /// the residuals from before the step are restored. Without `undo`, layers that were exchanged keep their new residuals. The
    /// window of the next decision begins anew. Before this call, wait until no collective uses the memory of buckets, and
    /// [close](Controller::close) all buckets.
    ///
    /// Ranks may have stopped at different points of the step, and may differ in settings and factors. Before the remaining ranks
    /// continue in a new group, they all [load](Controller::load) the plan of one rank, and each loads its own residuals.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// controller.begin_step(0.1)?;
    /// controller.abandon_step()?; // the network has failed
    /// assert_eq!(controller.steps(), 4);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InFlight`] while a bucket has a layer; [`Error::StepOrder`] when no step is under way.
    ///
    /// # Complexity
    /// O(layers), and a pass over the window's mean gradient if there is one.
    pub fn abandon_step(&mut self) -> Result<(), Error> {
        if self.control.is_idle() {
            return Err(Error::StepOrder { what: "no step is under way", expected: "`begin_step` before this call" });
        }
        self.expect_taken_back()?;
        if self.control.expect_open().is_ok() {
            self.states.iter_mut().for_each(|state| state.undo());
            self.scheduler.reopen();
            self.late = self.totals.late;
        }
        self.spare.clear();
        self.control.cancel();
        Ok(())
    }

    /// Ends the step at any point.
    pub(super) fn end_step(&mut self) {
        if self.totals.incomplete {
            self.scheduler.forget();
        }
        self.scheduler.close();
        self.spare.clear();
        self.control.cancel();
    }

    /// Advances the agreement to its next stage.
    fn advance(&mut self) -> Result<Stage, Error> {
        self.control.stage = match self.control.stage {
            Stage::Idle => {
                return Err(Error::StepOrder {
                    what: "no step is under way",
                    expected: "`begin_step` before this call",
                });
            }
            Stage::Begun if self.control.asks => {
                let local = self.control.local.map(|broken| if broken { BROKEN } else { 0 });
                let measured = self.scheduler.meter.as_ref().map_or(0, Meter::word);
                agreement::put(self.rank, local, self.fingerprint(), measured, &mut self.control.words);
                Stage::Agreement
            }
            Stage::Begun => self.after_agreement()?,
            Stage::Agreement => {
                let own = self.control.local.err();
                // The agreement has reported this rank's earlier error to all ranks.
                (self.late, self.totals.late) = (None, None);
                match agreement::read(own, &self.control.words)? {
                    Heard::Differs(rank) => self.compare(rank)?,
                    Heard::Answers(answers) => {
                        (self.control.answers, self.control.met) = (answers, true);
                        if let Some(meter) = &mut self.scheduler.meter {
                            meter.hear(agreement::measured(&self.control.words));
                        }
                        self.after_agreement()?
                    }
                }
            }
            Stage::Fields => {
                let rank = self.control.differs;
                return Err(agreement::difference(rank, &self.fields(), &self.control.plan));
            }
            Stage::Probe => self.after_probe(),
            Stage::Plan => {
                match self.scheduler.read(&self.control.plan) {
                    Ok(Some(decided)) => self.propose(decided),
                    // The measuring rank has no plan yet. All ranks make the same decision without a plan, or none.
                    Ok(None) => match self.scheduler.without_plan()? {
                        Some(decided) => self.propose(decided),
                        None => self.opened(),
                    },
                    // All ranks get the measuring rank's own error, so all fail.
                    Err(error) if self.scheduler.measures() || matches!(error, Error::Peer { .. }) => {
                        return Err(error);
                    }
                    Err(error) => self.refuse(error),
                }
            }
            Stage::Switch => {
                let ready = self.control.switches.take();
                let own = ready.as_ref().and_then(|(switches, ..)| switches.as_ref().err().copied());
                if let Heard::Differs(rank) = agreement::read(own, &self.control.words)? {
                    return Err(Error::PeerPlan { rank });
                }
                if let Some((Ok(switches), decided)) = ready {
                    self.switch(switches);
                    self.scheduler.commit(decided.decision, decided.norms);
                    self.control.switched = true;
                }
                self.opened()
            }
            Stage::Open => Stage::Open,
        };
        Ok(self.control.stage)
    }

    /// Makes all ranks exchange everything that must agree at this step (`fields`), because the fingerprint of `rank` differs from
    /// rank 0's. The error then names the first difference.
    fn compare(&mut self, rank: u32) -> Result<Stage, Error> {
        self.control.plan = agreement::put_fields(self.rank, self.world, &self.fields())?;
        self.control.differs = rank;
        Ok(Stage::Fields)
    }

    /// Begins a decision or a probe if one is due.
    fn after_agreement(&mut self) -> Result<Stage, Error> {
        Ok(match self.scheduler.due_now(self.scheduler.rate)? {
            Due::Nothing if self.probes() && self.scheduler.meter.as_ref().is_some_and(|meter| !meter.elsewhere) => {
                self.control.probe = Some(Probe::of(&self.scheduler));
                Stage::Probe
            }
            Due::Nothing => self.opened(),
            Due::Known(decided) => self.propose(decided),
            Due::Broadcast => self.decide(),
        })
    }

    /// Whether this step begins with a probe.
    fn probes(&self) -> bool {
        self.world > 1 && self.scheduler.is_last_before_task()
    }

    /// Continues after a round of the probe.
    fn after_probe(&mut self) -> Stage {
        let now = self.now().unwrap_or_default();
        if self.control.probe.as_mut().is_some_and(|probe| !probe.done(now)) {
            return Stage::Probe;
        }
        if let (Some(meter), Some(probe)) = (&mut self.scheduler.meter, self.control.probe.take()) {
            meter.link.note_probe(probe.seconds_per_byte(share_of_others(self.world)));
        }
        self.opened()
    }

    /// On the measuring rank, measures and plans during this call, unless a plan task has the gradients, or a device has them. All
    /// ranks allocate the message with the plan.
    fn decide(&mut self) -> Stage {
        if self.scheduler.result.is_none()
            && !self.scheduler.window.is_elsewhere()
            && let Some(task) = self.scheduler.take_task()
        {
            let result = task.run(&mut *self.backend);
            self.scheduler.hand_in(result);
        }
        self.control.plan = self.scheduler.message();
        Stage::Plan
    }

    /// Prepares new settings, and asks whether all ranks can switch to them.
    fn propose(&mut self, decided: Decided) -> Stage {
        let step = self.scheduler.step;
        let switches = self.prepare(&self.states, &decided.choices, step);
        let switches = switches.and_then(|switches| {
            let plans: Vec<_> = switches.iter().map(|switch| switch.plan).collect();
            self.provide(&plans).map(|()| switches)
        });
        let ready = switches.as_ref().map(|_| 0).map_err(|error| *error);
        let terms = decided.choices.iter().flat_map(LayerSetting::encode).chain(decided.decision.encode());
        let own_lens = switches.iter().flatten().filter_map(|switch| switch.plan.own_len());
        let terms = terms.chain(own_lens);
        let terms = terms.fold(Hash::START.add(step), Hash::add).0;
        agreement::put(self.rank, ready, terms, 0, &mut self.control.words);
        self.control.switches = Some((switches, decided));
        Stage::Switch
    }

    /// Tells all ranks that this one cannot switch to the new settings.
    fn refuse(&mut self, error: Error) -> Stage {
        let step = self.scheduler.step;
        agreement::put(self.rank, Err(error), step, 0, &mut self.control.words);
        let decision = Decision::without_plan(step, Cause::Schedule);
        self.control.switches = Some((Err(error), Decided { decision, choices: vec![], norms: vec![] }));
        Stage::Switch
    }

    /// Opens the step for buckets.
    fn opened(&mut self) -> Stage {
        let opened = self.scheduler.open(self.control.broken());
        // The first bucket reports the error to the other ranks.
        self.late = self.late.or(opened.err());
        self.arenas.next_step();
        for state in &mut self.states {
            (state.undo, state.status) = (Undo::Nothing, BucketStatus::Waiting);
        }
        self.control.terms = self.fingerprint();
        let now = self.now();
        self.totals.planned = self.control.began.zip(now).map(|(began, now)| (now - began, now));
        Stage::Open
    }
}

/// The error of a rank that has closed a bucket in the middle of its exchange.
const GIVEN_UP: Error = Error::StepOrder {
    what: "a bucket of the step before was closed in the middle of its exchange",
    expected: "`next` until it returns no request, or `abandon_step` instead of `finish_step`",
};

/// `Err` unless a learning rate is finite and not negative.
pub(super) fn check_rate(learning_rate: f64) -> Result<(), Error> {
    let sound = learning_rate.is_finite() && learning_rate >= 0.0;
    Ok(CoreError::require(sound, "learning rate", learning_rate, "a finite number >= 0")?)
}
