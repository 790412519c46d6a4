//! How often a table of many layers asks the device for something.

use crate::counting::Kernels;
use crate::cublas::Gemm;
use crate::device::{Device, Launch, Part};
use crate::kernels::Kernel;
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error};
use lgreco_core::compress::{Candidates, qsgd::Qsgd};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// What a device has been asked for.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) allocations: AtomicUsize,
    /// What every byte that is read from the device is.
    pub(super) content: AtomicU8,
    /// Launches; other work that is enqueued; waits.
    kinds: [AtomicUsize; 3],
    pub(super) prepared: Kernels,
    pub(super) launched: Kernels,
}

impl Calls {
    fn add(&self, kind: usize) {
        self.kinds[kind].fetch_add(1, Ordering::Relaxed);
    }
}

/// A device that does nothing else than to count.
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

    fn upload(&mut self, _: &[u8], _: Part) -> Result<(), Error> {
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
        Ok(())
    }

    fn use_cublas(&mut self, _: Part) -> Result<(), Error> {
        Ok(())
    }

    fn multiply(&mut self, _: &Gemm) -> Result<(), Error> {
        Ok(())
    }

    fn download(&mut self, _: Part, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.add(2);
        bytes.fill(self.0.content.load(Ordering::Relaxed));
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        self.0.add(2);
        Ok(())
    }
}

/// What a table of 150 layers takes, each with a launch's most blocks for one.
fn calls(candidates: Candidates<'_>) -> [usize; 3] {
    let calls = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(calls.clone())));
    let shape = Shape::new(768, 768).unwrap();
    let gradient = DeviceGradient::of_part(Part { address: 0, bytes: 4 * 768 * 768 }, Dtype::F32, shape);
    let jobs = vec![DeviceJob { gradient, candidates, stream: Stream::default() }; 150];
    let mut rows = vec![0.0; 150 * candidates.len()];
    backend.measure_device(&jobs, &mut rows).unwrap();
    [0, 1, 2].map(|kind| calls.kinds[kind].load(Ordering::Relaxed))
}

#[test]
fn a_table_waits_once_and_qsgds_layers_share_launches() {
    let qsgd = |base| calls(Candidates::Qsgd { base, bits: &[2, 3, 4, 5, 6, 7, 8] });
    // Eight layers per pair of launches and upload; results are cleared once.
    assert_eq!(qsgd(Qsgd::default()), [2 * 19, 19 + 1, 1]);
    assert_eq!(qsgd(Qsgd { bucket: 1000, ..Qsgd::default() }), [4 * 150, 150 + 1, 1]);
    let [launches, others, waits] = calls(Candidates::TopK { values: Dtype::F32, keeps: &[10, 100] });
    assert_eq!((launches, others, waits), (5 * 150, 2 * 150 + 1, 1));
}

#[test]
fn powersgds_launches_do_not_depend_on_the_rank() {
    let powersgd = |iterations, ranks| calls(Candidates::PowerSgd { iterations, ranks });
    for ranks in [&[1][..], &[1, 2, 4], &[1, 2, 4, 8, 16, 32, 64], &[500]] {
        assert_eq!(powersgd(1, ranks), [16 * 150, 150 + 1, 1], "{ranks:?}");
        assert_eq!(powersgd(5, ranks), [(4 + 5 * 12) * 150, 150 + 1, 1], "{ranks:?}");
    }
}
