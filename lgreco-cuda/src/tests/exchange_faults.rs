//! Tests failures in exchanges of summed layers: failures of one rank, failures of all ranks, and ranks that disagree.
//! Also checks such exchanges for data races.
#![allow(unsafe_code)]

use super::exchange::{Memory, bits, narrowed};
use super::exchange_sums::{After, Layers, Rank, WORLD, config, floats, of, power, ranks, step, summed};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, planted};
use crate::exchange::{NON_FINITE_GRADIENT, PEER};
use crate::kernels::Module;
use crate::{CudaBackend, Error, ExchangeConfig, ExchangeFault, ExchangeProgram, OnFault};
use lgreco::compress::{Setting, qsgd::Qsgd};
use lgreco::gradient::{Bf16, Dtype, Element};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use lgreco_train::CoreError;
use lgreco_train::exchange::Slip;

/// Returns layers of all kinds. Because of the layer under QSGD, the step ends with the averaging of messages.
fn layers() -> Layers {
    of(&[(30, 20, power(4)), (50, 1, Setting::Dense), (33, 31, Setting::Qsgd(Qsgd::default())), (25, 300, power(3))])
}

/// Returns the values of the status records of all ranks in a buffer.
fn slips(memory: &Memory, reduce_dtype: Dtype) -> Vec<Vec<f32>> {
    let (values, len) = (summed(memory, reduce_dtype), Slip::values(reduce_dtype));
    values[values.len() - WORLD * len..].chunks(len).map(<[f32]>::to_vec).collect()
}

/// Decodes the values of a status record.
fn told(slip: &[f32]) -> Slip {
    match *slip {
        [whole] => Slip::of_sum(whole),
        [low, middle, high] => Slip::of_bf16_sum([low, middle, high].map(Bf16::from_f32)),
        _ => panic!("{slip:?}"),
    }
}

const NOT_FINITE: u64 = lgreco_train::Error::NonFiniteGradient { layer: 0, index: 0, value: 0.0 }.code() as u64;
const OVERFLOW: u64 = CoreError::Overflow { what: "" }.code() as u64;

#[test]
fn a_rank_that_found_fault_with_another_says_so() {
    let peer = lgreco_train::Error::Peer { rank: 0, code: 0 };
    assert_eq!(peer.code(), PEER);
}

#[test]
fn a_gradient_that_is_not_finite_has_the_code_of_training() {
    assert_eq!(NOT_FINITE, u64::from(NON_FINITE_GRADIENT));
}

/// Runs a step in which the value at position `at` is `value` on the ranks `spoiled`. Asserts that these ranks find
/// `fault`, and report `code` in the status records after the sums.
fn spoiled_step(
    backend: &mut CudaBackend,
    ranks: &mut [Rank],
    (config, seed): (ExchangeConfig, u64),
    (spoiled, at, value): (&[usize], usize, f32),
    (code, fault): (u64, Option<ExchangeFault>),
) {
    let before: Vec<_> = ranks.iter().map(|rank| backend.exchange_outcome(&rank.exchange).unwrap()).collect();
    let remembered: Vec<_> = ranks.iter().map(|rank| rank.remembered(backend)).collect();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let mut values = uniform(rank.elements, seed + number as u64);
        if spoiled.contains(&number) {
            values[at] = value;
        }
        rank.gradients.fill(&narrowed(&values, config.dtype).0);
    }
    step(backend, ranks, |after, ranks, _| {
        for (number, rank) in ranks.iter().enumerate() {
            let (own, is_spoiled) = (number, spoiled.contains(&number));
            let buffer = if after == After::Project { &rank.sums } else { &rank.factors };
            let all = slips(buffer, config.reduce_dtype);
            let zeros = |slip: &[f32]| slip.iter().all(|&value| value == 0.0);
            assert!(all.iter().enumerate().all(|(rank, slip)| rank == own || zeros(slip)), "{all:?}");
            let expected = match after {
                _ if is_spoiled => code,
                After::BackProject if code != 0 && !spoiled.is_empty() => PEER.into(),
                _ => 0,
            };
            assert_eq!(told(&all[own]).code, expected, "{after:?}, rank {number} of {spoiled:?}");
        }
    });
    let fails = !spoiled.is_empty();
    for (((rank, before), remembered), number) in ranks.iter().zip(before).zip(remembered).zip(0..) {
        let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
        assert_eq!((outcome.step, outcome.failed), (before.step + 1, before.failed + u32::from(fails)));
        assert_eq!(rank.found_inf(backend), if fails { 1.0 } else { 0.0 });
        assert_eq!(outcome.rank, spoiled.first().filter(|_| code != 0).map(|&rank| rank as u32));
        assert_eq!(outcome.fault, if spoiled.contains(&number) { fault } else { None });
        let kept = rank.remembered(backend);
        if fails {
            let fill = if config.on_fault == OnFault::Nan { f32::NAN.to_bits() } else { 0 };
            assert!(code == 0 || bits(&floats(&rank.gradients)).iter().all(|&mean| mean == fill));
            assert_eq!(kept.map(|values| bits(&values)), remembered.map(|values| bits(&values)), "rank {number}");
        } else {
            assert!(kept != remembered);
        }
    }
}

#[test]
fn faults_of_one_rank_change_nothing_on_any() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let not_finite = |layer, index| (NOT_FINITE, Some(ExchangeFault::NonFinite { layer, index }));
    for (on_fault, reduce_dtype) in
        [(OnFault::Zeros, Dtype::F32), (OnFault::Nan, Dtype::F32), (OnFault::Nan, Dtype::Bf16)]
    {
        let config = ExchangeConfig { on_fault, reduce_dtype, ..config(Dtype::F32, 1.0) };
        let mut ranks = ranks(&mut backend, &layers(), config);
        for (seed, (spoiled, told)) in (0..).step_by(10).zip([
            ((&[][..], 0, 0.0), (0, None)),
            ((&[1][..], 123, f32::NAN), not_finite(0, 123)),
            ((&[0, 2][..], 607, f32::INFINITY), not_finite(1, 7)),
            // The fault is in the layer whose payload is gathered. The rank reports the fault both in its message and
            // after its sums.
            ((&[2][..], 650, f32::NAN), not_finite(2, 0)),
            ((&[], 0, 0.0), (0, None)),
            ((&[1][..], 9172, f32::NEG_INFINITY), not_finite(3, 7499)),
            // The largest magnitude of each column of Q is from 1 to 2. So the value 3.4e38 makes an element of P too
            // large.
            ((&[2][..], 5, 3.4e38), (OVERFLOW, Some(ExchangeFault::Factor { layer: 0 }))),
            ((&[], 0, 0.0), (0, None)),
        ]) {
            spoiled_step(&mut backend, &mut ranks, (config, seed), spoiled, told);
        }
    }
}

/// The factor P of each rank is finite, but the sum of P over the ranks is not.
#[test]
fn a_sum_that_leaves_f32_fails_on_all() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let (layers, config) = (of(&[(40, 30, power(2)), (5, 1, Setting::Dense)]), config(Dtype::F32, 1.0));
    let mut ranks = ranks(&mut backend, &layers, config);
    for rank in &mut ranks {
        let mut values = vec![0.0f32; rank.elements];
        // Each row of the matrix is nonzero in one column, so each element of P is a multiple of one element of Q. The
        // largest element of a column is from 1 to 2.
        (0..40).for_each(|row| values[30 * row + row % 30] = 1.6e38);
        rank.gradients.fill(bytemuck::cast_slice(&values));
    }
    step(&mut backend, &mut ranks, |after, ranks, _| {
        let wells = ranks.iter().enumerate().filter(|(number, rank)| {
            let buffer = if after == After::Project { &rank.sums } else { &rank.factors };
            told(&slips(buffer, config.reduce_dtype)[*number]).code
                == if after == After::Project { 0 } else { OVERFLOW }
        });
        assert_eq!(wells.count(), WORLD, "{after:?}");
        if after == After::Project {
            // The part that each rank contributes to the sum is still finite.
            assert!(ranks.iter().all(|rank| floats(&rank.sums).iter().all(|x| x.is_finite())));
        }
    });
    for rank in &ranks {
        let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
        assert_eq!((outcome.rank, outcome.failed), (Some(0), 1));
        assert_eq!(outcome.fault, Some(ExchangeFault::Factor { layer: 0 }));
        assert!(floats(&rank.gradients).iter().all(|&mean| mean == 0.0));
    }
}

#[test]
fn ranks_that_disagree_fail_on_all() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let at_home = config(Dtype::F32, 1.0);
    let late = ExchangeConfig { stream: Stream { step: 6, rank: 1, ..at_home.stream }, ..at_home };
    let other = ExchangeConfig { on_fault: OnFault::Nan, stream: Stream { rank: 1, ..at_home.stream }, ..at_home };
    // The seed determines PowerSGD's start matrices.
    let drawn = ExchangeConfig { stream: Stream { seed: 6, rank: 1, ..at_home.stream }, ..at_home };
    let halves = |config| ExchangeConfig { reduce_dtype: Dtype::Bf16, ..config };
    for (layers, first, second) in [
        (layers(), at_home, late),
        (of(&[(12, 1, Setting::Dense)]), at_home, other),
        (layers(), at_home, drawn),
        (layers(), halves(at_home), halves(late)),
        (of(&[(12, 1, Setting::Dense)]), halves(at_home), halves(other)),
    ] {
        let mut ranks = ranks(&mut backend, &layers, first);
        ranks[1] = Rank::new(&mut backend, &layers, second);
        for rank in &mut ranks {
            let values = uniform(rank.elements, 1);
            rank.gradients.fill(bytemuck::cast_slice(&values));
        }
        step(&mut backend, &mut ranks, |_, _, _| ());
        // The ranks that agree report the rank that differs. The differing rank reports the first rank that differs
        // from itself.
        for (rank, first) in ranks.iter().zip([1, 0, 1]) {
            let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
            assert_eq!((outcome.rank, outcome.failed, outcome.fault), (Some(first), 1, None));
            assert!(rank.remembered(&mut backend)[0].iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn what_cannot_be_summed_is_refused() {
    let usual = config(Dtype::F32, 1.0);
    let refused = |layers: &Layers, config| ExchangeProgram::new(layers, config).map(drop).unwrap_err();
    let rank = ExchangeConfig { stream: Stream { rank: WORLD as u32, ..usual.stream }, ..usual };
    assert!(matches!(refused(&layers(), rank), Error::Core(CoreError::Parameter { what: "rank", .. })));
    let narrow = refused(&layers(), ExchangeConfig { reduce_dtype: Dtype::F16, ..usual });
    assert!(matches!(narrow, Error::Core(CoreError::Parameter { what: "code of the reduce dtype", .. })), "{narrow}");
    assert!(matches!(refused(&of(&[(2000, 2000, power(1500))]), usual), Error::Method(_)));
    assert!(matches!(refused(&of(&[(20, 20, power(0))]), usual), Error::Core(CoreError::Parameter { .. })));
    let program = ExchangeProgram::new(&of(&[(20, 30, power(2)), (7, 1, Setting::Dense)]), usual).unwrap();
    assert_eq!((program.sum_values(), program.factor_values(), program.message_bytes()), (40 + 7 + 3, 60 + 3, 0));
    let narrow = ExchangeConfig { reduce_dtype: Dtype::Bf16, ..usual };
    let program = ExchangeProgram::new(&of(&[(20, 30, power(2)), (7, 1, Setting::Dense)]), narrow).unwrap();
    assert_eq!((program.sum_values(), program.factor_values()), (40 + 7 + 9, 60 + 9));
    let program = ExchangeProgram::new(&of(&[(64, 64, Setting::Qsgd(Qsgd::default()))]), usual).unwrap();
    assert_eq!((program.sum_values(), program.factor_values()), (0, 0));
}

/// Runs the three calls of a step with a single rank. Returns the device's error, if any.
fn alone(backend: &mut CudaBackend) -> Result<(), Error> {
    let layers = of(&[(45, 300, power(40)), (300, 50, power(70)), (50, 1, Setting::Dense), (300, 20, power(3))]);
    let config = ExchangeConfig { world: 1, ..config(Dtype::F32, 0.5) };
    let mut rank = Rank::new(backend, &layers, config);
    rank.gradients.fill(bytemuck::cast_slice(&uniform(rank.elements, 1)));
    let (gradients, sums) = (rank.gradients.address(), rank.sums.address());
    let factors = rank.factors.address();
    // SAFETY: the memory has the program's sizes.
    unsafe {
        backend.project_exchange(&rank.exchange, gradients, sums)?;
        backend.back_project_exchange(&rank.exchange, sums, factors)?;
        backend.average_exchange(&rank.exchange, sums, factors, gradients)
    }
}

#[test]
fn no_race_is_found_until_one_is_planted() {
    let run = |edit| Some(alone(&mut CudaBackend::on(Box::new(Simt::new(Flavour::Races, 2, edit)?))));
    let Some(outcome) = run(None) else { return };
    assert_eq!(outcome, Ok(()));
    // Rows and exchanges share code; the tests of rows plant more faults in the shared code.
    for (from, to) in planted([
        ("    // The next piece needs the room.\n    __syncthreads();\n", ""),
        ("u32(first && row + k / STEPS < f.rows && ", "u32(first && "),
    ]) {
        let edit = Edit { module: Module::ExchangeSums, from, to };
        let found = run(Some(edit)).expect("g++").err().map(|error| error.to_string());
        assert!(found.as_ref().is_some_and(|said| said.contains("race (")), "{from}: {found:?}");
    }
}

/// Runs a sound step of three ranks with sums and payloads, and then a step with an invalid value on one rank.
#[test]
fn no_race_is_found_on_three_ranks() {
    let Some(mut backend) = backend(Flavour::Races, 3) else { return };
    for reduce_dtype in [Dtype::F32, Dtype::Bf16] {
        let config = ExchangeConfig { reduce_dtype, ..config(Dtype::F32, 1.0) };
        let mut ranks = ranks(&mut backend, &layers(), config);
        let not_finite = (NOT_FINITE, Some(ExchangeFault::NonFinite { layer: 0, index: 123 }));
        spoiled_step(&mut backend, &mut ranks, (config, 0), (&[], 0, 0.0), (0, None));
        spoiled_step(&mut backend, &mut ranks, (config, 10), (&[1], 123, f32::NAN), not_finite);
    }
}
