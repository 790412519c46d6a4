//! Shards whose sum one rank alone cannot bear.

use super::*;
use lgreco_testing::controller::sharded;
use lgreco_train::exchange::Route;

const OVERFLOW: Error = Error::Core(CoreError::Overflow { what: "the sum over the workers" });

/// What each of two ranks is told where rank 1's shard overflows.
fn failed(rank: u32) -> Result<(), Error> {
    Err(if rank == 1 { OVERFLOW } else { Error::Peer { rank: 1, code: OVERFLOW.code() } })
}

/// A controller of two ranks, every layer in a bucket of its own.
fn controller(worker: &ThreadCollective) -> Controller {
    let mut config = config(Method::Qsgd, Policy::Uncompressed);
    (config.route, config.bucket_bytes) = (Route::Sharded, 0);
    config.search.reduce_dtype = Dtype::Bf16;
    Controller::new(config, sharded(model(), 2), worker).unwrap()
}

/// The model's gradients, of which the `large` layer leaves f32, by rounding to bf16, in the last rank's shard.
fn values(rank: u32, large: Option<usize>) -> Vec<Vec<f32>> {
    let mut values = gradients(rank, 0, 1.0);
    if let Some(layer) = large {
        *values[layer].last_mut().unwrap() = f32::MAX;
    }
    values
}

/// A rank whose own shard overflows fails alone; the others are told by the next bucket, and the step after that works.
#[test]
fn an_overflow_in_one_shard_reaches_all_ranks() {
    on_all(2, |mut worker| {
        let mut controller = controller(&worker);
        let rank = worker.rank();
        let mut step = |large| controller.step(&mut worker, &mut views(&mut values(rank, large)), 1.0).map(drop);
        assert_eq!(step(None), Ok(()));
        // There is a bucket left to tell the others by.
        assert_eq!(step(Some(0)), failed(rank));
        assert_eq!(step(None), Ok(()));
        // There is none.
        assert_eq!(step(Some(2)), if rank == 1 { Err(OVERFLOW) } else { Ok(()) });
        assert_eq!(step(None), failed(rank));
        assert_eq!(step(None), Ok(()));
    });
}

/// The same in buckets that ranks have not exchanged together before: afterwards all know that they have.
#[test]
fn an_overflow_in_one_shard_of_a_new_bucket_reaches_all_ranks() {
    on_all(2, |mut worker| {
        let mut controller = controller(&worker);
        let rank = worker.rank();
        let mut step = |large| {
            let mut values = values(rank, large);
            controller.begin_step(1.0).unwrap();
            while let Some(request) = controller.control().unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let mut bucket = controller.open(&[1, 0]).unwrap();
            values.swap(0, 1);
            let exchanged = bucket.exchange(&mut worker, &mut views(&mut values[..2]));
            controller.close(bucket).unwrap();
            (exchanged, controller.finish_step().unwrap().outcome)
        };
        let alone = if rank == 1 { (failed(rank), Outcome::Failed) } else { (Ok(()), Outcome::Exchanged) };
        assert_eq!(step(Some(0)), alone);
        assert_eq!(step(None), (failed(rank), Outcome::Failed));
        assert_eq!(step(None), (Ok(()), Outcome::Exchanged));
    });
}
