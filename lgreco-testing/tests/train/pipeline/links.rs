//! Tests of both ends on sequences of batches.

use super::*;
use lgreco_testing::topk::order;
use lgreco_train::feedback::{Residual, Storage};
use proptest::prelude::*;

/// Sends the same constant tensor through Top-1, forward and as a gradient. Returns the received values of each step.
fn constant_stream(memory: LinkMemory, steps: usize) -> Vec<Vec<f32>> {
    let link = Link { codec: top(1), memory };
    let setting = CutSetting { forward: link, backward: link, ..plain(1, 3, top(1)) };
    let mut pair = Pair::new(setting).unwrap();
    let constant = Values::F32(&[3.0, 2.0, 1.0]);
    let both = (0..steps).map(|_| {
        let (sent, forward) = pair.forward(constant, &[]).unwrap();
        assert_eq!(pair.backward(sent.ticket, constant).unwrap(), forward);
        forward
    });
    both.collect()
}

#[test]
fn a_constant_tensor_through_top_1() {
    let sent = constant_stream(LinkMemory::Residual(Residual::CLASSIC), 4);
    assert_eq!(sent, [[3., 0., 0.], [0., 4., 0.], [6., 0., 0.], [0., 4., 0.]]);
    // EF21's receiver uses its estimate. The estimate is exact after three messages, and then stays the same.
    let estimate = constant_stream(LinkMemory::Ef21, 4);
    assert_eq!(estimate, [[3., 0., 0.], [3., 2., 0.], [3., 2., 1.], [3., 2., 1.]]);
    assert_eq!(constant_stream(LinkMemory::None, 2), [[3., 0., 0.]; 2]);
}

/// Batches of `count` steps: a common vector plus noise.
fn batches(n: usize, count: u64) -> Vec<Vec<f32>> {
    let mean = noise(n, 1000);
    (0..count).map(|t| mean.iter().zip(noise(n, t)).map(|(m, x)| 0.3 * m + x).collect()).collect()
}

/// Under error feedback, received values and residual add up to the inputs: Σ received + e = Σ inputs. The residual e
/// follows from the textbook recursion on the received values. A last message shows that the sender has the same e.
#[test]
fn error_feedback_conserves() {
    let (samples, features) = (4u32, 30u32);
    let n = (samples * features) as usize;
    for codec in codecs(features) {
        if matches!(codec, Codec::TopK { values: Dtype::F16, .. }) {
            continue;
        }
        let link = Link { codec, memory: LinkMemory::Residual(Residual::CLASSIC) };
        let setting = CutSetting { forward: link, backward: link, ..plain(samples, features, codec) };
        let mut pair = Pair::new(setting).unwrap();
        let (mut owed, mut memory) = (vec![0.0f64; n], vec![0.0f32; n]);
        for x in batches(n, 30) {
            let (sent, y) = pair.forward(Values::F32(&x), &[]).unwrap();
            assert_eq!(pair.backward(sent.ticket, Values::F32(&x)).unwrap(), y);
            for i in 0..n {
                owed[i] += x[i] as f64 - y[i] as f64;
                memory[i] = (memory[i] + x[i]) - y[i];
                assert!((owed[i] - memory[i] as f64).abs() < 1e-4, "{codec:?}");
            }
            // The residual is the codec's error on one batch, and does not grow.
            assert!(memory.iter().all(|e| e.abs() < 20.0), "{codec:?}");
        }
        // The sender has the same memory, and adds this memory to the next batch.
        let next = noise(n, 99);
        let offered: Vec<f32> = next.iter().zip(&memory).map(|(x, e)| e + x).collect();
        let mut plain = Pair::new(self::plain(samples, features, codec)).unwrap();
        let expected = plain.forward(Values::F32(&offered), &[]).unwrap().1;
        assert_eq!(pair.forward(Values::F32(&next), &[]).unwrap().1, expected, "{codec:?}");
    }
}

#[test]
fn what_top_k_leaves_out_comes_later_to_the_bit() {
    let link = Link { codec: top(5), memory: LinkMemory::Residual(Residual::CLASSIC) };
    let mut pair = Pair::new(CutSetting { forward: link, ..plain(2, 20, top(5)) }).unwrap();
    let mut memory = [0.0f32; 40];
    for x in batches(40, 20) {
        let (sent, y) = pair.forward(Values::F32(&x), &[]).unwrap();
        pair.above.forget(sent.ticket).unwrap();
        pair.below.forget(sent.ticket).unwrap();
        for i in 0..40 {
            let p = memory[i] + x[i];
            assert!(y[i] == p || y[i] == 0.0);
            memory[i] = p - y[i];
        }
        assert!(y.chunks(20).all(|sample| sample.iter().filter(|&&x| x != 0.0).count() == 5));
    }
}

/// A batch with fewer samples may have a longer body. For example, EDEN has four scales for 27 values, but two for 36.
#[test]
fn every_smaller_batch_fits_the_message() {
    for features in [1, 3, 9, 1365] {
        for codec in codecs(features) {
            let values = [0.5; 4 * 1365];
            let first = |samples: u32| Values::F32(&values[..(samples * features) as usize]);
            for samples in 1..=4 {
                let mut pair = Pair::new(plain(4, features, codec)).unwrap();
                let (sent, _) = pair.forward(first(samples), &[]).unwrap();
                pair.backward(sent.ticket, first(samples)).unwrap();
                pair.evaluate(Evaluation::Compressed, first(samples)).unwrap();
            }
            for known in 0..4 {
                let ids = |seen: u64| [0, 1, 2, 3].map(|id: u64| Some(if id < known { id } else { id + seen }));
                let mut pair = Pair::new(super::samples(4, features, codec, 8, RowStorage::F32)).unwrap();
                for seen in [0, 4] {
                    pair.forward(first(4), &ids(seen)).unwrap();
                    pair.commit().unwrap();
                }
            }
        }
    }
}

/// A residual in bf16 is rounded with new random bits for every message. A small value waits for hundreds of messages
/// before it exceeds the large one, but arrives completely on average.
#[test]
fn small_values_are_not_lost_to_rounding() {
    let residual = Residual { gain: 1.0, reset_every: 0, storage: Storage::Bf16 };
    let link = Link { codec: top(1), memory: LinkMemory::Residual(residual) };
    let mut pair = Pair::new(CutSetting { forward: link, ..plain(1, 2, top(1)) }).unwrap();
    let mut workspace = vec![0; pair.above.workspace_len()];
    let mut message = vec![0; pair.above.message_len()];
    let (mut received, mut sum) = ([0.0; 2], 0.0);
    for _ in 0..30_000 {
        let values = Values::F32(&[1.0, 1.0 / 1500.0]);
        let sent = pair.above.send(values, &[], &mut workspace, &mut message).unwrap();
        pair.below.receive(&message[..sent.len], &mut workspace, &mut received).unwrap();
        pair.above.forget(sent.ticket).unwrap();
        pair.below.forget(sent.ticket).unwrap();
        sum += received[1];
    }
    // The second values sum to 20. Each message that sends the second value sends about 1 to 2.
    assert!((16.0..24.0).contains(&sum), "{sum}");
}

/// Compares with a textbook form of EF-mixed, which sorts each sample completely.
#[test]
fn ef_mixed_chooses_in_each_sample() {
    let (samples, features, keep) = (3usize, 50usize, 9usize);
    let link = Link { codec: top(keep as u32), memory: LinkMemory::Mixed(Residual::CLASSIC) };
    let mut pair = Pair::new(CutSetting { forward: link, ..plain(samples as u32, features as u32, top(9)) }).unwrap();
    let mut memory = vec![0.0f32; samples * features];
    for x in batches(samples * features, 12) {
        let (sent, y) = pair.forward(Values::F32(&x), &[]).unwrap();
        pair.above.forget(sent.ticket).unwrap();
        pair.below.forget(sent.ticket).unwrap();
        for s in 0..samples {
            let at = s * features..(s + 1) * features;
            let (g, m) = (&x[at.clone()], &mut memory[at.clone()]);
            let p: Vec<f32> = g.iter().zip(&*m).map(|(g, m)| m + g).collect();
            let mut support: Vec<usize> = order(g)[..keep.div_ceil(2)].to_vec();
            support.extend(order(m)[..keep / 2].iter().filter(|i| !support.contains(i)).collect::<Vec<_>>());
            let mut refill = order(&p);
            refill.retain(|i| !support.contains(i));
            support.extend(&refill[..keep - support.len()]);
            for (i, &y) in y[at].iter().enumerate() {
                assert_eq!(y, if support.contains(&i) { p[i] } else { 0.0 });
                m[i] = p[i] - y;
            }
        }
    }
}

/// Compares both ends of EF21 with the textbook form. The message's checksum shows that the sender has the same bits.
#[test]
fn both_ends_of_ef21_follow_the_textbook() {
    let (samples, features) = (3u32, 24u32);
    let n = (samples * features) as usize;
    for codec in codecs(features) {
        let link = Link { codec, memory: LinkMemory::Ef21 };
        let setting = CutSetting { forward: link, backward: link, ..plain(samples, features, codec) };
        let mut pair = Pair::new(setting).unwrap();
        let mut estimate = vec![0.0f32; n];
        for x in batches(n, 25) {
            let difference: Vec<f32> = x.iter().zip(&estimate).map(|(x, a)| x - a).collect();
            let mut fresh = Pair::new(plain(samples, features, codec)).unwrap();
            let correction = fresh.forward(Values::F32(&difference), &[]).unwrap().1;
            estimate.iter_mut().zip(&correction).for_each(|(a, c)| *a += c);
            let (sent, y) = pair.forward(Values::F32(&x), &[]).unwrap();
            assert_eq!(bits(&y), bits(&estimate), "{codec:?}");
            assert_eq!(bits(&pair.backward(sent.ticket, Values::F32(&x)).unwrap()), bits(&estimate));
        }
    }
}

/// Compares AQ-SGD with its textbook form, for exact rows: m ← a, then m ← m + Q(a − m).
#[test]
fn remembered_samples_follow_the_textbook() {
    let features = 12;
    for codec in codecs(features as u32) {
        let mut pair = Pair::new(samples(2, features as u32, codec, 100, RowStorage::F32)).unwrap();
        let mut rows = vec![None::<Vec<f32>>; 4];
        for step in 0..12u64 {
            let sample = |k: u64| (step + k) % 4;
            let mut expected = Vec::new();
            let x: Vec<f32> = (0..2).flat_map(|k| noise(features, sample(k) * 1000 + step / 4)).collect();
            // If both samples are remembered, their deltas are compressed as one batch.
            let known: Vec<usize> = (0..2).filter(|&k| rows[sample(k as u64) as usize].is_some()).collect();
            let at = |k: usize| &x[k * features..(k + 1) * features];
            let deltas: Vec<f32> = known
                .iter()
                .flat_map(|&k| {
                    let row = rows[sample(k as u64) as usize].as_ref().unwrap();
                    at(k).iter().zip(row).map(|(a, m)| a - m).collect::<Vec<f32>>()
                })
                .collect();
            let mut decoded = vec![0.0; deltas.len()];
            if !known.is_empty() {
                let mut fresh = Pair::new(plain(2, features as u32, codec)).unwrap();
                decoded = fresh.forward(Values::F32(&deltas), &[]).unwrap().1;
            }
            let mut decoded = decoded.chunks(features);
            for k in 0..2 {
                let row = &mut rows[sample(k as u64) as usize];
                *row = Some(match row.take() {
                    None => at(k).to_vec(),
                    Some(m) => m.iter().zip(decoded.next().unwrap()).map(|(m, d)| m + d).collect(),
                });
                expected.extend(row.clone().unwrap());
            }
            let received = pair.step(&x, &ids(0..2).iter().map(|k| k.map(sample)).collect::<Vec<_>>()).unwrap();
            assert_eq!(bits(&received), bits(&expected), "{codec:?} step {step}");
        }
        assert_eq!(pair.above.counters(Direction::Forward).misses, 4);
        assert_eq!(pair.above.counters(Direction::Forward).hits, 20);
    }
}

/// If rows are rounded, the stage uses the unrounded sum, and both ends remember the rounded sum.
#[test]
fn rows_are_rounded_alike_at_both_ends() {
    let codec = Codec::MinMax { bits: 4, tile: Tile::Elements(16) };
    for (storage, spacing) in [(RowStorage::Bf16, 1.0 / 256.0), (RowStorage::Quantised { bits: 4 }, 0.5 / 7.0)] {
        let mut pair = Pair::new(samples(2, 150, codec, 10, storage)).unwrap();
        let x = noise(300, 4);
        for _ in 0..5 {
            let y = pair.step(&x, &ids(0..2)).unwrap();
            let largest = y.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
            let mut row = [0.0; 150];
            assert_eq!(pair.above.remembered(1, &mut row), Ok(true));
            assert!(row.iter().zip(&y[150..]).all(|(m, y)| (m - y).abs() <= spacing * largest), "{storage:?}");
        }
    }
}

/// Under the shared-index codec, gradients arrive at the positions of kept activations, for micro-batches in any order.
#[test]
fn gradients_come_back_where_activations_were_kept() {
    for memory in [LinkMemory::None, LinkMemory::Residual(Residual::CLASSIC), LinkMemory::Mixed(Residual::CLASSIC)] {
        for (features, keep) in [(40u32, 4u32), (40, 40), (300, 3)] {
            let shared = Codec::SharedIndex { keep, values: Dtype::F32 };
            let backward = Link { codec: shared, memory: LinkMemory::None };
            let forward = Link { codec: top(keep), memory };
            let mut pair = Pair::new(CutSetting { forward, backward, ..plain(2, features, top(keep)) }).unwrap();
            let n = 2 * features as usize;
            for round in 0..3 {
                let micro: Vec<_> =
                    (0..4).map(|i| pair.forward(Values::F32(&noise(n, 10 * round + i)), &[]).unwrap()).collect();
                for i in [2, 0, 3, 1] {
                    let g = noise(n, 777 + i as u64);
                    let (sent, received) = &micro[i];
                    let back = pair.backward(sent.ticket, Values::F32(&g)).unwrap();
                    for ((y, x), g) in back.iter().zip(received).zip(&g) {
                        assert_eq!(*y, if *x != 0.0 { *g } else { 0.0 });
                    }
                }
            }
            let bytes = pair.above.counters(Direction::Backward).bytes;
            assert_eq!(bytes, 12 * (HEADER_LEN as u64 + 2 * keep as u64 * 4), "values only");
        }
    }
}

#[test]
fn gradients_under_shared_index_may_have_a_memory() {
    for memory in [LinkMemory::Residual(Residual::CLASSIC), LinkMemory::Ef21] {
        let backward = Link { codec: Codec::SharedIndex { keep: 1, values: Dtype::F32 }, memory };
        let forward = Link { codec: top(1), memory: LinkMemory::None };
        let mut pair = Pair::new(CutSetting { forward, backward, ..plain(1, 2, top(1)) }).unwrap();
        let mut delivered = |x: [f32; 2]| {
            let (sent, _) = pair.forward(Values::F32(&x), &[]).unwrap();
            pair.backward(sent.ticket, Values::F32(&[1.0, 2.0])).unwrap()
        };
        assert_eq!(delivered([5.0, 0.0]), [1.0, 0.0]);
        let second = if memory == LinkMemory::Ef21 { [1.0, 2.0] } else { [0.0, 4.0] };
        assert_eq!(delivered([0.0, 5.0]), second);
    }
}

proptest! {
    /// No message is longer than announced, for first and later visits of samples.
    #[test]
    fn messages_are_as_long_as_announced(features in 1u32..20, batch in 1u32..5, known in 0u64..5, seed: u64) {
        for codec in codecs(features) {
            let mut pair = Pair::new(samples(batch, features, codec, 9, RowStorage::F32)).unwrap();
            let x = noise((batch * features) as usize, seed);
            for id in 0..known {
                pair.forward(Values::F32(&x[..features as usize]), &[Some(id)]).unwrap();
                let ticket = pair.above.counters(Direction::Forward).messages - 1;
                pair.backward(ticket, Values::F32(&x[..features as usize])).unwrap();
            }
            let _ = pair.commit();
            let (sent, _) = pair.forward(Values::F32(&x), &ids(0..batch as u64)).unwrap();
            prop_assert!(sent.len <= pair.above.message_len());
        }
    }
}
