//! The group of threads itself.

use crate::exchange::threads::ThreadCollective;
use crate::exchange::{Collective, CollectiveError};
use std::vec::Vec;

/// However often the others call: nobody waits, and nobody reads what the one that left had shown.
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
