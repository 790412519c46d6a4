//! What the embedder supplies: its network.

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
    /// What went wrong, in the embedder's own numbering; [`CollectiveError::UNSUPPORTED`] is taken.
    pub code: i32,
}

impl CollectiveError {
    /// The embedder has no such collective.
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

/// The blocking collective calls of one worker in a group: NCCL, MPI, Gloo, sockets, or
/// [`threads`](crate::exchange::threads).
///
/// All workers make the same calls in the same order with the same lengths; which calls, depends on settings and shapes
/// alone, never on values. Only the lengths of an all-gather may depend on values; all workers then know everybody's. A
/// worker that cannot go on must make the others' calls fail rather than wait for ever.
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
///     fn all_gather(&mut self, own: &[u8], _: &[u64], received: &mut [u8]) -> Result<(), CollectiveError> {
///         received.copy_from_slice(own);
///         Ok(())
///     }
///     fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
///         Ok(())
///     }
/// }
///
/// let refused = Alone.all_to_all(&[], &[0], &mut [], &[0]);
/// assert_eq!(refused, Err(CollectiveError::UNSUPPORTED)); // it has no scatter-reduce
/// ```
pub trait Collective {
    /// This worker's number, below [`world_size`](Collective::world_size).
    fn rank(&self) -> u32;

    /// Number of workers, at least 1.
    fn world_size(&self) -> u32;

    /// Replaces `values` by their sums over the workers. Every worker must get the same bits; NaN must stay NaN.
    ///
    /// # Errors
    /// The embedder's.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Writes every worker's bytes to `received`, in rank order, one after the other. Worker `i` brings `lens[i]` bytes;
    /// `received` is as long as all of them.
    ///
    /// # Errors
    /// The embedder's.
    fn all_gather(&mut self, own: &[u8], lens: &[u64], received: &mut [u8]) -> Result<(), CollectiveError>;

    /// Replaces `bytes` by those of worker `root`.
    ///
    /// # Errors
    /// The embedder's.
    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Sends worker `i` the next `send_lens[i]` bytes of `send`, and receives the next `received_lens[i]` bytes of
    /// `received` from it, `i` ascending. Only [`Route::ScatterReduce`](crate::exchange::Route) needs it.
    ///
    /// # Errors
    /// The embedder's; unless it is implemented, [`CollectiveError::UNSUPPORTED`].
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
}

/// One worker's place in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) world: u32,
}

impl Place {
    pub(crate) fn of<C: Collective + ?Sized>(collective: &C) -> Result<Place, Error> {
        let (rank, world) = (collective.rank(), collective.world_size());
        let wrong =
            |what, value: u32, expected| Err(Error::Core(CoreError::Parameter { what, value: value.into(), expected }));
        match (rank, world) {
            (_, 0) => wrong("the number of workers", 0, "at least 1"),
            _ if rank >= world => wrong("rank", rank, "below the number of workers"),
            _ => Ok(Place { rank, world }),
        }
    }
}
