//! Compares reading in blocks with reading bit by bit.

use super::*;
use crate::rng::Stream;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use proptest::prelude::*;

fn bit(bytes: &[u8], at: u64) -> u64 {
    (bytes[(at / 8) as usize] >> (at % 8) & 1) as u64
}

/// Reads the positions in a range bit by bit, up to the first error.
fn one_by_one(
    layout: Layout,
    bytes: &[u8],
    place: &mut [u64; 2],
    range: Range<u64>,
    found: &mut Vec<u32>,
) -> Result<(), Error> {
    let refused = |what| Err(Error::PayloadBody { what });
    let Layout { low_bits, low_bytes, elements, keep, .. } = layout;
    let last = range.end == elements as u64;
    let (low, high) = bytes.split_at(low_bytes as usize);
    match layout.coding {
        Coding::All => found.extend(range.start as u32..range.end as u32),
        Coding::Bitmap => {
            for position in (range.start..8 * high.len() as u64).filter(|&at| bit(high, at) == 1) {
                match position {
                    _ if position < range.end => found.push(position as u32),
                    _ if last => return refused("a position outside the tensor"),
                    _ => {}
                }
            }
        }
        Coding::EliasFano => {
            if (keep as u64 * low_bits as u64..8 * low_bytes).any(|at| bit(low, at) == 1) {
                return refused("padding is not zero");
            }
            let mut least = range.start;
            let ones = (place[1]..8 * high.len() as u64).filter(|&at| bit(high, at) == 1);
            for (i, one) in (place[0]..).zip(ones) {
                if i >= keep as u64 {
                    return refused("more positions than kept values");
                }
                let low = (0..low_bits as u64).map(|b| bit(low, i * low_bits as u64 + b) << b).sum::<u64>();
                let position = (one - i) << low_bits | low;
                if position < least {
                    return refused("positions do not ascend");
                }
                if position >= range.end {
                    if last {
                        return refused("a position outside the tensor");
                    }
                    *place = [i, one];
                    return Ok(());
                }
                least = position + 1;
                found.push(position as u32);
            }
            place[1] = 8 * high.len() as u64;
        }
    }
    place[0] = found.len() as u64;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn blocks_are_what_comes_one_by_one(
        elements in prop_oneof![1u32..300, 1000u32..20_000],
        part in prop_oneof![1u32..6, 6u32..3000],
        step in prop_oneof![Just(64u64), Just(640), Just(8192), Just(1 << 20)],
        seed: u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let stream = Stream { seed, ..Stream::default() };
        let mut positions: Vec<u32> = (0..elements).filter(|&i| stream.word(i as u64).is_multiple_of(part)).collect();
        if positions.is_empty() {
            positions.push(elements / 2);
        }
        let layout = Layout::new(elements, positions.len() as u32);
        let mut bytes = vec![0xff; layout.bytes() as usize];
        let mut writer = Writer::new(layout, &mut bytes);
        positions.chunks(50).for_each(|some| writer.extend(some));
        writer.finish();
        let mut marks = vec![0u64; elements.div_ceil(64) as usize];
        positions.iter().for_each(|&at| marks[at as usize / 64] |= 1 << (at % 64));
        let (mut marked, words) = (vec![0xff; bytes.len()], (step / 64) as usize);
        let mut writer = Writer::new(layout, &mut marked);
        (0..).step_by(64 * words).zip(marks.chunks(words)).for_each(|(at, some)| writer.extend_marked(at, some));
        writer.finish();
        prop_assert_eq!(&bytes, &marked);
        for (at, with) in damage.iter().filter(|_| layout.bytes() > 0) {
            bytes[at.index(layout.bytes() as usize)] ^= with;
        }
        let (mut found, mut expected) = (vec![], vec![]);
        let (mut place, mut expected_place) = ([0; 2], [0; 2]);
        for start in (0..elements as u64).step_by(step as usize) {
            let range = start..(elements as u64).min(start + step);
            let result = for_each_block(layout, &bytes, &mut place, range.clone(), |block| {
                found.extend_from_slice(block);
                Ok(())
            });
            prop_assert_eq!(result, one_by_one(layout, &bytes, &mut expected_place, range, &mut expected));
            prop_assert_eq!(&found, &expected);
            if result.is_err() {
                return Ok(());
            }
            prop_assert_eq!(place, expected_place);
        }
        prop_assert!(!damage.is_empty() || found == positions);
    }

    /// A layout takes the fewest bytes; ties go to the bitmap, then to fewer low bits.
    #[test]
    fn layouts_are_the_smallest(elements in 1u32.., keep in any::<prop::sample::Index>(), part in 0u32..32) {
        let keep = (keep.index((elements >> part).max(1) as usize) as u32 + 1).min(elements);
        let elias_fano = (0..32).map(|low_bits: u32| {
            let high = (keep as u64 + ((elements - 1) >> low_bits) as u64).div_ceil(8);
            ((keep as u64 * low_bits as u64).div_ceil(8) + high, low_bits, Coding::EliasFano)
        });
        let bitmap = ((elements as u64).div_ceil(8), 0, Coding::Bitmap);
        let best = elias_fano.fold(bitmap, |best, next| if next.0 < best.0 { next } else { best });
        let best = if keep == elements { (0, 0, Coding::All) } else { best };
        let layout = Layout::new(elements, keep);
        prop_assert_eq!((layout.bytes(), layout.low_bits, layout.coding), best);
    }
}
