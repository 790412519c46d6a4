//! What ranks say to each other besides exchanging gradients: before a step, and when settings change.

use super::agreement::{self, Heard};
use super::codes::Choice;
use super::decide::Decided;
use super::layer::{Fate, Undo};
use super::meter::Meter;
use super::planner::check_rate;
use super::planner::{Planner, Turn};
use super::stage::{BROKEN, Probe, Stage, Taken};
use super::{Cause, Controller, Decision, Timing};
use crate::Error;
use crate::checksum::Hash;
use crate::exchange::{Request, share_of_others};
use alloc::vec;

/// Words of a probe on all ranks together, at most, and at least unless a step sends less: more than what shapers and buffers let
/// pass at once.
const PROBED: [f64; 2] = [(1u64 << 16) as f64, (1u64 << 17) as f64];
/// What probes may take of the seconds of exchanging until the next one.
const PROBING: f64 = 0.01;
/// How much longer the first may take, before which nothing is known: of a busy machine's messages one in five is interrupted.
const FIRST: f64 = 5.0;
const PROBES: u32 = 2;

impl Controller {
    /// Begins a step. All ranks do, with the same `learning_rate` (only Accordion looks at it). Then come the
    /// [control requests](Controller::control), if there are any, and the [buckets](Controller::open), in any order; and
    /// [`finish_step`](Controller::finish_step). Never waits.
    ///
    /// [`Controller::step`] does all of it by blocking collectives, and finds out before anything is exchanged whether all
    /// gradients can be.
    ///
    /// A learning rate that is not finite or negative is told to all ranks, so that none waits for this one: the control
    /// requests fail, or, where there are none, the first bucket.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when a step is under way.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), Error> {
        self.begin(learning_rate, None)
    }

    /// With `local`, ranks tell each other how they fare before anything else.
    pub(super) fn begin(&mut self, learning_rate: f64, local: Option<Result<bool, Error>>) -> Result<(), Error> {
        self.control.expect_idle()?;
        if self.world == 1 {
            // There is nobody to tell.
            self.planner.given = self.planner.given.in_agreement();
        }
        let (due, probes) = (self.planner.is_due(), self.probes());
        self.control.began = self.now();
        self.taken = Taken { late: self.late, ..Taken::default() };
        let control = &mut self.control;
        let may_differ = (self.world > 1 && !control.met) || self.planner.config.accordion().is_some();
        control.asks = local.is_some() || due || probes || may_differ;
        let rate = check_rate(learning_rate);
        if control.asks {
            control.local = self.late.map_or(Ok(()), Err).and(rate).and(local.unwrap_or(Ok(false)));
            self.planner.given = self.planner.given.in_agreement();
        } else {
            // The first bucket tells it.
            (control.local, self.late) = (Ok(false), self.late.or(rate.err()));
        }
        (control.answers, control.switched) = (0, false);
        if rate.is_ok() {
            self.planner.rate = learning_rate;
        }
        control.stage = Stage::Begun;
        Ok(())
    }

    /// What ranks have to say to each other before the buckets of the step that has begun: goes on, once the collective asked
    /// for before is done, until the next one. `None` at once at most steps. At the first step, and at the first after a state
    /// was loaded, ranks compare their options; where a decision is due, they agree on it, the measuring rank measures and plans
    /// during this call and broadcasts, and ranks agree to switch.
    ///
    /// # Errors
    /// Whatever fails on one rank fails on all. The step has then not begun, and may be begun again. Those of
    /// search and planner when a decision fails; [`Error::Peer`], [`Error::PeerPlan`], [`Error::PeerMessage`];
    /// [`Error::PeerOption`] names what differs between ranks; [`Error::StepOrder`] when no step is under way.
    pub fn control(&mut self) -> Result<Option<Request<'_>>, Error> {
        self.advance_control()?;
        Ok(self.control_request())
    }

    /// Goes on to the next control request; whether there is one.
    pub(super) fn advance_control(&mut self) -> Result<bool, Error> {
        let stage = self.talk().inspect_err(|_| {
            self.planner.given = self.planner.given.not_agreed();
            self.control.cancel();
        })?;
        Ok(stage != Stage::Open)
    }

    /// The control request of the stage that has been reached.
    pub(super) fn control_request(&mut self) -> Option<Request<'_>> {
        let control = &mut self.control;
        match control.stage {
            Stage::Fields => Some(Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut control.plan) }),
            Stage::Agreement | Stage::Switch => {
                Some(Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut control.words) })
            }
            Stage::Plan => {
                let bytes = bytemuck::cast_slice_mut(&mut control.plan);
                Some(Request::Broadcast { root: self.planner.config.measuring_rank, bytes })
            }
            Stage::Probe => {
                let now = self.planner.config.clock.map_or(0.0, |clock| clock());
                let probe = control.probe.as_mut();
                probe.map(|probe| Request::AllGather { buffer: bytemuck::cast_slice_mut(probe.send(now)) })
            }
            _ => None,
        }
    }

    /// Gives up the step under way, because a collective has failed: it may be begun again, and residuals are what they were
    /// before it, if the configuration asks for [`undo`](super::Config::undo). If not, those of layers whose exchange was done
    /// are what it has left. A collection of gradients for the next decision begins anew. All buckets are taken back first, wherever
    /// they are, once the engine no longer touches their memory.
    ///
    /// Ranks may have got differently far, and differ in settings and factors: whatever they go on with, in a new group of
    /// whoever is left, all [load](Controller::load) the plan of one of them, each with its own residuals.
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
    /// [`Error::InFlight`] when a bucket has not been taken back; [`Error::StepOrder`] when no step is under way.
    ///
    /// # Complexity
    /// O(layers), and a pass over the collected gradients if there are any.
    pub fn abandon_step(&mut self) -> Result<(), Error> {
        if self.control.is_idle() {
            return Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" });
        }
        self.expect_taken_back()?;
        if self.control.expect_open().is_ok() {
            self.states.iter_mut().for_each(|state| state.undo());
            self.planner.reopen();
            self.late = self.taken.late;
        }
        self.control.cancel();
        Ok(())
    }

    /// From one stage to the next.
    fn talk(&mut self) -> Result<Stage, Error> {
        self.control.stage = match self.control.stage {
            Stage::Idle => {
                return Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" });
            }
            Stage::Begun if self.control.asks => {
                let local = self.control.local.map(|broken| if broken { BROKEN } else { 0 });
                let measured = self.planner.meter.as_ref().map_or(0, Meter::word);
                agreement::put(self.rank, local, self.fingerprint(), measured, &mut self.control.words);
                Stage::Agreement
            }
            Stage::Begun => self.after_agreement()?,
            Stage::Agreement => {
                let own = self.control.local.err();
                // All have been told.
                (self.late, self.taken.late) = (None, None);
                match agreement::read(own, &self.control.words)? {
                    Heard::Differs(rank) => self.compare(rank),
                    Heard::Answers(answers) => {
                        (self.control.answers, self.control.met) = (answers, true);
                        if let Some(meter) = &mut self.planner.meter {
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
                match self.planner.read(&self.control.plan) {
                    Ok(Some(decided)) => self.propose(decided),
                    // All ranks find out the same.
                    Ok(None) => match self.planner.undecided()? {
                        Some(decided) => self.propose(decided),
                        None => self.opened(),
                    },
                    // What the measuring rank has met, all ranks have been told.
                    Err(error) if self.planner.measures() || matches!(error, Error::Peer { .. }) => return Err(error),
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
                    self.planner.commit(decided.decision, decided.norms);
                    self.control.switched = true;
                }
                self.opened()
            }
            Stage::Open => Stage::Open,
        };
        Ok(self.control.stage)
    }

    /// All ranks tell what they have, because `rank` differs from rank 0.
    fn compare(&mut self, rank: u32) -> Stage {
        self.control.plan = agreement::put_fields(self.rank, self.world, &self.fields());
        self.control.differs = rank;
        Stage::Fields
    }

    /// Decides if it is time to.
    fn after_agreement(&mut self) -> Result<Stage, Error> {
        Ok(match self.planner.next(self.planner.rate)? {
            Turn::Nothing if self.probes() && self.planner.meter.as_ref().is_some_and(|meter| !meter.elsewhere) => {
                let (words, least, allowed) = (self.probe_words(), self.probe_times(), self.probe_seconds());
                self.control.probe = Some(Probe::new(words, [self.rank, self.world], least, allowed));
                Stage::Probe
            }
            Turn::Nothing => self.opened(),
            Turn::Known(decided) => self.propose(decided),
            Turn::Broadcast => self.decide(),
        })
    }

    /// Whether this step begins with a probe.
    fn probes(&self) -> bool {
        self.world > 1 && self.is_last_before_task()
    }

    /// Whether seconds are measured and this step is the last one before the next decision's task.
    pub(super) fn is_last_before_task(&self) -> bool {
        let Planner { due, step, config, meter, .. } = &self.planner;
        meter.is_some() && *due == step.checked_add(config.schedule.lead.saturating_add(1))
    }

    /// On all ranks together, the same on all: no more than an uncompressed step sends, and as few as the last decision's seconds
    /// allow, down to a limit.
    pub(super) fn probe_words(&self) -> usize {
        let model = self.planner.tensors.iter().map(|tensor| tensor.bytes() / 8).sum::<u64>();
        let [least, most] = PROBED;
        let allowed = (self.affordable_words() / f64::from(PROBES)).clamp(least, most);
        let each = model.min(allowed as u64) / u64::from(self.world);
        each.max(2) as usize * self.world as usize
    }

    /// How often at least: once where even the fewest words are dear, else twice, of which the faster counts.
    pub(super) fn probe_times(&self) -> u32 {
        if self.affordable_words() < self.probe_words() as f64 * f64::from(PROBES) { 1 } else { PROBES }
    }

    /// How long it may take on this rank that more follow, by what steps have taken here.
    fn probe_seconds(&self) -> f64 {
        let Planner { config, decision, meter, .. } = &self.planner;
        let seconds = meter.as_ref().and_then(Meter::seconds).unwrap_or_default();
        let part = if decision.is_none() { FIRST * PROBING } else { PROBING };
        part * config.schedule.period as f64 * seconds
    }

    /// How many words probes may have until the next decision, by what the last one, which all ranks know, said of the link.
    fn affordable_words(&self) -> f64 {
        let Planner { config, decision, .. } = &self.planner;
        let timing = decision.and_then(|decision| decision.timing);
        // Numbers first and then the comparison: compilers may compare what is not there, which Valgrind reports.
        let of_link = |Timing { plan, seconds_per_byte, .. }| [plan, seconds_per_byte];
        let [plan, seconds_per_byte] = timing.map_or([0.0; 2], of_link);
        if seconds_per_byte <= 0.0 {
            return f64::INFINITY;
        }
        let seconds = PROBING * config.schedule.period as f64 * plan;
        seconds / (8.0 * seconds_per_byte * share_of_others(self.world))
    }

    /// The ranks have just agreed, so that none is late.
    fn after_probe(&mut self) -> Stage {
        let now = self.now().unwrap_or_default();
        if self.control.probe.as_mut().is_some_and(|probe| !probe.done(now)) {
            return Stage::Probe;
        }
        if let (Some(meter), Some(probe)) = (&mut self.planner.meter, self.control.probe.take()) {
            meter.link.note_probe(probe.seconds_per_byte(share_of_others(self.world)));
        }
        self.opened()
    }

    /// On the measuring rank, measures and plans unless somebody else has or does, or has the gradients; others make room for its plan.
    fn decide(&mut self) -> Stage {
        if self.planner.result.is_none()
            && !self.planner.window.is_elsewhere()
            && let Some(task) = self.planner.take_task()
        {
            let result = task.run(&mut *self.backend);
            self.planner.hand_in(result);
        }
        self.control.plan = self.planner.words();
        Stage::Plan
    }

    /// Prepares new settings and asks whether all ranks can.
    fn propose(&mut self, decided: Decided) -> Stage {
        let step = self.planner.step;
        let switches = self.prepare(&self.states, &decided.choices, step);
        let switches = switches.and_then(|switches| self.provide(&decided.choices).map(|()| switches));
        let ready = switches.as_ref().map(|_| 0).map_err(|error| *error);
        let terms = decided.choices.iter().flat_map(Choice::encode).chain(decided.decision.encode());
        let terms = terms.fold(Hash::START.add(step), Hash::add).0;
        agreement::put(self.rank, ready, terms, 0, &mut self.control.words);
        self.control.switches = Some((switches, decided));
        Stage::Switch
    }

    /// Says that this rank cannot take over the new settings.
    fn refuse(&mut self, error: Error) -> Stage {
        let step = self.planner.step;
        agreement::put(self.rank, Err(error), step, 0, &mut self.control.words);
        let decision = Decision::without_plan(step, Cause::Schedule);
        self.control.switches = Some((Err(error), Decided { decision, choices: vec![], norms: vec![] }));
        Stage::Switch
    }

    /// Lets buckets be exchanged.
    fn opened(&mut self) -> Stage {
        self.planner.open(self.control.broken());
        self.arenas.next_step();
        for state in &mut self.states {
            (state.undo, state.fate) = (Undo::Nothing, Fate::Waiting);
        }
        self.control.terms = self.fingerprint();
        let now = self.now();
        self.taken.planned = self.control.began.zip(now).map(|(began, now)| (now - began, now));
        Stage::Open
    }
}
