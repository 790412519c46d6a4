//! Tests TopK on tensors that several blocks share, data races, and planted bugs.

use super::qsgd::part;
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend, is_full, some};
use crate::gpu::Scratch;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, DeviceJob};
use lgreco::backend::{Backend, Job, JobError, Portable};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, topk::TopK};
use lgreco::gradient::{Dtype, Gradient};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_encode, check_rows, check_topk};

/// Number of values. One block of the counting kernel processes fewer values.
const LARGE: usize = (32 << 15) + 70_001;

fn uniform(index: usize) -> f32 {
    Stream { seed: 3, ..Stream::default() }.word(index as u64) as f32 / 4294967296.0 - 0.5
}

/// Returns value `index` of bell-shaped values.
fn bell(index: usize) -> f32 {
    (0..4).map(|i| uniform(4 * index + i)).sum()
}

fn check(backend: &mut CudaBackend, gradient: &Gradient<'_>, values: Dtype) {
    let elements = gradient.shape().elements() as u32;
    let mut keeps: Vec<u32> = (1..12).map(|i| elements >> i).collect();
    keeps.extend([elements, elements - 1, 1, 2]);
    let candidates = Candidates::TopK { values, keeps: &keeps };
    check_rows(backend, &[Job { gradient: *gradient, candidates, stream: Stream::default() }], ROWS);
    let keep = elements / 100;
    check_encode(backend, &Setting::TopK(TopK { keep, values }), gradient, Stream::default());
}

#[test]
fn large_tensors() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let smooth = Tensor::new(&(0..LARGE).map(bell).collect::<Vec<_>>(), LARGE, 1);
    for gradient in smooth.gradients() {
        check(&mut backend, &gradient, gradient.values().dtype());
    }
    check(&mut backend, &smooth.gradients()[0], Dtype::F16);
    // A tensor with few different values, of which half are zeros. The nonzero values are near the smallest f16.
    let coarse = |i: usize| if i.is_multiple_of(2) { 0.0 } else { (8.0 * uniform(i)) as i32 as f32 * 1e-7 };
    let coarse = Tensor::new(&(0..LARGE / 8).map(coarse).collect::<Vec<_>>(), LARGE / 8, 1);
    // A tensor whose magnitudes span very many exponents.
    let wide = |i: usize| bell(i) * 2f32.powi(i as i32 % 200 - 100);
    let wide = Tensor::new(&(0..LARGE / 8).map(wide).collect::<Vec<_>>(), LARGE / 8, 1);
    for (tensor, values) in [(&coarse, Dtype::F16), (&coarse, Dtype::F32), (&wide, Dtype::Bf16), (&wide, Dtype::F32)] {
        check(&mut backend, &tensor.gradients()[0], values);
    }
}

/// With so many values, two sums exceed 32 bits: a block's sum of rounding errors, and a bin's sum of lower bits over
/// all blocks. Half of the values share one bin, where both sums are largest. The other half of the values is spread
/// over many bins.
#[test]
fn sixteen_million_values() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let elements = 1 << 24;
    let crowded = |i: usize| f32::from_bits(0x3f80_f000 - i as u32 % 8);
    let value = |i: usize| if i < elements / 2 { crowded(i) } else { uniform(i).powi(3) };
    let tensor = Tensor::new(&(0..elements).map(value).collect::<Vec<_>>(), elements, 1);
    let gradient = tensor.gradients()[0];
    let keeps: Vec<u32> = (1..64).map(|i| (i * elements / 64) as u32).collect();
    for values in [Dtype::F32, Dtype::F16] {
        let candidates = Candidates::TopK { values, keeps: &keeps };
        check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
    }
}

/// Rows of smoothly distributed values need no second pass over the values. So rows must stay the same if an edit makes
/// the second pass find nothing.
#[test]
fn smooth_rows_take_one_pass() {
    let edit = Edit { module: Module::TopK, from: "if (slot == 0) {", to: "if (true) {" };
    let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
    let mut one_pass = CudaBackend::on(Box::new(device));
    let cubes = |i: usize| uniform(i).powi(3);
    let keeps: Vec<u32> = (1..100).map(|i| (i * LARGE / 100) as u32).collect();
    for values in [(0..LARGE).map(bell).collect::<Vec<_>>(), (0..LARGE).map(cubes).collect()] {
        let tensor = Tensor::new(&values, LARGE, 1);
        let candidates = Candidates::TopK { values: Dtype::F32, keeps: &keeps };
        let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
        check_rows(&mut one_pass, &[job], ROWS);
    }
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    if is_full() {
        return check_topk(&mut backend, ROWS);
    }
    for values in [Dtype::F32, Dtype::F16] {
        row(&mut backend, values).unwrap();
    }
    let setting = Setting::TopK(TopK { keep: 900, values: Dtype::F32 });
    check_encode(&mut backend, &setting, &tensor().gradients()[0], Stream::default());
}

fn edited(flavour: Flavour, module: Module, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, 0, Some(Edit { module, from, to }))?)))
}

/// Returns value `index` of bell-shaped values, many of which are equal. Every third value is rounded more coarsely, so
/// more of these values are equal. The coarser values do not lie at the start of bins.
pub(super) fn with_ties(index: usize) -> f32 {
    let rounded = |unit: f32| (bell(index) / unit).round() * unit;
    if index.is_multiple_of(3) { rounded(1e-3) * 1.003 } else { rounded(1.0 / 8192.0) }
}

fn tensor() -> Tensor {
    Tensor::new(&(0..9000).map(with_ties).collect::<Vec<_>>(), 9000, 1)
}

/// Values of k. All k except the first drop only few values, so that the kernels refine bins.
const KEEPS: [u32; 7] = [90, 8990, 8975, 8960, 8945, 8930, 8900];

fn row(backend: &mut dyn Backend, values: Dtype) -> Result<[f64; KEEPS.len()], JobError> {
    let tensor = tensor();
    let candidates = Candidates::TopK { values, keeps: &KEEPS };
    let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
    let mut row = [0.0; KEEPS.len()];
    let mut workspace = vec![0; backend.workspace_len(&[job])];
    backend.measure(&[job], &mut workspace, &mut row).map(|()| row)
}

/// Decodes a payload that the core encodes.
fn decode(backend: &mut dyn Backend) -> Result<Vec<f32>, lgreco::Error> {
    let setting = Setting::TopK(TopK { keep: 1000, values: Dtype::F16 });
    let tensor = tensor();
    let gradient = tensor.gradients()[0];
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32)?];
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    let mut values = vec![0.0; 9000];
    backend.decode(&payload, &mut values).map(|()| values)
}

/// Returns the race that is found in an edited module, if any.
fn race(module: Module, from: &'static str, to: &'static str) -> Option<String> {
    let mut backend = edited(Flavour::Races, module, from, to)?;
    let failed = match module {
        Module::Positions => decode(&mut backend).is_err(),
        _ => row(&mut backend, Dtype::F16).is_err(),
    };
    assert!(failed, "{from}");
    Some(backend.failure().expect("a failure").to_string())
}

#[test]
#[ignore = "slow"]
fn missing_barriers_are_found() {
    for (module, from, to) in [
        (Module::TopK, "    __syncthreads();\n    const void* values", "    const void* values"),
        (Module::TopK, "    __syncthreads();\n    window.give_all", "    window.give_all"),
        (Module::TopK, "exponents);\n    }\n    __syncthreads();", "exponents);\n    }"),
        (Module::TopK, "    __syncthreads();\n    if (warp < 2)", "    if (warp < 2)"),
        (Module::TopK, "    __syncthreads();\n    double* errors", "    double* errors"),
        (Module::Positions, "    __syncthreads();\n    u32 index", "    u32 index"),
        (Module::Positions, "    __syncthreads();\n    sum = 0", "    sum = 0"),
    ] {
        let Some(said) = race(module, from, to) else { return };
        assert!(said.contains("race (") && said.contains("shared memory"), "{from}: {said}");
    }
}

#[test]
#[ignore = "slow"]
fn lost_updates_are_found() {
    for (from, to) in
        [("atomicAdd(&room[at], 1u);", "room[at] += 1;"), ("atomicAdd(&own_counts[at], 1u);", "own_counts[at] += 1;")]
    {
        let Some(said) = race(Module::TopK, from, to) else { return };
        assert!(said.contains("race ("), "{from}: {said}");
    }
}

/// The tensor has more equal magnitudes than a word with a count and a sum can hold.
#[test]
fn full_words_are_emptied() {
    let values: Vec<f32> = (0..40_003).map(|i| [1.1, 1.3, -1.7][i % 3]).collect();
    let tensor = Tensor::new(&values, 40_003, 1);
    let check = |edit| {
        let mut backend = CudaBackend::on(Box::new(Simt::new(flavour(), 2, edit)?));
        let check = || {
            for (values, gradient) in [Dtype::F32, Dtype::F16, Dtype::F16].into_iter().zip(tensor.gradients()) {
                let candidates = Candidates::TopK { values, keeps: &[1, 30_000, 20_000] };
                check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
            }
        };
        Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok())
    };
    assert_ne!(check(None), Some(false));
    let edit = Edit { module: Module::TopK, from: "low = both & ((1u << SUM_BITS) - 1);", to: "low = 0;" };
    assert_ne!(check(Some(edit)), Some(true));
}

/// Edits of a kernel's computation must change the numbers that the suite compares.
#[test]
#[ignore = "slow"]
fn wrong_numbers_are_found() {
    let expected = decode(&mut Portable).unwrap();
    // In a further tensor, all values have one exponent, and TopK keeps all values or all but one.
    let narrow = Tensor::new(&(0..9000).map(|i| 1.5 + uniform(i) / 1.01).collect::<Vec<_>>(), 9000, 1);
    let all_rows = |backend: &mut dyn Backend| {
        let of_narrow = |backend: &mut dyn Backend| {
            let candidates = Candidates::TopK { values: Dtype::F16, keeps: &[9000, 8999, 100] };
            let job = Job { gradient: narrow.gradients()[0], candidates, stream: Stream::default() };
            let (mut row, mut workspace) = ([f64::NAN; 3], vec![0; backend.workspace_len(&[job])]);
            backend.measure(&[job], &mut workspace, &mut row).map(|()| row)
        };
        let ties = [Dtype::F32, Dtype::F16].map(|sent| row(backend, sent).unwrap_or([f64::NAN; KEEPS.len()]));
        [&ties.concat()[..], &of_narrow(backend).unwrap_or([f64::NAN; 3])].concat()
    };
    let expected_rows = all_rows(&mut Portable);
    for (module, from, to) in [
        (Module::TopK, "window.add(p, all, bits_of(four[k]))", "window.add(p, all, bits_of(four[0]))"),
        (Module::TopK, "i < end; i += READERS * 4", "i < end; i += READERS * 8"),
        (Module::TopK, "(part + 0.5) * (WIDTH / PARTS)", "0.0"),
        (Module::TopK, "exponents.errors, warp == 1", "exponents.errors, false"),
        (Module::TopK, "exponents.energies[exponent] + exponents.errors", "exponents.errors"),
        (Module::TopK, "lower + higher};", "higher};"),
        (Module::TopK, "lower + higher};", "lower};"),
        (Module::TopK, "cut.others += four.energies[k];", ""),
        (Module::TopK, "cut.others += four.errors[k];", ""),
        (Module::TopK, "rank - above,", "rank,"),
        (Module::TopK, "up ? unit - part : part", "part"),
        (Module::Positions, "= kept_value(p, kept, index);", "= kept_value(p, kept, 0);"),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, module, from, to) else { return };
        let rows = all_rows(&mut backend);
        let near = rows.iter().zip(&expected_rows).all(|(a, b)| (a - b).abs() <= ROWS * b);
        assert!(decode(&mut backend).as_ref() != Ok(&expected) || !near, "{from}");
    }
}

/// Measures a row with refined bins. Returns whether the kernels leave the zeros that the next row needs.
fn leaves_zeros(backend: &mut CudaBackend, sent: Dtype) -> bool {
    row(backend, sent).unwrap();
    let all = backend.gpu_mut().whole(Scratch::RowBins);
    backend.gpu_mut().read::<u8>(all).unwrap().iter().all(|&byte| byte == 0)
}

#[test]
fn rows_leave_zeros_behind() {
    let all = [Dtype::F32, Dtype::F16];
    let Some(mut backend) = backend(flavour(), 0) else { return };
    assert!(all.map(|sent| leaves_zeros(&mut backend, sent)) == [true; 2]);
    for (from, of) in [
        ("reinterpret_cast<uint4*>(all.counts + first)[lane] = zeros;", all),
        ("reinterpret_cast<uint4*>(all.lows + first)[pair] = zeros;", all),
        ("reinterpret_cast<uint4*>(all.errors + first)[pair] = zeros;", [Dtype::F16; 2]),
        ("all.totals()[exponent] = 0;", all),
        ("fine_counts[index * PARTS + part] = 0;", all),
        ("fine_errors[index * PARTS + part] = 0;", [Dtype::F16; 2]),
        ("atomicExch(&slots[cuts[index].bin], 0u);", all),
        ("wanted[number] = 0;", all),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, Module::TopK, from, ";") else { return };
        assert!(of.map(|sent| leaves_zeros(&mut backend, sent)) == [false; 2], "{from}");
    }
}

#[test]
fn rows_are_filled_with_zeros_unless_they_are_zeros() {
    let Some(device) = Simt::new(flavour(), 0, None) else { return };
    let mut backend = CudaBackend::on(Box::new(device.reusing()));
    let expected = row(&mut backend, Dtype::F16).unwrap();
    let all = backend.gpu_mut().whole(Scratch::RowBins);
    // The test spoils only sums, because the kernels use counts as indices.
    let spoil = |backend: &mut CudaBackend| backend.gpu_mut().write(&[1; 8 * 129 * 280], all).unwrap();
    assert_eq!(row(&mut backend, Dtype::F16).unwrap(), expected, "zeros that were left");
    spoil(&mut backend);
    assert_ne!(row(&mut backend, Dtype::F16).unwrap(), expected, "it has been filled again");
    // After a failed call, the next call must fill the buffer with zeros again.
    backend.gpu_mut().zeros(Scratch::RowBins, 1).unwrap();
    spoil(&mut backend);
    assert_eq!(row(&mut backend, Dtype::F16).unwrap(), expected);
}

/// Measures layers of all sizes and types. There are too many layers to share launches. Each row must have the same
/// bits as if its layer were measured alone, and must agree with the core's.
#[test]
fn layers_share_launches_and_have_the_bits_of_their_own() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let size = |layer: usize| if layer == 40 { 140_003 } else { layer * 1731 % 5000 + 1 };
    let tensors: Vec<Tensor> = (0..100)
        .map(|layer| {
            let scale = 2f32.powi(layer as i32 % 30 - 15);
            Tensor::new(&(0..size(layer)).map(|i| bell(i + layer) * scale).collect::<Vec<_>>(), size(layer), 1)
        })
        .collect();
    let keeps: Vec<Vec<u32>> = (0..100)
        .map(|layer| (0..layer as u32 % 4 + 1).map(|i| size(layer) as u32 >> i).map(|k| k.max(1)).collect())
        .collect();
    let candidates = |layer: usize| match layer {
        60..75 => Candidates::QuantisedTopK { keeps: &keeps[layer], bits: &[4, 1, 8] },
        75..90 => Candidates::TopK { values: Dtype::Bf16, keeps: &keeps[layer] },
        _ => Candidates::TopK { values: Dtype::F32, keeps: &keeps[layer] },
    };
    // Some adjacent layers have the same type, so that more layers share launches under TopK in few bits.
    let dtype = |layer: usize| if (60..75).contains(&layer) { layer / 3 % 3 } else { layer % 5 % 3 };
    let gradients: Vec<Gradient<'_>> = (0..100).map(|layer| tensors[layer].gradients()[dtype(layer)]).collect();
    let job = |layer: usize| DeviceJob {
        gradient: DeviceGradient::of_part(
            part(&gradients[layer]),
            gradients[layer].values().dtype(),
            gradients[layer].shape(),
        ),
        candidates: candidates(layer),
        stream: Stream::default(),
    };
    let jobs: Vec<DeviceJob<'_>> = (0..100).map(job).collect();
    let mut together = vec![f64::NAN; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.measure_device(&jobs, &mut together).unwrap();
    let mut rest = &together[..];
    for (layer, job) in jobs.iter().enumerate() {
        let mut alone = vec![f64::NAN; job.candidates.len()];
        backend.measure_device(&[*job], &mut alone).unwrap();
        let (own, others) = rest.split_at(alone.len());
        assert!(
            alone.iter().zip(own).all(|(a, b)| a.to_bits() == b.to_bits()),
            "layer {layer}: {own:?}, not {alone:?}"
        );
        let of_host = Job { gradient: gradients[layer], candidates: candidates(layer), stream: Stream::default() };
        let mut expected = alone.clone();
        Portable.measure(&[of_host], &mut vec![0; Portable.workspace_len(&[of_host])], &mut expected).unwrap();
        assert!(
            own.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= ROWS * b),
            "layer {layer}: {own:?}, not {expected:?}"
        );
        rest = others;
    }
    assert!(rest.is_empty());
}

/// Encodes one layer after another. Most layers differ in length from the previous layer. After each layer, the backend
/// must refuse a layer with a value that is not finite.
fn payloads_in_turn(backend: &mut CudaBackend) {
    for (turn, len) in [70_000usize, 3, 9001, 40_000, 40_000, 500].into_iter().enumerate() {
        let mut values: Vec<f32> =
            (0..len).map(|i| bell(i) * if turn == 2 || turn == 4 { 2f32.powi(i as i32 % 40) } else { 1.0 }).collect();
        let keeps = [len / 100, len / 2, len].map(|keep| keep.max(1) as u32);
        let settings = keeps.into_iter().zip([4, 1, 7]).flat_map(|(keep, bits)| {
            let few = Setting::QuantisedTopK(QuantisedTopK { keep, bits });
            [Setting::TopK(TopK { keep, values: Dtype::F32 }), few]
        });
        let mut settings: Vec<Setting> = settings.collect();
        // The bins of this setting span many powers of two.
        settings.push(Setting::QuantisedTopK(QuantisedTopK { keep: len as u32, bits: 2 }));
        let tensor = Tensor::new(&values, len, 1);
        settings.iter().for_each(|setting| check_encode(backend, setting, &tensor.gradients()[0], Stream::default()));
        values[len / 2] = [f32::NAN, f32::INFINITY][turn % 2];
        let tensor = Tensor::new(&values, len, 1);
        for setting in &settings {
            let gradient = tensor.gradients()[0];
            let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
            backend.encode(setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap_err();
        }
    }
}

/// The memory that kernels leave after a layer is the initial state for the next layer.
#[test]
fn payloads_do_not_depend_on_those_before() {
    let Some(simt) = Simt::new(flavour(), 0, None) else { return };
    payloads_in_turn(&mut CudaBackend::on(Box::new(simt.reusing())));
    for (from, to) in some([
        ("u32 largest = atomicExch(&cut->largest, 0u);", "u32 largest = cut->largest;"),
        ("u32 least = atomicExch(&cut->least, 0u);", "u32 least = cut->least;"),
        ("atomicExch(&few->counts[slot], 0u)", "few->counts[slot]"),
        ("u64 sum = atomicExch(&few->sums[slot], 0ull);", "u64 sum = few->sums[slot];"),
        ("u64 another = atomicExch(&few->sums[slot + other], 0ull);", "u64 another = few->sums[slot + other];"),
    ]) {
        let edit = Edit { module: Module::Selection, from, to };
        let Some(simt) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
        let mut backend = CudaBackend::on(Box::new(simt.reusing()));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| payloads_in_turn(&mut backend)));
        assert!(found.is_err(), "{from}");
    }
}
