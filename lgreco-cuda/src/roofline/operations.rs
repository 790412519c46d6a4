//! Operations of the backend, and how long they should take on a GPU.

use super::bounds::{Counts, bound};
use super::calls::{Call, Method, RANKS, commands};
use super::gpus::Gpu;
use super::hot::HOT;
use crate::Error;
use lgreco_core::gradient::Shape;

/// Seconds of a command (a launch, a copy of a few bytes, memory filled) among others.
const COMMAND: f64 = 2e-6;
/// Bins of a layer's values in TopK's rows, which are of 32 powers of two.
const FILLED: f64 = 32.0 * 128.0;
/// Values of a layer that TopK's sample has, at most.
const SAMPLE: usize = 65536;

/// Over what a pass of an operation goes.
#[derive(Clone, Copy)]
enum Over {
    Values,
    /// A sample of each layer of more than [`SAMPLE`] values.
    Sample,
    /// As many bins as a layer fills, or empties.
    Bins,
}

/// A pass of an operation.
struct Pass {
    /// As `bounds.txt` names it, or empty where memory alone counts.
    kernel: &'static str,
    over: Over,
    /// Bytes of device memory that a value takes there, on average.
    bytes: f64,
    /// And a layer.
    of_layer: f64,
    /// Values of a thread.
    of_thread: f64,
}

/// What the backend is asked for.
pub struct Operation {
    /// As `examples/on_device` calls it.
    pub name: &'static str,
    /// Bytes per f32 value that have to be read and written whatever is done.
    pub bytes: f64,
    /// The share of a copy's bandwidth that it is to reach, as it was said before it was built.
    pub target: Option<f64>,
    call: Call,
    method: Method,
    passes: &'static [Pass],
    /// The least share that is predicted for each of [`Gpu::ALL`].
    pub(super) floors: [f64; 3],
}

const fn pass(kernel: &'static str, bytes: f64, of_thread: f64) -> Pass {
    Pass { kernel, over: Over::Values, bytes, of_layer: 0.0, of_thread }
}

/// A pass whose kernels are bound by memory alone.
const fn moved(bytes: f64, of_layer: f64) -> Pass {
    Pass { kernel: "", over: Over::Values, bytes, of_layer, of_thread: 1.0 }
}

/// The bins of TopK's rows, of each layer by one block.
const BINS: Pass =
    Pass { kernel: "topk/choose", over: Over::Bins, bytes: BIN, of_layer: 0.0, of_thread: FILLED / 256.0 };

/// TopK's sample, with the bytes of one value: those of whole sectors of memory, of 32 bytes, which single values are read in.
const fn sample(bytes: f64) -> Pass {
    Pass { kernel: "selection/sample", over: Over::Sample, bytes, of_layer: 0.0, of_thread: 4.0 }
}

/// Bytes of a code of 4 bits with its share of a bucket's scale.
const CODE: f64 = 0.5 + 4.0 / 512.0;
/// Bytes of a value's share of what is gathered where 1 % are kept: entries of 8 bytes for 1.5 %. They are written once, and read by
/// three launches.
const GATHERED: f64 = 0.015 * 8.0;
/// And of the payload: values and positions, and words of these that are zeroed first.
const KEPT: f64 = 0.06;
/// Without these words: 4 bytes of a value and 10 bits of a position.
const SENT: f64 = 0.0525;
/// Bytes of a bin of TopK's rows: counts and sums are added to, read and emptied.
const BIN: f64 = 3.0 * 12.0;
/// Bytes of the bins of TopK's payloads, of each layer: read and cleared.
const FEW_BINS: f64 = 2.0 * 32768.0;
const OF_RANKS: f64 = RANKS as f64;

/// Of a step's payloads under TopK in an exchange, by threads of so many values. Of residuals of what is kept two sectors take part.
const fn top_payloads(of_thread: f64) -> [Pass; 3] {
    [
        sample(64.0),
        pass("selection/offer", 12.0 + GATHERED, of_thread),
        moved(3.0 * GATHERED + KEPT + 0.01 * 64.0, FEW_BINS),
    ]
}

/// Of the means of all ranks' payloads under QSGD. Scales are read before.
const fn code_means(of_thread: f64) -> [Pass; 2] {
    [moved(OF_RANKS * 4.0 / 512.0, 0.0), pass("exchange/average", 4.0 + OF_RANKS * CODE, of_thread)]
}

/// And under TopK. Positions are read twice before, and values once; where windows begin is written and read.
const fn kept_means(of_thread: f64) -> [Pass; 2] {
    [
        moved(OF_RANKS * (2.0 * 0.0125 + 0.04 + 8.0 / 1024.0), 0.0),
        pass("selection/average_kept", 4.0 + OF_RANKS * SENT, of_thread),
    ]
}

/// The target for rows and payloads of QSGD and TopK, of 2^26 values.
const LARGE: Option<f64> = Some(0.7);
/// And for a model of many layers.
const OF_MODEL: Option<f64> = Some(0.5);

/// Operations on 2^26 values in one layer.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        name: "row of QSGD, 7 widths",
        bytes: 4.0,
        target: LARGE,
        call: Call::Rows,
        method: Method::Qsgd,
        passes: &[pass("qsgd/usual_row", 4.0, 128.0)],
        floors: [0.70, 0.80, 0.95],
    },
    Operation {
        name: "encode QSGD, 4 bits",
        bytes: 4.0 + CODE,
        target: LARGE,
        call: Call::Encode,
        method: Method::Qsgd,
        passes: &[pass("qsgd/usual_encode", 4.0 + CODE, 128.0)],
        floors: [0.8, 0.9, 0.95],
    },
    Operation {
        name: "decode QSGD, 4 bits",
        bytes: 4.0 + CODE,
        target: LARGE,
        call: Call::Decode,
        method: Method::Qsgd,
        passes: &[pass("qsgd/decode", 4.0 + CODE, 8.0)],
        floors: [0.9, 0.9, 0.95],
    },
    Operation {
        name: "row of TopK, 100 densities",
        bytes: 4.0,
        target: LARGE,
        call: Call::Rows,
        method: Method::TopK,
        passes: &[pass("topk/count_exact", 4.0, 128.0), BINS],
        floors: [0.7, 0.8, 0.9],
    },
    Operation {
        name: "encode TopK, 1 %",
        bytes: 4.1,
        target: LARGE,
        call: Call::Encode,
        method: Method::TopK,
        // The payload is made in the workspace, and copied.
        passes: &[
            sample(32.0),
            pass("selection/offer", 4.0 + GATHERED, 128.0),
            moved(3.0 * GATHERED + 3.0 * KEPT, FEW_BINS),
        ],
        floors: [0.7, 0.74, 0.8],
    },
    Operation {
        name: "decode TopK, 1 %",
        bytes: 4.1,
        target: LARGE,
        call: Call::Decode,
        method: Method::TopK,
        // Zeros, positions written and read, and single values, each of which takes a sector.
        passes: &[moved(4.1 + 0.01 * (3.0 * 4.0 + 2.0 * 32.0), 0.0)],
        floors: [0.7, 0.7, 0.8],
    },
    Operation {
        name: "encode PowerSGD, rank 4",
        bytes: 4.0,
        // Four passes' worth.
        target: Some(0.25),
        call: Call::Encode,
        method: Method::PowerSgd,
        passes: &[pass("powersgd/project", 4.0, 256.0), pass("powersgd/back_project", 4.0, 256.0)],
        floors: [0.35, 0.35, 0.45],
    },
    Operation {
        name: "exchange: feedback and QSGD, 4 bits",
        bytes: 12.0 + CODE,
        target: LARGE,
        call: Call::ExchangeEncode,
        method: Method::Qsgd,
        passes: &[pass("exchange/encode", 12.0 + CODE, 128.0)],
        floors: [0.9, 0.9, 0.95],
    },
    Operation {
        name: "exchange: means of 8 ranks, QSGD, 4 bits",
        bytes: 4.0 + OF_RANKS * CODE,
        target: LARGE,
        call: Call::ExchangeMeans,
        method: Method::Qsgd,
        passes: &code_means(128.0),
        floors: [0.66, 0.9, 0.95],
    },
    Operation {
        name: "exchange: feedback and TopK, 1 %",
        bytes: 12.1,
        target: LARGE,
        call: Call::ExchangeEncode,
        method: Method::TopK,
        passes: &top_payloads(128.0),
        floors: [0.8, 0.8, 0.85],
    },
    Operation {
        name: "exchange: means of 8 ranks, TopK, 1 %",
        bytes: 4.0 + OF_RANKS * SENT,
        target: LARGE,
        call: Call::ExchangeMeans,
        method: Method::TopK,
        passes: &kept_means(128.0),
        floors: [0.38, 0.5, 0.8],
    },
];

/// Operations on a model's layers together, 161 of which have 25.6 M values.
pub const OF_MODELS: &[Operation] = &[
    Operation {
        name: "rows of QSGD",
        bytes: 4.0,
        target: OF_MODEL,
        call: Call::Rows,
        method: Method::Qsgd,
        passes: &[pass("qsgd/usual_row", 4.0, 64.0)],
        floors: [0.5, 0.6, 0.85],
    },
    Operation {
        name: "rows of TopK",
        bytes: 4.0,
        target: OF_MODEL,
        call: Call::Rows,
        method: Method::TopK,
        passes: &[pass("topk/count_exact", 4.0, 48.0), BINS],
        floors: [0.58, 0.62, 0.72],
    },
    Operation {
        name: "exchange: feedback and QSGD, 4 bits",
        bytes: 12.0 + CODE,
        target: OF_MODEL,
        call: Call::ExchangeEncode,
        method: Method::Qsgd,
        passes: &[pass("exchange/encode", 12.0 + CODE, 48.0)],
        floors: [0.8, 0.8, 0.9],
    },
    Operation {
        name: "exchange: means of 8 ranks, QSGD, 4 bits",
        bytes: 4.0 + OF_RANKS * CODE,
        target: OF_MODEL,
        call: Call::ExchangeMeans,
        method: Method::Qsgd,
        passes: &code_means(48.0),
        floors: [0.5, 0.6, 0.8],
    },
    Operation {
        name: "exchange: feedback and TopK, 1 %",
        bytes: 12.1,
        target: OF_MODEL,
        call: Call::ExchangeEncode,
        method: Method::TopK,
        passes: &top_payloads(48.0),
        floors: [0.55, 0.56, 0.6],
    },
    Operation {
        name: "exchange: means of 8 ranks, TopK, 1 %",
        bytes: 4.0 + OF_RANKS * SENT,
        target: OF_MODEL,
        call: Call::ExchangeMeans,
        method: Method::TopK,
        passes: &kept_means(48.0),
        floors: [0.34, 0.48, 0.84],
    },
];

/// Seconds, and the bandwidth of the bytes that have to be read and written, as a share of a copy's.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// Seconds.
    pub seconds: f64,
    /// Of the bandwidth of a copy.
    pub of_copy: f64,
}

impl Operation {
    /// Commands that it enqueues for these layers.
    ///
    /// # Errors
    /// [`Error`] as of the backend's call.
    pub fn commands(&self, shapes: &[Shape]) -> Result<f64, Error> {
        commands(self.call, self.method, shapes)
    }

    /// What is predicted for these layers, in so many commands.
    pub fn predict(&self, gpu: &Gpu, shapes: &[Shape], commands: f64) -> Prediction {
        let values: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let passes = self.passes.iter().map(|pass| pass.seconds(gpu, shapes));
        let seconds = passes.sum::<f64>() + COMMAND * commands;
        Prediction { seconds, of_copy: self.bytes * values as f64 / gpu.copy / seconds }
    }
}

impl Pass {
    fn seconds(&self, gpu: &Gpu, shapes: &[Shape]) -> f64 {
        let total = |of: fn(usize) -> usize| shapes.iter().map(|shape| of(shape.elements())).sum::<usize>() as f64;
        let (values, bytes) = match self.over {
            Over::Values => (total(|elements| elements), self.bytes),
            Over::Bins => (FILLED * shapes.len() as f64, self.bytes),
            // A layer that is no longer than its sample is read as it lies.
            Over::Sample => {
                let single = total(|elements| if elements > SAMPLE { SAMPLE } else { 0 });
                let in_turn = total(|elements| if elements > SAMPLE { 0 } else { elements });
                let values = single + in_turn;
                (values, (single * self.bytes + in_turn * self.bytes / 8.0) / values)
            }
        };
        let of_layers = self.of_layer * shapes.len() as f64 / gpu.copy;
        of_layers
            + match self.kernel {
                "" => values * bytes / gpu.copy,
                kernel => {
                    let (block, counts) = known(kernel, gpu.code);
                    gpu.pass((values, bytes), &counts, block, self.of_thread)
                }
            }
    }
}

/// A kernel's threads per block, and its bound.
pub(super) fn known(kernel: &str, code: u32) -> (u32, Counts) {
    let hot = HOT.iter().find(|hot| hot.name() == kernel).unwrap_or_else(|| panic!("no hot kernel is called {kernel}"));
    (hot.block, bound(kernel, code).unwrap_or_else(|| panic!("bounds.txt has no {kernel} for sm_{code}")))
}
