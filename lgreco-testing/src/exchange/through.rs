//! A worker on a network that a test changes.

use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::exchange::{Collective, CollectiveError, Request};
use lgreco_train::gradient::Bf16;

/// A worker that passes each of its collectives to a function.
pub struct Through<'a, F>(&'a mut ThreadCollective, F);

impl<'a, F: FnMut(&mut ThreadCollective, Request<'_>) -> Result<(), CollectiveError>> Through<'a, F> {
    /// A worker whose collectives `run` performs, changes or refuses.
    pub fn new(worker: &'a mut ThreadCollective, run: F) -> Self {
        Through(worker, run)
    }
}

impl<F: FnMut(&mut ThreadCollective, Request<'_>) -> Result<(), CollectiveError>> Collective for Through<'_, F> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn world_size(&self) -> u32 {
        self.0.world_size()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::AllReduceSum { values })
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::AllReduceSumBf16 { values })
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::AllGather { buffer })
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::AllGatherEach { lens, buffer })
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::Broadcast { root, bytes })
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        let send = &mut send.to_vec();
        (self.1)(self.0, Request::AllToAll { send, send_lens, received, received_lens })
    }

    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::ReduceScatterSum { lens, values })
    }

    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        (self.1)(self.0, Request::ReduceScatterSumBf16 { lens, values })
    }
}
