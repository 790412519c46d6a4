//! The exchange of a bucket: the flight computes, and the caller performs the collectives between the computations.

use super::moment::{Agreement, Moment, Route};
use super::program::{Instruction, Op, PROGRAM, Part, Program};
use super::slip::Slip;
use super::space::{RequestOf, Space};
use crate::Error;

/// One rank's exchange of one bucket, without I/O: it asks for collectives, and computes between them.
///
/// Flights are independent. Any number of flights may be under way at the same time, on any threads, as long as all ranks start
/// their collectives in the same order. The [module](crate::exchange) describes what is sent, and defines means and contributions.
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
///     let mut residual = [0.0; 4]; // the values that are not sent
///     let layer = Layer::new(0, setting, shape, ValuesMut::F32(&mut values), Rest::Beside(&mut residual));
///     let mut workspace = vec![0; workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?];
///     let mut host = Host { layers: &mut [layer], workspace: &mut workspace, scratch: None };
///
///     let mut flight = Flight::begin(&mut host, moment, Agreement::Reached, None)?;
///     let mut collectives = 0;
///     while let Some(request) = flight.next(&mut host)? {
///         assert!(matches!(request, Request::AllGather { .. }));
///         request.perform(&mut worker)?; // or start it, and wait for it before the next call
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
    /// This rank's error, which its next message reports to the other ranks.
    failure: Option<Error>,
    /// Whether this rank has failed after its last message.
    untold: bool,
    /// Whether the first messages have shown that all ranks exchange the same layers and that no rank has failed.
    met: bool,
    /// Number of layers that were summed in place so far.
    summed: usize,
    /// Index in the bucket at which the search for the next layer that is summed in place begins.
    behind: usize,
    /// The result of the flight; `None` until it ends.
    outcome: Option<Result<(), Error>>,
}

impl Flight {
    /// Begins with the computations that need no other rank, such as compression. The previous content of the buffers in `space`
    /// does not matter. The buffers belong to the flight until it ends.
    ///
    /// An error of this rank's part, such as a gradient that is not finite, is not returned here, because the other ranks wait for
    /// this rank's messages. The messages report the error to all ranks, and [`next`](Flight::next) fails on all ranks. A rank
    /// that has failed before passes its error as `failure`, and compresses nothing.
    ///
    /// # Errors
    /// Errors that no message can report, on this rank only: [`CoreError::Parameter`](crate::CoreError::Parameter) if the moment's
    /// rank is not below its number of workers; [`CoreError::Length`](crate::CoreError::Length) for a workspace that is too short
    /// for the first message. With [`Agreement::Reached`], also errors about layers that differ from the agreement: a workspace
    /// that is too short, buffers of other lengths than the layer's, a setting that does not fit its shape.
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
        let mut flight =
            Flight { program, counter: 0, failure, untold: false, met: false, summed: 0, behind: 0, outcome: None };
        while let Some((_, Instruction::Own(op))) = flight.instruction() {
            flight.own(space, op);
            flight.counter += 1;
        }
        Ok(flight)
    }

    /// The error of this rank's part.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// Whether the flight has failed on this rank only. With [`Route::Sharded`], the mean of this rank's shard may have
    /// an error that no other rank can find. Pass this error as `failure` to [`begin`](Flight::begin) of the next flight, which
    /// reports the error to the other ranks.
    pub fn failed_alone(&self) -> bool {
        self.untold
    }

    /// Whether the next call replaces values by means, so that compression errors need separate memory.
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

    /// The step, the options and the sizes of this exchange.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Computes until the next collective, and returns its request. The previous collective must be complete. `None` means that
    /// the means are ready, or that their computation is enqueued. `space` must be the space that [`begin`](Flight::begin) got.
    /// Between the calls, only the collective may use the memory of the request.
    ///
    /// # Errors
    /// A flight that fails on one rank fails on all ranks in the same call, and asks for no further collective. This rule has three
    /// exceptions. A network may fail. A rank may [fail alone](Flight::failed_alone). And only this rank may be unable to read the
    /// last message; a [`Controller`](crate::controller::Controller) tells the other ranks at the next step.
    ///
    /// After an error, further calls return the same error. Means and contributions are undefined after an error, and factors are unchanged.
    ///
    /// A rank with an error of its own returns this error: [`Error::NonFiniteGradient`],
    /// [`CoreError::Length`](crate::CoreError::Length), and [`Error::OfLayer`]. [`Error::OfLayer`] contains the error of a
    /// compressor, or of a sum over the workers that exceeds f32, or of a mean that exceeds its element type. A rank without an
    /// error returns the error of another rank: [`Error::Peer`] with the first rank that failed by itself and its code;
    /// [`Error::PeerPlan`] with a rank that has other layers, settings, seed, step or factors; [`Error::PeerMessage`] with a rank
    /// whose payloads cannot be decoded. A [`Space`] that only enqueues ops, for instance on a GPU, returns errors later.
    ///
    /// # Complexity
    /// All calls together decode each layer once per worker, or about twice in total with [`Route::ScatterReduce`].
    /// They allocate nothing.
    pub fn next<'s, S: Space>(&mut self, space: &'s mut S) -> Result<Option<RequestOf<'s, S>>, Error> {
        match self.advance(space)? {
            Some(part) => space.request(part, &self.program).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the first messages of [`Agreement::Needed`] have shown that all ranks exchange the same layers.
    pub(crate) fn has_met(&self) -> bool {
        self.met
    }

    /// Records that one collective sums all layers that are summed in place.
    pub(crate) fn join_in_place(&mut self) {
        (self.summed, self.behind) = (self.program.layout.in_place, usize::MAX);
    }

    /// Records an error of this rank between two calls, which its next message reports to the other ranks.
    pub(crate) fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
    }

    /// Like [`next`](Flight::next), but returns the part that is sent next, instead of a request.
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
                // A rank that fails alone still updates factors, like the other ranks.
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
                    // Each rank has received different messages with pieces, so only this rank may know of an error in its
                    // messages. This rank's message with the means reports the error to all ranks.
                    if part != Part::Pieces {
                        judged?;
                        self.met |= part == Part::Greetings;
                    } else {
                        self.failure = judged.err();
                    }
                }
            }
        }
        self.untold = self.failure.is_some() && self.is_sharded();
        self.failure.take().map_or(Ok(None), Err)
    }

    /// The index in the bucket of the next layer that is summed in place.
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

    /// Runs an op, whose error the next message reports.
    fn own<S: Space>(&mut self, space: &mut S, op: Op) {
        if self.failure.is_none() {
            self.failure = space.run(op, &self.program).err();
        }
    }
}
