//! What ranks say to each other besides exchanging gradients: before a step, and when settings change.

use super::accordion::Highest;
use super::agreement;
use super::codes::Choice;
use super::decide::{Answer, Question, refused, suited, uniform};
use super::layer::Switch;
use super::step::Taken;
use super::{Cause, Controller, Decision, decision};
use crate::checksum::Hash;
use crate::exchange::Request;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

/// What ranks ask each other before a step: whether a gradient is not finite, whether the measuring rank could decide.
const BROKEN: u64 = 1;
const MEASURABLE: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No step is under way.
    Idle,
    Begun,
    /// Waits for what all ranks say of the step.
    Agreement,
    /// Waits for the measuring rank's plan.
    Plan,
    /// Waits for all ranks to say whether they can take over the new settings.
    Switch,
    /// Buckets may be exchanged.
    Open,
}

/// The state of that conversation.
pub(super) struct Control {
    stage: Stage,
    learning_rate: f64,
    /// What this rank has to say, and whether its gradients are finite.
    local: Result<bool, Error>,
    /// Whether ranks are asked although nothing is to be decided.
    asks: bool,
    answers: u64,
    /// What this rank has decided, if it is the one that measures.
    answer: Option<Result<Answer, Error>>,
    switches: Option<(Result<Vec<Switch>, Error>, Answer, bool)>,
    switched: bool,
    in_window: bool,
    terms: u64,
    began: Option<f64>,
    /// Messages of all ranks.
    words: Vec<u64>,
    /// The plan.
    plan: Vec<u64>,
}

impl Control {
    pub(super) fn new(world: u32) -> Control {
        Control {
            stage: Stage::Idle,
            learning_rate: 0.0,
            local: Ok(false),
            asks: false,
            answers: 0,
            answer: None,
            switches: None,
            switched: false,
            in_window: false,
            terms: 0,
            began: None,
            words: vec![0; agreement::words(world as usize)],
            plan: vec![],
        }
    }

    pub(super) fn expect_open(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Idle => Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" }),
            _ => Err(Error::StepOrder {
                what: "ranks have not agreed on the step",
                expected: "no control requests left",
            }),
        }
    }

    pub(super) fn expect_idle(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Idle => Ok(()),
            _ => Err(Error::StepOrder { what: "a step is under way", expected: "its end" }),
        }
    }

    /// Whether some rank's gradient is not finite.
    pub(super) fn broken(&self) -> bool {
        self.answers & BROKEN != 0
    }

    pub(super) fn switched(&self) -> bool {
        self.switched
    }

    pub(super) fn in_window(&self) -> bool {
        self.in_window
    }

    /// Stands for all that ranks must agree on at this step.
    pub(super) fn terms(&self) -> u64 {
        self.terms
    }

    /// Ends the step, or what was said about it.
    pub(super) fn cancel(&mut self) {
        self.stage = Stage::Idle;
        (self.answer, self.switches) = (None, None);
    }
}

impl Controller {
    /// Begins a step. All ranks do, with the same `learning_rate` (only Accordion looks at it). Then come the
    /// [control requests](Controller::control), if there are any, and the [buckets](Controller::open), in any order; and
    /// [`finish_step`](Controller::finish_step). Never waits.
    ///
    /// [`Controller::step`] does all of it by blocking collectives, and finds out before anything is exchanged whether all
    /// gradients can be.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when a step is under way; [`CoreError::Parameter`] for a learning rate that is not finite or negative.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), Error> {
        check_rate(learning_rate)?;
        self.begin(learning_rate, None)
    }

    /// With `local`, ranks tell each other how they fare before anything else.
    pub(super) fn begin(&mut self, learning_rate: f64, local: Option<Result<bool, Error>>) -> Result<(), Error> {
        self.control.expect_idle()?;
        let due = self.due.is_some_and(|due| self.step >= due);
        self.control.began = self.now();
        self.taken = Taken::default();
        for state in &mut self.states {
            (state.undoable, state.exchanged) = (false, false);
        }
        let control = &mut self.control;
        control.asks = local.is_some() || due || self.config.accordion().is_some();
        let local = local.unwrap_or(Ok(false));
        control.local = match control.asks {
            true => self.late.take().map_or(Ok(()), Err).and_then(|()| check_rate(learning_rate)).and(local),
            false => local,
        };
        (control.learning_rate, control.answers, control.switched) = (learning_rate, 0, false);
        control.stage = Stage::Begun;
        Ok(())
    }

    /// What ranks have to say to each other before the buckets of the step that has begun: goes on, once the collective asked
    /// for before is done, until the next one. `None` at once at most steps; where a decision is due, ranks agree on it,
    /// the measuring rank measures and plans during this call and broadcasts, and ranks agree to switch.
    ///
    /// # Errors
    /// Whatever fails on one rank fails on all. The step has then not begun, and may be begun again. Those of
    /// search and planner when a decision fails; [`Error::Peer`], [`Error::PeerPlan`], [`Error::PeerMessage`];
    /// [`Error::StepOrder`] when no step is under way.
    pub fn control(&mut self) -> Result<Option<Request<'_>>, Error> {
        let stage = self.talk().inspect_err(|_| self.control.cancel())?;
        let control = &mut self.control;
        Ok(match stage {
            Stage::Agreement | Stage::Switch => {
                Some(Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut control.words) })
            }
            Stage::Plan => {
                let bytes = bytemuck::cast_slice_mut(&mut control.plan);
                Some(Request::Broadcast { root: self.config.measuring_rank, bytes })
            }
            _ => None,
        })
    }

    /// From one stage to the next.
    fn talk(&mut self) -> Result<Stage, Error> {
        self.control.stage = match self.control.stage {
            Stage::Idle => {
                return Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" });
            }
            Stage::Begun if self.control.asks => {
                let measurable = if self.measurable() { MEASURABLE } else { 0 };
                let local = self.control.local.map(|broken| measurable | if broken { BROKEN } else { 0 });
                let fingerprint = self.fingerprint(self.control.learning_rate);
                agreement::put(self.rank, local, fingerprint, &mut self.control.words);
                Stage::Agreement
            }
            Stage::Begun => self.after_agreement()?,
            Stage::Agreement => {
                let own = self.control.local.err();
                self.control.answers = agreement::read(own, &self.control.words)?;
                self.after_agreement()?
            }
            Stage::Plan => {
                let control = &mut self.control;
                control.plan.iter_mut().for_each(|word| *word = u64::from_le(*word));
                let root = self.config.measuring_rank;
                let answer = match control.answer.take() {
                    Some(answer) => Ok(answer?),
                    None => decision::read(root, &control.plan),
                };
                match answer {
                    Ok(answer) => self.propose(answer, true),
                    // What the measuring rank has met, all ranks have been told.
                    Err(error @ Error::Peer { .. }) => return Err(error),
                    Err(error) => self.refuse(error),
                }
            }
            Stage::Switch => {
                let ready = self.control.switches.take();
                let own = ready.as_ref().and_then(|(switches, ..)| switches.as_ref().err().copied());
                agreement::read(own, &self.control.words)?;
                if let Some((Ok(switches), answer, due)) = ready {
                    self.take_over(switches, answer, due);
                }
                self.opened()
            }
            Stage::Open => Stage::Open,
        };
        Ok(self.control.stage)
    }

    /// Whether this rank decides for all, and has seen a gradient to decide by.
    fn measurable(&self) -> bool {
        self.rank == self.config.measuring_rank && self.window.steps > 0
    }

    /// Decides if it is time to and the measuring rank can.
    fn after_agreement(&mut self) -> Result<Stage, Error> {
        let mut highest = self.learning_rate;
        let accordion = self.config.accordion().filter(|_| self.step >= self.config.schedule.warmup);
        let fell = accordion.is_some_and(|accordion| highest.falls(&accordion, self.control.learning_rate));
        let measurable = self.control.answers & MEASURABLE != 0;
        if measurable && self.due.is_some_and(|due| self.step >= due) {
            self.decide(fell);
            return Ok(Stage::Plan);
        }
        if let (true, Some(accordion)) = (fell, accordion) {
            let low = vec![accordion.low; self.tensors.len()];
            let choices = uniform(&self.config, &self.tensors, Some(&low))?.into_iter().zip(&self.tensors);
            let choices: Vec<Choice> = choices.map(|(choice, tensor)| suited(&self.config, tensor, choice)).collect();
            let mut decision = Decision::without_plan(self.step, Cause::LearningRate);
            decision.not_contractive = refused(&choices);
            return Ok(self.propose(Answer { decision, choices, norms: vec![] }, false));
        }
        self.learning_rate = highest;
        Ok(self.opened())
    }

    /// Measures and plans on the measuring rank; others make room for its plan.
    fn decide(&mut self, fell: bool) {
        let root = self.config.measuring_rank;
        let answer = (self.rank == root).then(|| {
            let question = Question {
                config: &self.config,
                tensors: &self.tensors,
                step: self.step,
                window: &self.window,
                norms: &self.norms,
                fell,
                time: &self.time,
                bucket_of: &self.groups.of,
                backend: &mut *self.backend,
            };
            question.answer()
        });
        let nobody = Error::Peer { rank: root, code: 0 };
        let told = answer.as_ref().map_or(Err(&nobody), |answer| answer.as_ref());
        self.control.plan = decision::message(self.tensors.len(), told);
        self.control.plan.iter_mut().for_each(|word| *word = word.to_le());
        self.control.answer = answer;
    }

    /// Prepares new settings and asks whether all ranks can.
    fn propose(&mut self, answer: Answer, due: bool) -> Stage {
        let switches = self.prepare(&self.states, &answer.choices, self.step);
        let ready = switches.as_ref().map(|_| 0).map_err(|error| *error);
        let terms = answer.choices.iter().flat_map(Choice::encode).chain(answer.decision.encode());
        let terms = terms.fold(Hash::START.add(self.step), Hash::add).0;
        agreement::put(self.rank, ready, terms, &mut self.control.words);
        self.control.switches = Some((switches, answer, due));
        Stage::Switch
    }

    /// Says that this rank cannot take over the new settings.
    fn refuse(&mut self, error: Error) -> Stage {
        agreement::put(self.rank, Err(error), self.step, &mut self.control.words);
        let nothing = Decision::without_plan(self.step, Cause::Schedule);
        self.control.switches = Some((Err(error), Answer { decision: nothing, choices: vec![], norms: vec![] }, true));
        Stage::Switch
    }

    fn take_over(&mut self, switches: Vec<Switch>, answer: Answer, due: bool) {
        self.switch(switches);
        self.decision = Some(answer.decision);
        self.learning_rate = Highest(self.control.learning_rate);
        self.control.switched = true;
        if due {
            self.due = self.config.next_decision(self.step);
            self.window.clear();
            self.norms = answer.norms;
        }
    }

    /// Lets buckets be exchanged.
    fn opened(&mut self) -> Stage {
        let near = self.due.is_some_and(|due| self.step.saturating_add(self.config.schedule.window) >= due);
        self.control.in_window = near && !self.control.broken();
        self.window.steps += u64::from(self.control.in_window);
        self.control.terms = self.fingerprint(self.control.learning_rate);
        let now = self.now();
        self.taken.planned = self.control.began.zip(now).map(|(began, now)| (now - began, now));
        Stage::Open
    }
}

fn check_rate(learning_rate: f64) -> Result<(), Error> {
    if learning_rate.is_finite() && learning_rate >= 0.0 {
        return Ok(());
    }
    Err(Error::Core(CoreError::Parameter {
        what: "learning rate",
        value: learning_rate,
        expected: "a finite number >= 0",
    }))
}
