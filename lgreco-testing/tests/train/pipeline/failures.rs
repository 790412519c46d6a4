//! Eleven ways in which activation memories have failed in practice. Each test shows that lgreco cannot fail in one of
//! these ways.

use super::*;
use lgreco_pipeline::{CoreError, Error};
use lgreco_train::gradient::{Element, F16};

const TILES: Codec = Codec::MinMax { bits: 4, tile: Tile::Elements(128) };
const STORAGES: [RowStorage; 3] = [RowStorage::F32, RowStorage::Bf16, RowStorage::Quantised { bits: 4 }];

fn squared(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|x| x as f64 * x as f64).sum()
}

/// Squared distance, divided by the squared norm of `x`.
fn relative(y: &[f32], x: &[f32]) -> f64 {
    squared(y.iter().zip(x).map(|(y, x)| y - x)) / squared(x.iter().copied())
}

/// 1. Rows in f16 overflowed when they were first stored, and NaN appeared only when they were read an epoch later.
#[test]
fn case_01_large_activations_survive_first_visit_store_and_return() {
    let x: Vec<f32> = noise(256, 1).iter().map(|x| x * 1e37).collect();
    assert!(x.iter().any(|&x| F16::from_f32(x).to_f32().is_infinite()));
    for storage in STORAGES {
        let mut pair = Pair::new(samples(1, 256, TILES, 4, storage)).unwrap();
        assert_eq!(pair.step(&x, &[Some(1)]).unwrap(), x, "the first visit is exact");
        let returned = pair.step(&x, &[Some(1)]).unwrap();
        assert!(relative(&returned, &x) < 1e-3, "{storage:?}: {}", relative(&returned, &x));
        assert_eq!(pair.above.counters(Direction::Forward).non_finite, 0);
    }
}

/// 2. A row that cannot be stored is removed and counted, not lost silently.
#[test]
fn case_02_a_row_that_does_not_fit_is_counted_and_cold_again() {
    let mut pair = Pair::new(samples(1, 2, TILES, 4, RowStorage::Bf16)).unwrap();
    pair.step(&[1.0, 2.0], &[Some(1)]).unwrap();
    for visit in 0..2 {
        // f32::MAX rounds to infinity in bf16.
        let received = pair.step(&[f32::MAX, 2.0], &[Some(1)]).unwrap();
        assert!(received.iter().all(|x| x.is_finite()));
        let counters = pair.below.counters(Direction::Forward);
        assert_eq!((counters.non_finite, counters.hits, counters.misses), (1 + visit, 1, 1 + visit));
        assert_eq!(pair.above.remembered(1, &mut [0.0; 2]), Ok(false));
    }
    pair.step(&[1.0, 2.0], &[Some(1)]).unwrap();
    assert_eq!(pair.above.remembered(1, &mut [0.0; 2]), Ok(true));
}

/// 3. With an exact memory, unchanged activations arrive exactly, under every codec.
#[test]
fn case_03_what_has_not_changed_arrives_exactly() {
    for codec in codecs(30) {
        let mut pair = Pair::new(samples(2, 30, codec, 4, RowStorage::F32)).unwrap();
        let x = noise(60, 3);
        for _ in 0..3 {
            assert_eq!(bits(&pair.step(&x, &ids(0..2)).unwrap()), bits(&x), "{codec:?}");
        }
    }
}

/// 4. Several forward passes of one step have the same bits. No pass reads rows that another pass has written.
#[test]
fn case_04_passes_of_a_step_are_bit_identical() {
    for storage in STORAGES {
        let mut pair = Pair::new(samples(2, 40, TILES, 4, storage)).unwrap();
        pair.step(&noise(80, 1), &ids(0..2)).unwrap();
        for samples in [ids(0..2), ids(1..3)] {
            let x = noise(80, 2);
            let (sent, message) = pair.send(Values::F32(&x), &samples).unwrap();
            let received = pair.deliver(&message).unwrap();
            for _ in 0..3 {
                let (again, decoded) = pair.repeat(sent.ticket, Values::F32(&x), &samples).unwrap();
                assert_eq!((again, bits(&decoded)), (message.clone(), bits(&received)));
            }
            // Another micro-batch with the same samples also reads the committed rows.
            let (second, again) = pair.send(Values::F32(&x), &samples).unwrap();
            assert_eq!(again[HEADER_LEN..], message[HEADER_LEN..]);
            assert_eq!(bits(&pair.deliver(&again).unwrap()), bits(&received));
            pair.commit().unwrap();
            let late = pair.repeat(second.ticket, Values::F32(&x), &samples).err();
            assert!(matches!(late, Some(Error::OutOfStep { what: "ticket of an earlier step", .. })));
            for ticket in [sent.ticket, second.ticket] {
                pair.backward(ticket, Values::F32(&received)).unwrap();
            }
        }
    }
}

/// 5. The update of a forward pass is not lost, whatever happens until the end of the step.
#[test]
fn case_05_staged_updates_survive_until_the_step_ends() {
    let mut pair = Pair::new(samples(2, 40, TILES, 4, RowStorage::F32)).unwrap();
    let x = noise(80, 1);
    let (sent, message) = pair.send(Values::F32(&x), &ids(0..2)).unwrap();
    pair.deliver(&message).unwrap();
    // A hook that is registered again uses the same end. Passes, evaluation and refused calls do not change the update.
    for hook in [&mut pair.clone(), &mut pair] {
        hook.repeat(sent.ticket, Values::F32(&x), &ids(0..2)).unwrap();
        hook.evaluate(Evaluation::Compressed, Values::F32(&noise(80, 9))).unwrap();
        assert!(hook.send(Values::F32(&[f32::NAN; 80]), &ids(0..2)).is_err());
        assert!(hook.deliver(&message).is_err());
        assert_eq!(hook.save().err(), Some(Error::MidStep { what: "saving", pending: 3 }));
        hook.backward(sent.ticket, Values::F32(&x)).unwrap();
        assert_eq!(hook.above.remembered_samples().count(), 0);
        hook.commit().unwrap();
        let mut row = [0.0; 40];
        for end in 0..2 {
            assert_eq!(hook.above.remembered(end, &mut row), Ok(true));
            assert_eq!(row, x[40 * end as usize..][..40]);
        }
    }
}

/// 6. Evaluation never writes to the memory, and does not depend on it.
#[test]
fn case_06_evaluation_leaves_no_trace() {
    let mut memories = sample_memories(4);
    memories.extend(position_memories());
    memories.push(LinkMemory::None);
    let codec = Codec::TopK { keep: 7, values: Dtype::F32 };
    for memory in memories {
        let setting = CutSetting { forward: Link { codec, memory }, ..plain(2, 40, codec) };
        let x = noise(80, 5);
        let fresh = Pair::new(setting).unwrap().evaluate(Evaluation::Compressed, Values::F32(&x)).unwrap();
        let [mut pair, mut twin] = [0; 2].map(|_| Pair::new(setting).unwrap());
        for step in 0..4 {
            let batch = noise(80, 100 + step);
            assert_eq!(pair.step(&batch, &ids(0..2)), twin.step(&batch, &ids(0..2)));
            let compressed = pair.evaluate(Evaluation::Compressed, Values::F32(&x)).unwrap();
            assert_eq!(
                (compressed, pair.evaluate(Evaluation::Plain, Values::F32(&x)).unwrap()),
                (fresh.clone(), x.clone())
            );
            assert_eq!(pair.save(), twin.save(), "{memory:?}");
        }
        assert_ne!(fresh, x);
    }
}

/// 7. A memory of samples needs ids, and a call without them returns an error. Padding does not change a sample's id.
#[test]
fn case_07_samples_without_ids_are_refused() {
    let mut pair = Pair::new(samples(2, 4, TILES, 4, RowStorage::F32)).unwrap();
    for missing in [ids(0..0), ids(0..1), ids(0..3)] {
        let found = pair.send(Values::F32(&[1.0; 8]), &missing);
        let expected =
            Error::Core(CoreError::Length { what: "sample ids, one per sample", expected: 2, found: missing.len() });
        assert_eq!(found.err(), Some(expected));
    }
    let twice = pair.send(Values::F32(&[1.0; 8]), &[Some(9), Some(9)]);
    assert_eq!(twice.err(), Some(Error::DuplicateSample { id: 9 }));
}

/// 8. For unrelated activations, a memory is worse than no memory. Counters show this, and the caller can exclude such
///    samples.
#[test]
fn case_08_memory_is_kept_to_what_repeats() {
    let n = 512;
    let mut pair = Pair::new(samples(2, n as u32, TILES, 100, RowStorage::F32)).unwrap();
    let mut unscoped = Pair::new(samples(2, n as u32, TILES, 100, RowStorage::F32)).unwrap();
    let prompt = noise(n, 1);
    for epoch in 0..4 {
        // The prompt returns with slight changes. The response is different every time.
        let fresh = noise(n, 1000 + epoch);
        let again: Vec<f32> = prompt.iter().zip(&fresh).map(|(p, f)| p + 0.05 * f).collect();
        let x: Vec<f32> = again.into_iter().chain(noise(n, 2000 + epoch)).collect();
        let scoped = pair.step(&x, &[Some(1), None]).unwrap();
        let all = unscoped.step(&x, &[Some(1), Some(2)]).unwrap();
        if epoch > 0 {
            assert!(relative(&scoped[n..], &x[n..]) < 0.75 * relative(&all[n..], &x[n..]));
        }
        assert_eq!(scoped[..n], all[..n]);
    }
    let [scoped, all] = [&pair, &unscoped].map(|pair| *pair.above.counters(Direction::Forward));
    assert!(scoped.change_ratio() < 0.02, "{}", scoped.change_ratio());
    // The prompt has half of the energy. The difference of two unrelated responses has twice the energy of one response.
    assert!((0.8..1.2).contains(&all.change_ratio()), "{}", all.change_ratio());
    assert_eq!((scoped.unremembered, scoped.hits, all.hits), (4, 3, 6));
    assert_eq!(pair.above.remembered_samples().collect::<Vec<_>>(), [1]);
}

/// 9. The memory is bounded. Both ends evict the least recently updated sample first, and count evictions.
#[test]
fn case_09_capacity_is_kept_and_evictions_are_counted() {
    let mut pair = Pair::new(samples(2, 64, TILES, 3, RowStorage::F32)).unwrap();
    let remembered = |pair: &Pair| pair.above.remembered_samples().collect::<Vec<_>>();
    for (samples, expected, evictions) in [
        (ids(1..3), vec![1, 2], 0),
        (ids(3..5), vec![2, 3, 4], 1),
        (vec![Some(2)], vec![3, 4, 2], 1),
        (ids(5..6), vec![4, 2, 5], 2),
        (ids(1..3), vec![5, 1, 2], 3),
    ] {
        pair.step(&noise(64 * samples.len(), samples[0].unwrap()), &samples).unwrap();
        assert_eq!(remembered(&pair), expected);
        assert_eq!(pair.below.counters(Direction::Forward).evictions, evictions);
    }
    // If a step has more samples than the capacity, its last samples are kept.
    for id in 10..14 {
        let (sent, _) = pair.forward(Values::F32(&noise(64, id)), &[Some(id)]).unwrap();
        pair.backward(sent.ticket, Values::F32(&noise(64, id))).unwrap();
    }
    pair.commit().unwrap();
    assert_eq!(remembered(&pair), [11, 12, 13]);
    let counters = pair.above.counters(Direction::Forward);
    assert_eq!((counters.hits, counters.misses, counters.evictions), (2, 10, 7));
    assert_eq!((counters.hits, counters.misses), (2, 10));
    assert_eq!(counters.uncompressed_bytes, 12 * 64 * 4);
    let hits = 2 * (4 + 4 + 32); // minimum, maximum and codes
    assert_eq!(counters.bytes, 9 * HEADER_LEN as u64 + 12 * 16 + 10 * 256 + hits);
    // Four staged rows were stored in addition to the three current rows.
    assert_eq!(pair.above.memory_bytes(), 7 * 256);
    for _ in 0..20 {
        pair.step(&noise(128, 3), &ids(20..22)).unwrap();
    }
    assert_eq!(pair.above.memory_bytes(), 7 * 256, "rows are used again");
}

/// 10. If a codec sent the same few entries at every visit, an error would remain. TopK of the change sends other
///     entries each time.
#[test]
fn case_10_no_entry_is_left_out_for_ever() {
    let (n, keep) = (60usize, 10usize);
    let codec = Codec::TopK { keep: keep as u32, values: Dtype::F32 };
    let mut pair = Pair::new(samples(1, n as u32, codec, 4, RowStorage::F32)).unwrap();
    pair.step(&noise(n, 1), &[Some(1)]).unwrap();
    let x = noise(n, 2);
    let mut fixed = noise(n, 1);
    let mut floor = 0.0;
    for visit in 1..=n / keep {
        let y = pair.step(&x, &[Some(1)]).unwrap();
        let wrong = y.iter().zip(&x).filter(|(y, x)| (*y - *x).abs() > 1e-6).count();
        assert!(wrong <= n - keep * visit, "visit {visit}: {wrong} of {n} entries are still wrong");
        fixed[..keep].copy_from_slice(&x[..keep]);
        floor = relative(&fixed, &x);
    }
    assert!(floor > 1.0, "a fixed subset stays wrong: {floor}");
    assert_eq!(bits(&pair.step(&x, &[Some(1)]).unwrap()).len(), n);
}

/// 11. If a configured cut is not used, the end of the first step reports it.
#[test]
fn case_11_a_step_without_messages_is_an_error() {
    let mut pair = Pair::new(CutSetting::new(0, 2, 8)).unwrap();
    let unused = |found: Result<(), Error>| {
        matches!(
            found,
            Err(Error::Core(CoreError::Parameter { what: "messages forward in this step", value: 0.0, .. }))
        )
    };
    assert!(unused(pair.above.commit_step()) && unused(pair.below.commit_step()));
    assert_eq!(pair.above.counters(Direction::Forward).messages, 0);
    // After an evaluation, the cut is still unused.
    pair.evaluate(Evaluation::Compressed, Values::F32(&[1.0; 16])).unwrap();
    assert!(unused(pair.above.commit_step()));
    pair.step(&[1.0; 16], &[]).unwrap();
    assert_eq!(pair.below.counters(Direction::Forward).messages, 1);
    assert_eq!(pair.below.counters(Direction::Backward).messages, 1);
    assert!(unused(pair.above.commit_step()) && unused(pair.below.commit_step()));
}
