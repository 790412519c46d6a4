//! Checks shaders for data races and for accesses outside memory, in the dispatches of calls of every kind.

use super::buffers::buffer;
use super::cut::{MISLEADING, apart, close};
use super::is_full;
use super::simt::{Check, Program, Recorded, can_compile};
use super::{USAGE, backend, memory};
use crate::kernels::Shader;
use crate::{BufferGradient, BufferJob, WgpuBackend};
use lgreco::backend::Backend;
use lgreco::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use std::collections::HashMap;

fn encode(backend: &mut WgpuBackend, setting: Setting, shape: Shape, values: &[f32]) {
    let gradient = Gradient::new(Values::F32(values), shape).unwrap();
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
}

/// Makes calls of every kind.
fn everything(backend: &mut WgpuBackend) {
    memory::calls(backend);
    // Several workgroups share the work on `P`.
    let shape = Shape::new(33_000, 5).unwrap();
    encode(backend, Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }), shape, &uniform(shape.elements(), 1));
    // In these calls, workgroups look through the gathered values.
    for (near, keep) in [(close(3000).swap_remove(0), 610), (close(100).swap_remove(3), 97)] {
        let setting = Setting::TopK(TopK { keep, values: Dtype::F32 });
        encode(backend, setting, Shape::new(near.len(), 1).unwrap(), &near);
    }
    // In this call, a kernel searches for an element that is not finite.
    let mut values = uniform(5000, 1);
    values[4321] = f32::NAN;
    let shape = Shape::new(50, 100).unwrap();
    let held = buffer(backend, 20_000, USAGE);
    backend.queue().write_buffer(&held, 0, bytemuck::cast_slice(&values));
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[5, 50] };
    backend
        .measure_buffers(&[BufferJob { gradient, candidates, stream: Stream::default() }], &mut [0.0; 2])
        .unwrap_err();
    let results = buffer(backend, backend.norms_bytes(1), USAGE);
    backend.enqueue_norms(&[gradient], &results, 0).unwrap();
}

/// Returns dispatches of all kinds, at least one for every entry point. If they cannot be recorded, reports the reason
/// and returns `None`.
fn dispatches() -> Option<Vec<Recorded>> {
    if !can_compile() {
        return None;
    }
    let recording = || {
        let mut backend = backend()?;
        backend.gpu().recorded = Some(Vec::new());
        Some(backend)
    };
    let mut calls = recording()?;
    everything(&mut calls);
    let mut all = calls.gpu().recorded.take()?;
    // This backend has a misleading sample, so that it misses the cut.
    let mut misled = recording()?;
    misled.gpu().kernels.edit(Shader::TopK, MISLEADING.0, MISLEADING.1);
    let (values, setting) = (apart(70_001), Setting::TopK(TopK { keep: 35_040, values: Dtype::F32 }));
    encode(&mut misled, setting, Shape::new(values.len(), 1).unwrap(), &values);
    all.extend(misled.gpu().recorded.take()?);
    let mut missing = Vec::new();
    for shader in Shader::ALL {
        let entries = super::shaders::valid(&shader.source(false), false).0.entry_points;
        let is_missing = |entry: &naga::EntryPoint| {
            !all.iter().any(|recorded| (recorded.kernel.shader, recorded.kernel.entry) == (shader, &entry.name))
        };
        missing.extend(entries.into_iter().filter(is_missing).map(|entry| entry.name));
    }
    assert!(missing.is_empty(), "no dispatch of {missing:?}");
    Some(if is_full() { all } else { some_of(all) })
}

/// Returns the first three and the last six dispatches of each entry point. The last six belong to rarer cases, such as
/// a missed cut.
fn some_of(all: Vec<Recorded>) -> Vec<Recorded> {
    let mut left = HashMap::new();
    all.iter().for_each(|recorded| *left.entry(recorded.kernel).or_insert(0) += 1);
    let mut seen = HashMap::new();
    let is_kept = |recorded: &Recorded| {
        let seen = seen.entry(recorded.kernel).or_insert(0);
        *seen += 1;
        *seen <= 3 || *seen + 6 > left[&recorded.kernel]
    };
    all.into_iter().filter(is_kept).collect()
}

/// Returns the first fault that the check finds in a shader's dispatches.
fn first_fault(source: &str, of: (Shader, bool), all: &[Recorded], check: Check, order: u32) -> Option<String> {
    let own: Vec<&Recorded> = all.iter().filter(|recorded| recorded.kernel.shader == of.0).collect();
    Program::new(source, of.1, check).first_fault(&own, order)
}

#[test]
fn no_shader_has_a_data_race_or_reaches_beyond_its_memory() {
    let Some(all) = dispatches() else { return };
    // Compiling takes most of the time. So only full runs have both checks, each with subgroups and without.
    let mut checks = vec![(false, 2, Check::Races)];
    if is_full() {
        checks.extend([(true, 1, Check::Races), (false, 2, Check::Sanitizers), (true, 1, Check::Sanitizers)]);
    }
    for (subgroups, order, check) in checks {
        for shader in Shader::ALL {
            let fault = first_fault(&shader.source(subgroups), (shader, subgroups), &all, check, order);
            assert_eq!(fault, None, "{shader:?}, {check:?}, subgroups: {subgroups}");
        }
    }
}

#[test]
#[ignore = "slow"]
fn races_and_what_reaches_beyond_are_found() {
    let Some(all) = dispatches() else { return };
    let shared = ("of_lanes[lane.index] = x;\n    workgroupBarrier();", "of_lanes[lane.index] = x;");
    let sums = ("        workgroupBarrier();\n        if (lane < 8u &&", "        if (lane < 8u &&");
    let faults = [
        (Shader::Magnitude, Check::Races, shared),
        (Shader::Feedback, Check::Races, shared),
        (Shader::PowerSgd, Check::Races, sums),
        (
            Shader::TopK,
            Check::Races,
            ("counts[lane] = low;\n    }\n    workgroupBarrier();", "counts[lane] = low;\n    }"),
        ),
        (Shader::TopK, Check::Races, ("let range = workgroupUniformLoad(&sought[0]);", "let range = sought[0];")),
        (
            Shader::TopK,
            Check::Races,
            ("if (lane.index == 0u) {\n            let least", "if (true) {\n            let least"),
        ),
        // With this edit, all lanes write the same words. Such writes are also a race.
        (Shader::TopK, Check::Races, ("if (is_first(lane)) {", "if (true) {")),
        // This edit makes a race between workgroups.
        (
            Shader::TopK,
            Check::Races,
            ("if (own_block() != 0u) {\n        return;\n    }\n    if (lane.index", "if (lane.index"),
        ),
        // With this edit, the barrier between the accesses does not order accesses to device memory.
        (
            Shader::TopK,
            Check::Races,
            ("rank = state[at].ties;", "rank = state[params.first_keep + (lane + 1u) % params.keeps].ties;"),
        ),
        (Shader::TopK, Check::Sanitizers, ("if (at.y + params.bits > 32u) {", "if (true) {")),
        (
            Shader::TopK,
            Check::Sanitizers,
            ("atomicStore(&own_shares[lane], 0u);", "atomicStore(&own_shares[lane + 1u], 0u);"),
        ),
    ];
    for (shader, check, (text, fault)) in faults {
        let source = shader.source(false);
        assert!(source.contains(text), "nothing to edit: {text}");
        let found = first_fault(&source.replace(text, fault), (shader, false), &all, check, 0);
        let words = if check == Check::Races { ["race ("; 2] } else { ["AddressSanitizer", "runtime error"] };
        let says = |found: &String| words.iter().any(|word| found.contains(word));
        assert!(found.as_ref().is_some_and(says), "{text}: {found:?}");
    }
}
