//! Tests of saved settings, of saved ends, and of the bytes of messages.

use super::*;
use lgreco_pipeline::{CoreError, Error};
use lgreco_testing::reseal;
use lgreco_train::feedback::Residual;
use proptest::prelude::*;

const TILES: Codec = Codec::MinMax { bits: 4, tile: Tile::Elements(128) };

/// Settings with every kind of memory, in each direction that allows it.
fn settings() -> Vec<CutSetting> {
    let codec = Codec::TopK { keep: 3, values: Dtype::F32 };
    let mut memories = position_memories();
    memories.extend(sample_memories(3));
    memories.push(LinkMemory::None);
    let mut settings = Vec::new();
    for &memory in &memories {
        settings.push(CutSetting { forward: Link { codec, memory }, ..plain(2, 9, codec) });
        if !matches!(memory, LinkMemory::Samples { .. }) {
            settings.push(CutSetting { backward: Link { codec, memory }, ..plain(2, 9, codec) });
        }
    }
    settings
}

#[test]
fn saved_ends_continue_to_the_bit() {
    for setting in settings() {
        let mut pair = Pair::new(setting).unwrap();
        for step in 0..8u64 {
            let saved = pair.save().unwrap();
            let mut twin = Pair::restore(setting, &saved).unwrap();
            assert_eq!(twin.save().unwrap(), saved);
            let samples = ids(step % 4..step % 4 + 2);
            for pair in [&mut pair, &mut twin] {
                let (sent, message) = pair.send(Values::F32(&noise(18, step)), &samples).unwrap();
                pair.deliver(&message).unwrap();
                pair.backward(sent.ticket, Values::F32(&noise(18, 50 + step))).unwrap();
                pair.commit().unwrap();
            }
            assert_eq!(twin.save().unwrap(), pair.save().unwrap(), "{setting:?}");
        }
    }
}

/// A saved memory keyed by position is not loaded as a memory of another kind.
#[test]
fn memories_by_position_are_told_apart() {
    let residual = Residual::CLASSIC;
    let kinds = [LinkMemory::Residual(residual), LinkMemory::Mixed(residual), LinkMemory::Ef21];
    let settings = kinds.map(|memory| CutSetting { forward: Link { codec: top(3), memory }, ..plain(2, 9, top(3)) });
    for setting in settings {
        let saved = Pair::new(setting).unwrap().save().unwrap();
        for other in settings.into_iter().filter(|&other| other != setting) {
            let refused = Pair::restore(other, &saved).err();
            assert!(matches!(refused, Some(Error::OtherSetting { .. })), "{setting:?}, {other:?}");
        }
    }
}

#[test]
fn settings_that_differ_are_compared_field_by_field() {
    let trained = CutSetting::new(1, 4, 6);
    let codec = Codec::Dense { values: Dtype::F32 };
    let compare = |change: &dyn Fn(&mut CutSetting)| {
        let mut other = trained;
        change(&mut other);
        other.compare(&trained)
    };
    assert_eq!(compare(&|_| ()), Compatibility::Same);
    let evaluates = |what| Compatibility::EvaluatesDifferently { what };
    assert_eq!(compare(&|s| s.cut = 2), evaluates("cut"));
    assert_eq!(compare(&|s| s.features = 7), evaluates("features"));
    assert_eq!(compare(&|s| (s.forward.codec, s.batch) = (codec, 9)), evaluates("forward codec"));
    let trains = |what| Compatibility::TrainsDifferently { what };
    assert_eq!(compare(&|s| s.forward.memory = LinkMemory::Ef21), trains("forward memory"));
    assert_eq!(compare(&|s| s.backward.codec = codec), trains("backward codec"));
    assert_eq!(compare(&|s| s.backward.memory = LinkMemory::Ef21), trains("backward memory"));
    assert_eq!(compare(&|s| s.batch = 5), trains("batch"));
    assert_eq!(compare(&|s| s.in_flight = 5), trains("micro-batches in flight"));
}

#[test]
fn ends_are_saved_between_steps_only() {
    let mut pair = Pair::new(samples(1, 3, TILES, 3, RowStorage::F32)).unwrap();
    let (sent, _) = pair.forward(Values::F32(&[1.0; 3]), &[Some(1)]).unwrap();
    assert_eq!(pair.save().err(), Some(Error::MidStep { what: "saving", pending: 2 }));
    pair.backward(sent.ticket, Values::F32(&[1.0; 3])).unwrap();
    assert_eq!(pair.save().err(), Some(Error::MidStep { what: "saving", pending: 1 }));
    pair.commit().unwrap();
    let saved = pair.save().unwrap();
    assert!(matches!(pair.above.save(&mut vec![0; saved[0].len() - 1]), Err(Error::Core(CoreError::Length { .. }))));
}

#[test]
fn ends_of_another_setting_role_or_run_are_refused() {
    let setting = samples(1, 3, TILES, 3, RowStorage::F32);
    let mut pair = Pair::new(setting).unwrap();
    pair.step(&[1.0, 2.0, 3.0], &[Some(1)]).unwrap();
    let saved = pair.save().unwrap();
    let other = CutSetting { in_flight: 5, ..setting };
    let expected = Error::OtherSetting { what: "micro-batches in flight" };
    assert_eq!(Upstream::restore(other, &saved[0]).err(), Some(expected));
    let swapped = Upstream::restore(setting, &saved[1]).err();
    assert!(matches!(
        swapped,
        Some(Error::Core(CoreError::SavedState { what: "end of a cut (0 upstream, 1 downstream)", found: 1 }))
    ));
    // One end is resumed. The other end starts without memory, first with the same generation, then with a new
    // generation.
    let mut resumed = Pair::restore(setting, &saved).unwrap();
    resumed.below = Downstream::new(setting, 0).unwrap();
    let (_, message) = resumed.send(Values::F32(&[1.0; 3]), &[Some(1)]).unwrap();
    let expected = Error::OutOfStep { what: "sequence number", expected: 0, found: 1 };
    assert_eq!(resumed.deliver(&message), Err(expected));
    resumed.below = Downstream::new(setting, 1).unwrap();
    assert_eq!(resumed.deliver(&message), Err(Error::OutOfStep { what: "generation", expected: 1, found: 0 }));
}

/// If the ends have different rows for a sample, the sample's next visit returns an error that names the sample.
#[test]
fn ends_that_remember_other_rows_are_told() {
    let setting = samples(1, 2, TILES, 3, RowStorage::F32);
    let mut pair = Pair::new(setting).unwrap();
    pair.step(&[1.0, 2.0], &[Some(77)]).unwrap();
    let saved = pair.save().unwrap();
    // The last eight bytes of the forward part are the row. The backward part follows.
    let row = saved[1].len() - 8 - (16 + 80) - 8;
    assert_eq!(saved[1][row..row + 8], [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
    let with = |change: &dyn Fn(&mut Vec<u8>), samples: &[Option<u64>]| {
        let mut bytes = saved.clone();
        change(&mut bytes[1]);
        reseal(&mut bytes[1]);
        let mut pair = Pair::restore(setting, &bytes).unwrap();
        let (_, message) = pair.send(Values::F32(&[1.0, 2.0]), samples).unwrap();
        pair.deliver(&message).err()
    };
    assert_eq!(with(&|_| (), &[Some(77)]), None);
    let what = "what is remembered has another checksum";
    assert_eq!(with(&|b| b[row] ^= 1, &[Some(77)]), Some(Error::SampleOutOfStep { id: 77, what }));
    let what = "sent as a change, but not remembered here";
    assert_eq!(with(&|b| b[row - 8] = 78, &[Some(77)]), Some(Error::SampleOutOfStep { id: 77, what }));
    let what = "sent as its first visit, but remembered here";
    assert_eq!(with(&|b| b[row - 8] = 78, &[Some(78)]), Some(Error::SampleOutOfStep { id: 78, what }));
}

#[test]
fn strange_saved_ends_are_refused() {
    for setting in settings() {
        let mut pair = Pair::new(setting).unwrap();
        pair.step(&noise(18, 1), &ids(0..2)).unwrap();
        let [above, below] = pair.save().unwrap();
        for len in 0..above.len() {
            assert!(Upstream::restore(setting, &above[..len]).is_err());
        }
        assert!(Upstream::restore(setting, &[&above[..], &[0]].concat()).is_err());
        for at in 0..above.len() {
            for bit in 0..8 {
                let mut bytes = above.clone();
                bytes[at] ^= 1 << bit;
                check_saved(&bytes);
            }
        }
        check_saved(&below);
    }
    // Three bf16 values take six of eight bytes. The other two bytes are padding.
    let setting = samples(1, 3, TILES, 3, RowStorage::Bf16);
    let mut pair = Pair::new(setting).unwrap();
    pair.step(&[1.0; 3], &[Some(1)]).unwrap();
    let mut padded = pair.save().unwrap()[0].clone();
    let last = padded.len() - 8 - (16 + 80) - 1;
    padded[last] = 1;
    reseal(&mut padded);
    let found = Upstream::restore(setting, &padded).err();
    assert!(
        matches!(found, Some(Error::Core(CoreError::SavedState { what: "row of a sample, id", found: 1 }))),
        "{found:?}"
    );

    let setting = samples(1, 2, TILES, 3, RowStorage::F32);
    let mut pair = Pair::new(setting).unwrap();
    pair.step(&[1.0, 2.0], &[Some(1)]).unwrap();
    pair.step(&[1.0, 2.0], &[Some(2)]).unwrap();
    let [above, _] = pair.save().unwrap();
    let rows = above.len() - 8 - (16 + 80) - 2 * 16;
    let refused = |at: usize, bytes: &[u8], expected: &str| {
        let mut changed = above.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        reseal(&mut changed);
        let found = Upstream::restore(setting, &changed).err();
        assert!(
            matches!(found, Some(Error::Core(CoreError::SavedState { what, .. })) if what == expected),
            "{expected}: {found:?}"
        );
    };
    refused(rows + 16, &[1], "a sample twice, id");
    refused(rows + 12, &f32::NAN.to_le_bytes(), "row of a sample, id");
    refused(rows - 8, &[4], "number of samples");
    refused(0, b"M", "magic or version of a cut");
    refused(3, &[1], "magic or version of a cut");
    refused(5, &[1], "reserved field");
    refused(19, &[0x80], "number of steps");
    refused(20, &[9], "first message of the step");
    refused(28, b"M", "magic or version of a cut's setting");
    let forward = 28 + CutSetting::BYTES - 8; // without its checksum
    refused(forward + 7, &[0x80], "sequence number");
    refused(forward + 15, &[0x80], "one of the counters, messages");
    refused(forward + 8 + 72, &f64::NAN.to_le_bytes(), "one of the counters, messages");
}

#[test]
fn every_flipped_bit_is_refused() {
    for setting in settings() {
        let mut pair = Pair::new(setting).unwrap();
        pair.step(&noise(18, 1), &ids(0..2)).unwrap();
        let [above, below] = pair.save().unwrap();
        let flip = |bytes: &[u8], bit: usize| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        let refused = |bit, found: Option<Error>| match found {
            Some(Error::Core(CoreError::SavedState { .. })) => assert!(bit < 32, "bit {bit}"),
            found => assert!(
                matches!(found, Some(Error::Core(CoreError::Checksum { .. }))) && bit >= 32,
                "bit {bit}: {found:?}"
            ),
        };
        (0..8 * above.len()).for_each(|bit| refused(bit, Upstream::restore(setting, &flip(&above, bit)).err()));
        (0..8 * below.len()).for_each(|bit| refused(bit, Downstream::restore(setting, &flip(&below, bit)).err()));
        let bytes = setting.to_bytes();
        (0..8 * bytes.len()).for_each(|bit| refused(bit, CutSetting::from_bytes(&flip(&bytes, bit)).err()));
    }
}

#[test]
fn the_bytes_are_fixed() {
    let residual = LinkMemory::Residual(Residual { gain: 0.5, reset_every: 512, ..Residual::CLASSIC });
    let samples = LinkMemory::Samples { capacity: 258, storage: RowStorage::Quantised { bits: 4 } };
    let setting = CutSetting {
        cut: 1,
        batch: 2,
        features: 6,
        in_flight: 3,
        forward: Link { codec: Codec::TopK { keep: 4, values: Dtype::Bf16 }, memory: samples },
        backward: Link {
            codec: Codec::Symmetric { bits: 5, scope: Scope::Channel { channels: 3 }, scale: Dtype::Bf16 },
            memory: residual,
        },
    };
    let head = [b'L', b'S', b'C', 2, 1, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0, 3, 0, 0, 0];
    let forward = [3, 0, 2, 0, 4, 0, 0, 0, 4, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0];
    let backward = [2, 5, 2, 1, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x3f, 0, 2, 0, 0, 0, 0, 0, 0];
    let mut sealed = [&head[..], &forward, &backward, &[0; 8]].concat();
    reseal(&mut sealed);
    assert_eq!(setting.to_bytes()[..], sealed);
    assert_eq!(CutSetting::from_bytes(&setting.to_bytes()), Ok(setting));

    let codec = Codec::TopK { keep: 1, values: Dtype::F32 };
    let memory = LinkMemory::Samples { capacity: 9, storage: RowStorage::F32 };
    let mut pair = Pair::new(CutSetting { cut: 7, forward: Link { codec, memory }, ..plain(2, 3, codec) }).unwrap();
    pair.step(&[1.0, 2.0, 3.0], &[Some(5)]).unwrap();
    let (_, message) = pair.send(Values::F32(&[1.0, 2.0, 4.0, 8.0, 0.0, -1.0]), &[Some(5), Some(6)]).unwrap();
    let header = [
        [b'L', b'C', 1, 0, 0, 4, 0, 0], // version, forward, training, AQ-SGD, f32
        [3, 0, 0, 0, 1, 0, 0, 0],       // TopK of 1 in f32
        [7, 0, 0, 0, 2, 0, 0, 0],       // cut, samples
        [3, 0, 0, 0, 0, 0, 0, 0],       // features, generation
        [1, 0, 0, 0, 0, 0, 0, 0],       // sequence number
        [1, 0, 0, 0, 0, 0, 0, 0],       // ticket
        [1, 0, 0, 0, 0, 0, 0, 0],       // step
        [0; 8],
    ];
    assert_eq!(message[..64], header.concat());
    let checksum: u32 = {
        // Computes the checksum by its definition, for three words.
        let mix = |hash: u32, word: u32| (hash ^ word).wrapping_mul(0x9e37_79b1).rotate_left(13);
        let words = [1f32, 2.0, 3.0].map(f32::to_bits);
        let lanes: Vec<u32> =
            (0..8).map(|l| words.get(l).map_or(0x9e37_79b1, |&word| mix(0x9e37_79b1, word))).collect();
        lanes.into_iter().fold(3, mix)
    };
    let change = [&5u64.to_le_bytes()[..], &checksum.to_le_bytes(), &[1, 0, 0, 0]].concat();
    let first = [&6u64.to_le_bytes()[..], &[0; 8]].concat();
    assert_eq!(message[64..96], [change, first].concat());
    assert_eq!(message[96..108], [8f32, 0.0, -1.0].map(f32::to_le_bytes).concat());
    assert_eq!(message[108..], [&1f32.to_le_bytes()[..], &[0b100]].concat());
}

/// TopK of one in 2^31 values makes a short message. The damaged header could be valid under another setting, but not
/// under this one.
#[test]
fn no_room_is_made_for_what_a_damaged_header_states() {
    let codec = Codec::TopK { keep: 1, values: Dtype::F32 };
    let mut pair = Pair::new(plain(1, 2, codec)).unwrap();
    let (_, mut message) = pair.send(Values::F32(&[1.0, 2.0]), &[]).unwrap();
    assert_eq!(pair.below.values_len(&message), Ok(2));
    assert!(matches!(
        pair.above.values_len(&message),
        Err(Error::Core(CoreError::PayloadHeader { what: "direction", .. }))
    ));
    message[24..28].copy_from_slice(&(1u32 << 31).to_le_bytes());
    message.resize(HEADER_LEN + codec.body_len(1, 1 << 31).unwrap(), 0);
    assert_eq!(Message::parse(&message).unwrap().header.shape.elements(), 1 << 31);
    assert!(matches!(
        pair.below.values_len(&message),
        Err(Error::Core(CoreError::PayloadHeader { what: "features", .. }))
    ));
    assert!(matches!(pair.deliver(&message), Err(Error::Core(CoreError::PayloadHeader { what: "features", .. }))));
}

#[test]
fn strange_messages_are_refused() {
    let pair = Pair::new(plain(1, 2, Codec::Dense { values: Dtype::F32 })).unwrap();
    let (_, message) = pair.clone().send(Values::F32(&[1.0, 2.0]), &[]).unwrap();
    let refused = |at: usize, byte: u8| {
        let mut bytes = message.clone();
        bytes[at] = byte;
        Message::parse(&bytes).err()
    };
    for at in [0, 1, 2, 7, 56, 60] {
        assert!(matches!(refused(at, 9), Some(Error::Core(CoreError::PayloadHeader { .. }))), "byte {at}");
    }
    for at in [3, 4, 5, 6, 8, 9, 11] {
        assert!(matches!(refused(at, 9), Some(Error::Core(CoreError::PayloadField { .. }))), "byte {at}");
    }
    // Each pair of changed bytes makes a forbidden combination: gradients with evaluation, with samples or with a step,
    // or evaluation with a sequence number.
    let twice = |a: (usize, u8), b: (usize, u8)| {
        let mut bytes = message.clone();
        bytes[a.0] = a.1;
        bytes[b.0] = b.1;
        Message::parse(&bytes).err()
    };
    for (a, b) in [((3, 1), (4, 1)), ((3, 1), (5, 4)), ((3, 1), (48, 1)), ((4, 1), (32, 1)), ((4, 2), (40, 1))] {
        assert!(matches!(twice(a, b), Some(Error::Core(CoreError::PayloadHeader { .. }))), "{a:?} {b:?}");
    }
    assert!(matches!(twice((20, 0), (20, 0)), Some(Error::Core(CoreError::Length { .. }))));
    assert!(matches!(refused(27, 1), Some(Error::Core(CoreError::Length { .. }))));
    for len in 0..message.len() {
        assert!(matches!(Message::parse(&message[..len]), Err(Error::Core(CoreError::Length { .. }))));
    }

    let mut pair = Pair::new(samples(2, 2, TILES, 9, RowStorage::F32)).unwrap();
    let (_, message) = pair.send(Values::F32(&[1.0; 4]), &[Some(1), None]).unwrap();
    let mut with = |at: usize, byte: u8| {
        let mut bytes = message.clone();
        bytes[at] = byte;
        pair.deliver(&bytes).err()
    };
    for (at, byte) in [(64 + 12, 3), (64 + 13, 1), (64 + 8, 1), (80, 1)] {
        assert!(matches!(with(at, byte), Some(Error::Core(CoreError::PayloadBody { .. }))), "byte {at}");
    }
    assert!(matches!(with(64 + 12, 1), Some(Error::Core(CoreError::Length { .. }))), "one first visit fewer");
    assert!(matches!(with(64 + 32 + 3, 0x7f), Some(Error::Core(CoreError::PayloadBody { .. })) | None));
    // A change makes a sample exceed f32.
    let mut large = Pair::new(samples(1, 1, Codec::Dense { values: Dtype::F32 }, 9, RowStorage::F32)).unwrap();
    large.step(&[f32::MAX], &[Some(1)]).unwrap();
    let (_, mut change) = large.send(Values::F32(&[1.0]), &[Some(1)]).unwrap();
    change[80..84].copy_from_slice(&f32::MAX.to_le_bytes());
    let what = "a sample with its change is not finite";
    assert_eq!(large.deliver(&change), Err(Error::Core(CoreError::PayloadBody { what })));
    // The message has the same sample twice.
    let (_, message) = pair.send(Values::F32(&[1.0; 4]), &[Some(1), Some(2)]).unwrap();
    let mut below = Pair::new(*pair.above.setting()).unwrap();
    let mut bytes = message.clone();
    bytes[32..48].fill(0);
    bytes[80] = 1;
    assert_eq!(below.deliver(&bytes), Err(Error::DuplicateSample { id: 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(300)))]

    #[test]
    fn any_bytes(head: [u8; 64], body in prop::collection::vec(any::<u8>(), 0..300)) {
        check_bytes(&[&head[..], &body].concat());
        // The header is nearly valid.
        let mut near = head;
        near[..8].copy_from_slice(&[b'L', b'C', 1, head[3] % 2, head[4] % 3, head[5] % 5, head[6] % 3, 0]);
        near[8..16].copy_from_slice(&codecs(1 + head[24] as u32 % 9)[head[8] as usize % 7].to_bytes());
        near[20..28].copy_from_slice(&[1 + head[20] % 4, 0, 0, 0, 1 + head[24] % 9, 0, 0, 0]);
        near[32..].fill(0);
        let mut message = [&near[..], &body].concat();
        for len in 64..message.len() {
            check_bytes(&message[..len]);
        }
        // The entries of samples may have any kind.
        message[64..].chunks_mut(16).take(4).for_each(|entry| {
            let len = entry.len();
            entry[12.min(len)..].fill(0);
            if len > 12 { entry[12] = entry[0] % 3; }
        });
        for len in 64..message.len() {
            check_bytes(&message[..len]);
        }
    }
}
