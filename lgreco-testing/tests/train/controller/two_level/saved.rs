//! Tests of runs that are stopped, and continue from saved states, also with other numbers of nodes and ranks.

use super::*;
use lgreco_testing::reseal;
use lgreco_train::controller::two_level::load_without_nodes;

#[test]
fn a_run_that_was_stopped_continues_bit_for_bit() {
    for method in [Method::Hybrid, Method::PowerSgd] {
        on_nodes((2, 3), |place, node, peers| {
            let mut training = new(with_undo(method, LGRECO), place);
            let whole: Vec<_> = (0..8).map(|_| step(&mut training, node, peers).unwrap()).collect();
            let end = training.save().unwrap();
            for stop in 0..8 {
                let mut training = new(with_undo(method, LGRECO), place);
                (0..stop).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
                let parts = [None].into_iter().chain((0..layers().len()).map(Some));
                let parts: Vec<_> =
                    parts.map(|layer| training.save_part(layer, Contents::Everything).unwrap()).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let saved = training.save().unwrap();
                for state in [&[&saved[..]][..], &parts] {
                    let mut training = new(with_undo(method, LGRECO), place);
                    let loaded = training.load(state, state).unwrap();
                    assert_eq!((loaded.rank, loaded.world_size, loaded.step), (place.node, 2, stop as u64));
                    let rest: Vec<_> = (stop..8).map(|_| step(&mut training, node, peers).unwrap()).collect();
                    assert!(rest == whole[stop..], "{method:?}, stopped at {stop}");
                    assert!(training.save().unwrap() == end);
                }
            }
        });
    }
}

/// The states of all ranks after five steps, and the mean residual of the nodes by layer.
fn run(size: (u32, u32)) -> (Vec<Vec<u8>>, Vec<Vec<f64>>) {
    let saved = on_nodes(size, |place, node, peers| {
        let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
        (0..5).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        (training.save().unwrap(), place, residuals(training.controller()))
    });
    let mean = mean(size.0, saved.iter().map(|(_, place, residuals)| (*place, residuals)));
    (saved.into_iter().map(|(state, ..)| state).collect(), mean)
}

fn residuals(controller: &Controller) -> Vec<Vec<f32>> {
    (0..layers().len()).map(|layer| residual(controller, layer)).collect()
}

/// The mean of the nodes' residuals. Each rank has the shards of its node's residuals.
fn mean<'a>(nodes: u32, all: impl Iterator<Item = (Topology, &'a Vec<Vec<f32>>)>) -> Vec<Vec<f64>> {
    let mut mean: Vec<Vec<f64>> = layers().iter().map(|tensor| vec![0.0; tensor.shape().elements()]).collect();
    for (place, residuals) in all {
        for ((tensor, mean), residual) in layers().iter().zip(&mut mean).zip(residuals) {
            let mean = &mut mean[range(tensor, &place)];
            mean.iter_mut().zip(residual).for_each(|(sum, x)| *sum += f64::from(*x) / f64::from(nodes));
        }
    }
    mean
}

fn expect_close(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    for (layer, (found, expected)) in found.iter().zip(expected).enumerate() {
        let most = found.iter().zip(expected).fold(0.0, |most: f64, (x, y)| most.max((x - y).abs()));
        assert!(most < 1e-5, "{what}, layer {layer}: {most} is lost");
    }
}

/// The saved nodes are distributed among the new nodes, which load the states of all ranks of a saved node.
#[test]
fn the_mean_residual_survives_other_nodes_and_other_ranks_per_node() {
    let sizes = [(2, 2), (3, 2), (1, 2), (2, 3), (3, 1), (2, 4), (1, 1)];
    for before in sizes {
        let (saved, expected) = run(before);
        let of_node = |node: u32| &saved[(node * before.1) as usize..][..before.1 as usize];
        for after in sizes {
            let found = on_nodes(after, |place, node, peers| {
                let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
                let taken = (0..before.0).filter(|former| former % place.nodes == place.node);
                let taken: Vec<&[u8]> = taken.flat_map(|former| of_node(former).iter().map(Vec::as_slice)).collect();
                let plan = &saved[(place.local % before.1) as usize];
                let loaded = training.load(&[plan], &taken).unwrap();
                assert!(
                    loaded.missing.is_empty() && loaded.extra.is_empty() && loaded.misshaped.is_empty(),
                    "{loaded:?}"
                );
                let left = residuals(training.controller());
                assert_eq!(training.controller().steps(), 5);
                (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
                (place, left)
            });
            let found = mean(after.0, found.iter().map(|(place, residuals)| (*place, residuals)));
            expect_close(&found, &expected, &format!("{before:?} to {after:?}"));
        }
    }
}

/// Runs without nodes continue with nodes, and the other way round.
#[test]
fn runs_with_and_without_nodes_continue_each_other() {
    let flat = threads::run(4, |mut worker| {
        let mut controller =
            Controller::new(with_undo(Method::TopK, Policy::Uniform), layers(), worker.rank(), 4).unwrap();
        for step in 0..5 {
            let mut values = values(worker.rank(), step);
            as_gradients(&mut values, |gradients| controller.step(&mut worker, gradients, 1.0)).unwrap();
        }
        (controller.save().unwrap(), residuals(&controller))
    });
    let place = |rank| Topology { nodes: 4, node: rank, per_node: 1, local: 0 };
    let expected = mean(4, (0..).zip(&flat).map(|(rank, (_, residuals))| (place(rank), residuals)));
    let found = on_nodes((2, 2), |place, node, peers| {
        let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
        let taken: Vec<&[u8]> =
            flat[2 * place.node as usize..][..2].iter().map(|(state, _)| state.as_slice()).collect();
        training.load(&[&flat[0].0], &taken).unwrap();
        let left = residuals(training.controller());
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        (place, left)
    });
    let found = mean(2, found.iter().map(|(place, residuals)| (*place, residuals)));
    expect_close(&found, &expected, "from ranks to nodes");

    let (saved, expected) = run((2, 2));
    let found = threads::run(4, |worker| {
        let mut controller =
            Controller::new(with_undo(Method::TopK, Policy::Uniform), layers(), worker.rank(), 4).unwrap();
        // Two of four ranks each load the states of a whole saved node.
        let taken: Vec<&[u8]> = match worker.rank() {
            rank @ 0..2 => saved[2 * rank as usize..][..2].iter().map(Vec::as_slice).collect(),
            _ => vec![],
        };
        load_without_nodes(&mut controller, &[&saved[0]], &taken).unwrap();
        residuals(&controller)
    });
    let found = mean(4, (0..).zip(&found).map(|(rank, residuals)| (place(rank), residuals)));
    expect_close(&found, &expected, "from nodes to ranks");
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let (saved, _) = run((2, 2));
    let place = Topology { nodes: 2, node: 0, per_node: 3, local: 1 };
    let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
    let before = training.save().unwrap();
    let mut refuse = |plan: &[&[u8]], residuals: &[&[u8]], expected: &str| {
        let error = training.load(plan, residuals).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(training.save().unwrap() == before, "a refusal changes nothing");
    };
    // With three ranks per node, the middle shard has parts of both saved shards.
    refuse(&[&saved[0]], &[&saved[0]], "local rank");
    refuse(&[&saved[0], &saved[1]], &[], "of several ranks");
    let mut damaged = saved[0].clone();
    damaged[40] ^= 1;
    refuse(&[&damaged], &[], "checksum");
    damaged[40] ^= 1;
    damaged[24] = 7;
    reseal(&mut damaged);
    refuse(&[&damaged], &[], "place");
}

/// A damaged state may have any number of ranks per node. The time to load the state depends on the layers, not on the
/// number of ranks.
#[test]
fn a_state_of_a_node_of_billions_of_ranks_is_handled_at_once() {
    let (saved, _) = run((2, 2));
    let place = Topology { nodes: 2, node: 0, per_node: 3, local: 0 };
    let mut huge = saved[0].clone();
    for (word, number) in [(2, 1), (3, 0), (4, u64::from(u32::MAX)), (5, 0)] {
        huge.as_chunks_mut::<8>().0[word] = u64::to_le_bytes(number);
    }
    reseal(&mut huge);
    let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
    let error = training.load(&[&saved[0]], &[&huge]).unwrap_err();
    assert!(error.to_string().contains("local rank"), "{error}");
    let loaded = training.load(&[&huge], &[]).unwrap();
    assert!(loaded.misshaped.contains(&"fc1".to_string()), "{loaded:?}");
}
