//! What operations ask of the backend, on a device that counts commands.

use crate::counting::Counting;
use crate::device::Part;
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error, ExchangeConfig, ExchangeProgram};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::{Qsgd, Scale};
use lgreco_core::compress::quantised_topk::QuantisedTopK;
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
    /// 4 bits, or widths 2 to 8.
    Qsgd,
    /// 8 bits.
    QsgdInBytes,
    /// 4 bits of the interval that a bucket's values are in.
    QsgdMinMax,
    /// 1 %, or 100 densities up to a tenth.
    TopK,
    /// 1 % in 4 bits, or 3 densities up to that in 3 widths.
    FewBits,
    /// Rank 4, or ranks 1 to 64; vectors are not compressed.
    PowerSgd,
    Dense,
}

/// A call of the backend, or of an exchange of [`RANKS`] ranks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Rows,
    Encode,
    Decode,
    ExchangeEncode,
    ExchangeMeans,
    /// A whole step of what travels by sums; of 16-bit gradients these are bf16.
    ExchangeSums,
}

/// Ranks of an exchange.
pub(super) const RANKS: u32 = 8;

impl Method {
    fn setting(self, shape: Shape) -> Setting {
        let keep = (shape.elements() as u32 / 100).max(1);
        match self {
            Method::Qsgd => Setting::Qsgd(Qsgd::default()),
            Method::QsgdInBytes => Setting::Qsgd(Qsgd { bits: 8, ..Qsgd::default() }),
            Method::QsgdMinMax => Setting::Qsgd(Qsgd { scale: Scale::MinMax, ..Qsgd::default() }),
            Method::TopK => Setting::TopK(TopK { keep, values: Dtype::F32 }),
            Method::FewBits => Setting::QuantisedTopK(QuantisedTopK { keep, bits: 4 }),
            Method::PowerSgd if shape.rows().min(shape.cols()) == 1 => Setting::Dense,
            Method::PowerSgd => Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }),
            Method::Dense => Setting::Dense,
        }
    }

    fn keeps(self, shape: Shape) -> Vec<u32> {
        let of_thousand = |part: u32| (shape.elements() as u32 / 1000 * part).max(1);
        match self {
            Method::FewBits => [1, 3, 10].map(of_thousand).to_vec(),
            _ => (1..=100).map(of_thousand).collect(),
        }
    }

    fn candidates(self, keeps: &[u32]) -> Candidates<'_> {
        match self {
            Method::TopK => Candidates::TopK { values: Dtype::F32, keeps },
            Method::FewBits => Candidates::QuantisedTopK { keeps, bits: &[2, 4, 8] },
            Method::PowerSgd => Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] },
            _ => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
        }
    }
}

/// Commands (launches, copies, memory filled) that a call enqueues for these layers together; for a single one, of several calls.
///
/// # Errors
/// [`Error`] as of the call.
pub(super) fn commands(call: Call, (method, dtype): (Method, Dtype), shapes: &[Shape]) -> Result<f64, Error> {
    let counting = Counting::default();
    let counted = counting.commands.clone();
    let mut backend = CudaBackend::on(Box::new(counting));
    let (calls, shapes) = if let [shape] = shapes { (CALLS, vec![*shape; CALLS]) } else { (1, shapes.to_vec()) };
    let of = |shape: Shape| {
        let bytes = (dtype.bytes() * shape.elements()) as u64;
        DeviceGradient::of_part(Part { address: ADDRESS, bytes }, dtype, shape)
    };
    match call {
        Call::Rows => {
            let keeps: Vec<Vec<u32>> = shapes.iter().map(|&shape| method.keeps(shape)).collect();
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
        Call::ExchangeEncode | Call::ExchangeMeans | Call::ExchangeSums => {
            let layers = &shapes[..shapes.len() / calls];
            let layers: Vec<_> = layers.iter().map(|&shape| (shape, method.setting(shape))).collect();
            let reduce_dtype = if dtype == Dtype::F32 { Dtype::F32 } else { Dtype::Bf16 };
            let config = ExchangeConfig { world: RANKS, dtype, reduce_dtype, ..ExchangeConfig::default() };
            let program = ExchangeProgram::new(&layers, config)?;
            // SAFETY: as above.
            unsafe {
                let exchange = backend.begin_exchange(program, ADDRESS, ADDRESS)?;
                counted.store(0, Ordering::Relaxed);
                for _ in 0..calls {
                    match call {
                        Call::ExchangeEncode => backend.encode_exchange(&exchange, ADDRESS, ADDRESS)?,
                        Call::ExchangeSums => {
                            backend.project_exchange(&exchange, ADDRESS, ADDRESS)?;
                            backend.back_project_exchange(&exchange, ADDRESS, ADDRESS)?;
                            backend.average_exchange(&exchange, ADDRESS, ADDRESS, ADDRESS)?;
                        }
                        _ => backend.finish_exchange(&exchange, ADDRESS, ADDRESS)?,
                    }
                }
            }
        }
    }
    Ok(counted.load(Ordering::Relaxed) as f64 / calls as f64)
}
