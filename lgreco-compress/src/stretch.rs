//! Adds payloads to a sum, one stretch at a time, so that the sum stays in a core's caches. A stretch is a run of
//! consecutive elements.

use super::registry::reader;
pub use super::sparse::STRETCH;
use super::wire::{Method, Payload};
use crate::{Error, Result};

/// Whether [`combine_stretch`] can read payloads of this method.
pub fn reads_stretches(method: Method) -> bool {
    reader(method).is_ok_and(|reader| reader.stretch.is_some())
}

/// Adds a stretch of a payload to `values`. If `replace` is set, writes the stretch instead, with zeros where no value
/// is kept.
///
/// `values` are the elements from `start` on, and `start` is a multiple of [`STRETCH`]. A stretch has [`STRETCH`]
/// elements, or fewer at the end of the tensor. The caller reads the stretches in order. The reading position `place`
/// is two zeros before the first stretch, and each call updates `place` for the next stretch. Reading all stretches
/// gives the result and the errors of [`combine`](super::setting::combine). Some errors are found only in the last
/// stretch.
pub fn combine_stretch(
    payload: &Payload<'_>,
    replace: bool,
    start: usize,
    place: &mut [u64; 2],
    values: &mut [f32],
) -> Result<()> {
    match reader(payload.header.method)?.stretch {
        Some((combine, _)) => combine(payload, replace, start, place, values),
        None => Err(Error::PayloadBody { what: "it is not read in stretches" }),
    }
}

/// Finds the reading position of [`combine_stretch`] at `start`, without reading the earlier stretches. So errors in
/// the earlier stretches are not found. Returns `None` if decoding needs the earlier stretches.
pub fn place_of(payload: &Payload<'_>, start: usize) -> Result<Option<[u64; 2]>> {
    reader(payload.header.method)?.stretch.map_or(Ok(None), |(_, place_of)| place_of(payload, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combine::Combine;
    use crate::eden::Eden;
    use crate::gradient::{Dtype, Gradient, Shape, Values};
    use crate::qsgd::{Qsgd, Scale};
    use crate::quantised_topk::QuantisedTopK;
    use crate::registry::decode_parsed;
    use crate::rng::Stream;
    use crate::setting::combine;
    use crate::topk::TopK;
    use crate::{Compressor, Setting};
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn settings(elements: usize) -> Vec<Setting> {
        let qsgd = |bits, bucket, scale| Setting::Qsgd(Qsgd { bits, bucket, scale, ..Qsgd::default() });
        let topk = |keep: usize| Setting::TopK(TopK { keep: keep as u32, values: Dtype::F32 });
        let few = |keep: usize, bits| Setting::QuantisedTopK(QuantisedTopK { keep: keep as u32, bits });
        let keep = |part: usize| (elements / part).max(elements.min(1));
        vec![
            qsgd(3, 100, Scale::MaxNorm),
            qsgd(4, 3000, Scale::MinMax),
            qsgd(8, 1 << 20, Scale::MaxNorm),
            Setting::Eden(Eden { bits: 1, ..Eden::default() }),
            Setting::Eden(Eden { bits: 4, ..Eden::default() }),
            // Uses all position codings: a bitmap, Elias–Fano with many and with few low bits, and all positions.
            topk(keep(3)),
            topk(keep(1000)),
            topk(keep(20)),
            topk(elements),
            few(keep(3), 2),
            few(keep(1000), 7),
            few(keep(20), 3),
            few(elements, 8),
        ]
    }

    /// Combines in stretches, up to the first error.
    fn in_stretches(payload: &[u8], replace: bool, values: &mut [f32]) -> Result<(), Error> {
        let payload = Payload::parse(payload)?;
        let (mut place, mut start) = ([0; 2], 0);
        for stretch in values.chunks_mut(STRETCH) {
            combine_stretch(&payload, replace, start, &mut place, stretch)?;
            start += stretch.len();
        }
        Ok(())
    }

    /// Combines each stretch independently, in reverse order. Returns the error of the first stretch with an error.
    fn in_any_order(payload: &[u8], values: &mut [f32]) -> Result<(), Error> {
        let payload = Payload::parse(payload)?;
        let mut result = Ok(());
        for (i, stretch) in values.chunks_mut(STRETCH).enumerate().rev() {
            // If fewer than one value in 2^13 were kept, stretches would have to be read in order.
            let mut place = place_of(&payload, i * STRETCH)?.expect("a place");
            result = combine_stretch(&payload, false, i * STRETCH, &mut place, stretch).and(result);
        }
        result
    }

    #[test]
    fn zeros_keep_their_sign_where_nothing_is_kept() {
        let elements = 9000;
        let gradient: Vec<f32> = (1..=elements).map(|i| i as f32 * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let shape = Shape::new(elements, 1).unwrap();
        let gradient = Gradient::new(Values::F32(&gradient), shape).unwrap();
        for setting in settings(elements) {
            if matches!(setting, Setting::Qsgd(_) | Setting::Eden(_)) {
                continue;
            }
            let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
            let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
            setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
            let mut decoded = vec![f32::NAN; elements];
            decode_parsed(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
            for (how, sign) in [(Combine::Add, 1.0), (Combine::Subtract, -1.0)] {
                for zero in [0.0f32, -0.0] {
                    let mut values = vec![zero; elements];
                    combine(&setting, &Payload::parse(&payload).unwrap(), how, &mut values, &mut []).unwrap();
                    let expected = decoded.iter().map(|&x| if x == 0.0 { zero } else { sign * x });
                    assert!(values.iter().map(|x| x.to_bits()).eq(expected.map(f32::to_bits)), "{setting} {how:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn stretches_are_the_whole(
            elements in prop_oneof![1usize..300, 8000usize..8400, 16300usize..16500, 20_000usize..60_000],
            seed: u64,
            damage in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..3),
        ) {
            let stream = Stream { seed, ..Stream::default() };
            let values: Vec<f32> =
                (0..elements as u64).map(|i| (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect();
            let shape = Shape::new(elements, 1).unwrap();
            let gradient = Gradient::new(Values::F32(&values), shape).unwrap();
            for setting in settings(elements) {
                let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
                let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
                setting.encode(&gradient, stream, &mut workspace, &mut payload).unwrap();
                // Only bodies are damaged, so that the number of values stays the same.
                for (at, with) in &damage {
                    let body = payload.len() - 16;
                    payload[16 + at.index(body)] ^= with;
                }
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let (mut whole, mut parts, mut apart) = (values.clone(), values.clone(), values.clone());
                let expected = combine(&setting, &Payload::parse(&payload).unwrap(), Combine::Add, &mut whole, &mut []);
                prop_assert_eq!(in_stretches(&payload, false, &mut parts), expected, "{}", setting);
                prop_assert!(expected.is_err() || bits(&whole) == bits(&parts), "{}", setting);
                prop_assert_eq!(in_any_order(&payload, &mut apart), expected, "{}", setting);
                prop_assert!(expected.is_err() || bits(&whole) == bits(&apart), "{}", setting);
                let expected = decode_parsed(&Payload::parse(&payload).unwrap(), &mut whole);
                prop_assert_eq!(in_stretches(&payload, true, &mut parts), expected, "{}", setting);
                prop_assert!(expected.is_err() || whole == parts, "{}", setting);
            }
        }
    }
}
