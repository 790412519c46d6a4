//! Tests of a group of threads.

use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{Collective, CollectiveError};

/// After a worker has left, all further calls of the other workers fail immediately. The failed calls return no data
/// that the worker had sent.
#[test]
fn a_group_that_one_has_left_stays_ended() {
    let mut group = ThreadCollective::group(2);
    let mut gone = group.remove(1);
    let mut here = group.remove(0);
    let shown = std::thread::scope(|scope| {
        let shown = scope.spawn(|| here.broadcast(1, &mut [0; 4]));
        gone.broadcast(1, &mut [7; 4]).and(shown.join().unwrap())
    });
    assert_eq!(shown, Ok(()));
    drop(gone);
    let calls: Vec<([u8; 4], Result<(), CollectiveError>)> = (0..5)
        .map(|_| {
            let mut bytes = [0; 4];
            let result = here.broadcast(1, &mut bytes);
            (bytes, result)
        })
        .collect();
    assert_eq!(calls, [([0; 4], Err(ThreadCollective::LEFT)); 5]);
}

/// If a rank passes more or fewer lengths than there are ranks, it gets an error, and no rank waits.
#[test]
fn lengths_are_one_per_rank() {
    let results = threads::run(2, |mut worker| {
        let odd = worker.rank() == 1;
        let (lens, received): (&[u64], usize) = if odd { (&[1, 1, 1], 3) } else { (&[1, 1], 2) };
        let gathered = worker.all_gather_each(lens, &mut vec![0; received]);
        let longer = worker.all_gather_each(&[1, 1], &mut vec![0; 2 + odd as usize]);
        let uneven = worker.all_gather(&mut vec![0; 2 + odd as usize]);
        let dealt = worker.all_to_all(&[7, 8], &[1, 1], &mut vec![0; received], lens);
        [gathered, longer, uneven, dealt]
    });
    assert_eq!(results, [[Ok(()); 4], [Err(ThreadCollective::MISMATCH); 4]]);
}
