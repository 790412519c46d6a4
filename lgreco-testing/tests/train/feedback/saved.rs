use super::*;
use lgreco_testing::reseal;
use lgreco_train::{CoreError, Error};
use proptest::prelude::*;

#[test]
fn saved_memories_continue_to_the_bit() {
    for n in [1, 30, 1530] {
        let shape = if n == 1 { vector(1) } else { Shape::new(30, n / 30).unwrap() };
        for setting in settings(n as u32) {
            for rule in rules() {
                check_resumes(rule, setting, &steps(n, 5), shape);
            }
        }
    }
}

#[test]
fn the_bytes_are_fixed() {
    let save = |storage, values: &[f32]| {
        let rule = Residual { gain: 0.5, reset_every: 512, storage };
        let mut worker = Worker::new(rule, Setting::Dense, Shape::new(1, 2).unwrap(), Stream::default()).unwrap();
        worker.memory.set(values, Stream::default()).unwrap();
        worker.save()
    };
    let header = |storage| {
        let parameters = [0, 0, 0, 0x3f, 0, 2, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        [&[b'L', b'M', 2, 0, storage, 0, 0, 0][..], &parameters, &[0; 8]].concat()
    };
    assert_eq!(save(Storage::F32, &[1.0, -2.0]), sealed(&[&header(0), &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]]));
    assert_eq!(save(Storage::Bf16, &[1.0, -2.0]), sealed(&[&header(1), &[0x80, 0x3f, 0, 0xc0]]));
    // The value 1 is stored as 64 · 2^-6, with the exponent field 121.
    assert_eq!(save(Storage::Int8, &[1.0, -0.5]), sealed(&[&header(2), &[64, 0xe0, 121]]));
}

/// Joins the parts, and appends their checksum.
fn sealed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [parts.concat(), vec![0; 8]].concat();
    reseal(&mut bytes);
    bytes
}

#[test]
fn every_flipped_bit_is_refused() {
    for rule in rules() {
        let mut worker = Worker::new(rule, Setting::Dense, vector(70), Stream::default()).unwrap();
        worker.memory.set(&noise(70, 1), Stream::default()).unwrap();
        let saved = worker.save();
        for bit in 0..8 * saved.len() {
            let mut bytes = saved.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match SavedState::parse(&bytes).err() {
                Some(Error::Core(CoreError::SavedState { .. })) => assert!(bit < 24, "bit {bit}"),
                found => assert!(
                    matches!(found, Some(Error::Core(CoreError::Checksum { .. }))) && bit >= 24,
                    "bit {bit}: {found:?}"
                ),
            }
        }
    }
}

#[test]
fn strange_bytes_are_refused() {
    let refused = |rule: Residual, at: usize, byte: u8| {
        let mut worker = Worker::new(rule, Setting::Dense, vector(600), Stream::default()).unwrap();
        worker.memory.set(&noise(600, 1), Stream::default()).unwrap();
        let mut bytes = worker.save();
        bytes[at] = byte;
        reseal(&mut bytes);
        SavedState::parse(&bytes).err()
    };
    let loco = Residual::LOCO;
    for (at, byte) in [(0, b'm'), (2, 1), (3, 1), (3, 2), (3, 4), (4, 3), (6, 1), (40, 0x80), (632, 249), (633, 255)] {
        assert!(matches!(refused(loco, at, byte), Some(Error::Core(CoreError::SavedState { .. }))), "byte {at}");
    }
    assert!(matches!(refused(loco, 11, 0xbf), Some(Error::Core(CoreError::Parameter { .. }))));
    assert!(matches!(refused(loco, 16, 3), Some(Error::Core(CoreError::Length { .. }))));
    assert!(matches!(refused(loco, 23, 3), Some(Error::Core(CoreError::TooManyElements { .. }))));
    let mut bytes = Worker::new(loco, Setting::Dense, vector(600), Stream::default()).unwrap().save();
    assert!((0..bytes.len()).all(|len| SavedState::parse(&bytes[..len]).is_err()));
    bytes.push(0);
    assert!(SavedState::parse(&bytes).is_err());
    reseal(&mut bytes);
    assert!(matches!(SavedState::parse(&bytes), Err(Error::Core(CoreError::Length { .. }))));
    for storage in [Storage::F32, Storage::Bf16] {
        let rule = Residual { storage, ..Residual::CLASSIC };
        let mut bytes = Worker::new(rule, Setting::Dense, vector(5), Stream::default()).unwrap().save();
        let len = bytes.len();
        bytes[len - 10..len - 8].copy_from_slice(&[0x80, 0x7f]);
        reseal(&mut bytes);
        assert!(matches!(
            SavedState::parse(&bytes),
            Err(Error::Core(CoreError::SavedState { what: "an element", .. }))
        ));
    }
}

#[test]
fn a_memory_is_restored_into_as_many_words_as_it_has() {
    let worker = Worker::new(Residual::LOCO, Setting::Dense, vector(2), Stream::default()).unwrap();
    let bytes = worker.save();
    let saved = SavedState::parse(&bytes).unwrap();
    assert_eq!(saved.restore(vec![0]).unwrap().residual(), Residual::LOCO);
    assert!(matches!(saved.restore(vec![]), Err(Error::Core(CoreError::Length { .. }))));
}

proptest! {
    #[test]
    fn any_bytes(
        rule in 0u8..5, storage in 0u8..4, reset in 0u8..3, rows in 0u8..40, cols in 0u8..40,
        gain in prop_oneof![Just(1.0f32), any::<f32>()], steps: u64, words in prop::collection::vec(any::<u64>(), 900),
        fit: bool,
    ) {
        let mut bytes = vec![b'L', b'M', 2, rule, storage, 0, 0, 0];
        bytes.extend(gain.to_le_bytes());
        bytes.extend([reset, 0, 0, 0, rows, 0, 0, 0, cols, 0, 0, 0]);
        bytes.extend(steps.to_le_bytes());
        let n = rows as usize * cols as usize;
        let len = [4 * n, 2 * n, n + n.div_ceil(GROUP), 0][storage as usize];
        // In half of the cases, all elements are valid.
        let mask = if fit { 0x3f3f_3f3f_3f3f_3f3f } else { !0 };
        let body: Vec<u8> = words.iter().flat_map(|w| (w & mask).to_le_bytes()).collect();
        bytes.extend(&body[..len.min(body.len())]);
        bytes.extend([0; 8]);
        check_saved_bytes(&bytes);
        check_saved_bytes(&body);
    }
}
