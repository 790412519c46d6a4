//! Calls the C functions of cuts from Rust. Encoded settings and remembered samples are the same as in lgreco-pipeline,
//! and the calls of a step do not allocate.

mod common;

use common::{List, allocations, gradient};
use lgreco_c::*;
use lgreco_pipeline::{Codec, CutSetting, Link, LinkMemory, RowStorage, Scope, Tile, Upstream};
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Dtype, Values};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const BATCH: usize = 3;
const FEATURES: usize = 40;

/// Makes the C setting from the fields of `setting`, as text options.
fn made(setting: &CutSetting) -> lgreco_cut_setting {
    let CutSetting { cut, batch, features, in_flight, forward, backward } = setting;
    let texts = [cut, batch, features, in_flight].map(u32::to_string);
    let links = [forward, backward].map(|link| [link.codec.to_string(), link.memory.to_string()]);
    let names = ["cut", "batch", "features", "in_flight", "forward", "forward_memory", "backward", "backward_memory"];
    let values = texts.iter().chain(links.as_flattened()).map(String::as_str);
    let (options, mut made) = (List::new(names.into_iter().zip(values)), lgreco_cut_setting::default());
    // SAFETY: the list and the output are valid.
    assert_eq!(unsafe { lgreco_cut_setting_make(options.pointer(), &raw mut made) }, LGRECO_OK, "{setting:?}");
    made
}

/// Settings that cover every codec and every memory in some direction, and every numeric field of a setting.
fn settings() -> Vec<CutSetting> {
    let plain = CutSetting::new(2, 4, 96);
    let residual = Residual { gain: 0.5, reset_every: 9, storage: Storage::Int8 };
    let codecs = [
        Codec::Dense { values: Dtype::Bf16 },
        Codec::MinMax { bits: 3, tile: Tile::Batch },
        Codec::MinMax { bits: 5, tile: Tile::Elements(32) },
        Codec::Symmetric { bits: 6, scope: Scope::Sample, scale: Dtype::F32 },
        Codec::Symmetric { bits: 7, scope: Scope::Channel { channels: 4 }, scale: Dtype::Bf16 },
        Codec::TopK { keep: 11, values: Dtype::F16 },
        Codec::Eden { bits: 3 },
    ];
    let memories = [
        LinkMemory::Residual(residual),
        LinkMemory::Ef21,
        LinkMemory::Samples { capacity: 77, storage: RowStorage::F32 },
        LinkMemory::Samples { capacity: 77, storage: RowStorage::Bf16 },
        LinkMemory::Samples { capacity: 77, storage: RowStorage::Quantised { bits: 4 } },
    ];
    let mut all = vec![plain, CutSetting { in_flight: 3, ..plain }];
    all.extend(codecs.map(|codec| CutSetting { forward: Link { codec, ..plain.forward }, ..plain }));
    all.extend(memories.map(|memory| CutSetting { forward: Link { memory, ..plain.forward }, ..plain }));
    let forward = Link { codec: codecs[5], memory: LinkMemory::Mixed(residual) };
    let backward = Link { codec: Codec::SharedIndex { keep: 11, values: Dtype::Bf16 }, memory: LinkMemory::None };
    all.push(CutSetting { forward, backward, ..plain });
    all
}

#[test]
fn settings_are_the_cores_bytes() {
    for expected in settings() {
        assert_eq!(made(&expected).bytes, expected.to_bytes(), "{expected:?}");
    }
}

#[test]
fn settings_are_compared_as_in_rust() {
    let trained = CutSetting::new(2, 4, 96);
    let others = [
        CutSetting { cut: 3, ..trained },
        CutSetting { features: 97, ..trained },
        CutSetting { forward: trained.backward, ..trained },
        CutSetting { forward: Link { memory: LinkMemory::Ef21, ..trained.forward }, ..trained },
        CutSetting { backward: trained.forward, ..trained },
        CutSetting { backward: Link { memory: LinkMemory::Ef21, ..trained.backward }, ..trained },
        CutSetting { batch: 5, ..trained },
        CutSetting { in_flight: 9, ..trained },
        trained,
    ];
    for other in others {
        let (setting, of_trained, mut compatibility, mut what) = (made(&other), made(&trained), 99, null());
        // SAFETY: the settings and outputs are valid, and the text is static.
        let what = unsafe {
            let (compatibility, what_to) = (&raw mut compatibility, &raw mut what);
            assert_eq!(lgreco_cut_setting_compare(&setting, &of_trained, compatibility, what_to), LGRECO_OK);
            CStr::from_ptr(what).to_str().unwrap()
        };
        let found = match compatibility {
            LGRECO_COMPATIBILITY_SAME => "Same".into(),
            LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY => format!("TrainsDifferently {{ what: {what:?} }}"),
            LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY => format!("EvaluatesDifferently {{ what: {what:?} }}"),
            found => panic!("{found}"),
        };
        assert_eq!(found, format!("{:?}", other.compare(&trained)));
    }
}

struct Ends {
    above: *mut lgreco_cut,
    below: *mut lgreco_cut,
}

impl Ends {
    fn new(memory: LinkMemory) -> Ends {
        let mut setting = CutSetting::new(0, BATCH as u32, FEATURES as u32);
        setting.forward.memory = memory;
        let setting = made(&setting);
        let mut ends = Ends { above: null_mut(), below: null_mut() };
        // SAFETY: all handles and outputs are valid.
        unsafe {
            let (up, down) = (LGRECO_END_UPSTREAM, LGRECO_END_DOWNSTREAM);
            assert_eq!(lgreco_cut_create(&setting, up, 0, &raw mut ends.above), LGRECO_OK);
            assert_eq!(lgreco_cut_create(&setting, down, 0, &raw mut ends.below), LGRECO_OK);
        }
        ends
    }

    /// Sends activations forward and gradients back, and commits the step.
    fn step(&self, activations: &[f32], ids: &[u64], message: &mut [u8], received: &mut [f32]) {
        let (mut length, mut ticket) = (0, 0);
        let (values, f32) = (activations.as_ptr().cast(), LGRECO_DTYPE_F32);
        let (bytes, capacity, to) = (message.as_mut_ptr(), message.len(), received.as_mut_ptr());
        let (length, ticket) = (&raw mut length, &raw mut ticket);
        // SAFETY: all pointers are valid, with the stated lengths.
        unsafe {
            let ids = ids.as_ptr();
            let sent =
                lgreco_cut_send_activations(self.above, values, f32, BATCH, ids, bytes, capacity, length, ticket);
            assert_eq!(sent, LGRECO_OK);
            let got = lgreco_cut_receive(self.below, bytes, *length, to, received.len(), ticket);
            assert_eq!(got, LGRECO_OK);
            let sent = lgreco_cut_send_gradients(self.below, *ticket, values, f32, BATCH, bytes, capacity, length);
            assert_eq!(sent, LGRECO_OK);
            let got = lgreco_cut_receive(self.above, bytes, *length, to, received.len(), ticket);
            assert_eq!(got, LGRECO_OK);
            assert_eq!(lgreco_cut_commit_step(self.above), LGRECO_OK);
            assert_eq!(lgreco_cut_commit_step(self.below), LGRECO_OK);
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: the handles are live.
        unsafe {
            lgreco_cut_destroy(&raw mut self.above);
            lgreco_cut_destroy(&raw mut self.below);
        }
    }
}

#[test]
fn steps_allocate_only_while_samples_are_new() {
    let samples = LinkMemory::Samples { capacity: 1024, storage: RowStorage::Bf16 };
    for memory in [LinkMemory::None, LinkMemory::Residual(Residual::CLASSIC), samples] {
        let ends = Ends::new(memory);
        let (mut message, mut received) = (vec![0; 4096], vec![0.0; BATCH * FEATURES]);
        for step in 0..6 {
            let activations = gradient(step, BATCH * FEATURES);
            let count = allocations(|| ends.step(&activations, &[7, 8, 9], &mut message, &mut received));
            // At a sample's second visit, AQ-SGD allocates a separate row for the uncommitted update.
            assert!(count == 0 || (memory == samples && step < 2), "step {step}: {count} times");
        }
    }
}

#[test]
fn what_is_remembered_is_what_rust_remembers() {
    let memory = LinkMemory::Samples { capacity: 1024, storage: RowStorage::Bf16 };
    let ends = Ends::new(memory);
    let mut setting = CutSetting::new(0, BATCH as u32, FEATURES as u32);
    setting.forward.memory = memory;
    let mut rust = Upstream::new(setting, 0).unwrap();
    let mut workspace = vec![0; rust.workspace_len()];
    let (mut message, mut received) = (vec![0; 4096], vec![0.0; BATCH * FEATURES]);
    for (step, ids) in [[7, 8, 9], [9, 10, LGRECO_UNREMEMBERED], [8, 11, 12]].into_iter().enumerate() {
        let activations = gradient(step as u32, BATCH * FEATURES);
        ends.step(&activations, &ids, &mut message, &mut received);
        let known = ids.map(|id| (id != LGRECO_UNREMEMBERED).then_some(id));
        let sent = rust.send(Values::F32(&activations), &known, &mut workspace, &mut message).unwrap();
        rust.forget(sent.ticket).unwrap();
        rust.commit_step().unwrap();
    }
    for end in [ends.above, ends.below] {
        let (mut ids, mut count) = ([0; 8], 0);
        // SAFETY: the handle is live, and the array has the stated length.
        assert_eq!(unsafe { lgreco_cut_remembered_samples(end, ids.as_mut_ptr(), 8, &raw mut count) }, LGRECO_OK);
        assert_eq!(ids[..count], rust.remembered_samples().collect::<Vec<_>>());
        assert_eq!(count, 6);
        for id in 0..15 {
            let (mut of_c, mut of_rust, mut found) = (vec![-1.0; FEATURES], vec![-1.0; FEATURES], 99);
            // SAFETY: as above.
            let status = unsafe { lgreco_cut_remembered(end, id, of_c.as_mut_ptr(), FEATURES, &raw mut found) };
            assert_eq!(status, LGRECO_OK);
            assert_eq!(found == 1, rust.remembered(id, &mut of_rust).unwrap());
            assert_eq!((of_c, found == 1), (of_rust, (7..=12).contains(&id)));
        }
    }
}
