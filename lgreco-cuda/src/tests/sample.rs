//! Tests that TopK's payloads do not depend on the sample. Edited kernels make bounds that are too high, too low or far
//! off, and draw different samples.

use super::exchange::{config, steps_of};
use super::exchange_topk::{layers, of};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::some;
use crate::CudaBackend;
use crate::kernels::Module;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Setting, topk::TopK};
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_encode};
use lgreco_testing::powersgd::uniform;

/// Returns a backend whose selection module is edited.
pub(super) fn edited(flavour: Flavour, order: i32, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    let edit = Edit { module: Module::Selection, from, to };
    Some(CudaBackend::on(Box::new(Simt::new(flavour, order, Some(edit))?)))
}

/// An edit with which hardly any values are sampled.
const SMALL: (&str, &str) = ("top.count / 16 + (top.count % 16 != 0)", "top.count / 512 + 1");

/// Edits with which no layer takes the kernels' usual path.
const ELSEWHERE: [(&str, &str); 4] = [
    // Fewer than k values reach the bound.
    ("cut->bound = bound;", "cut->bound = INFINITE;"),
    // All values reach the bound. In large layers, so many values do not fit into the memory for gathered values.
    ("lower.bin == NOWHERE ? 0 : min", "true ? 0 : min"),
    // The k-th largest magnitude is below all narrow bins, or above them.
    ("cut->base = least", "cut->base = INFINITE; cut->bin = least"),
    ("cut->base = least", "cut->base = 0; cut->bin = least"),
];

/// Functions that each make values of one kind, from an index and a uniform random value.
pub(super) const KINDS: [fn(usize, f32) -> f32; 8] = [
    |_, x| x,
    |_, _| 0.0,
    |_, _| -0.25,
    |i, x| if i.is_multiple_of(100) { x } else { 0.0 },
    |i, _| i as f32 * 1e-6,
    |i, _| -1.0 / (i as f32 + 1.0),
    |_, x| (8.0 * x) as i32 as f32 * 1e-3,
    |i, x| x * 2f32.powi(i as i32 % 40 - 30),
];

fn values(kind: fn(usize, f32) -> f32) -> impl Fn(usize, u64) -> Vec<f32> {
    move |count, seed| uniform(count, seed).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect()
}

#[test]
fn buckets_do_not_depend_on_a_sample_at_random() {
    let Some(mut backend) = edited(flavour(), 2, SMALL.0, SMALL.1) else { return };
    let layers = layers();
    for (number, kind) in some(KINDS.into_iter().enumerate()) {
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][number % 3];
        let gain = if number % 2 == 0 { 1.0 } else { 0.6 };
        let compared = steps_of(&mut backend, &layers, config(dtype, gain), 2, values(kind));
        assert_eq!(compared, Ok(2 * of(&layers)), "{number}");
    }
}

#[test]
fn buckets_do_not_depend_on_the_bound_nor_on_the_bins() {
    let layers = layers();
    for (number, (from, to)) in some(ELSEWHERE.into_iter().enumerate()) {
        let Some(mut backend) = edited(flavour(), number as i32 % 3, from, to) else { return };
        for (dtype, gain, kind) in
            [(Dtype::F32, 0.6, KINDS[7]), (Dtype::Bf16, 1.0, KINDS[3]), (Dtype::F32, 1.0, KINDS[6])]
        {
            let compared = steps_of(&mut backend, &layers, config(dtype, gain), 2, values(kind));
            assert_eq!(compared, Ok(2 * of(&layers)), "{to}");
        }
    }
}

/// Encodes payloads of one layer in every type. TopK keeps from one value to all values.
#[test]
fn nor_do_payloads_of_one_layer() {
    for (number, (from, to)) in some(ELSEWHERE.into_iter().chain([SMALL]).enumerate()) {
        let Some(mut backend) = edited(flavour(), number as i32 % 3, from, to) else { return };
        for (kind, size) in KINDS.into_iter().zip([33_001, 4096, 8190, 12_300, 40_000, 20_001, 34_567, 3]) {
            let tensor = Tensor::new(&values(kind)(size, 5), size, 1);
            for (gradient, keep) in tensor.gradients().iter().zip([1, size as u32 / 50 + 1, size as u32]) {
                check_encode(
                    &mut backend,
                    &Setting::TopK(TopK { keep, values: Dtype::F32 }),
                    gradient,
                    Stream::default(),
                );
                let few = QuantisedTopK { keep, bits: 3 };
                check_encode(&mut backend, &Setting::QuantisedTopK(few), gradient, Stream::default());
            }
        }
    }
}

/// Returns values with a bell-shaped distribution, many more than the sample has.
fn bells() -> Tensor {
    let size = 400_003;
    let bell: Vec<f32> = uniform(4 * size, 7).as_chunks::<4>().0.iter().map(|four| four.iter().sum()).collect();
    Tensor::new(&bell, size, 1)
}

fn check_bells(backend: &mut CudaBackend, keeps: &[u32]) {
    for &keep in keeps {
        let top = TopK { keep, values: Dtype::F32 };
        check_encode(backend, &Setting::TopK(top), &bells().gradients()[0], Stream::default());
    }
}

/// Payloads must stay the same if an edit removes the code in which a single block finds the k-th largest magnitude.
#[test]
fn a_layer_at_large_takes_no_slow_way() {
    let slow = "settle(top, offered, cut, spans, entries, room);\n            }";
    let Some(mut backend) = edited(flavour(), 0, slow, "}") else { return };
    check_bells(&mut backend, &[400, 4000, 40_000, 200_000, 399_000, 400_003]);
}

/// Payloads must stay the same if an edit makes repeated reads of the gradient return zeros.
#[test]
fn what_may_be_kept_of_a_layer_at_large_has_room() {
    let again = "return uint2{u32(first) + i, __float_as_uint(value(offered.values, offered.dtype, first + i))};";
    let Some(mut backend) = edited(flavour(), 0, again, "return uint2{0, 0};") else { return };
    check_bells(&mut backend, &[1, 40, 400, 4000, 40_000, 80_000]);
}
