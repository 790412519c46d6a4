//! Counts the requests to the device for an error table of many layers. Also tests the errors of calls whose requests
//! fail.
#![allow(unsafe_code)]

use crate::counting::Kernels;
use crate::device::{Device, Launch, Part};
use crate::gpu::MOST;
use crate::kernels::Kernel;
use crate::{
    CudaBackend, DeviceExchange, DeviceGradient, DeviceJob, DeviceJobError, Error, ExchangeConfig, ExchangeProgram,
};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Setting, eden::Eden, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::models::resnet_50;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The requests that a device has received, and the answers that it gives.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) allocations: AtomicUsize,
    /// The value that every byte read from the device has.
    pub(super) content: AtomicU8,
    /// Simulates how many positions the decoder of a TopK payload has found. If this number is not 0, it is the second
    /// word of every downloaded status of 8 bytes.
    pub(super) ones: AtomicU32,
    /// The error that all launches return, if any.
    pub(super) failing: Mutex<Option<Error>>,
    pub(super) uploads: AtomicUsize,
    /// The words that calls have set, by address.
    pub(super) words: Mutex<BTreeMap<u64, u32>>,
    /// The numbers of launches, of other enqueued operations, and of waits.
    pub(super) kinds: [AtomicUsize; 3],
    pub(super) prepared: Kernels,
    pub(super) launched: Kernels,
}

impl Calls {
    fn add(&self, kind: usize) {
        self.kinds[kind].fetch_add(1, Ordering::Relaxed);
    }
}

/// A device that only counts requests.
pub(super) struct Counted(pub(super) Arc<Calls>);

impl Device for Counted {
    fn allocate(&mut self, bytes: u64) -> Result<Part, Error> {
        self.0.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(Part { address: 0, bytes })
    }

    fn free(&mut self, _: Part) {}

    fn prepare(&mut self, kernel: Kernel) -> Result<(), Error> {
        self.0.prepared.add(kernel);
        Ok(())
    }

    fn set(&mut self, part: Part, word: u32) -> Result<(), Error> {
        self.0.words.lock().unwrap().insert(part.address, word);
        self.0.add(1);
        Ok(())
    }

    fn upload(&mut self, _: &[u8], _: Part) -> Result<(), Error> {
        self.0.uploads.fetch_add(1, Ordering::Relaxed);
        self.0.add(1);
        Ok(())
    }

    fn clear(&mut self, _: Part) -> Result<(), Error> {
        self.0.add(1);
        Ok(())
    }

    fn copy(&mut self, _: Part, _: Part) -> Result<(), Error> {
        self.0.add(1);
        Ok(())
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), Error> {
        self.0.add(0);
        self.0.launched.add(launch.kernel);
        self.0.failing.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn download(&mut self, _: Part, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.add(2);
        bytes.fill(self.0.content.load(Ordering::Relaxed));
        let ones = self.0.ones.load(Ordering::Relaxed);
        if ones > 0 && bytes.len() == 8 {
            bytes.last_chunk_mut().into_iter().for_each(|last| *last = ones.to_ne_bytes());
        }
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        self.0.add(2);
        Ok(())
    }
}

/// Counts the requests of each kind for a table of 150 equal layers. Each layer has the largest number of blocks of a
/// layer.
fn calls(candidates: Candidates<'_>) -> [usize; 3] {
    calls_of(&[Shape::new(768, 768).unwrap(); 150], candidates)
}

fn calls_of(shapes: &[Shape], candidates: Candidates<'_>) -> [usize; 3] {
    calls_by(shapes, |_| candidates)
}

/// Like [`calls_of`], but layers may have different candidates.
fn calls_by<'a>(shapes: &[Shape], candidates: impl Fn(usize) -> Candidates<'a>) -> [usize; 3] {
    let calls = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(calls.clone())));
    let job = |(layer, &shape): (usize, &Shape)| {
        let part = Part { address: 0, bytes: 4 * shape.elements() as u64 };
        let gradient = DeviceGradient::of_part(part, Dtype::F32, shape);
        DeviceJob { gradient, candidates: candidates(layer), stream: Stream::default() }
    };
    let jobs: Vec<DeviceJob<'_>> = shapes.iter().enumerate().map(job).collect();
    let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.measure_device(&jobs, &mut rows).unwrap();
    [0, 1, 2].map(|kind| calls.kinds[kind].load(Ordering::Relaxed))
}

#[test]
fn a_table_waits_once_and_qsgds_layers_share_launches() {
    let qsgd = |base| calls(Candidates::Qsgd { base, bits: &[2, 3, 4, 5, 6, 7, 8] });
    // Layers that have up to 192 blocks in all share a pair of launches and an upload. Each layer has three blocks. The
    // results are cleared once for all layers.
    assert_eq!(qsgd(Qsgd::default()), [2 * 3, 3 + 1, 1]);
    // With production code's limit on blocks, all of these layers share one pair of launches.
    MOST.set(2048);
    assert_eq!(qsgd(Qsgd::default()), [2, 1 + 1, 1]);
}

#[test]
fn layers_under_eden_share_launches() {
    let eden = |bits| calls(Candidates::Eden { base: Eden::default(), bits });
    assert_eq!(eden(&[1, 2, 3, 4, 5, 6, 7, 8]), [2 * 3, 3 + 1, 1]);
    MOST.set(2048);
    assert_eq!(eden(&[3]), [2, 1 + 1, 1]);
}

/// The layers are convolutions, biases and a matrix. The layers form two groups, each of which shares launches. For
/// each group, one pair of launches measures the bit widths whose codes have a sign. Another pair of launches measures
/// the width of 1 bit, whose codes have no sign.
#[test]
fn layers_of_mixed_sizes_and_shapes_share_launches() {
    let shapes = resnet_50();
    let row = |bits| calls_of(&shapes, Candidates::Qsgd { base: Qsgd::default(), bits });
    assert_eq!((shapes.len(), row(&[2, 3, 4, 5, 6, 7, 8])), (161, [2 * 2, 2 + 1, 1]));
    assert_eq!(row(&[1, 2, 3, 4, 5, 6, 7, 8]), [2 * 4, 4 + 1, 1]);
}

/// The jobs of a table come layer by layer, under all methods. So the jobs of one method are not consecutive, and the
/// backend must group them.
#[test]
fn layers_share_launches_whatever_lies_between_them() {
    let shapes = resnet_50();
    let keeps: Vec<Vec<u32>> = shapes.iter().map(|shape| vec![1, (shape.elements() as u32 / 10).max(1)]).collect();
    let calls = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(calls.clone())));
    let mut jobs = Vec::new();
    for (&shape, keeps) in shapes.iter().zip(&keeps) {
        let part = Part { address: 0, bytes: 4 * shape.elements() as u64 };
        let gradient = DeviceGradient::of_part(part, Dtype::F32, shape);
        for candidates in [
            Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4, 8] },
            Candidates::TopK { values: Dtype::F32, keeps },
            Candidates::PowerSgd { iterations: 5, ranks: &[1, 4] },
        ] {
            jobs.push(DeviceJob { gradient, candidates, stream: Stream::default() });
        }
    }
    let before = MOST.replace(2048);
    backend.measure_device(&jobs, &mut vec![0.0; 7 * shapes.len()]).unwrap();
    MOST.set(before);
    let [launches, _, waits] = [0, 1, 2].map(|kind| calls.kinds[kind].load(Ordering::Relaxed));
    // The numbers of launches under QSGD, TopK and PowerSGD.
    assert_eq!((launches, waits), (2 + 3 + 38, 1));
}

#[test]
fn topks_layers_share_three_launches() {
    // If the bins of all layers exceed 128 MiB, the layers are measured in several groups.
    for (values, keeps, groups) in
        [(Dtype::F32, 40, 1), (Dtype::F16, 40, 2), (Dtype::F32, 400, 2), (Dtype::F16, 400, 3)]
    {
        let keeps: Vec<u32> = (1..=keeps).collect();
        let [launches, others, waits] = calls(Candidates::TopK { values, keeps: &keeps });
        // The backend fills the bins with zeros once, and the results once per call.
        assert_eq!((launches, others, waits), (3 * groups, groups + 2, 1));
    }
}

/// All layers share five launches that write the kept values, and four launches that measure the kept values.
#[test]
fn layers_under_topk_in_few_bits_share_nine_launches() {
    let few = |keeps| calls(Candidates::QuantisedTopK { keeps, bits: &[2, 4, 8] });
    for keeps in [&[100, 3000, 50][..], &[100, 3000, 50, 7]] {
        // The counts include the launches that measure TopK with full values. Each measuring group uploads once and
        // clears one buffer. The launches that write the kept values take three uploads (layers, spans and chunks) and
        // clear three buffers.
        assert_eq!(few(keeps), [3 + 5 + 4, 2 + (3 + 3) + 2 + 1, 1]);
    }
}

/// Returns the layers of a transformer with GPT-2's shapes: its embeddings and 37 blocks. The transformer has 150
/// layers with 301 million values.
fn transformer() -> Vec<Shape> {
    let block = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
    let shapes = [(50_257, 768), (1024, 768)].into_iter().chain(std::iter::repeat_n(block, 37).flatten());
    shapes.map(|(rows, cols)| Shape::new(rows, cols).unwrap()).collect()
}

/// Two groups of four launches measure all densities of a plan, from 1/1000 to 1/10. One group does not suffice,
/// because a group ends when it needs 512 MiB of workspace.
#[test]
fn a_hundred_densities_in_few_bits_take_sixteen_launches() {
    let (shapes, bits) = (transformer(), &[2, 4, 8]);
    let keeps: Vec<Vec<u32>> =
        shapes.iter().map(|shape| (1..=100).map(|part| shape.elements() as u32 / 1000 * part).collect()).collect();
    let keeps: Vec<&[u32]> = keeps.iter().map(Vec::as_slice).collect();
    let of_layer = |layer: usize| Candidates::QuantisedTopK { keeps: keeps[layer], bits };
    assert_eq!((shapes.len(), calls_by(&shapes, of_layer)[0]), (150, 3 + 5 + 2 * 4));
}

/// Layers share launches until the layers need 512 MiB of workspace in all.
#[test]
fn powersgds_layers_share_launches() {
    let to_64 = &[1, 2, 4, 8, 16, 32, 64];
    let of_transformer = calls_of(&transformer(), Candidates::PowerSgd { iterations: 5, ranks: to_64 });
    assert_eq!(of_transformer[0], 38);
    let powersgd = |iterations, ranks| calls(Candidates::PowerSgd { iterations, ranks });
    for (ranks, groups) in [(&[1][..], 1), (&[1, 2, 4], 1), (to_64, 1), (&[500], 4)] {
        // Each group uploads a table and clears its counters.
        assert_eq!(powersgd(1, ranks), [10 * groups, 2 * groups + 1, 1], "{ranks:?}");
        assert_eq!(powersgd(5, ranks), [38 * groups, 2 * groups + 1, 1], "{ranks:?}");
    }
}

/// The number of launches depends neither on the number of layers, nor on the shapes and ranks of the layers.
#[test]
fn what_travels_by_sums_takes_twelve_launches() {
    let of_device = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let power = |rank| Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
    let layers = |count: usize| -> Vec<_> {
        let layer = |number: usize| match number % 3 {
            0 => (Shape::new(768, 3072).unwrap(), power(1 + number as u32)),
            1 => (Shape::new(768, 1).unwrap(), Setting::Dense),
            _ => (Shape::new(50_257, 1024).unwrap(), power(1024)),
        };
        (0..count).map(layer).collect()
    };
    for count in [1, 2, 150] {
        let program = ExchangeProgram::new(&layers(count), ExchangeConfig::default()).unwrap();
        // SAFETY: a counting device accesses no memory.
        let launches = unsafe {
            let exchange = backend.begin_exchange(program, 4096, 4096).unwrap();
            let mut launches = |call: &dyn Fn(&mut CudaBackend, &DeviceExchange) -> Result<(), Error>| {
                let before = [0, 1, 2].map(|kind| of_device.kinds[kind].load(Ordering::Relaxed));
                call(&mut backend, &exchange).unwrap();
                let after = [0, 1, 2].map(|kind| of_device.kinds[kind].load(Ordering::Relaxed));
                assert_eq!(after[1..], before[1..], "nothing else is enqueued, and nothing waits");
                after[0] - before[0]
            };
            [
                launches(&|backend, exchange| backend.project_exchange(exchange, 4096, 4096)),
                launches(&|backend, exchange| backend.back_project_exchange(exchange, 4096, 4096)),
                launches(&|backend, exchange| backend.average_exchange(exchange, 4096, 4096, 4096)),
            ]
        };
        assert_eq!(launches, [3, 7, 2]);
    }
    assert_eq!(of_device.allocations.load(Ordering::Relaxed), 0);
}

#[test]
fn payloads_for_the_device_need_next_to_nothing_of_the_hosts_memory() {
    let of_device = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let shape = Shape::new(64, 64).unwrap();
    let gradient = DeviceGradient::of_part(Part { address: 256, bytes: 4 * 64 * 64 }, Dtype::F32, shape);
    let mut uploads = |setting| {
        let before = of_device.uploads.load(Ordering::Relaxed);
        // SAFETY: a counting device accesses no memory.
        unsafe {
            backend.encode_to_device(&setting, &gradient, Stream::default(), 256).unwrap();
            backend.decode_on_device(&setting, shape, 256, 4096).unwrap();
        }
        of_device.uploads.load(Ordering::Relaxed) - before
    };
    assert_eq!(uploads(Setting::Qsgd(Qsgd::default())), 0);
    // PowerSGD uploads a table that divides the work.
    assert_eq!(uploads(Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 })), 1);
    // TopK uploads the number of elements to keep.
    assert_eq!(uploads(Setting::TopK(TopK { keep: 40, values: Dtype::F32 })), 1);
    assert_eq!(uploads(Setting::QuantisedTopK(QuantisedTopK { keep: 40, bits: 4 })), 1);
}

/// Five launches encode the layer. A sixth launch writes the header and records a fault, if any. The encoder also makes
/// an upload and a copy. Only the first call clears two buffers.
#[test]
fn a_layer_under_topk_takes_six_launches() {
    let shape = Shape::new(640, 64).unwrap();
    let gradient = DeviceGradient::of_part(Part { address: 256, bytes: 4 * 640 * 64 }, Dtype::F32, shape);
    let in_full = Setting::TopK(TopK { keep: 40, values: Dtype::F32 });
    for top in [in_full, Setting::QuantisedTopK(QuantisedTopK { keep: 40, bits: 4 })] {
        let of_device = Arc::new(Calls::default());
        let mut backend = CudaBackend::on(Box::new(Counted(of_device.clone())));
        for (others, calls) in [(1 + 1 + 2, 1), (2 * (1 + 1) + 2, 2)] {
            // SAFETY: a counting device accesses no memory.
            unsafe { backend.encode_to_device(&top, &gradient, Stream::default(), 256) }.unwrap();
            let entries: Vec<&str> = of_device.launched.get().iter().map(|kernel| kernel.entry).collect();
            assert_eq!(entries, ["sample", "offer", "refine", "count_kept", "write_kept", "end_payload"]);
            let kinds = [0, 1, 2].map(|kind| of_device.kinds[kind].load(Ordering::Relaxed));
            assert_eq!(kinds, [6 * calls, others, 0]);
        }
    }
}

/// The number of launches does not depend on the number of layers or on the kinds of layers.
#[test]
fn an_exchange_takes_six_launches_and_four() {
    let of_device = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let shape = Shape::new(64, 64).unwrap();
    let top = Setting::TopK(TopK { keep: 40, values: Dtype::F32 });
    let mut calls = |settings: &[Setting]| {
        let layers: Vec<_> = settings.iter().cycle().take(150).map(|&setting| (shape, setting)).collect();
        let program = ExchangeProgram::new(&layers, ExchangeConfig::default()).unwrap();
        let counted = || [0, 1, 2].map(|kind| of_device.kinds[kind].load(Ordering::Relaxed));
        // SAFETY: a counting device accesses no memory.
        unsafe {
            let exchange = backend.begin_exchange(program, 256, 256).unwrap();
            let before = counted();
            backend.encode_exchange(&exchange, 256, 256).unwrap();
            let encoded = counted();
            backend.finish_exchange(&exchange, 256, 256).unwrap();
            assert_eq!(
                [before[1..].to_vec(), encoded[1..].to_vec()],
                [counted()[1..].to_vec(), counted()[1..].to_vec()]
            );
            (encoded[0] - before[0], counted()[0] - encoded[0])
        }
    };
    let qsgd = Setting::Qsgd(Qsgd::default());
    assert_eq!(calls(&[top, qsgd, Setting::Dense]), (6, 4));
    assert_eq!(calls(&[top]), (5, 3));
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: 40, bits: 4 });
    assert_eq!(calls(&[few, top]), (5, 3));
    assert_eq!(calls(&[few, qsgd]), (6, 4));
    assert_eq!(calls(&[qsgd, Setting::Dense]), (2, 2));
    let eden = Setting::Eden(Eden::default());
    assert_eq!(calls(&[eden]), (2, 4));
    assert_eq!(calls(&[eden, top, qsgd]), (7, 6));
    assert!(of_device.launched.get().iter().all(|kernel| of_device.prepared.get().contains(kernel)));
}

/// An error of the device may come from the work of another layer, or from no layer at all.
#[test]
fn failures_of_the_device_name_no_job() {
    let of_device = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let shape = Shape::new(64, 64).unwrap();
    let gradient = DeviceGradient::of_part(Part { address: 256, bytes: 4 * 64 * 64 }, Dtype::F32, shape);
    let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1] };
    let jobs = [DeviceJob { gradient, candidates, stream: Stream::default() }; 3];
    let length = backend.measure_device(&jobs, &mut [0.0; 2]).unwrap_err();
    assert!(length.job.is_none() && matches!(length.error, Error::Core(_)), "{length}");
    let loco = ["loco 64".parse().unwrap()];
    let refused = Candidates::Each(&loco);
    let failed = backend.measure_device(&[jobs[0], DeviceJob { candidates: refused, ..jobs[0] }], &mut [0.0; 2]);
    assert_eq!(failed.unwrap_err().job, Some(1));
    for error in [
        Error::Driver { call: "start", reason: "an earlier fault".into() },
        Error::OutOfMemory { bytes: 4096 },
        Error::NoKernels { module: "powersgd.cu", architecture: "sm_80".into() },
    ] {
        *of_device.failing.lock().unwrap() = Some(error.clone());
        assert_eq!(backend.measure_device(&jobs, &mut [0.0; 3]), Err(DeviceJobError { job: None, error }));
    }
}
