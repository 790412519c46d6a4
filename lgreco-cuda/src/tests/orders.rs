//! Runs the blocks of a grid in several orders, one after another and several at the same time. The results must not
//! depend on which block comes last.

use super::exchange::{config, steps_of};
use super::exchange_eden;
use super::exchange_sums::{self, floats, ranks, step};
use super::exchange_topk::{layers, of};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, is_full, some};
use crate::CudaBackend;
use crate::gpu::MOST;
use crate::kernels::Module;
use lgreco::backend::{Backend, Job};
use lgreco::compress::eden::{self, Eden};
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Setting};
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_encode, check_rows};
use lgreco_testing::powersgd::uniform;

/// Returns the orders of blocks: forwards, and random with the second block last. Full runs add the backward order, and
/// random orders in which each block of the largest looping grid comes last.
fn orders() -> Vec<i32> {
    if is_full() { (0..2 + MOST.get() as i32).collect() } else { vec![0, 3] }
}

/// Returns rows of all methods, for many more values than three blocks process at the same time, and a payload of
/// PowerSGD.
fn measured(backend: &mut CudaBackend) -> (Vec<u64>, Vec<u8>) {
    let (many, few) = (Tensor::new(&uniform(20_003, 1), 20_003, 1), Tensor::new(&uniform(20_100, 2), 300, 67));
    let qsgd = |base| Candidates::Qsgd { base, bits: &[1, 2, 4, 8] };
    let base = Qsgd::default();
    let mut rows = Vec::new();
    for (tensor, candidates) in [
        (&many, qsgd(base)),
        (&many, qsgd(Qsgd { bucket: 128, scale: Scale::MinMax, ..base })),
        (&many, qsgd(Qsgd { bucket: 4096, rounding: Rounding::Nearest, ..base })),
        (&many, Candidates::TopK { values: Dtype::F32, keeps: &[1, 40, 9000] }),
        (&many, Candidates::TopK { values: Dtype::Bf16, keeps: &[1, 40, 9000] }),
        (&many, Candidates::QuantisedTopK { keeps: &[1, 40, 9000, 20_003], bits: &[1, 3, 8] }),
        (&few, Candidates::PowerSgd { iterations: 2, ranks: &[1, 6, 20] }),
        (&many, Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 8] }),
        (&few, Candidates::Eden { base: Eden { scale: eden::Scale::LeastSquares, ..Eden::default() }, bits: &[1, 5] }),
    ] {
        let gradient = tensor.gradients()[0];
        let mut row = vec![0.0; candidates.len()];
        backend.measure(&[Job { gradient, candidates, stream: Stream::default() }], &mut [], &mut row).unwrap();
        rows.extend(row.into_iter().map(f64::to_bits));
    }
    let (setting, gradient) = (exchange_sums::power(5), few.gradients()[0]);
    let mut payload = vec![0; 16 + 4 * 5 * (300 + 67)];
    backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
    (rows, payload)
}

#[test]
fn rows_and_factors_have_the_same_bits() {
    let mut first = None;
    for order in orders() {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let found = measured(&mut backend);
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "order {order}");
    }
}

#[test]
fn what_travels_by_sums_has_the_same_bits() {
    let (layers, mut first) = (exchange_sums::layers(), None);
    for order in orders() {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let mut ranks = ranks(&mut backend, &layers, exchange_sums::config(Dtype::F32, 0.6));
        for number in 0..2 {
            for (rank, seed) in ranks.iter_mut().zip(1..) {
                let values = uniform(rank.elements, 100 * number + seed);
                rank.gradients.fill(bytemuck::cast_slice(&values));
            }
            step(&mut backend, &mut ranks, |_, _, _| ());
        }
        let found: Vec<_> = ranks.iter().map(|rank| (floats(&rank.gradients), rank.remembered(&mut backend))).collect();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let found: Vec<_> = found.iter().flat_map(|(means, [a, b])| [bits(means), bits(a), bits(b)]).collect();
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "order {order}");
    }
}

/// In every order of blocks, the results must also equal the core's.
#[test]
fn what_is_gathered_has_the_same_bits() {
    let layers = [layers(), exchange_eden::layers()].concat();
    for order in orders() {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let compared = steps_of(&mut backend, &layers, config(Dtype::F32, 0.6), 2, uniform);
        assert_eq!(compared, Ok(2 * of(&layers)), "order {order}");
    }
}

/// Whether a check with an edited kernel fails in this order.
fn fails(order: i32, from: &'static str, to: &'static str, check: fn(&mut CudaBackend)) -> Option<bool> {
    let edit = Edit { module: Module::Selection, from, to };
    let mut backend = CudaBackend::on(Box::new(Simt::new(Flavour::Plain, order, Some(edit))?));
    Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut backend))).is_err())
}

/// Encodes a layer and keeps all values, so that a planted fault cannot write more values. Every block has spans of
/// this layer.
fn one_layer(backend: &mut CudaBackend) {
    let tensor = Tensor::new(&uniform(40_003, 1), 40_003, 1);
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: 40_003, bits: 3 });
    check_encode(backend, &few, &tensor.gradients()[0], Stream::default());
}

/// Measures a row in which all values are kept.
fn one_row(backend: &mut CudaBackend) {
    let tensor = Tensor::new(&uniform(40_003, 1), 40_003, 1);
    let candidates = Candidates::QuantisedTopK { keeps: &[40_003], bits: &[3] };
    let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
    check_rows(backend, &[job], 1e-7);
}

const LAST: &str = "return before + own == all;";

/// Each of the planted faults affects one block. The check must find the fault if this block comes last.
#[test]
fn every_block_comes_last() {
    for (last, fault) in some(
        [
            "return before + own == all && blockIdx.x != 0;",
            "return before + own == all && blockIdx.x != 1;",
            "return before + own == all && blockIdx.x != 2;",
        ]
        .into_iter()
        .enumerate(),
    ) {
        for check in [one_layer, one_row] {
            let Some(found) = fails(2 + last as i32, LAST, fault, check) else { return };
            assert!(found, "block {last}");
        }
    }
}

/// Plants faults that tests cannot find if blocks run one after another. The random orders must find these faults: in
/// random orders, any block may come last, and two blocks may run at the same time.
#[test]
#[ignore = "slow"]
fn faults_that_blocks_in_turn_do_not_tell_are_found() {
    let at_an_end = "return before + own == all && (blockIdx.x == 0 || blockIdx.x + 1 == gridDim.x);";
    let torn = "before = atomicAdd(done, 0u);\n        atomicExch(done, before + own);";
    for (from, to) in [(LAST, at_an_end), ("before = atomicAdd(done, own);", torn)] {
        for order in 0..2 {
            let Some(found) = fails(order, from, to, one_layer) else { return };
            assert!(!found, "order {order} tells: {to}");
        }
        assert!((2..12).any(|order| fails(order, from, to, one_layer) == Some(true)), "{to}");
    }
}
