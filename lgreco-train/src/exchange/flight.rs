//! A bucket on its way: from gradients to means between collectives that the embedder performs.

use super::bucket::{Layer, Moment};
use super::fingerprint::fingerprint;
use super::request::Request;
use super::slip::{self, Slip, judge};
use super::workspace::{Lens, Ranks, Room, put_slip, slips, sum};
use super::{gather, leader, reduce, scatter};
use crate::{CoreError, Error};

/// Bytes of what a rank says before anything else: its slip and the length of its message.
const GREETING: usize = slip::LEN + 8;

/// The collective that a flight waits for, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Begun,
    /// Whether all ranks bring the same layers and settings, and how long their messages are.
    Agreement,
    /// Positions of the leader's largest values.
    Positions,
    /// Dense values, PowerSGD's `P` and values at the leader's positions.
    Sums,
    /// PowerSGD's `Q`.
    Factors,
    /// Payloads to everybody.
    Payloads,
    /// Payloads of pieces to their owners.
    Pieces,
    /// The owners' means.
    Means,
    Done,
}

const STAGES: [Stage; 8] = [
    Stage::Agreement,
    Stage::Positions,
    Stage::Sums,
    Stage::Factors,
    Stage::Payloads,
    Stage::Pieces,
    Stage::Means,
    Stage::Done,
];

/// Whether ranks know that their buckets fit together.
///
/// ```
/// use lgreco_train::exchange::Agreement;
/// let mut agreement = Agreement::Needed; // at the first step, and after a change of settings
/// # let _ = &agreement;
/// agreement = Agreement::Reached;
/// # let _ = agreement;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Not yet: the lengths of messages might differ, so a flight begins with an all-gather of 24 bytes per rank.
    Needed,
    /// They have found out since layers, settings or route last changed. What else may differ or go wrong is told by the
    /// messages themselves.
    Reached,
}

/// One rank's exchange of one bucket, without I/O: says which collectives to perform, and computes between them.
///
/// Flights are independent: any number may be under way at a time, on any threads, as long as all ranks start their
/// collectives in the same order. See the [module](crate::exchange) for what is sent and what mean and own contribution are.
///
/// ```
/// use lgreco_train::compress::{Setting, topk::TopK};
/// use lgreco_train::exchange::{Agreement, Collective, Flight, Layer, Moment, Request, Route, threads, workspace_len};
/// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
///
/// let shape = Shape::new(4, 1)?;
/// let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
/// let means = threads::run(2, |mut worker| {
///     let moment = Moment { rank: worker.rank(), world_size: 2, route: Route::AllGather, seed: 7, step: 0, terms: 0 };
///     let values = [[0.0f32, 4.0, 0.0, 1.0], [0.0, 1.0, -2.0, 0.0]][worker.rank() as usize];
///     let gradient = Gradient::new(Values::F32(&values), shape)?;
///     let (mut mean, mut own) = ([0.0; 4], [0.0; 4]);
///     let (own, factor) = (Some(&mut own[..]), &mut [][..]);
///     let (gradient, late) = (gradient.into(), None);
///     let layer = Layer { index: 0, setting, gradient, fresh: None, sent: 0, late, mean: &mut mean, own, factor };
///     let layers = &mut [layer];
///     let mut workspace = vec![0; workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?];
///
///     let mut flight = Flight::begin(layers, moment, Agreement::Reached, None, &mut workspace)?;
///     let mut collectives = 0;
///     while let Some(request) = flight.next(layers, &mut workspace)? {
///         assert!(matches!(request, Request::AllGather { .. }));
///         request.perform(&mut worker)?; // or start it, do something else, and wait before the next call
///         collectives += 1;
///     }
///     Ok::<_, lgreco_train::Error>((mean, collectives))
/// });
/// assert_eq!(means, [Ok(([0.0, 2.0, -1.0, 0.0], 1)), Ok(([0.0, 2.0, -1.0, 0.0], 1))]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub struct Flight {
    moment: Moment,
    stage: Stage,
    agreement: Agreement,
    fingerprint: u64,
    /// What went wrong on this rank. The others are told by its next message.
    failure: Option<Error>,
    /// `None` if they could not be found out, with `failure` saying why.
    lens: Option<Lens>,
    /// Bytes of this rank's message, its slip included, if payloads are gathered.
    message: usize,
}

impl Flight {
    /// Does all that can be done without the others: compresses. Words of the workspace need not be cleared, and are the
    /// flight's until it has ended.
    ///
    /// What is wrong with this rank's part (its gradient is not finite, say) is no error here, because the others wait for
    /// its messages: all are told, and [`next`](Flight::next) fails on all of them. So are those of a rank that says by
    /// `failure` that it has failed before; it compresses nothing.
    ///
    /// # Errors
    /// What no message could tell, so that this rank alone finds it: [`CoreError::Parameter`] when the moment's rank is not
    /// below its number of workers, [`CoreError::Length`] when the workspace has less than 4 words per worker, and, with
    /// [`Agreement::Reached`], what is not as agreed: too short a workspace, buffers of other lengths than the layer's, a
    /// setting that does not fit its shape.
    ///
    /// # Complexity
    /// Encodes every layer once.
    pub fn begin(
        layers: &mut [Layer<'_>],
        moment: Moment,
        agreement: Agreement,
        failure: Option<Error>,
        workspace: &mut [u64],
    ) -> Result<Flight, Error> {
        moment.check()?;
        Ranks::new(moment.world_size, workspace)?;
        let lens = Lens::of(layers, moment);
        let mut flight = Flight {
            moment,
            stage: Stage::Begun,
            agreement,
            fingerprint: fingerprint(moment, layers),
            failure,
            lens: lens.ok(),
            message: 0,
        };
        let checked = layers.iter().try_for_each(Layer::check);
        let room = lens.and_then(|lens| Ok((lens, Room::new(lens, workspace)?)));
        let (lens, mut room) = match (room.and_then(|room| checked.map(|()| room)), agreement) {
            (Ok(room), _) => room,
            (Err(error), Agreement::Reached) => return Err(error),
            (Err(error), Agreement::Needed) => {
                (flight.failure, flight.lens) = (failure.or(Some(error)), None);
                return Ok(flight);
            }
        };
        if failure.is_some() {
            return Ok(flight);
        }
        match prepare(layers, moment, lens, &mut room) {
            Ok(message) => flight.message = message,
            Err(error) => flight.failure = Some(error),
        }
        Ok(flight)
    }

    /// What is wrong with this rank's part.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// Goes on, once the collective asked for before is done, until the next one; `None` when the means are ready. Layers
    /// and workspace are those of [`begin`](Flight::begin); nobody touches the workspace between the calls but the
    /// collective.
    ///
    /// # Errors
    /// A flight that fails on one rank fails on all, at the same call, and none makes a further collective for it; unless
    /// the network itself fails or changes bytes. Means and contributions are then of no use, factors are unchanged.
    /// This rank's own error, if it has one: those of the compressors, [`CoreError::Length`], [`CoreError::Overflow`] when a sum
    /// over the workers leaves f32. Of others: [`Error::Peer`] names the rank that failed first by itself and the code of
    /// its error, [`Error::PeerPlan`] a rank with other layers, settings, seed, step or factors, [`Error::PeerMessage`] one
    /// whose payloads cannot be decoded. [`CoreError::Length`] when the workspace is shorter than before.
    ///
    /// # Complexity
    /// In all, payloads are decoded once per worker, by [`Route::ScatterReduce`](super::Route) about twice. Allocates
    /// nothing.
    pub fn next<'w>(
        &mut self,
        layers: &mut [Layer<'_>],
        workspace: &'w mut [u64],
    ) -> Result<Option<Request<'w>>, Error> {
        match self.advance(layers, workspace)? {
            true => self.request(workspace).map(Some),
            false => Ok(None),
        }
    }

    /// What is wrong with this rank's part, if [`begin`](Flight::begin) has found that it knows better what it is.
    pub(crate) fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
    }

    /// [`next`](Flight::next), but for the [request](Flight::request) itself; `false` when the means are ready.
    pub(crate) fn advance(&mut self, layers: &mut [Layer<'_>], workspace: &mut [u64]) -> Result<bool, Error> {
        if self.stage == Stage::Done {
            return Ok(false);
        }
        let advanced = self.take_in(layers, workspace).and_then(|()| {
            let stage = STAGES.into_iter().find(|&stage| stage > self.stage && self.has(stage));
            self.stage = stage.unwrap_or(Stage::Done);
            self.put(layers, workspace)
        });
        if advanced.is_err() {
            self.stage = Stage::Done;
        }
        advanced.map(|()| self.stage != Stage::Done)
    }

    /// Whether this bucket has such a stage.
    fn has(&self, stage: Stage) -> bool {
        let Some(lens) = self.lens else { return stage == Stage::Agreement };
        match stage {
            Stage::Agreement => self.agreement == Agreement::Needed || lens.varies,
            Stage::Positions => lens.positions > 0,
            Stage::Sums => lens.left > 0,
            Stage::Factors => lens.right > 0,
            Stage::Payloads => lens.message > 0,
            Stage::Pieces | Stage::Means => lens.shares > 0,
            Stage::Begun | Stage::Done => true,
        }
    }

    fn slip(&self) -> Slip {
        Slip::new(self.failure, self.fingerprint)
    }

    /// Goes on from what a collective has brought.
    fn take_in(&mut self, layers: &mut [Layer<'_>], workspace: &mut [u64]) -> Result<(), Error> {
        let (Some(lens), true) = (self.lens, self.stage > Stage::Agreement) else {
            return if self.stage == Stage::Agreement { self.agree(workspace) } else { Ok(()) };
        };
        let (moment, room) = (self.moment, &mut Room::new(lens, workspace)?);
        match self.stage {
            Stage::Begun | Stage::Agreement | Stage::Positions | Stage::Done => Ok(()),
            Stage::Sums => {
                judge(self.failure, slips(room.left, lens.left))?;
                if lens.right == 0 {
                    return reduce::means(layers, moment.world_size, lens, room);
                }
                self.failure = reduce::between(layers, room).err();
                Ok(())
            }
            Stage::Factors => {
                judge(self.failure, slips(room.right, lens.right))?;
                reduce::means(layers, moment.world_size, lens, room)
            }
            Stage::Payloads => gather::take_in(self.failure, layers, moment, room),
            Stage::Pieces => {
                self.failure = scatter::reduce(self.failure, self.fingerprint, layers, moment, room).err();
                Ok(())
            }
            Stage::Means => scatter::take_in(self.failure, layers, moment, room),
        }
    }

    /// Reads what all ranks have said before they send anything else.
    fn agree(&mut self, workspace: &mut [u64]) -> Result<(), Error> {
        let (Ranks { lens, spare }, _) = Ranks::new(self.moment.world_size, workspace)?;
        let greetings = bytemuck::cast_slice::<u64, u8>(spare).as_chunks::<GREETING>().0.iter();
        judge(self.failure, greetings.clone().map(|greeting| Slip::read(greeting)))?;
        // Of ranks that agree, only values can decide the length, and only below the most that payloads may take.
        let (most, varies) = self.lens.map_or((0, false), |lens| (lens.message, lens.varies));
        let least = if varies { slip::LEN } else { most };
        for ((rank, greeting), to) in (0..).zip(greetings).zip(lens) {
            *to = greeting[slip::LEN..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if !(least as u64..=most as u64).contains(to) {
                let error =
                    Error::Core(CoreError::Length { what: "message bytes", expected: most, found: *to as usize });
                return Err(Error::PeerMessage { rank, code: error.code() });
            }
        }
        Ok(())
    }

    /// Makes ready what the next collective sends.
    fn put(&mut self, layers: &mut [Layer<'_>], workspace: &mut [u64]) -> Result<(), Error> {
        let (moment, rank) = (self.moment, self.moment.rank);
        if self.stage == Stage::Agreement {
            let (Ranks { spare, .. }, _) = Ranks::new(moment.world_size, workspace)?;
            let own = &mut bytemuck::cast_slice_mut::<u64, u8>(spare)[rank as usize * GREETING..][..GREETING];
            self.slip().write(own);
            own[slip::LEN..].copy_from_slice(&(self.message as u64).to_le_bytes());
            return Ok(());
        }
        let Some(lens) = self.lens else { return Ok(()) };
        let room = &mut Room::new(lens, workspace)?;
        if self.stage == Stage::Sums {
            self.failure = self.failure.or(leader::fill(layers, moment, room).err());
        }
        let slip = self.slip();
        match self.stage {
            Stage::Begun | Stage::Agreement | Stage::Positions => {}
            Stage::Sums => put_slip(room.left, lens.left, rank, slip),
            Stage::Factors => put_slip(room.right, lens.right, rank, slip),
            Stage::Payloads => gather::put(slip, self.message, moment, lens, room),
            Stage::Pieces => scatter::put(slip, layers, moment, room)?,
            Stage::Means => scatter::put_means(slip, layers, moment, room)?,
            Stage::Done => {
                reduce::keep_factors(layers, room.right);
                return self.failure.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// The collective that the flight waits for.
    ///
    /// # Errors
    /// [`CoreError::Length`] when the workspace is shorter than it was.
    pub(crate) fn request<'w>(&self, workspace: &'w mut [u64]) -> Result<Request<'w>, Error> {
        let Some(lens) = self.lens.filter(|_| self.stage != Stage::Agreement) else {
            let (Ranks { spare, .. }, _) = Ranks::new(self.moment.world_size, workspace)?;
            return Ok(Request::AllGather { buffer: bytemuck::cast_slice_mut(spare) });
        };
        let Room { ranks: Ranks { lens: each, spare }, left, right, positions, shares, received, .. } =
            Room::new(lens, workspace)?;
        let all = sum(each);
        Ok(match self.stage {
            Stage::Positions => Request::Broadcast { root: self.moment.leader(), bytes: positions },
            Stage::Sums => Request::AllReduceSum { values: left },
            Stage::Factors => Request::AllReduceSum { values: right },
            Stage::Payloads if !lens.varies => Request::AllGather { buffer: &mut received[..all] },
            Stage::Pieces => {
                let received_lens = &spare[..each.len()];
                let received = &mut received[..sum(received_lens)];
                Request::AllToAll { send: &shares[..all], send_lens: each, received, received_lens }
            }
            _ => Request::AllGatherEach { lens: each, buffer: &mut received[..all] },
        })
    }
}

/// All that can be done without the others. Returns the length of this rank's message.
fn prepare(layers: &mut [Layer<'_>], moment: Moment, lens: Lens, room: &mut Room<'_>) -> Result<usize, Error> {
    reduce::begin(layers, moment, room)?;
    let message = gather::begin(layers, moment, lens, room)?;
    if lens.shares > 0 {
        scatter::begin(layers, moment, room)?;
    }
    Ok(message)
}
