//! Tests communication between blocks of one launch. In many kernels, an atomic operation tells a block that it is the
//! last block to finish. These kernels have fences before and after this operation. The race check must find each
//! missing fence, and the shipped PTX must contain all fences.

use super::ptx::ptx;
use super::simt::{Edit, Flavour, Simt};
use super::some;
use super::topk::with_ties;
use crate::CudaBackend;
use crate::kernels::Module;
use lgreco::backend::{Backend, Job};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;

/// The work to run: measuring a row, or encoding one payload.
#[derive(Clone, Copy)]
enum What<'a> {
    Row(Candidates<'a>),
    Payload(Setting),
}

/// Runs an edited module on work in which the last block reads results of other blocks. Returns a description of the
/// race, which is empty if there is no race. Returns `None` if there is no g++.
fn race(module: Module, from: &'static str, to: &'static str) -> Option<String> {
    let mut backend = CudaBackend::on(Box::new(Simt::new(Flavour::Races, 0, Some(Edit { module, from, to }))?));
    let (rows, cols, what) = match module {
        // The layer has more than one chunk. Every k is nearly the number of values, so that the kernels refine bins.
        Module::TopK => {
            (40_000, 1, What::Row(Candidates::TopK { values: Dtype::F32, keeps: &[39_975, 39_900, 39_800, 39_600] }))
        }
        // The layer has several spans and keeps all values.
        Module::Selection => {
            (40_003, 1, What::Payload(Setting::QuantisedTopK(QuantisedTopK { keep: 40_003, bits: 3 })))
        }
        // The products have several chunks.
        Module::PowerSgd => (70, 600, What::Row(Candidates::PowerSgd { iterations: 1, ranks: &[3] })),
        _ => panic!("{module:?}"),
    };
    let values: Vec<f32> = (0..rows * cols).map(with_ties).collect();
    let tensor = Tensor::new(&values, rows, cols);
    let done = run(&mut backend, tensor.gradients()[0], what);
    let said = backend.failure().map_or_else(String::new, |failure| failure.to_string());
    assert!(done != said.contains("race ("), "{module:?}, {to}: {said}");
    Some(said)
}

/// Runs the work, and returns whether it succeeds.
fn run(backend: &mut CudaBackend, gradient: Gradient<'_>, what: What<'_>) -> bool {
    match what {
        What::Row(candidates) => {
            let job = Job { gradient, candidates, stream: Stream::default() };
            let (mut row, mut workspace) = (vec![0.0; candidates.len()], vec![0; backend.workspace_len(&[job])]);
            backend.measure(&[job], &mut workspace, &mut row).is_ok()
        }
        What::Payload(setting) => {
            let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
            backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).is_ok()
        }
    }
}

/// The code before and after the atomic operation, in both `is_last` and `comes_last`.
const BEFORE: &str = "    __threadfence();\n    __syncthreads();\n";
const AFTER: &str = "    __syncthreads();\n    __threadfence();\n";

/// The load in the function `fresh`.
const FRESH: &str = "return *static_cast<const volatile T*>(&word);";

/// Edits that remove the release fence or the acquire fence.
const WITHOUT_A_FENCE: [(&str, &str); 2] = [(BEFORE, "    __syncthreads();\n"), (AFTER, "    __syncthreads();\n")];

/// Edits that order accesses too weakly: only one thread executes the fence, or no barrier lies between the writes and
/// the atomic operation.
const WITH_TOO_LITTLE: [(&str, &str); 3] = [
    (BEFORE, "    if (threadIdx.x == 0) {\n        __threadfence();\n    }\n    __syncthreads();\n"),
    (BEFORE, "    __threadfence();\n"),
    (AFTER, "    __syncthreads();\n    if (threadIdx.x == 0) {\n        __threadfence();\n    }\n"),
];

#[test]
fn a_missing_fence_is_found() {
    let modules = [Module::TopK, Module::Selection, Module::PowerSgd];
    for (module, (from, to)) in some(modules.into_iter().flat_map(|module| WITHOUT_A_FENCE.map(|edit| (module, edit))))
    {
        let Some(said) = race(module, from, to) else { return };
        assert!(said.contains(" between blocks, global memory"), "{module:?}, {from} becomes {to}: {said}");
    }
}

#[test]
fn a_fence_that_orders_too_little_is_found() {
    let modules = [Module::TopK, Module::PowerSgd];
    for (module, (from, to)) in some(modules.into_iter().flat_map(|module| WITH_TOO_LITTLE.map(|edit| (module, edit))))
    {
        let Some(said) = race(module, from, to) else { return };
        assert!(said.contains(" between blocks, global memory"), "{module:?}, {from} becomes {to}: {said}");
    }
}

/// Edits kernels so that every block acts as the last block. In one kernel, blocks then read memory that other blocks
/// write later. In another kernel, blocks write memory that other blocks read later.
#[test]
fn a_block_that_does_not_wait_is_found() {
    for (module, from, kind) in some([
        (Module::TopK, "    return before + own == all;\n", "race (write-read between blocks"),
        (Module::PowerSgd, "    return shared;\n", "race (read-write between blocks"),
    ]) {
        let Some(said) = race(module, from, "    return true;\n") else { return };
        assert!(said.contains(kind), "{module:?}: {said}");
    }
}

/// A kernel is also right if only one thread executes the fences: the thread that executes the atomic operation. The
/// race check accepts every load that fences order, so it does not find out whether the compiler may omit or move the
/// load in `fresh`.
#[test]
fn other_ways_that_are_right_are_no_races() {
    let own = "    __threadfence();\n    __syncthreads();\n    if (threadIdx.x == 0) {\n        \
               before = atomicAdd(done, own);\n        if (before + own == all) {\n            \
               atomicExch(done, 0u);\n        }\n    }\n    __syncthreads();\n    __threadfence();\n";
    let by_one = "    __syncthreads();\n    if (threadIdx.x == 0) {\n        __threadfence();\n        \
                  before = atomicAdd(done, own);\n        __threadfence();\n        if (before + own == all) {\n            \
                  atomicExch(done, 0u);\n        }\n    }\n    __syncthreads();\n";
    for (from, to) in some([(own, by_one), (FRESH, "return word;")]) {
        let Some(said) = race(Module::TopK, from, to) else { return };
        assert_eq!(said, "", "{to}");
    }
}

/// The effect of a line of PTX on the order in which blocks see memory. An atomic operation is identified by the
/// register that holds its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event<'p> {
    Fence,
    Barrier,
    Add(&'p str),
    Reset(&'p str),
}

fn event(line: &str) -> Option<Event<'_>> {
    let line = line.trim();
    let line = if line.starts_with('@') { line.split_once(' ')?.1.trim() } else { line };
    let (operation, operands) = line.split_at(line.find([' ', '\t', ';'])?);
    let address = || operands.split_once('[')?.1.split(']').next();
    match operation.split('.').collect::<Vec<_>>()[..] {
        ["membar", "gl"] | ["fence", .., "gpu"] => Some(Event::Fence),
        ["bar", "sync"] | ["barrier", "sync", ..] | ["barrier", "cta", "sync", ..] => Some(Event::Barrier),
        ["atom", .., "global", "add", _] => Some(Event::Add(address()?)),
        ["atom", .., "global", "exch", _] if operands.ends_with("], 0;") => Some(Event::Reset(address()?)),
        _ => None,
    }
}

/// Returns the number of block counters of a kernel: words that blocks increment and later reset to 0. `Err` unless
/// each atomic operation lies between two fences, with a barrier between the operation and each fence.
fn counters(body: &str) -> Result<usize, String> {
    let events: Vec<Event<'_>> = body.lines().filter_map(event).collect();
    let is_order = |event: &&Event<'_>| matches!(event, Event::Fence | Event::Barrier);
    let mut found = 0;
    for (at, event) in events.iter().enumerate() {
        let Event::Add(counter) = event else { continue };
        let Some(reset) = events[at..].iter().position(|event| *event == Event::Reset(counter)) else { continue };
        let before: Vec<_> = events[..at].iter().rev().filter(is_order).take(2).collect();
        let after: Vec<_> = events[at + reset..].iter().filter(is_order).take(2).collect();
        let around = [&Event::Barrier, &Event::Fence];
        if before != around || after != around {
            return Err(format!("counter {counter}: backwards {before:?}, forwards {after:?}"));
        }
        found += 1;
    }
    Ok(found)
}

/// Kernels whose last block reads the results of other blocks. Each entry has the module, the kernel, the number of
/// counters in the compiled code, and whether the last block reads with `fresh`.
const LAST_BLOCKS: [(Module, &str, usize, bool); 16] = [
    (Module::Exchange, "average", 1, false),
    (Module::ExchangeSums, "project", 1, false),
    (Module::ExchangeSums, "gram", 1, false),
    (Module::ExchangeSums, "back_project", 1, false),
    (Module::Selection, "sample", 1, false),
    (Module::Selection, "offer", 1, false),
    (Module::Selection, "refine", 1, false),
    (Module::Selection, "count_kept", 1, true),
    (Module::Selection, "write_kept", 1, false),
    (Module::Selection, "check_payloads", 1, true),
    (Module::Selection, "average_kept", 1, false),
    (Module::Selection, "measure_kept", 1, true),
    (Module::TopK, "refine", 1, true),
    (Module::PowerSgd, "project", 1, false),
    (Module::PowerSgd, "back_project", 1, false),
    (Module::PowerSgd, "gram", 1, false),
];

/// Checks that the PTX of a module has all fences and barriers around its counters. `Err` has a description of the
/// first mistake.
pub(super) fn check(module: Module, ptx: &str) -> Result<(), String> {
    for (entry, body) in ptx.split(".entry ").skip(1).map(|text| text.split_once('(').expect("parameters")) {
        let known = LAST_BLOCKS.iter().find(|last| (last.0, last.1) == (module, entry));
        let found = counters(body).map_err(|wrong| format!("{module:?}, {entry}: {wrong}"))?;
        if found != known.map_or(0, |last| last.2) {
            return Err(format!("{module:?}, {entry}: {found} counters"));
        }
        let reads_fresh = body.contains("ld.volatile.global");
        if known.is_some_and(|last| last.3 != reads_fresh) || body.contains("ld.global.nc") {
            return Err(format!("{module:?}, {entry}: reads what other blocks have written as if they had not"));
        }
    }
    Ok(())
}

/// The check of the PTX must notice if a fence or a barrier is missing.
#[test]
fn what_is_missing_in_what_is_compiled_is_found() {
    for module in [Module::TopK, Module::PowerSgd] {
        let text = ptx(module);
        let lines: Vec<&str> = text.lines().collect();
        let events: Vec<(usize, Event<'_>)> =
            lines.iter().enumerate().filter_map(|(at, line)| Some((at, event(line)?))).collect();
        let fence = |found: &&(usize, Event<'_>)| found.1 == Event::Fence;
        let mut fences = Vec::new();
        for (at, added) in events.iter().enumerate() {
            let Event::Add(counter) = added.1 else { continue };
            let reset = events[at..].iter().position(|event| event.1 == Event::Reset(counter));
            if let Some(reset) = reset {
                let around = [events[..at].iter().rfind(fence), events[at + reset..].iter().find(fence)];
                fences.extend(around.map(|fence| fence.expect("a fence").0));
            }
        }
        assert!(fences.len() >= 2, "{module:?}: {fences:?}");
        for at in fences {
            let without = [&lines[..at], &lines[at + 1..]].concat().join("\n");
            assert!(check(module, &without).is_err(), "{module:?}: without line {at}");
        }
    }
    let text = ptx(Module::TopK).replace("ld.volatile.global", "ld.global");
    assert!(check(Module::TopK, &text).is_err());
}
