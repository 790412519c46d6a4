//! What has become of steps that nobody waits for.

use super::exchange::{OFFSET, OnDevice, is_there, open, open_on};
use super::later::content;
use super::planted;
use crate::batch::{Batch, Part};
use crate::kernels::Shader;
use crate::{BufferFault, BufferOutcome, Error};
use lgreco_core::compress::{Compressor, Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_testing::exchange::Member;
use lgreco_testing::powersgd::uniform;
use lgreco_train::exchange::{Agreement, Flight, Moment, Request, Route};
use std::panic::catch_unwind;
use wgpu::BufferUsages;

const READABLE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::COPY_DST);

/// Of each method, and what travels in the order of the wire: sums, among them those of PowerSGD, and then payloads.
fn members() -> Vec<Member> {
    let layers = [
        (Setting::Dense, (20, 15), Dtype::F16),
        (Setting::Qsgd(Qsgd { bits: 1, bucket: 64, ..Qsgd::default() }), (60, 1), Dtype::F32),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F32 }), (50, 61), Dtype::F32),
        (Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }), (61, 47), Dtype::F32),
    ];
    let member = |(index, (setting, (rows, cols), dtype))| Member {
        index,
        setting,
        shape: Shape::new(rows, cols).unwrap(),
        dtype,
    };
    (0..).zip(layers).map(member).collect()
}

/// What is done to what travels.
#[derive(Clone, Copy, Debug)]
enum Spoilt {
    Nothing,
    /// The sum of all ranks' at an element of the first layer.
    Sum(usize, f32),
    /// A position that TopK sends, which then is the one before it; values are sound.
    Payload,
    /// The gradient of a layer: what is at an element.
    Gradient(usize, usize, f32),
    /// Numbers of which PowerSGD's first factor is beyond f32.
    Factor,
    /// Numbers of which one bit says so little that what is left is beyond f32.
    Left,
}

fn moment(step: u32) -> Moment {
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step, terms: 0 }
}

/// Gradients of a step, in their buffers.
fn write(on: &mut OnDevice, members: &[Member], step: u32, spoilt: Spoilt) {
    let buffers = on.buffers.clone();
    for (layer, (member, buffer)) in members.iter().zip(&buffers).enumerate() {
        let mut values = uniform(member.shape.elements(), u64::from(10 * step) + layer as u64);
        match spoilt {
            Spoilt::Gradient(of, at, value) if of == layer => values[at] = value,
            // 55 that are more than is left of all others, the first two next to each other.
            Spoilt::Payload if layer == 2 => {
                values[0] = 99.0;
                (0..54).for_each(|number| values[1 + 56 * number] = 100.0);
            }
            Spoilt::Factor if layer == 3 => values.fill(3e38),
            Spoilt::Left if layer == 1 => {
                values.fill(1e38);
                values[0] = f32::MAX;
            }
            _ => {}
        }
        let bytes: Vec<u8> = match member.dtype {
            Dtype::F32 => bytemuck::cast_slice(&values).to_vec(),
            _ => values.iter().flat_map(|&x| half(x)).collect(),
        };
        on.backend().queue().write_buffer(buffer, OFFSET, &bytes);
    }
}

fn half(x: f32) -> [u8; 2] {
    use lgreco_core::gradient::{Element, F16};
    F16::from_f32(x).0.to_le_bytes()
}

/// A step, which is finished unless its flight has failed; nobody waits for its end.
fn step(on: &mut OnDevice, members: &[Member], number: u32, spoilt: Spoilt) -> Result<(), lgreco_train::Error> {
    write(on, members, number, spoilt);
    let (backend, bucket) = on.parts();
    let mut flight = Flight::begin(&mut bucket.on(backend), moment(number), Agreement::Reached, None)?;
    let mut is_first = true;
    while let Some(request) = flight.next(&mut bucket.on(backend))? {
        match (request, spoilt) {
            (Request::AllReduceSum { values }, Spoilt::Sum(at, value)) if is_first => values[at] = value,
            (Request::AllGather { buffer }, Spoilt::Payload) => {
                let of_qsgd = members[1].setting.payload_len(members[1].shape, Dtype::F32).unwrap();
                // Behind a slip, a header and the values are five bits of each position.
                let positions = &mut buffer[16 + of_qsgd + 16 + 4 * 55..];
                assert_eq!(positions[0], 1 << 5);
                positions[0] = 0;
            }
            _ => {}
        }
        is_first = false;
    }
    let asked = |backend: &mut crate::WgpuBackend| {
        let gpu = backend.gpu();
        [gpu.memory.created, gpu.waits, gpu.reads]
    };
    let before = asked(backend);
    bucket.finish(backend)?;
    assert_eq!(asked(backend), before, "finish waits, or takes memory");
    Ok(())
}

/// Residuals of all layers, and what PowerSGD starts the next step with.
fn remembered(on: &mut OnDevice) -> Vec<u8> {
    let (backend, bucket) = on.parts();
    let buffers = [bucket.residual(0).unwrap().0, bucket.remembered()].map(Part::from);
    Batch::new(backend.gpu()).unwrap().read(&buffers).unwrap()
}

/// Asserts that steps which end badly say so as many steps later as one likes, and leave what is remembered as it was.
fn check(open: impl Fn(&[Member]) -> OnDevice) {
    let members = members();
    let (mut on, mut sound) = (open(&members), open(&members));
    let fails = |fault| BufferOutcome { has_failed: true, fault: Some(fault) };
    let well = BufferOutcome { has_failed: false, fault: None };
    let cases = [
        (Spoilt::Nothing, well),
        (Spoilt::Sum(5, 1e5), fails(BufferFault::ElementOverflow { layer: 0, index: 5 })),
        (Spoilt::Sum(299, f32::INFINITY), fails(BufferFault::Overflow { layer: 0, index: 299 })),
        (Spoilt::Payload, fails(BufferFault::Payload { layer: 2, rank: 0 })),
        (Spoilt::Gradient(2, 3049, f32::NAN), fails(BufferFault::NonFinite { layer: 2, index: 3049 })),
        (Spoilt::Gradient(3, 9, f32::INFINITY), fails(BufferFault::NonFinite { layer: 3, index: 9 })),
        (Spoilt::Factor, fails(BufferFault::Factor { layer: 3 })),
        (Spoilt::Nothing, well),
    ];
    let bytes = on.bucket.outcome_bytes();
    let (mut copies, mut at) = (Vec::new(), Vec::new());
    for (number, (spoilt, _)) in (0..).zip(cases) {
        let flown = step(&mut on, &members, number, spoilt);
        assert_eq!(flown.is_err(), matches!(spoilt, Spoilt::Gradient(..) | Spoilt::Factor), "{spoilt:?}: {flown:?}");
        let (backend, bucket) = on.parts();
        let copy = super::buffers::buffer(backend, bytes + 12, READABLE);
        let (waits, reads) = (backend.gpu().waits, backend.gpu().reads);
        bucket.enqueue_outcome(backend, &copy, 8).unwrap();
        assert_eq!((backend.gpu().waits, backend.gpu().reads), (waits, reads));
        copies.push(copy);
        at.extend(flown.is_err().then_some(number));
        // What has failed has left nothing.
        if matches!(spoilt, Spoilt::Nothing) {
            step(&mut sound, &members, number, spoilt).unwrap();
        }
    }
    for ((spoilt, expected), copy) in cases.iter().zip(&copies) {
        let content = content(on.backend(), copy);
        let found = on.bucket.read_outcome(&content[8..8 + bytes as usize]).unwrap();
        assert_eq!(found, *expected, "{spoilt:?}");
        assert!(content[..8].iter().chain(&content[8 + bytes as usize..]).all(|&byte| byte == 0), "other bytes");
    }
    assert!(remembered(&mut on) == remembered(&mut sound), "what is remembered is not what sound steps leave");
    let before = remembered(&mut on);
    // The means are sound then, of which factors are a part.
    step(&mut on, &members, 8, Spoilt::Left).unwrap();
    let (backend, bucket) = on.parts();
    let copy = super::buffers::buffer(backend, bytes, READABLE);
    bucket.enqueue_outcome(backend, &copy, 0).unwrap();
    let found = bucket.read_outcome(&content(backend, &copy)).unwrap();
    let Some(BufferFault::Remembered { layer: 1, index: 1..60 }) = found.fault else { panic!("{found:?}") };
    assert!(!found.has_failed, "other ranks take the step");
    let residuals = bucket.residual(0).unwrap().0.size() as usize;
    let after = remembered(&mut on);
    assert!(before[..residuals] == after[..residuals] && before[residuals..] != after[residuals..]);
}

#[test]
fn steps_say_later_what_became_of_them() {
    if is_there() {
        check(|members| open(members, true, 1));
    }
}

#[test]
fn faults_in_the_end_of_a_step_are_found() {
    if !is_there() {
        return;
    }
    let faults = [
        ("if (no_rest && moment.feedback != 0u) {", "if (no_means && moment.feedback != 0u) {"),
        ("i < arrayLength(&residual)", "i < 1000u"),
        ("if (no_means) {", "if (no_rest) {"),
        ("i < arrayLength(&remembered)", "i < 64u"),
        ("select(0.0, 1.0, no_means)", "1.0"),
        ("select(0.0, 1.0, no_means)", "0.0"),
        ("select(0.0, 1.0, no_means)", "select(0.0, 1.0, no_rest)"),
        ("atomicLoad(&faults[1]) |", ""),
        ("atomicLoad(&faults[2]) |", ""),
        ("| atomicLoad(&faults[OF_PEERS])", ""),
        ("|| atomicLoad(&faults[3]) != 0u", ""),
        ("if (moment.feedback == 0u) {", "if (true) {"),
    ];
    for (text, fault) in planted::planted(faults) {
        let open = |members: &[Member]| {
            let mut backend = super::backend().expect("the device there was before");
            backend.gpu().kernels.edits.push((Shader::Exchange, text, fault));
            open_on(backend, members, true, 1)
        };
        let message = catch_unwind(|| check(open)).expect_err(&format!("not found: {text} is {fault}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(!message.contains("Device") && !message.contains("nothing to edit"), "{text}: {message}");
    }
}

/// What became of the last step.
fn outcome(on: &mut OnDevice) -> BufferOutcome {
    let (backend, bucket) = on.parts();
    let copy = super::buffers::buffer(backend, bucket.outcome_bytes(), READABLE);
    bucket.enqueue_outcome(backend, &copy, 0).unwrap();
    bucket.read_outcome(&content(backend, &copy)).unwrap()
}

#[test]
fn without_residuals_nothing_is_left_that_could_be_wrong() {
    if !is_there() {
        return;
    }
    let members = members();
    let mut on = open(&members, false, 1);
    let fault = Some(BufferFault::ElementOverflow { layer: 0, index: 5 });
    let well = BufferOutcome { has_failed: false, fault: None };
    for (number, (spoilt, expected)) in (0..).zip([
        (Spoilt::Left, well),
        (Spoilt::Sum(5, 1e5), BufferOutcome { has_failed: true, fault }),
        (Spoilt::Nothing, well),
    ]) {
        step(&mut on, &members, number, spoilt).unwrap();
        assert_eq!(outcome(&mut on), expected, "{spoilt:?}");
    }
}

/// Of layers without elements payloads travel, or nothing but what agrees ranks; the step ends all the same.
#[test]
fn steps_of_nothing_end_well() {
    if !is_there() {
        return;
    }
    for setting in [Setting::Qsgd(Qsgd::default()), Setting::Dense] {
        let member = Member { index: 0, setting, shape: Shape::new(0, 5).unwrap(), dtype: Dtype::F32 };
        let mut on = open(&[member], true, 1);
        for number in 0..2 {
            let (backend, bucket) = on.parts();
            let mut flight = Flight::begin(&mut bucket.on(backend), moment(number), Agreement::Needed, None).unwrap();
            while flight.next(&mut bucket.on(backend)).unwrap().is_some() {}
            bucket.finish(backend).unwrap();
            bucket.check(backend).unwrap();
            assert_eq!(outcome(&mut on), BufferOutcome { has_failed: false, fault: None }, "{setting:?}");
        }
    }
}

/// The gradients' memory goes before the last op, which is refused.
#[test]
fn a_step_whose_means_were_not_made_is_not_finished() {
    if !is_there() {
        return;
    }
    let members = &members()[1..2];
    let mut on = open_on(super::backend().expect("the device there was before"), members, true, 1);
    write(&mut on, members, 0, Spoilt::Nothing);
    let buffers = on.buffers.clone();
    let (backend, bucket) = on.parts();
    let mut flight = Flight::begin(&mut bucket.on(backend), moment(0), Agreement::Reached, None).unwrap();
    assert!(flight.next(&mut bucket.on(backend)).unwrap().is_some());
    buffers.iter().for_each(wgpu::Buffer::destroy);
    assert!(flight.next(&mut bucket.on(backend)).is_err());
    assert!(matches!(bucket.finish(backend), Err(lgreco_train::Error::StepOrder { .. })));
    assert!(outcome(&mut on).has_failed);
}

#[test]
fn outcomes_are_asked_for_at_their_time_and_in_their_place() {
    if !is_there() {
        return;
    }
    let members = members();
    let mut on = open(&members, true, 1);
    let is_early = |result| matches!(result, Err(lgreco_train::Error::StepOrder { .. }));
    let (backend, bucket) = on.parts();
    assert!(is_early(bucket.finish(backend)) && is_early(bucket.check(backend)));
    step(&mut on, &members, 0, Spoilt::Nothing).unwrap();
    let (backend, bucket) = on.parts();
    assert_eq!((bucket.check(backend), bucket.check(backend)), (Ok(()), Ok(())));
    assert!(is_early(bucket.finish(backend)));
    let mut flight = Flight::begin(&mut bucket.on(backend), moment(1), Agreement::Reached, None).unwrap();
    assert!(flight.next(&mut bucket.on(backend)).unwrap().is_some());
    assert!(is_early(bucket.check(backend)));
    step(&mut on, &members, 1, Spoilt::Payload).unwrap();
    let (backend, bucket) = on.parts();
    let told = bucket.check(backend).unwrap_err();
    assert!(matches!(told, lgreco_train::Error::PeerMessage { rank: 0, .. }), "{told}");
    assert_eq!(bucket.faulty_layer(), Some(2));

    let bytes = bucket.outcome_bytes();
    let [results, small] = [bytes + 4, bytes - 4].map(|size| super::buffers::buffer(backend, size, READABLE));
    let unwritable = super::buffers::buffer(backend, bytes, BufferUsages::STORAGE);
    for (results, offset) in [(&results, 2), (&results, 8), (&small, 0), (&results, u64::MAX - 3), (&unwritable, 0)] {
        let refused = bucket.enqueue_outcome(backend, results, offset).unwrap_err();
        assert!(matches!(refused, Error::Buffer { .. }), "{refused}");
    }
    results.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
    backend.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    assert!(matches!(bucket.enqueue_outcome(backend, &results, 0), Err(Error::Refused(_))));
    results.unmap();
    bucket.enqueue_outcome(backend, &results, 4).unwrap();
    let outcome = bucket.read_outcome(&content(backend, &results)[4..]).unwrap();
    let fault = Some(BufferFault::Payload { layer: 2, rank: 0 });
    assert_eq!(outcome, BufferOutcome { has_failed: true, fault });
    // Whatever the bytes are.
    for (len, byte) in [(bytes - 4, 0), (bytes + 4, 0), (0, 0), (bytes, 0xff), (bytes, 0x5a), (bytes, 1)] {
        let read = bucket.read_outcome(&vec![byte; len as usize]);
        assert_eq!(read.is_ok(), len == bytes, "{len} bytes of {byte}: {read:?}");
    }
}
