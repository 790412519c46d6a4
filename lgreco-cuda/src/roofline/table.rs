//! The operations that there are predictions for.

use super::calls::Method::{Dense, FewBits, PowerSgd, Qsgd, QsgdInBytes, QsgdMinMax, TopK};
use super::calls::{Call, Method};
use super::operations::{Operation, Pass, moved, pass};
use super::passes::*;
use Call::{Decode, Encode, ExchangeEncode, ExchangeMeans, ExchangeSums, Rows};
use lgreco_core::gradient::Dtype::{Bf16, F32};

/// The target for rows and payloads of QSGD and TopK, of 2^26 values.
const LARGE: f64 = 0.7;
/// And for a model of many layers.
const OF_MODEL: f64 = 0.5;

const fn op(
    name: &'static str,
    bytes: f64,
    call: Call,
    method: Method,
    passes: &'static [Pass],
    floors: [f64; 3],
) -> Operation {
    Operation::new(name, bytes, (call, method, F32), passes, floors)
}

const fn narrow(
    name: &'static str,
    bytes: f64,
    call: Call,
    method: Method,
    passes: &'static [Pass],
    floors: [f64; 3],
) -> Operation {
    Operation::new(name, bytes, (call, method, Bf16), passes, floors)
}

/// Operations on 2^26 values in one layer.
pub const OPERATIONS: &[Operation] = &[
    op("row of QSGD, 7 widths", 4.0, Rows, Qsgd, &[pass("qsgd/usual_row", 4.0, 128.0)], [0.70, 0.80, 0.95])
        .reaching(LARGE),
    op(
        "encode QSGD, 4 bits",
        4.0 + CODE,
        Encode,
        Qsgd,
        &[pass("qsgd/usual_encode", 4.0 + CODE, 128.0)],
        [0.8, 0.9, 0.95],
    )
    .reaching(LARGE),
    op("decode QSGD, 4 bits", 4.0 + CODE, Decode, Qsgd, &[pass("qsgd/decode", 4.0 + CODE, 8.0)], [0.9, 0.9, 0.95])
        .reaching(LARGE),
    op("row of TopK, 100 densities", 4.0, Rows, TopK, &[pass("topk/count_exact", 4.0, 128.0), BINS], [0.7, 0.8, 0.9])
        .reaching(LARGE),
    op("encode TopK, 1 %", 4.1, Encode, TopK, &top_payload(KEPT, 4.0), [0.7, 0.74, 0.81]).reaching(LARGE),
    // Zeros, positions written and read, and single values, each of which takes a sector.
    op("decode TopK, 1 %", 4.1, Decode, TopK, &[moved(4.1 + 0.01 * (3.0 * 4.0 + 2.0 * 32.0), 0.0)], [0.7, 0.7, 0.8])
        .reaching(LARGE),
    // The row in full, what 1 % keeps written down, and that for each density.
    op("row of TopK in few bits, 3 densities", 4.0, Rows, FewBits, &FEW_BITS_ROW, [0.39, 0.40, 0.42]),
    op("encode TopK in 4 bits, 1 %", 4.0 + FEW_SENT, Encode, FewBits, &top_payload(FEW_KEPT, 4.0), [0.7, 0.73, 0.81])
        .reaching(LARGE),
    op(
        "decode TopK in 4 bits, 1 %",
        4.0 + FEW_SENT,
        Decode,
        FewBits,
        &[moved(4.0 + FEW_SENT + 0.01 * (3.0 * 4.0 + 2.0 * 32.0), 0.0)],
        [0.69, 0.73, 0.78],
    )
    .reaching(LARGE),
    op("row of PowerSGD, ranks 1 to 64", 4.0, Rows, PowerSgd, &low_ranks(LOW_RANKS, 4.0), [0.0051, 0.0074, 0.0193]),
    // Four passes' worth.
    op(
        "encode PowerSGD, rank 4",
        4.0,
        Encode,
        PowerSgd,
        &[pass("powersgd/project", 4.0, 256.0), pass("powersgd/back_project", 4.0, 256.0)],
        [0.35, 0.35, 0.45],
    )
    .reaching(0.25),
    op(
        "decode PowerSGD, rank 4",
        4.0,
        Decode,
        PowerSgd,
        &[pass("powersgd/reconstruct,rank_4", 4.0, 8.0)],
        [0.34, 0.48, 0.96],
    ),
    op(
        "exchange: feedback and QSGD, 4 bits",
        12.0 + CODE,
        ExchangeEncode,
        Qsgd,
        &[pass("exchange/encode", 12.0 + CODE, 128.0)],
        [0.9, 0.9, 0.95],
    )
    .reaching(LARGE),
    op(
        "exchange: means of 8 ranks, QSGD, 4 bits",
        4.0 + OF_RANKS * CODE,
        ExchangeMeans,
        Qsgd,
        &code_means("exchange/average", CODE, 4.0, 128.0),
        [0.66, 0.9, 0.95],
    )
    .reaching(LARGE),
    op(
        "exchange: means of 8 ranks, QSGD, 8 bits",
        4.0 + OF_RANKS * BYTE,
        ExchangeMeans,
        QsgdInBytes,
        &code_means("exchange/average,bytes", BYTE, 4.0, 128.0),
        [0.89, 0.95, 0.96],
    )
    .reaching(LARGE),
    op(
        "exchange: means of 8 ranks, QSGD, 4 bits of an interval",
        4.0 + OF_RANKS * OF_INTERVAL,
        ExchangeMeans,
        QsgdMinMax,
        &code_means("exchange/average,interval", OF_INTERVAL, 4.0, 128.0),
        [0.30, 0.43, 0.95],
    )
    .reaching(LARGE),
    op(
        "exchange: feedback and TopK, 1 %",
        12.1,
        ExchangeEncode,
        TopK,
        &top_payloads(KEPT, 4.0, 128.0),
        [0.8, 0.8, 0.85],
    )
    .reaching(LARGE),
    op(
        "exchange: means of 8 ranks, TopK, 1 %",
        4.0 + OF_RANKS * SENT,
        ExchangeMeans,
        TopK,
        &kept_means("selection/average_kept", SENT, 4.0, 128.0),
        [0.38, 0.5, 0.8],
    )
    .reaching(LARGE),
    op(
        "exchange: feedback and TopK in 4 bits, 1 %",
        12.0 + FEW_SENT,
        ExchangeEncode,
        FewBits,
        &top_payloads(FEW_KEPT, 4.0, 128.0),
        [0.84, 0.85, 0.87],
    )
    .reaching(LARGE),
    op(
        "exchange: means of 8 ranks, TopK in 4 bits, 1 %",
        4.0 + OF_RANKS * FEW_SENT,
        ExchangeMeans,
        FewBits,
        &kept_means("selection/average_kept", FEW_SENT, 4.0, 128.0),
        [0.35, 0.50, 0.88],
    )
    .reaching(LARGE),
    op("exchange: PowerSGD, rank 4, a whole step", 28.0, ExchangeSums, PowerSgd, &FACTORS, [0.55, 0.69, 0.95]),
    op("exchange: uncompressed, a whole step", 24.0, ExchangeSums, Dense, &SUMS, [0.94, 0.95, 0.96]),
    narrow(
        "row of QSGD, 7 widths, bf16",
        2.0,
        Rows,
        Qsgd,
        &[pass("qsgd/usual_row,16-bit", 2.0, 128.0)],
        [0.31, 0.45, 0.96],
    ),
    narrow(
        "encode QSGD, 4 bits, bf16",
        2.0 + CODE,
        Encode,
        Qsgd,
        &[pass("qsgd/usual_encode,16-bit", 2.0 + CODE, 128.0)],
        [0.43, 0.61, 0.94],
    ),
    narrow("encode TopK, 1 %, bf16", 2.1, Encode, TopK, &top_payload(KEPT, 2.0), [0.4, 0.54, 0.7]),
    narrow(
        "row of PowerSGD, ranks 1 to 64, bf16",
        2.0,
        Rows,
        PowerSgd,
        &low_ranks(NARROW_LOW_RANKS, 2.0),
        [0.0025, 0.0037, 0.0113],
    ),
    narrow(
        "encode PowerSGD, rank 4, bf16",
        2.0,
        Encode,
        PowerSgd,
        &[pass("powersgd/project,16-bit", 2.0, 256.0), pass("powersgd/back_project,16-bit", 2.0, 256.0)],
        [0.19, 0.27, 0.44],
    ),
    narrow(
        "exchange: feedback and QSGD, 4 bits, bf16",
        10.0 + CODE,
        ExchangeEncode,
        Qsgd,
        &[pass("exchange/encode,16-bit", 10.0 + CODE, 128.0)],
        [0.91, 0.95, 0.96],
    ),
    narrow(
        "exchange: means of 8 ranks, QSGD, 4 bits, bf16",
        2.0 + OF_RANKS * CODE,
        ExchangeMeans,
        Qsgd,
        &code_means("exchange/average,16-bit", CODE, 2.0, 128.0),
        [0.43, 0.62, 0.95],
    ),
    narrow(
        "exchange: feedback and TopK, 1 %, bf16",
        10.1,
        ExchangeEncode,
        TopK,
        &top_payloads(KEPT, 2.0, 128.0),
        [0.82, 0.83, 0.86],
    ),
    narrow(
        "exchange: means of 8 ranks, TopK, 1 %, bf16",
        2.0 + OF_RANKS * SENT,
        ExchangeMeans,
        TopK,
        &kept_means("selection/average_kept,16-bit", SENT, 2.0, 128.0),
        [0.18, 0.25, 0.76],
    ),
    narrow(
        "exchange: PowerSGD, rank 4, a whole step, bf16",
        24.0,
        ExchangeSums,
        PowerSgd,
        &NARROW_FACTORS,
        [0.48, 0.61, 0.94],
    ),
    narrow("exchange: uncompressed, a whole step, bf16", 16.0, ExchangeSums, Dense, &NARROW_SUMS, [0.79, 0.89, 0.96]),
];

/// Operations on a model's layers together, 161 of which have 25.6 M values.
pub const OF_MODELS: &[Operation] = &[
    op("rows of QSGD", 4.0, Rows, Qsgd, &[pass("qsgd/usual_row", 4.0, 64.0)], [0.5, 0.6, 0.85]).reaching(OF_MODEL),
    op("rows of TopK", 4.0, Rows, TopK, &[pass("topk/count_exact", 4.0, 48.0), BINS], [0.58, 0.62, 0.72])
        .reaching(OF_MODEL),
    op("rows of PowerSGD", 4.0, Rows, PowerSgd, &low_ranks(LOW_RANKS, 4.0), [0.0050, 0.0073, 0.0191]),
    op(
        "exchange: feedback and QSGD, 4 bits",
        12.0 + CODE,
        ExchangeEncode,
        Qsgd,
        &[pass("exchange/encode", 12.0 + CODE, 48.0)],
        [0.8, 0.8, 0.9],
    )
    .reaching(OF_MODEL),
    op(
        "exchange: means of 8 ranks, QSGD, 4 bits",
        4.0 + OF_RANKS * CODE,
        ExchangeMeans,
        Qsgd,
        &code_means("exchange/average", CODE, 4.0, 48.0),
        [0.5, 0.6, 0.8],
    )
    .reaching(OF_MODEL),
    op(
        "exchange: feedback and TopK, 1 %",
        12.1,
        ExchangeEncode,
        TopK,
        &top_payloads(KEPT, 4.0, 48.0),
        [0.64, 0.66, 0.69],
    )
    .reaching(OF_MODEL),
    op(
        "exchange: means of 8 ranks, TopK, 1 %",
        4.0 + OF_RANKS * SENT,
        ExchangeMeans,
        TopK,
        &kept_means("selection/average_kept", SENT, 4.0, 48.0),
        [0.34, 0.48, 0.84],
    )
    .reaching(OF_MODEL),
    op(
        "exchange: feedback and TopK in 4 bits, 1 %",
        12.0 + FEW_SENT,
        ExchangeEncode,
        FewBits,
        &top_payloads(FEW_KEPT, 4.0, 48.0),
        [0.64, 0.65, 0.69],
    )
    .reaching(OF_MODEL),
    op(
        "exchange: means of 8 ranks, TopK in 4 bits, 1 %",
        4.0 + OF_RANKS * FEW_SENT,
        ExchangeMeans,
        FewBits,
        &kept_means("selection/average_kept", FEW_SENT, 4.0, 48.0),
        [0.31, 0.45, 0.86],
    )
    .reaching(OF_MODEL),
    op("exchange: PowerSGD, rank 4, a whole step", 28.0, ExchangeSums, PowerSgd, &FACTORS, [0.52, 0.66, 0.94]),
    op("exchange: uncompressed, a whole step", 24.0, ExchangeSums, Dense, &SUMS, [0.91, 0.93, 0.95]),
    narrow("rows of QSGD, bf16", 2.0, Rows, Qsgd, &[pass("qsgd/usual_row,16-bit", 2.0, 64.0)], [0.25, 0.36, 0.84]),
    narrow(
        "exchange: feedback and QSGD, 4 bits, bf16",
        10.0 + CODE,
        ExchangeEncode,
        Qsgd,
        &[pass("exchange/encode,16-bit", 10.0 + CODE, 48.0)],
        [0.87, 0.92, 0.95],
    ),
    narrow(
        "exchange: means of 8 ranks, QSGD, 4 bits, bf16",
        2.0 + OF_RANKS * CODE,
        ExchangeMeans,
        Qsgd,
        &code_means("exchange/average,16-bit", CODE, 2.0, 48.0),
        [0.40, 0.58, 0.93],
    ),
    narrow(
        "exchange: feedback and TopK, 1 %, bf16",
        10.1,
        ExchangeEncode,
        TopK,
        &top_payloads(KEPT, 2.0, 48.0),
        [0.6, 0.62, 0.65],
    ),
    narrow(
        "exchange: means of 8 ranks, TopK, 1 %, bf16",
        2.0 + OF_RANKS * SENT,
        ExchangeMeans,
        TopK,
        &kept_means("selection/average_kept,16-bit", SENT, 2.0, 48.0),
        [0.16, 0.22, 0.73],
    ),
    narrow(
        "exchange: PowerSGD, rank 4, a whole step, bf16",
        24.0,
        ExchangeSums,
        PowerSgd,
        &NARROW_FACTORS,
        [0.45, 0.58, 0.91],
    ),
    narrow("exchange: uncompressed, a whole step, bf16", 16.0, ExchangeSums, Dense, &NARROW_SUMS, [0.76, 0.86, 0.95]),
];
