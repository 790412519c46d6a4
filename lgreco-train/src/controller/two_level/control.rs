//! The agreement of all ranks before the buckets of a step.

use super::messages::{Fault, judge_faults};
use super::{Group, TwoLevel};
use crate::Error;
use crate::checksum::Hash;
use crate::controller::agreement::{self, Heard};
use crate::controller::control::check_rate;
use crate::controller::groups::forget_many;
use crate::controller::identity::Field;
use crate::exchange::Request;
use alloc::vec;
use alloc::vec::Vec;

/// A rank's message to the ranks of its node: whether its peers have begun the step.
pub(super) fn fault_message(fault: Fault) -> [u64; agreement::words(1)] {
    let [code, rank] = fault.words();
    [code, rank, 0, 0]
}

/// The message under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Idle,
    /// The ranks of the node have not compared their options yet.
    Begun,
    /// The ranks of the node compare their options.
    Meeting,
    /// The options of the node's ranks differ, so the ranks exchange all options. The number is the first local rank with a
    /// difference.
    Fields(u32),
    /// Peers perform their control requests.
    Peers,
    /// The ranks of the node report to each other whether their peers have begun the step. If there is an error, this rank itself
    /// has found it.
    Telling(Option<Error>),
    Open,
}

impl TwoLevel {
    /// Begins a step, like [`Controller::begin_step`](super::super::Controller::begin_step). Then perform the
    /// [`control`](TwoLevel::control) requests, exchange the buckets, and call [`finish_step`](TwoLevel::finish_step).
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), Error> {
        self.expect_idle()?;
        forget_many(&mut self.agreed);
        if !self.met {
            self.begin_blocking(learning_rate, None);
            return Ok(());
        }
        (self.rate, self.failure) = (learning_rate, None);
        self.controller.begin_step(learning_rate)?;
        self.stage = Stage::Peers;
        Ok(())
    }

    pub(super) fn expect_idle(&self) -> Result<(), Error> {
        self.controller.control.expect_idle()?;
        match self.stage {
            Stage::Idle => Ok(()),
            _ => Err(Error::StepOrder {
                what: "a step is under way",
                expected: "`finish_step` or `abandon_step` before this call",
            }),
        }
    }

    /// Begins a step in which all ranks agree before its buckets: first the ranks of each node, then peers. The messages report this
    /// rank's `failure`, if there is one, to all ranks.
    pub(super) fn begin_blocking(&mut self, learning_rate: f64, failure: Option<Error>) {
        (self.rate, self.failure, self.stage) = (learning_rate, failure, Stage::Begun);
    }

    /// `Err` with this rank's failure before the step, if there is one.
    fn own(&self) -> Result<(), Error> {
        self.failure.map_or_else(|| check_rate(self.rate), Err)
    }

    /// Returns the next collective of the agreement, with its group. The previous collective must be complete. `None` means that
    /// the agreement is complete. In most steps there is one message inside the node. In a [blocking step](TwoLevel::step), there
    /// is another message inside the node, and one among peers.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The step has then not begun, and may be begun again. The errors are the same as those of
    /// [`Controller::control`](super::super::Controller::control), with rank numbers among all ranks. [`Error::PeerOption`] and
    /// [`Error::NoMessage`] are about ranks inside the node or peers; ranks of other groups get [`Error::Peer`].
    pub fn control(&mut self) -> Result<Option<(Group, Request<'_>)>, Error> {
        match self.stage {
            Stage::Idle => {
                return Err(Error::StepOrder {
                    what: "no step is under way",
                    expected: "`begin_step` before this call",
                });
            }
            Stage::Open => return Ok(None),
            Stage::Begun => {
                let own = self.own().map(|()| 0);
                let fingerprint = self.fingerprint();
                self.put(|words, topology| agreement::put(topology.local, own, fingerprint, 0, words));
                self.stage = Stage::Meeting;
            }
            Stage::Meeting => match agreement::read(self.own().err(), &self.words) {
                Ok(Heard::Answers(_)) => self.begin_peers(None)?,
                Ok(Heard::Differs(local)) => {
                    let fields = self.fields_of_step();
                    self.words = agreement::put_fields(self.topology.local, self.topology.per_node, &fields)?;
                    self.stage = Stage::Fields(local);
                }
                Err(error) => self.begin_peers(Some(self.topology.of_node(error)))?,
            },
            Stage::Fields(local) => {
                let error = agreement::difference(local, &self.fields_of_step(), &self.words);
                self.begin_peers(Some(self.topology.of_node(error)))?;
            }
            Stage::Peers => {}
            Stage::Telling(own) => {
                self.hear(own)?;
                return Ok(None);
            }
        }
        if self.stage == Stage::Peers && self.ask_peers() {
            return Ok(self.controller.control_request().map(|request| (Group::Peers, request)));
        }
        Ok(Some((Group::Node, Request::AllGather { buffer: bytemuck::cast_slice_mut(&mut self.words) })))
    }

    /// Begins the agreement among peers. If `failure` is given, the agreement reports it as the reason why the step cannot begin.
    fn begin_peers(&mut self, failure: Option<Error>) -> Result<(), Error> {
        self.stage = Stage::Peers;
        self.failure = failure;
        self.controller.begin(self.rate, Some(failure.map_or(Ok(false), Err)))
    }

    /// Whether there is a request for the peers. Without a request, prepares the message that reports to the node whether the
    /// peers have begun.
    fn ask_peers(&mut self) -> bool {
        let own = match self.controller.advance_control() {
            Ok(true) => return true,
            Ok(false) => None,
            Err(error) => Some(self.failure.take().unwrap_or(self.topology.of_peers(error))),
        };
        // Only the rank that found an error keeps the error in `own`.
        let fault = match own {
            None => Fault::default(),
            Some(Error::Peer { rank, code }) => Fault { code: code.into(), rank, alone: false },
            Some(error) => Fault::new(error, self.topology.rank()),
        };
        let own = own.filter(|error| !matches!(error, Error::Peer { .. }));
        self.put(|words, topology| {
            let message = fault_message(fault);
            words[agreement::words(topology.local as usize)..][..message.len()].copy_from_slice(&message);
        });
        self.stage = Stage::Telling(own);
        false
    }

    fn put(&mut self, write: impl FnOnce(&mut [u64], &super::Topology)) {
        self.words = vec![0; agreement::words(self.topology.per_node as usize)];
        write(&mut self.words, &self.topology);
    }

    /// Reads from all ranks of the node whether their peers have begun the step.
    fn hear(&mut self, own: Option<Error>) -> Result<(), Error> {
        let faults = self.words.chunks_exact(agreement::words(1)).map(Fault::read);
        let Err(error) = judge_faults(own, faults) else {
            (self.stage, self.met) = (Stage::Open, true);
            return Ok(());
        };
        (self.stage, self.met) = (Stage::Idle, false);
        if !self.controller.control.is_idle() {
            self.controller.abandon_step()?;
        }
        Err(error)
    }

    /// Everything that the ranks of a node must agree on at a step.
    fn fields_of_step(&self) -> Vec<Field> {
        let mut all = self.fields();
        all.extend(self.of_step());
        all
    }

    fn of_step(&self) -> [Field; 2] {
        let follows = self.config.accordion().is_some();
        [
            Field::whole("step", self.controller.steps()),
            Field::real("learning rate", if follows { self.rate } else { f64::NAN }),
        ]
    }

    /// The checksum of [`fields_of_step`](TwoLevel::fields_of_step).
    pub(super) fn fingerprint(&self) -> u64 {
        self.of_step().iter().fold(Hash(self.identity), |hash, field| hash.add(field.word)).0
    }
}
