//! Tests of inputs that the two ends refuse. Each error has the numbers that caused it. `Pair` asserts that nothing
//! changes.

use super::*;
use lgreco_pipeline::{CoreError, Error};
use lgreco_train::feedback::{Residual, Storage};

#[test]
fn a_memory_by_position_wants_batches_of_one_size() {
    for memory in position_memories() {
        let link = Link { codec: top(1), memory };
        for backward in [false, true] {
            let mut setting = plain(3, 4, top(1));
            *(if backward { &mut setting.backward } else { &mut setting.forward }) = link;
            let mut pair = Pair::new(setting).unwrap();
            let found = pair.send(Values::F32(&[1.0; 8]), &[]);
            assert!(matches!(found, Err(Error::Core(CoreError::Length { expected: 3, found: 2, .. }))), "{found:?}");
            // Evaluation uses no memory, so the last batch of a data set may be shorter.
            assert_eq!(pair.evaluate(Evaluation::Plain, Values::F32(&[1.0; 8])), Ok(vec![1.0; 8]));
            assert!(pair.evaluate(Evaluation::Compressed, Values::F32(&[1.0; 8])).is_ok());
            for wrong in [0, 7, 16] {
                assert!(pair.evaluate(Evaluation::Plain, Values::F32(&vec![1.0; wrong])).is_err(), "{wrong}");
            }
        }
    }
    let mut pair = Pair::new(plain(3, 4, top(1))).unwrap();
    assert!(pair.forward(Values::F32(&[1.0; 8]), &[]).is_ok());
    for wrong in [0, 7, 16] {
        assert!(
            matches!(pair.send(Values::F32(&vec![1.0; wrong]), &[]), Err(Error::Core(CoreError::Length { .. }))),
            "{wrong}"
        );
    }
}

#[test]
fn settings_that_contradict_themselves_are_refused() {
    let samples = LinkMemory::Samples { capacity: 5, storage: RowStorage::F32 };
    let shared = |keep| Codec::SharedIndex { keep, values: Dtype::F32 };
    let setting = |forward, forward_memory, backward, backward_memory| CutSetting {
        forward: Link { codec: forward, memory: forward_memory },
        backward: Link { codec: backward, memory: backward_memory },
        ..plain(2, 6, top(1))
    };
    let none = LinkMemory::None;
    let dense = Codec::Dense { values: Dtype::F32 };
    let mixed = LinkMemory::Mixed(Residual::CLASSIC);
    assert_eq!(setting(top(2), none, shared(2), none).check(), Ok(()));
    for (refused, rule) in [
        (setting(dense, none, dense, samples), "AQ-SGD"),
        (setting(shared(2), none, dense, none), "shared-index"),
        (setting(dense, none, shared(2), none), "shared-index"),
        (setting(top(2), LinkMemory::Ef21, shared(2), none), "shared-index"),
        (setting(top(2), samples, shared(2), none), "shared-index"),
        (setting(dense, mixed, dense, none), "EF-mixed"),
        (setting(top(2), none, shared(2), mixed), "EF-mixed"),
    ] {
        assert!(matches!(refused.check(), Err(Error::FeedbackRule { rule: found, .. }) if found == rule));
        assert!(Upstream::new(refused, 0).is_err() && Downstream::new(refused, 0).is_err());
    }
    let gain = |gain| LinkMemory::Residual(Residual { gain, reset_every: 0, storage: Storage::F32 });
    let bits = |bits| LinkMemory::Samples { capacity: 5, storage: RowStorage::Quantised { bits } };
    let empty = LinkMemory::Samples { capacity: 0, storage: RowStorage::F32 };
    for (refused, parameter) in [
        (setting(top(2), none, shared(3), none), "shared indices per sample"),
        (setting(dense, gain(0.0), dense, none), "residual gain"),
        (setting(dense, none, dense, gain(1.5)), "residual gain"),
        (setting(dense, bits(1), dense, none), "bits of remembered samples"),
        (setting(dense, bits(9), dense, none), "bits of remembered samples"),
        (setting(dense, empty, dense, none), "capacity for samples"),
        (CutSetting { batch: 0, ..plain(2, 6, dense) }, "batch"),
        (CutSetting { features: 0, ..plain(2, 6, dense) }, "features"),
        (CutSetting { in_flight: 0, ..plain(2, 6, dense) }, "micro-batches in flight"),
    ] {
        assert!(
            matches!(refused.check(), Err(Error::Core(CoreError::Parameter { what, .. })) if what == parameter),
            "{parameter}"
        );
    }
    assert!(matches!(plain(1 << 16, 1 << 16, dense).check(), Err(Error::Core(CoreError::TooManyElements { .. }))));
}

/// Messages may be lost, repeated, reordered, or from another run, cut or setting. The error names the difference.
/// `Pair` asserts that nothing changes.
#[test]
fn messages_out_of_order_are_named() {
    for memory in [LinkMemory::None, LinkMemory::Ef21, LinkMemory::Samples { capacity: 9, storage: RowStorage::Bf16 }] {
        let forward = Link { codec: top(1), memory };
        let setting = CutSetting { forward, ..plain(1, 3, top(1)) };
        let mut pair = Pair::new(setting).unwrap();
        let x = Values::F32(&[3.0, 2.0, 1.0]);
        let messages: Vec<Vec<u8>> = (0..3).map(|i| pair.send(x, &[Some(i)]).unwrap().1).collect();
        let lost = pair.deliver(&messages[1]);
        assert_eq!(lost, Err(Error::OutOfStep { what: "sequence number", expected: 0, found: 1 }));
        pair.deliver(&messages[0]).unwrap();
        let repeated = pair.deliver(&messages[0]);
        assert_eq!(repeated, Err(Error::OutOfStep { what: "sequence number", expected: 1, found: 0 }));
        pair.deliver(&messages[1]).unwrap();
        pair.below.commit_step().unwrap();
        let early = pair.deliver(&messages[2]).err();
        let stepped = Error::OutOfStep { what: "step", expected: 1, found: 0 };
        assert_eq!(early, Some(stepped));

        let mut other = Pair { below: Downstream::new(setting, 1).unwrap(), ..pair.clone() };
        let generation = Error::OutOfStep { what: "generation", expected: 1, found: 0 };
        assert_eq!(other.deliver(&messages[0]), Err(generation));
        let mut stranger = |setting: CutSetting, what: &str| {
            other.below = Downstream::new(setting, 0).unwrap();
            let found = other.deliver(&messages[0]);
            assert!(
                matches!(found, Err(Error::Core(CoreError::PayloadHeader { what: found, .. })) if found == what),
                "{found:?}"
            );
        };
        stranger(CutSetting { cut: 1, ..setting }, "cut");
        stranger(CutSetting { features: 4, ..setting }, "features");
        stranger(CutSetting { forward: Link { codec: top(2), ..forward }, ..setting }, "codec");
        let residual = LinkMemory::Residual(Residual::CLASSIC);
        stranger(CutSetting { forward: Link { memory: residual, ..forward }, ..setting }, "memory");
    }
}

#[test]
fn gradients_out_of_order_are_named() {
    let mut pair = Pair::new(plain(1, 2, top(1))).unwrap();
    let x = Values::F32(&[1.0, 2.0]);
    let tickets: Vec<u64> = (0..4).map(|_| pair.forward(x, &[]).unwrap().0.ticket).collect();
    assert_eq!(pair.send(x, &[]).err(), Some(Error::TooManyInFlight { limit: 4 }));
    let mut workspace = vec![0; pair.below.workspace_len()];
    let mut send = |ticket: u64| {
        let mut message = vec![0; pair.below.message_len()];
        let len = pair.below.send(ticket, x, &mut workspace, &mut message)?;
        message.truncate(len);
        Ok(message)
    };
    let messages: Vec<Vec<u8>> = [tickets[1], tickets[0]].map(|ticket| send(ticket).unwrap()).to_vec();
    assert_eq!(send(tickets[1]), Err(Error::NotInFlight { ticket: 1 }));
    assert_eq!(send(17), Err(Error::NotInFlight { ticket: 17 }));
    let mut workspace = vec![0; pair.above.workspace_len()];
    let mut g = [0.0; 2];
    let mut receive = |pair: &mut Pair, message: &[u8]| pair.above.receive(message, &mut workspace, &mut g);
    let lost = receive(&mut pair, &messages[1]);
    assert_eq!(lost, Err(Error::OutOfStep { what: "sequence number", expected: 0, found: 1 }));
    assert_eq!(receive(&mut pair, &messages[0]), Ok(1));
    pair.above.forget(0).unwrap();
    assert_eq!(receive(&mut pair, &messages[1]), Err(Error::NotInFlight { ticket: 0 }));
    assert_eq!(pair.above.forget(0), Err(Error::NotInFlight { ticket: 0 }));
    assert_eq!(pair.above.samples(3), Ok(1));
}

#[test]
fn not_a_number_is_named_and_changes_nothing() {
    let mut memories = position_memories();
    memories.extend(sample_memories(5));
    memories.push(LinkMemory::None);
    for memory in memories {
        let setting = CutSetting { forward: Link { codec: top(1), memory }, ..plain(2, 3, top(1)) };
        let mut pair = Pair::new(setting).unwrap();
        let known = pair.step(&[1.0; 6], &ids(0..2));
        assert!(known.is_ok());
        for bad in [f32::NAN, f32::INFINITY] {
            let found = pair.send(Values::F32(&[0.0, 1.0, 2.0, 3.0, bad, 0.0]), &ids(0..2));
            assert!(matches!(found, Err(Error::Core(CoreError::NonFinite { index: 4, .. }))), "{memory:?}: {found:?}");
        }
        let mut workspace = vec![0; pair.above.workspace_len()];
        let mut message = vec![0; pair.above.message_len() - 1];
        let found = pair.above.send(Values::F32(&[1.0; 6]), &ids(0..2), &mut workspace, &mut message);
        assert!(matches!(found, Err(Error::Core(CoreError::Length { what: "message bytes", .. }))));
        let found = pair.above.send(Values::F32(&[1.0; 6]), &ids(0..2), &mut workspace[1..], &mut [0; 500]);
        assert!(matches!(found, Err(Error::Core(CoreError::Length { what: "workspace words", .. }))));
    }
}

/// If a change exceeds f32, the sender returns an error before anything changes.
#[test]
fn changes_beyond_f32_are_refused() {
    let mut pair = Pair::new(samples(1, 2, top(1), 5, RowStorage::F32)).unwrap();
    pair.step(&[f32::MAX, 0.0], &[Some(1)]).unwrap();
    let found = pair.send(Values::F32(&[-f32::MAX, 0.0]), &[Some(1)]);
    assert!(matches!(found, Err(Error::Core(CoreError::Overflow { .. }))), "{found:?}");
    assert!(pair.forward(Values::F32(&[f32::MAX, 1.0]), &[Some(1)]).is_ok());
}

#[test]
fn ends_that_hold_other_estimates_are_told() {
    let link = Link { codec: top(1), memory: LinkMemory::Ef21 };
    let setting = CutSetting { forward: link, ..plain(1, 3, top(1)) };
    let mut pair = Pair::new(setting).unwrap();
    let mut other = Pair::new(setting).unwrap();
    pair.forward(Values::F32(&[3.0, 2.0, 1.0]), &[]).unwrap();
    other.forward(Values::F32(&[3.0, 2.5, 1.0]), &[]).unwrap(); // sends the same
    other.forward(Values::F32(&[3.0, 2.5, 1.0]), &[]).unwrap();
    pair.forward(Values::F32(&[3.0, 2.0, 1.0]), &[]).unwrap();
    let (_, message) = pair.send(Values::F32(&[3.0, 2.0, 1.0]), &[]).unwrap();
    let found = other.deliver(&message);
    assert!(matches!(found, Err(Error::OutOfStep { what: "checksum of the estimate", .. })), "{found:?}");
}
