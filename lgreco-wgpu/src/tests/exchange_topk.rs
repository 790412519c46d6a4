//! How many dispatches a bucket takes, and what is refused of positions.

use super::backend;
use super::buffers::buffer;
use super::exchange::USAGE;
use crate::{BufferBucket, BufferGradient, BufferLayer, WgpuBackend};
use lgreco_core::compress::{Setting, qsgd::Qsgd, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_testing::powersgd::uniform;
use lgreco_train::Error;
use lgreco_train::exchange::{Agreement, Flight, Moment, Request, Route};

fn topk(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

/// A step of these layers of as many values, in which every rank brings what this one does, once `damage` has been done to it.
fn step(
    backend: &mut WgpuBackend,
    settings: &[Setting],
    values: &[f32],
    world_size: u32,
    damage: impl Fn(&mut [u8]),
) -> ([usize; 2], Result<(), Error>) {
    let held = buffer(backend, 4 * values.len() as u64, USAGE);
    let shape = Shape::new(values.len(), 1).unwrap();
    let layer = |(index, &setting): (usize, &Setting)| {
        let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        BufferLayer { index: index as u32, setting, gradient }
    };
    backend.queue().write_buffer(&held, 0, bytemuck::cast_slice(values));
    let layers: Vec<BufferLayer<'_>> = settings.iter().enumerate().map(layer).collect();
    let mut bucket = BufferBucket::new(backend, &layers, true, world_size).unwrap();
    let before = backend.gpu().dispatches;
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let moment = Moment { rank: 1, world_size, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
    let mut space = bucket.on(backend);
    let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, None).unwrap();
    let request = flight.next(&mut space).unwrap().expect("payloads travel");
    let Request::AllGather { buffer } = request else { panic!("{request:?}") };
    let len = buffer.len() / world_size as usize;
    let mut own = buffer[len..2 * len].to_vec();
    damage(&mut own);
    buffer.chunks_mut(len).for_each(|message| message.copy_from_slice(&own));
    let encoded = backend.gpu().dispatches;
    let outcome = flight.next(&mut bucket.on(backend)).map(|request| assert!(request.is_none()));
    let outcome = outcome.and_then(|()| bucket.finish(backend)).and_then(|()| bucket.check(backend));
    ([encoded - before, backend.gpu().dispatches - encoded], outcome)
}

#[test]
fn any_number_of_layers_and_ranks_takes_six_dispatches_and_four_at_most() {
    let (qsgd, few) = (Setting::Qsgd(Qsgd::default()), Setting::QuantisedTopK(QuantisedTopK { keep: 60, bits: 3 }));
    // Buckets of which no workgroup has all values.
    let of_thousand = Setting::Qsgd(Qsgd { bucket: 1000, ..Qsgd::default() });
    let values = uniform(5000, 3);
    let many: Vec<Setting> = (0..150).map(|layer| [topk(1 + layer), few, qsgd][layer as usize % 3]).collect();
    let Some(mut backend) = backend() else { return };
    for (settings, expected) in [
        (&[qsgd][..], [1, 2]),
        (&[qsgd, of_thousand], [3, 2]),
        (&[topk(50)], [5, 4]),
        (&[topk(50), qsgd], [5, 4]),
        (&[few], [6, 4]),
        (&[topk(50), few, qsgd], [6, 4]),
        (&[topk(50), few, qsgd, few, few, qsgd, qsgd, topk(1)], [6, 4]),
        (&many, [6, 4]),
        (&[qsgd; 150], [1, 2]),
        (&[of_thousand; 150], [2, 2]),
    ] {
        for world in [2, 3, 70] {
            let (dispatches, outcome) = step(&mut backend, settings, &values, world, |_| {});
            assert_eq!((dispatches, outcome), (expected, Ok(())), "{} layers, {world} ranks", settings.len());
        }
    }
}

/// Of 40 positions those with numbers 20 and 21 are ones on both sides of a word's end; without a lower bit they are the same.
#[test]
fn equal_positions_on_both_sides_of_a_words_end_are_refused() {
    let position = |number: usize| match number {
        0..20 => 32 * number,
        20..22 => 704 + number - 20,
        _ => 1000 + 70 * number,
    };
    let mut values = vec![0.0; 4000];
    (0..40).for_each(|number| values[position(number)] = 1.0 + number as f32);
    let Some(mut backend) = backend() else { return };
    // A slip, a header and the values; then six bits of each position.
    let low = 8 * (16 + 16 + 4 * 40) + 6 * 21;
    let mut equal = |bit: usize| step(&mut backend, &[topk(40)], &values, 2, |own| own[bit / 8] &= !(1 << (bit % 8))).1;
    assert_eq!(equal(low + 5), Ok(()), "a bit that is 0");
    assert!(matches!(equal(low), Err(Error::PeerMessage { rank: 0, .. })), "{:?}", equal(low));
}
