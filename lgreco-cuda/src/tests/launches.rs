//! How often a table of many layers asks the device for something.

use crate::counting::Counting;
use crate::device::{Device, Launch, Part};
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error};
use lgreco_core::compress::{Candidates, qsgd::Qsgd};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Launches; other work that is enqueued; waits.
#[derive(Default)]
struct Calls([AtomicUsize; 3]);

impl Calls {
    fn add(&self, kind: usize) {
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }
}

struct Counted(Arc<Calls>);

impl Device for Counted {
    fn allocate(&mut self, bytes: u64) -> Result<Part, Error> {
        Counting.allocate(bytes)
    }

    fn free(&mut self, _: Part) {}

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

    fn launch(&mut self, _: Launch<'_>) -> Result<(), Error> {
        self.0.add(0);
        Ok(())
    }

    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.add(2);
        Counting.download(from, bytes)
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
    [0, 1, 2].map(|kind| calls.0[kind].load(Ordering::Relaxed))
}

#[test]
fn a_table_waits_once_and_qsgds_layers_share_launches() {
    let qsgd = |base| calls(Candidates::Qsgd { base, bits: &[2, 3, 4, 5, 6, 7, 8] });
    // Eight layers per pair of launches and upload; results are cleared once.
    assert_eq!(qsgd(Qsgd::default()), [2 * 19, 19 + 1, 1]);
    assert_eq!(qsgd(Qsgd { bucket: 1000, ..Qsgd::default() }), [4 * 150, 150 + 1, 1]);
    let [launches, others, waits] = calls(Candidates::TopK { values: Dtype::F32, keeps: &[10, 100] });
    assert_eq!((launches, others, waits), (5 * 150, 2 * 150 + 1, 1));
    let [launches, others, waits] = calls(Candidates::PowerSgd { iterations: 1, ranks: &[1, 2, 4] });
    assert!(launches <= 40 * 150 && others <= 10 * 150 && waits == 1, "{launches}, {others}, {waits}");
}
