//! The caller's network.

use crate::gradient::Bf16;
use crate::{CoreError, Error};

/// A collective call that failed.
///
/// ```
/// use lgreco_train::{Error, exchange::CollectiveError};
/// let error = CollectiveError { code: 6 }; // NCCL's ncclRemoteError, say
/// assert_eq!(Error::from(error), Error::Collective { code: 6 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveError {
    /// The caller's own code for what went wrong. The code of [`CollectiveError::UNSUPPORTED`] is reserved.
    pub code: i32,
}

impl CollectiveError {
    /// The caller does not implement this collective.
    ///
    /// ```
    /// # use lgreco_train::{Error, exchange::CollectiveError};
    /// assert_eq!(Error::from(CollectiveError::UNSUPPORTED), Error::Collective { code: i32::MIN });
    /// ```
    pub const UNSUPPORTED: CollectiveError = CollectiveError { code: i32::MIN };
}

impl core::fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        Error::from(*self).fmt(f)
    }
}

impl core::error::Error for CollectiveError {}

impl From<CollectiveError> for Error {
    fn from(error: CollectiveError) -> Error {
        Error::Collective { code: error.code }
    }
}

/// The blocking collective calls of one worker in a group, for instance over NCCL, MPI, Gloo, sockets or
/// [`threads`](crate::exchange::threads).
///
/// All workers make the same calls in the same order with the same lengths. The calls and their order depend only on
/// settings and shapes, never on values. Lengths may depend on values only in an [all-gather with a length per
/// worker](Collective::all_gather_each), and every worker knows all lengths before the call. If a worker cannot continue, the
/// calls of all other workers must fail instead of waiting for ever.
///
/// ```
/// use lgreco_train::exchange::{Collective, CollectiveError};
///
/// /// A group of one.
/// struct Alone;
///
/// impl Collective for Alone {
///     fn rank(&self) -> u32 {
///         0
///     }
///     fn world_size(&self) -> u32 {
///         1
///     }
///     fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
///         Ok(())
///     }
///     fn all_gather(&mut self, _: &mut [u8]) -> Result<(), CollectiveError> {
///         Ok(())
///     }
///     fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
///         Ok(())
///     }
///     fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
///         Ok(())
///     }
/// }
///
/// let refused = Alone.all_to_all(&[], &[0], &mut [], &[0]);
/// assert_eq!(refused, Err(CollectiveError::UNSUPPORTED)); // no scatter-reduce
/// ```
pub trait Collective {
    /// This worker's number, below [`world_size`](Collective::world_size).
    fn rank(&self) -> u32;

    /// Number of workers, at least 1.
    fn world_size(&self) -> u32;

    /// Replaces `values` by their sums over the workers. Every worker must get the same bits; NaN must stay NaN.
    ///
    /// # Errors
    /// Errors of the caller's network.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Like [`all_reduce_sum`](Collective::all_reduce_sum), for bf16. Sums may be rounded once or at every addition. This method
    /// is called only if [`Search::reduce_dtype`](crate::search::Search::reduce_dtype) is bf16.
    ///
    /// # Errors
    /// Errors of the caller's network; [`CollectiveError::UNSUPPORTED`] if the caller does not implement this collective.
    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        let _ = values;
        Err(CollectiveError::UNSUPPORTED)
    }

    /// Fills `buffer` with every worker's bytes, in rank order. The buffer has equal parts, one per worker. The part of this
    /// worker already contains the bytes to send.
    ///
    /// # Errors
    /// Errors of the caller's network.
    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError>;

    /// Like [`all_gather`](Collective::all_gather), but worker `i` has a part of `lens[i]` bytes, which may be 0. The length of
    /// `buffer` is the sum of `lens`.
    ///
    /// # Errors
    /// Errors of the caller's network.
    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError>;

    /// Replaces `bytes` by those of worker `root`.
    ///
    /// # Errors
    /// Errors of the caller's network.
    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Exchanges bytes with each worker `i`, in ascending order: sends the next `send_lens[i]` bytes of `send` to worker `i`,
    /// and receives the next `received_lens[i]` bytes of `received` from it. The routes
    /// [`ScatterReduce`](crate::exchange::Route::ScatterReduce) and [`Sharded`](crate::exchange::Route::Sharded) need this
    /// method. Training on [two levels](crate::controller::two_level) also needs this method if gradients are sent as bf16
    /// inside nodes.
    ///
    /// # Errors
    /// Errors of the caller's network; [`CollectiveError::UNSUPPORTED`] if the caller does not implement this collective.
    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        let _ = (send, send_lens, received, received_lens);
        Err(CollectiveError::UNSUPPORTED)
    }

    /// Replaces this worker's part of `values` by its sums over the workers. `values` has a part of `lens[i]` values
    /// for each worker `i`. After the call, the parts of all other workers have undefined content. NaN must stay NaN. If the
    /// sums have the same bits as those of [`all_reduce_sum`](Collective::all_reduce_sum), sharded exchanges give the same bits
    /// as other exchanges. Only [`Route::Sharded`](crate::exchange::Route) and training on [two
    /// levels](crate::controller::two_level) call this method. The default implementation is an all-reduce of all values, with
    /// about twice the traffic.
    ///
    /// # Errors
    /// Errors of the caller's network.
    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        let _ = lens;
        self.all_reduce_sum(values)
    }

    /// Like [`reduce_scatter_sum`](Collective::reduce_scatter_sum), for bf16.
    ///
    /// # Errors
    /// The errors of [`reduce_scatter_sum`](Collective::reduce_scatter_sum).
    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        let _ = lens;
        self.all_reduce_sum_bf16(values)
    }
}

/// A rank and the number of workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) world: u32,
}

impl Place {
    pub(crate) fn of<C: Collective + ?Sized>(collective: &C) -> Result<Place, Error> {
        Place::new(collective.rank(), collective.world_size())
    }

    pub(crate) fn new(rank: u32, world: u32) -> Result<Place, Error> {
        let place = Place { rank, world };
        place.check().map(|()| place)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        CoreError::require(self.world > 0, "the number of workers", 0.0, "at least 1")?;
        Ok(CoreError::require(self.rank < self.world, "rank", self.rank.into(), "below the number of workers")?)
    }
}
