//! Counts the memory accesses of kernels. The tests count, for each value, how often a TopK encoder loads the gradient
//! and the sum of gradient and residual. Payloads and residuals must equal the core's. The tests also count the 32-byte
//! sectors that the stores of a warp touch.
#![allow(unsafe_code)]

use super::exchange::{Memory, bits, config, narrowed};
use super::sample::KINDS;
use super::simt::{Flavour, Simt, build};
use crate::device::Part;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, ExchangeConfig, ExchangeProgram};
use lgreco::backend::{Backend, Portable};
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use libloading::Library;
use std::sync::Mutex;

/// Held while a test watches memory, because only one test at a time may do so.
static WATCHING: Mutex<()> = Mutex::new(());

/// Number of 32-byte sectors that warps touch with stores to `memory`, per 32 stored bytes. The best value is 1.
fn sectors(module: Module, memory: Part, run: impl FnOnce()) -> f64 {
    // SAFETY: the backend uses the same library, which is loaded once. The library's entry points have these types.
    let library = unsafe { Library::new(build(module, &module.source(), Flavour::Reads)) }.unwrap();
    // SAFETY: as above.
    let watch = unsafe { library.get::<unsafe extern "C" fn(u64, usize)>("cuda_shim_watch_stores") }.unwrap();
    // SAFETY: as above.
    let found = unsafe { library.get::<unsafe extern "C" fn(*mut u64)>("cuda_shim_stores") }.unwrap();
    let mut counts = [0u64; 2];
    // SAFETY: the library does not access the watched memory, and `counts` has two elements.
    unsafe {
        watch(memory.address, memory.bytes as usize);
        run();
        found(counts.as_mut_ptr());
        watch(0, 0);
    }
    counts[1] as f64 / (counts[0] as f64 / 32.0)
}

/// Returns how often the kernels that `run` launches load each byte of `memory`.
fn loads(memory: Part, run: impl FnOnce()) -> Vec<u32> {
    let mut counts = vec![0u32; memory.bytes as usize];
    // SAFETY: the backend uses the same library, which is loaded once. The library's entry point has this type.
    let library =
        unsafe { Library::new(build(Module::Selection, &Module::Selection.source(), Flavour::Reads)) }.unwrap();
    // SAFETY: as above.
    let watch = unsafe { library.get::<unsafe extern "C" fn(u64, usize, *mut u32)>("cuda_shim_watch") }.unwrap();
    // SAFETY: the counts live until the watching ends.
    unsafe { watch(memory.address, counts.len(), counts.as_mut_ptr()) };
    run();
    // SAFETY: as above.
    unsafe { watch(memory.address, 0, std::ptr::null_mut()) };
    counts
}

/// Average numbers of loads per value of a layer. The fields count loads of gradients, of the previous residuals, and
/// of the sums that become the next residuals.
#[derive(Debug)]
struct Reads {
    gradients: f64,
    before: f64,
    sums: f64,
}

impl Reads {
    /// Whether kernels read gradients and residuals about once, and the sums of both about `sums` times. `few` is the
    /// accepted excess.
    fn is_step(&self, sums: f64, few: f64) -> bool {
        let is_once = [self.gradients, self.before].iter().all(|reads| (1.0..=1.0 + few).contains(reads));
        is_once && self.sums >= sums && self.gradients + self.sums <= 1.0 + sums + few
    }
}

fn mean(counts: &[u32], bytes: usize) -> f64 {
    counts.iter().step_by(bytes).map(|&count| f64::from(count)).sum::<f64>() / (counts.len() / bytes) as f64
}

fn payload_of(setting: Setting, values: &[f32]) -> Vec<u8> {
    let tensor = Tensor::new(values, values.len(), 1);
    let gradient = tensor.gradients()[0];
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    Portable.encode(&setting, &gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    payload
}

/// Counts the reads of a step of an exchange that has only this layer. The residuals are zeros before the step.
fn of_exchange(backend: &mut CudaBackend, setting: Setting, (dtype, gain): (Dtype, f32), values: &[f32]) -> Reads {
    let (bytes, offered) = narrowed(values, dtype);
    let layers = [(Shape::new(values.len(), 1).unwrap(), setting)];
    let program = ExchangeProgram::new(&layers, ExchangeConfig { world: 1, ..config(dtype, gain) }).unwrap();
    let (own, remembered) = (bytes.len().next_multiple_of(16), program.residual_bytes() as usize);
    let (mut memory, mut message) = (Memory::new(program.memory_bytes()), Memory::new(program.message_bytes() as u64));
    let mut watched = Memory::new((own + remembered) as u64);
    let address = watched.address();
    // SAFETY: the memory has the program's sizes, and lives until all work is done.
    let exchange = unsafe { backend.begin_exchange(program, memory.address(), address + own as u64) }.unwrap();
    watched.fill(&bytes);
    let part = Part { address, bytes: (own + remembered) as u64 };
    // SAFETY: as above.
    let counts = loads(part, || unsafe { backend.encode_exchange(&exchange, address, message.address()) }.unwrap());
    let expected = payload_of(setting, &offered);
    assert!(message.bytes()[16..][..expected.len()] == expected, "{setting}, {dtype:?}: payload");
    let mut decoded = vec![0.0; offered.len()];
    Portable.decode(&expected, &mut decoded).unwrap();
    let stays: Vec<f32> = offered.iter().zip(decoded).map(|(x, sent)| (1.0 - gain) * 0.0 + gain * (x - sent)).collect();
    let after = &watched.bytes()[own + remembered / 2..];
    assert!(bytemuck::cast_slice::<u8, u32>(after) == bits(&stays), "{setting}, {dtype:?}: residuals");
    let (of_gradients, of_residuals) = counts.split_at(own);
    let (before, sums) = of_residuals.split_at(remembered / 2);
    Reads { gradients: mean(&of_gradients[..bytes.len()], dtype.bytes()), before: mean(before, 4), sums: mean(sums, 4) }
}

/// Counts the reads for a payload of this layer alone.
fn of_payload(backend: &mut CudaBackend, setting: Setting, dtype: Dtype, values: &[f32]) -> Reads {
    let (bytes, offered) = narrowed(values, dtype);
    let mut watched = Memory::new(bytes.len() as u64);
    watched.fill(&bytes);
    let part = Part { address: watched.address(), bytes: bytes.len() as u64 };
    let expected = payload_of(setting, &offered);
    let mut payload = vec![0; expected.len()];
    let gradient = DeviceGradient::of_part(part, dtype, Shape::new(values.len(), 1).unwrap());
    let counts = loads(part, || {
        backend.encode_device(&setting, &gradient, Stream::default(), &mut payload).unwrap();
    });
    assert!(payload == expected, "{setting}, {dtype:?}: payload");
    Reads { gradients: mean(&counts, dtype.bytes()), before: 0.0, sums: 0.0 }
}

fn counting() -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(Flavour::Reads, 0, None)?)))
}

const COUNT: usize = 100_003;
/// Accepted additional reads per value on average: a sixteenth for the sample, and repeated reads of gathered values.
const FEW: f64 = 1.0 / 16.0 + 0.15;
/// For layers without memory for gathered values, the accepted reads of the sample (at most 65,536 values), per value
/// of the layer.
const SAMPLE: f64 = 65_537.0 / COUNT as f64;

fn top(keep: usize, values: Dtype) -> Setting {
    Setting::TopK(TopK { keep: keep as u32, values })
}

/// Layers that keep more than 7 of 32 values. Tests every sent type and many kinds of values, with a correct sample.
/// The kernels load values that reach the bound twice in a row; the second load comes from the cache.
#[test]
fn values_of_layers_that_keep_much_are_read_four_times() {
    let _alone = WATCHING.lock();
    let Some(mut backend) = counting() else { return };
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: COUNT as u32 / 2, bits: 4 });
    let settings = [(COUNT / 4), COUNT / 2, COUNT / 10 * 9, COUNT].map(|keep| top(keep, Dtype::F16));
    for (number, setting) in settings.into_iter().chain([few]).enumerate() {
        let kind = [KINDS[0], KINDS[6], KINDS[3]][number % 3];
        let dtype = [Dtype::F32, Dtype::Bf16][number % 2];
        let values: Vec<f32> = uniform(COUNT, 7).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect();
        let reads = of_exchange(&mut backend, setting, (dtype, 1.0), &values);
        assert!(reads.is_step(3.0, 1.0 + SAMPLE), "{setting}, {dtype:?}: {reads:?}");
        let reads = of_payload(&mut backend, setting, dtype, &values);
        assert!((4.0..=5.0 + SAMPLE).contains(&reads.gradients), "{setting}, {dtype:?}: {reads:?}");
    }
}

/// Layers that keep few values. The gathered values still do not fit into their memory, because fewer than k values are
/// nonzero or many values are equal. In addition, the sample reads a random sixteenth of the values.
#[test]
fn ties_are_read_four_times_at_most() {
    let _alone = WATCHING.lock();
    let Some(mut backend) = counting() else { return };
    let count = (1 << 20) + 3;
    for (keep, kind, dtype) in
        [(count / 10, KINDS[3], Dtype::F32), (count / 5, KINDS[2], Dtype::Bf16), (count / 20, KINDS[6], Dtype::F32)]
    {
        let values: Vec<f32> = uniform(count, 7).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect();
        let reads = of_payload(&mut backend, top(keep, Dtype::F32), dtype, &values);
        assert!((2.0..=5.0 + FEW).contains(&reads.gradients), "{keep}, {dtype:?}: {reads:?}");
    }
}

/// For small layers, such as biases and norms, the memory for gathered values can hold all values. In addition, the
/// sample reads a sixteenth of the values, and one block reads some values again to find the k-th largest magnitude.
#[test]
fn small_layers_are_read_twice_at_most() {
    let _alone = WATCHING.lock();
    let Some(mut backend) = counting() else { return };
    for count in [1usize, 3, 16, 17, 64, 500, 2048, 4096, 4097, 9001, 20_000, 32_768] {
        let drawn = count.div_ceil(16) as f64 / count as f64 + 1e-3;
        let most = 2.0 + drawn + 0.2;
        let keeps = [1, count.div_ceil(100), count.div_ceil(10), count.div_ceil(5), count.div_ceil(2), count];
        for (which, keep) in keeps.into_iter().enumerate() {
            let kind = KINDS[(which + count) % 8];
            let values: Vec<f32> = uniform(count, 7).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect();
            let few = Setting::QuantisedTopK(QuantisedTopK { keep: keep as u32, bits: 4 });
            for (setting, dtype) in [(top(keep, Dtype::F32), Dtype::F32), (few, Dtype::Bf16)] {
                let reads = of_payload(&mut backend, setting, dtype, &values);
                assert!((1.0..=most).contains(&reads.gradients), "{setting} of {count}, {dtype:?}: {reads:?}");
            }
            let reads = of_exchange(&mut backend, top(keep, Dtype::F32), (Dtype::F32, 1.0), &values);
            let is_once = [reads.gradients, reads.before].iter().all(|once| (1.0..=1.0 + drawn).contains(once));
            assert!(is_once && reads.gradients + reads.sums <= most, "{keep} of {count}: {reads:?}");
        }
    }
}

/// If small layers keep few values, the kernels gather few values and read no value again.
#[test]
fn small_layers_that_keep_little_are_read_once() {
    let _alone = WATCHING.lock();
    let Some(mut backend) = counting() else { return };
    for count in [9001, 20_000, 32_768, 66_000] {
        let values = uniform(count, 7);
        let reads = of_payload(&mut backend, top(count / 100, Dtype::F32), Dtype::F32, &values);
        assert!((1.0..=1.0 + 1.0 / 16.0 + 0.1).contains(&reads.gradients), "{count}: {reads:?}");
    }
}

/// Runs an exchange of a layer under QSGD. Counts the stores of residuals, codes and means.
#[test]
fn stores_of_a_warp_fill_whole_sectors() {
    let _alone = WATCHING.lock();
    let Some(mut backend) = counting() else { return };
    let shape = Shape::new(8 * 4096, 1).unwrap();
    let values = uniform(shape.elements(), 7);
    for bits in [4, 8] {
        let layers = [(shape, Setting::Qsgd(Qsgd { bits, ..Qsgd::default() }))];
        let program = ExchangeProgram::new(&layers, ExchangeConfig { world: 1, ..config(Dtype::F32, 1.0) }).unwrap();
        let mut memory = Memory::new(program.memory_bytes());
        let sizes = [4 * shape.elements() as u64, program.residual_bytes(), program.message_bytes() as u64];
        let mut memories = sizes.map(|bytes| Memory::new(bytes + 16));
        // Each memory begins at the start of a sector.
        let at = |memory: &mut Memory, bytes| Part { address: memory.address().next_multiple_of(32), bytes };
        let [own, to, of_message] = [0, 1, 2].map(|which| at(&mut memories[which], sizes[which]));
        let skipped = (own.address - memories[0].address()) as usize;
        memories[0].fill(&[&vec![0; skipped], bytemuck::cast_slice(&values)].concat());
        // SAFETY: the memory has the program's sizes, and lives until all work is done.
        let exchange = unsafe { backend.begin_exchange(program, memory.address(), to.address) }.unwrap();
        // SAFETY: the memory has the program's sizes, and the means may replace the gradients.
        let mut encode = || unsafe { backend.encode_exchange(&exchange, own.address, of_message.address) }.unwrap();
        let of_codes = Part { address: of_message.address + 512, bytes: of_message.bytes - 512 };
        let found = [sectors(Module::Exchange, to, &mut encode), sectors(Module::Exchange, of_codes, &mut encode)];
        // SAFETY: as above.
        let mut finish = || unsafe { backend.finish_exchange(&exchange, of_message.address, own.address) }.unwrap();
        let means = sectors(Module::Exchange, own, &mut finish);
        assert!(found.iter().chain([&means]).all(|&sectors| sectors == 1.0), "{bits} bits: {found:?}, {means}");
    }
}
