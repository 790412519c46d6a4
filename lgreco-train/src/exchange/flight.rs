//! A bucket on its way: from gradients to means between collectives that the embedder performs.

use super::moment::{Agreement, Moment, Route};
use super::program::{Instruction, Op, PROGRAM, Part, Program};
use super::slip::Slip;
use super::space::{RequestOf, Space};
use crate::Error;

/// One rank's exchange of one bucket, without I/O: says which collectives to perform, and computes between them.
///
/// Flights are independent: any number may be under way at a time, on any threads, as long as all ranks start their
/// collectives in the same order. See the [module](crate::exchange) for what is sent and what mean and own contribution
/// are.
///
/// ```
/// use lgreco_train::compress::{Setting, topk::TopK};
/// use lgreco_train::exchange::{Agreement, Collective, Flight, Host, Layer, Moment, Request, Rest, Route};
/// use lgreco_train::exchange::{threads, workspace_len};
/// use lgreco_train::gradient::{Dtype, Shape, ValuesMut};
///
/// let shape = Shape::new(4, 1)?;
/// let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
/// let means = threads::run(2, |mut worker| {
///     let moment = Moment {
///         rank: worker.rank(),
///         world_size: 2,
///         route: Route::AllGather,
///         reduce_dtype: Dtype::F32,
///         seed: 7,
///         step: 0,
///         terms: 0,
///     };
///     let mut values = [[0.0, 4.0, 0.0, 1.0], [0.0, 1.0, -2.0, 0.0]][worker.rank() as usize];
///     let mut residual = [0.0; 4]; // what is not sent
///     let layer = Layer::new(0, setting, shape, ValuesMut::F32(&mut values), Rest::Beside(&mut residual));
///     let mut workspace = vec![0; workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?];
///     let mut host = Host { layers: &mut [layer], workspace: &mut workspace, scratch: None };
///
///     let mut flight = Flight::begin(&mut host, moment, Agreement::Reached, None)?;
///     let mut collectives = 0;
///     while let Some(request) = flight.next(&mut host)? {
///         assert!(matches!(request, Request::AllGather { .. }));
///         request.perform(&mut worker)?; // or start it, do something else, and wait before the next call
///         collectives += 1;
///     }
///     Ok::<_, lgreco_train::Error>((values, residual, collectives))
/// });
/// let mean = [0.0, 2.0, -1.0, 0.0];
/// assert_eq!(means, [Ok((mean, [0.0, 0.0, 0.0, 1.0], 1)), Ok((mean, [0.0, 1.0, 0.0, 0.0], 1))]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub struct Flight {
    program: Program,
    /// The next instruction.
    counter: usize,
    /// What went wrong on this rank. The others are told by its next message.
    failure: Option<Error>,
    /// Whether the others will not be told.
    untold: bool,
    /// How many layers have been summed in their place, and the first layer behind them.
    summed: usize,
    behind: usize,
    /// How it has ended.
    outcome: Option<Result<(), Error>>,
}

impl Flight {
    /// Does all that can be done without the others: compresses. What the space's buffers held before does not matter;
    /// they are the flight's until it has ended.
    ///
    /// What is wrong with this rank's part (its gradient is not finite, say) is no error here, because the others wait
    /// for its messages: all are told, and [`next`](Flight::next) fails on all of them. So are those of a rank that
    /// says by `failure` that it has failed before; it compresses nothing.
    ///
    /// # Errors
    /// What no message could tell, so that this rank alone finds it:
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) when the moment's rank is not below its number of workers,
    /// [`CoreError::Length`](crate::CoreError::Length) when there is no room for a greeting, and, with
    /// [`Agreement::Reached`], what is not as agreed: too short a workspace, buffers of other lengths than the layer's,
    /// a setting that does not fit its shape.
    ///
    /// # Complexity
    /// Encodes every layer once.
    pub fn begin<S: Space>(
        space: &mut S,
        moment: Moment,
        agreement: Agreement,
        failure: Option<Error>,
    ) -> Result<Flight, Error> {
        moment.check()?;
        let program = Program::new(space.layers(), moment, agreement, space.remembered());
        let checked = program.and_then(|program| space.check(&program).map(|()| program));
        let (program, failure) = match (checked, agreement) {
            (Ok(program), _) => (program, failure),
            (Err(error), Agreement::Reached) => return Err(error),
            (Err(error), Agreement::Needed) => {
                let (program, failure) = (Program::unknown(space.layers(), moment), failure.or(Some(error)));
                let slip = Slip::new(failure, program.fingerprint);
                space.run(Op::PutSlip { part: Part::Greetings, slip }, &program)?;
                (program, failure)
            }
        };
        let mut flight = Flight { program, counter: 0, failure, untold: false, summed: 0, behind: 0, outcome: None };
        while let Some((_, Instruction::Own(op))) = flight.instruction() {
            flight.own(space, op);
            flight.counter += 1;
        }
        Ok(flight)
    }

    /// What is wrong with this rank's part.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// Whether this rank alone knows that the flight has failed. By [`Route::Sharded`] a rank may find fault with the
    /// mean of its shard; it should tell the others by the next flight, as the failure that it begins with.
    pub fn failed_alone(&self) -> bool {
        self.untold
    }

    /// Whether means take the place of values, and what is left needs its own, before a further collective is asked for.
    pub fn is_averaging(&self) -> bool {
        let of_bucket = |&&(part, _): &&(Part, Instruction)| self.program.has(part);
        let decides = |&(part, instruction): &(Part, Instruction)| match instruction {
            Instruction::Exchange if matches!(part, Part::Dense { .. }) => {
                (self.summed < self.program.layout.in_place).then_some(false)
            }
            Instruction::Exchange => Some(false),
            Instruction::Own(op) | Instruction::All(op) => op.is_mean().then_some(true),
            Instruction::Judge => None,
        };
        PROGRAM[self.counter..].iter().filter(of_bucket).find_map(decides).unwrap_or(false)
    }

    /// What it does.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Goes on, once the collective asked for before is done, until the next one; `None` when the means are ready, or
    /// their making is enqueued. The space is that of [`begin`](Flight::begin); between the calls nobody touches what
    /// it lends to collectives but these.
    ///
    /// # Errors
    /// A flight that fails on one rank fails on all, at the same call, and none makes a further collective for it after the
    /// one that tells; unless the network itself fails or changes bytes, or [`failed_alone`](Flight::failed_alone) says
    /// otherwise. Further calls return the same.
    /// Means and contributions are then of no use, factors are unchanged. This rank's own error, if it has one: those
    /// of the compressors, [`CoreError::Length`](crate::CoreError::Length),
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) when a sum over the workers leaves f32,
    /// [`Error::LayerOverflow`] when a mean leaves its element type. Of
    /// others: [`Error::Peer`] names the rank that failed first by itself and the code of its error,
    /// [`Error::PeerPlan`] a rank with other layers, settings, seed, step or factors, [`Error::PeerMessage`] one whose
    /// payloads cannot be decoded. A space that computes later tells all of this later.
    ///
    /// # Complexity
    /// In all, payloads are decoded once per worker, by [`Route::ScatterReduce`] about twice. Allocates
    /// nothing.
    pub fn next<'s, S: Space>(&mut self, space: &'s mut S) -> Result<Option<RequestOf<'s, S>>, Error> {
        match self.advance(space)? {
            Some(part) => space.request(part, &self.program).map(Some),
            None => Ok(None),
        }
    }

    /// What is wrong with this rank's part, if [`begin`](Flight::begin) has found that it knows better what it is.
    pub(crate) fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
    }

    /// [`next`](Flight::next), but for the request itself: the part that it is about.
    pub(crate) fn advance<S: Space>(&mut self, space: &mut S) -> Result<Option<Part>, Error> {
        if let Some(outcome) = self.outcome {
            return outcome.map(|()| None);
        }
        let advanced = self.run(space);
        if !matches!(advanced, Ok(Some(_))) {
            self.outcome = Some(advanced.map(drop));
        }
        advanced
    }

    fn run<S: Space>(&mut self, space: &mut S) -> Result<Option<Part>, Error> {
        while let Some((part, instruction)) = self.instruction() {
            self.counter += 1;
            match instruction {
                Instruction::Own(op) => self.own(space, op),
                // A rank that fails alone remembers what the others do.
                Instruction::All(op) if self.failure.is_none() || self.is_sharded() => space.run(op, &self.program)?,
                Instruction::All(_) => {}
                Instruction::Exchange if matches!(part, Part::Dense { .. }) => {
                    if let Some(place) = self.next_dense(space) {
                        self.counter -= 1;
                        return Ok(Some(Part::Dense { place }));
                    }
                }
                Instruction::Exchange => {
                    let slip = Slip::new(self.failure, self.program.fingerprint);
                    space.run(Op::PutSlip { part, slip }, &self.program)?;
                    return Ok(Some(part));
                }
                Instruction::Judge => {
                    let judged = space.run(Op::Judge { part, own: self.failure }, &self.program);
                    // Every rank has got other messages about pieces, so what is wrong with them is told with the
                    // means.
                    if part != Part::Pieces {
                        judged?;
                    } else {
                        self.failure = judged.err();
                    }
                }
            }
        }
        self.untold = self.failure.is_some() && self.is_sharded();
        self.failure.take().map_or(Ok(None), Err)
    }

    /// The place of the next layer that is summed where it is.
    fn next_dense<S: Space>(&mut self, space: &S) -> Option<u32> {
        let mut rest = space.layers().enumerate().skip(self.behind);
        let (place, _) = rest.find(|(_, spec)| self.program.is_in_place(spec))?;
        (self.summed, self.behind) = (self.summed + 1, place + 1);
        Some(place as u32)
    }

    fn is_sharded(&self) -> bool {
        self.program.moment.route == Route::Sharded
    }

    /// The next instruction about a part that this bucket has.
    fn instruction(&mut self) -> Option<(Part, Instruction)> {
        while let Some(&(part, instruction)) = PROGRAM.get(self.counter) {
            if self.program.has(part) {
                return Some((part, instruction));
            }
            self.counter += 1;
        }
        None
    }

    /// Does what the others are told of if it fails.
    fn own<S: Space>(&mut self, space: &mut S, op: Op) {
        if self.failure.is_none() {
            self.failure = space.run(op, &self.program).err();
        }
    }
}
