//! Tests of CLT-k: turns of leaders, the low-pass filter, and leaders that fail.

use super::*;
use lgreco_train::feedback::{Memory, Residual, Storage};

fn gaussian(seed: u64, step: u32, rank: u32, len: usize) -> Vec<f32> {
    let stream = Stream { seed, step, layer: 0, rank };
    (0..len as u32).map(|i| stream.block(i).iter().map(|&w| w as f32 / 4294967296.0 - 0.5).sum()).collect()
}

#[test]
fn leaders_take_turns() {
    let mut case = case(&[(clt(1), shape(4, 1))], 3, Route::AllGather);
    for (rank, worker) in case.gradients.iter_mut().enumerate() {
        worker[0] = vec![0.5; 4];
        worker[0][rank] = -9.0;
    }
    for step in [0, 1, 2, 3, 7] {
        case.step = step;
        let leader = step as usize % 3;
        for (rank, outcome) in case.run().into_iter().enumerate() {
            let mut expected = [0.0; 4];
            expected[leader] = if rank == leader { -9.0 } else { 0.5 };
            assert_eq!(outcome.unwrap().own[0], expected, "step {step}");
        }
    }
}

/// Compares ScaleCom with its recursion. All ranks get the same update, the mean of their contributions. Memories
/// follow `m' = (1 − β) m + β (p − CLT(p))`, so they equal β Σ (g − ĝ).
#[test]
fn memories_and_filter_over_many_steps() {
    const STEPS: u32 = 50;
    let (len, keep, world) = (120, 9, 4);
    let shape = shape(len, 1);
    for beta in [1.0f32, 0.25] {
        let rule = Residual { gain: beta, reset_every: 0, storage: Storage::F32 };
        let mut memories: Vec<_> =
            (0..world).map(|_| Memory::new(rule, shape, vec![0; rule.state_len(shape)]).unwrap()).collect();
        let mut textbook = vec![vec![0.0f64; len]; world as usize];
        let mut owed = vec![vec![0.0f64; len]; world as usize];
        for step in 0..STEPS {
            let gradients: Vec<Vec<f32>> = (0..world).map(|rank| gaussian(3, step, rank, len)).collect();
            let g = |rank: usize| Gradient::new(Values::F32(&gradients[rank]), shape).unwrap();
            let compensated = memories.iter().enumerate().map(|(rank, memory)| {
                let mut p = vec![0.0; len];
                memory.compensate(&g(rank), &mut p).unwrap();
                vec![p]
            });
            let case = Case {
                layers: vec![(clt(keep), shape)],
                gradients: compensated.collect(),
                route: Route::AllGather,
                reduce_dtype: Dtype::F32,
                seed: 5,
                step,
            };
            check(&case);
            let leader = &textbook[(step % world) as usize];
            let leading: Vec<f64> =
                leader.iter().zip(&gradients[(step % world) as usize]).map(|(m, &g)| m + g as f64).collect();
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|&a, &b| leading[b].abs().total_cmp(&leading[a].abs()));
            let chosen = &order[..keep as usize];
            for (rank, outcome) in case.run().into_iter().enumerate() {
                let own = outcome.unwrap().own.swap_remove(0);
                memories[rank].update(&g(rank), &own, Stream::default()).unwrap();
                let mut kept = vec![f32::NAN; len];
                memories[rank].values(&mut kept).unwrap();
                for i in 0..len {
                    let p = textbook[rank][i] + gradients[rank][i] as f64;
                    let sent = if chosen.contains(&i) { p } else { 0.0 };
                    textbook[rank][i] = (1.0 - beta as f64) * textbook[rank][i] + beta as f64 * (p - sent);
                    owed[rank][i] += beta as f64 * (gradients[rank][i] - own[i]) as f64;
                    let [recursion, balance] = [textbook[rank][i], owed[rank][i]].map(|x| (kept[i] as f64 - x).abs());
                    assert!(recursion < 1e-4 && balance < 1e-4, "step {step}, rank {rank}: {recursion} {balance}");
                }
            }
        }
    }
}

/// A rank whose gradient is not finite is named on all ranks, whichever rank leads.
#[test]
fn a_failing_leader_is_named_on_all() {
    for step in 0..3 {
        let mut sound = case(&[(Setting::Dense, shape(3, 1)), (clt(5), shape(10, 2))], 3, Route::AllGather);
        sound.step = step;
        let mut broken = sound.clone();
        broken.gradients[1][1][17] = f32::INFINITY;
        let results = threads::run(3, |mut worker| {
            (broken.exchange(&mut worker, None), sound.exchange(&mut worker, None).is_ok())
        });
        let told = (Err(Error::Peer { rank: 1, code: 101 }), true);
        let own = (Err(Error::NonFiniteGradient { layer: 1, index: 17, value: f32::INFINITY }), true);
        assert_eq!(results, [told.clone(), own, told], "step {step}");
    }
}

#[test]
fn positions_that_are_none_fail_on_all() {
    for layers in
        [vec![(clt(5), shape(10, 2))], vec![(LOW_RANK, shape(4, 4)), (clt(2), shape(90, 1)), (topk(1), shape(2, 1))]]
    {
        let case = case(&layers, 3, Route::AllGather);
        let results = threads::run(3, |mut worker| {
            // Rank 2 receives damaged positions from the leader.
            let mut misled = Through::new(&mut worker, |worker, request| match request {
                Request::Broadcast { root, bytes } => {
                    worker.broadcast(root, bytes)?;
                    if worker.rank() == 2 {
                        bytes.fill(0xff);
                    }
                    Ok(())
                }
                request => request.perform(worker),
            });
            let failed = case.exchange(&mut misled, None).unwrap_err();
            (failed, case.exchange(&mut worker, None).is_ok())
        });
        let told = (Error::Peer { rank: 2, code: 83 }, true);
        assert_eq!(results, [told, told, (Error::PeerMessage { rank: 0, code: 41 }, true)]);
    }
}
