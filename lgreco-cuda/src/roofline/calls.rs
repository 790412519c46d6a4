//! What operations ask of the backend, on a device that counts commands.

use crate::counting::Counting;
use crate::device::Part;
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error, ExchangeConfig, ExchangeProgram};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Candidates, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use std::sync::atomic::Ordering;

/// Calls that are enqueued one after another, of which each is one layer's.
const CALLS: usize = 8;
/// Of memory that nothing looks at.
const ADDRESS: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    Qsgd,
    TopK,
    PowerSgd,
}

/// A call of the backend, or of an exchange of [`RANKS`] ranks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Rows,
    Encode,
    Decode,
    ExchangeEncode,
    ExchangeMeans,
}

/// Ranks of an exchange.
pub(super) const RANKS: u32 = 8;

impl Method {
    /// 4 bits, 1 % or rank 4.
    fn setting(self, shape: Shape) -> Setting {
        let keep = (shape.elements() as u32 / 100).max(1);
        match self {
            Method::Qsgd => Setting::Qsgd(Qsgd::default()),
            Method::TopK => Setting::TopK(TopK { keep, values: Dtype::F32 }),
            Method::PowerSgd => Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }),
        }
    }

    /// Widths 2 to 8, or densities up to a tenth.
    fn candidates(self, keeps: &[u32]) -> Candidates<'_> {
        match self {
            Method::Qsgd => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
            Method::TopK => Candidates::TopK { values: Dtype::F32, keeps },
            Method::PowerSgd => Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32] },
        }
    }
}

/// Commands (launches, copies, memory filled) that a call enqueues for these layers together; for a single one, of several calls.
///
/// # Errors
/// [`Error`] as of the call.
pub(super) fn commands(call: Call, method: Method, shapes: &[Shape]) -> Result<f64, Error> {
    let counting = Counting::default();
    let counted = counting.commands.clone();
    let mut backend = CudaBackend::on(Box::new(counting));
    let (calls, shapes) = if let [shape] = shapes { (CALLS, vec![*shape; CALLS]) } else { (1, shapes.to_vec()) };
    let of = |shape: Shape| {
        DeviceGradient::of_part(Part { address: ADDRESS, bytes: 4 * shape.elements() as u64 }, Dtype::F32, shape)
    };
    match call {
        Call::Rows => {
            let keeps = |shape: &Shape| (1..=100).map(|i| (shape.elements() as u32 / 1000 * i).max(1)).collect();
            let keeps: Vec<Vec<u32>> = shapes.iter().map(keeps).collect();
            let jobs = shapes.iter().zip(&keeps).map(|(&shape, keeps)| DeviceJob {
                gradient: of(shape),
                candidates: method.candidates(keeps),
                stream: Stream::default(),
            });
            let jobs: Vec<DeviceJob<'_>> = jobs.collect();
            let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
            // What is done once.
            backend.measure_device(&jobs, &mut rows).map_err(|failed| failed.error)?;
            counted.store(0, Ordering::Relaxed);
            backend.measure_device(&jobs, &mut rows).map_err(|failed| failed.error)?;
        }
        Call::Encode | Call::Decode => {
            // SAFETY: a device that counts looks at no address.
            let mut enqueue = |shape: Shape| unsafe {
                let setting = method.setting(shape);
                match call {
                    Call::Encode => {
                        backend.encode_to_device(&setting, &of(shape), Stream::default(), ADDRESS).map(drop)
                    }
                    _ => backend.decode_on_device(&setting, shape, ADDRESS, ADDRESS),
                }
            };
            // What is done once.
            enqueue(shapes[0])?;
            counted.store(0, Ordering::Relaxed);
            shapes.iter().try_for_each(|&shape| enqueue(shape))?;
        }
        Call::ExchangeEncode | Call::ExchangeMeans => {
            let layers = &shapes[..shapes.len() / calls];
            let layers: Vec<_> = layers.iter().map(|&shape| (shape, method.setting(shape))).collect();
            let config = ExchangeConfig { world: RANKS, ..ExchangeConfig::default() };
            let program = ExchangeProgram::new(&layers, config)?;
            // SAFETY: as above.
            unsafe {
                let exchange = backend.begin_exchange(program, ADDRESS, ADDRESS)?;
                counted.store(0, Ordering::Relaxed);
                for _ in 0..calls {
                    match call {
                        Call::ExchangeEncode => backend.encode_exchange(&exchange, ADDRESS, ADDRESS)?,
                        _ => backend.finish_exchange(&exchange, ADDRESS, ADDRESS)?,
                    }
                }
            }
        }
    }
    Ok(counted.load(Ordering::Relaxed) as f64 / calls as f64)
}
