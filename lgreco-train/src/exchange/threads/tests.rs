use super::super::{Collective, threads};
use super::ThreadCollective;
use std::{vec, vec::Vec};

#[test]
fn moves_what_it_says() {
    for world in [1u32, 2, 3, 8] {
        threads::run(world, |mut worker| {
            let rank = worker.rank();
            let lens: Vec<u64> = (0..world as u64).collect();
            for _ in 0..20 {
                let parts =
                    |len: fn(u8) -> u8| (0..world as u8).flat_map(|r| vec![r; len(r).into()]).collect::<Vec<_>>();
                let hide_others =
                    |bytes: &mut [u8]| bytes.iter_mut().filter(|r| **r != rank as u8).for_each(|r| *r = 99);
                for (len, equal) in [(|r| r) as fn(u8) -> u8, |_| 3].into_iter().zip([false, true]) {
                    let expected = parts(len);
                    let mut buffer = expected.clone();
                    hide_others(&mut buffer);
                    match equal {
                        true => worker.all_gather(&mut buffer),
                        false => worker.all_gather_each(&lens, &mut buffer),
                    }
                    .unwrap();
                    assert_eq!(buffer, expected);
                }

                let mut bytes = [rank as u8; 3];
                worker.broadcast(world - 1, &mut bytes).unwrap();
                assert_eq!(bytes, [world as u8 - 1; 3]);

                // `from` sends `from + to` bytes to `to`, all of the value 16 · from + to.
                let sent = |from: u32, to: u32| vec![(16 * from + to) as u8; (from + to) as usize];
                let all: Vec<u8> = (0..world).flat_map(|to| sent(rank, to)).collect();
                let expected: Vec<u8> = (0..world).flat_map(|from| sent(from, rank)).collect();
                let lens: Vec<u64> = (0..world).map(|peer| (rank + peer) as u64).collect();
                let mut received = vec![0; expected.len()];
                worker.all_to_all(&all, &lens, &mut received, &lens).unwrap();
                assert_eq!(received, expected);

                // Values are added in rank order. In f32, 2^24 + 1 + 1 is 2^24, but 1 + 1 + 2^24 is not.
                let mut values = [if rank == 0 { 16777216.0 } else { 1.0 }; 5];
                worker.all_reduce_sum(&mut values).unwrap();
                assert_eq!(values, [16777216.0; 5]);
                let mut values = [if rank == world - 1 { 16777216.0 } else { 1.0 }; 5];
                worker.all_reduce_sum(&mut values).unwrap();
                assert_eq!(values, [(world - 1) as f32 + 16777216.0; 5]);
            }
        });
    }
}

#[test]
fn those_who_leave_or_panic_keep_nobody_waiting() {
    let results = threads::run(3, |mut worker| {
        if worker.rank() == 1 {
            return Ok(());
        }
        worker.all_reduce_sum(&mut [1.0])
    });
    assert_eq!(results, [Err(ThreadCollective::LEFT), Ok(()), Err(ThreadCollective::LEFT)]);

    let results = std::sync::Mutex::new(Vec::new());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        threads::run(3, |mut worker| {
            let first = worker.broadcast(0, &mut [1]);
            assert!(worker.rank() != 2, "a worker that fails");
            let second = worker.all_gather(&mut [0; 3]);
            results.lock().unwrap().push((first, second));
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(results.into_inner().unwrap(), [(Ok(()), Err(ThreadCollective::LEFT)); 2]);
}

#[test]
fn different_calls_are_errors_on_all() {
    let results = threads::run(3, |mut worker| match worker.rank() {
        0 => worker.broadcast(0, &mut [1, 2]),
        1 => worker.broadcast(0, &mut [1]),
        _ => worker.all_reduce_sum(&mut [1.0]),
    });
    assert_eq!(results, [Err(ThreadCollective::MISMATCH); 3]);
    let results = threads::run(2, |mut worker| worker.broadcast(2, &mut [0]));
    assert_eq!(results, [Err(ThreadCollective::MISMATCH); 2]);
}

#[test]
fn the_first_rank_is_the_callers_thread() {
    let caller = std::thread::current().id();
    let found = threads::run(3, |worker| (worker.rank(), std::thread::current().id() == caller));
    assert_eq!(found, [(0, true), (1, false), (2, false)]);
}
