//! Tests tensors of more than 2^31 values, up to the largest possible number. The tests rehearse calls on a device that
//! does nothing (see `imagined`). These tests compare the offsets of pieces, tables and payloads with 64-bit
//! arithmetic.

use super::imagined::{Seen, Told, Whole, buffer, imagined, rehearsed, tasks};
use crate::batch::{Batch, Rehearsed};
use crate::cut::entries;
use crate::memory::Scratch;
use crate::tensor::{Input, Tensor, work};
use crate::topk_encode::COUNTED;
use crate::{BufferGradient, BufferJob, BufferResidual, Error, WgpuBackend};
use crate::{eden, feedback, magnitude, powersgd, qsgd, rows, sums, topk, topk_encode};
use lgreco::backend::Job;
use lgreco::compress::eden::{BLOCK, Eden};
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::compress::{Candidates, Compressor, Setting, topk::TopK};
use lgreco::gradient::{Bf16, Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_train::feedback::Storage;
use wgpu::Buffer;

/// Two shapes: one with an odd number of elements, and one with the largest possible number.
const SHAPES: [(usize, usize); 2] = [(65_537, 32_771), (65_535, 65_537)];
/// Matrices with sides up to the largest that PowerSGD supports.
const MATRICES: [(usize, usize); 2] = [(1 << 22, 513), (1025, (1 << 21) + 5)];
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
/// Checks the pieces, buckets and grids of QSGD's tasks. Each bucket must have one grid per pass over the values.
/// Returns the number of passes.
fn check_qsgd(recorded: &[Rehearsed], whole: Whole, kernels: &[&str], bucket: u64) -> u64 {
    let mut times = 0;
    for kernel in kernels {
        let told = tasks::<qsgd::Params>(recorded, kernel);
        for Told { params, bindings, .. } in &told {
            // Unsigned differences wrap around, as in the shaders.
            let in_table = |value: u32| (value / params.bucket).wrapping_sub(params.first_bucket);
            let (first, last) = (in_table(params.first), in_table(params.first + (params.count - 1)));
            assert!(first >= params.first_grid && last < params.first_grid + params.buckets && first <= last);
            for (bytes, (_, table)) in [(12, 2), (28, 3)]
                .into_iter()
                .filter_map(|(bytes, number)| Some((bytes, bindings.iter().find(|(binding, _)| *binding == number)?)))
            {
                assert!(bytes * u64::from(params.first_grid + params.buckets) <= table.size);
            }
        }
        times = whole.check(told.iter().map(|told| Seen {
            part: told.bound(1).clone(),
            offset: told.params.offset,
            first: Some(told.params.first),
            count: told.params.count,
            workgroups: told.workgroups,
            most_of_each: 2048,
        }));
        assert!(times > 0);
    }
    let (mut buckets, all) = (0, whole.elements.div_ceil(bucket));
    for Told { params, workgroups, .. } in tasks::<qsgd::Params>(recorded, "make_grids") {
        assert_eq!(u64::from(params.first_bucket.wrapping_add(params.first_grid)), buckets % all);
        assert!(64 * workgroups >= params.buckets.into());
        buckets += u64::from(params.buckets);
    }
    assert_eq!(buckets, times * all);
    times
}

/// Asserts that copies write every word of the payload once, except for the header.
fn check_copies(recorded: &[Rehearsed], payload: &Tensor, len: usize) {
    let mut first = 0;
    let mut copied = Vec::new();
    for part in payload.parts() {
        for recorded in recorded {
            if let Rehearsed::Copy { from, to } = recorded
                && to.buffer == part.buffer
            {
                assert!(to.offset + to.size <= part.size && from.offset + from.size <= from.buffer.size());
                copied.push((first + to.offset, to.size));
            }
        }
        first += part.size;
    }
    copied.sort();
    let end = copied.iter().fold(HEADER_LEN as u64, |end, &(at, size)| {
        assert_eq!(at, end);
        end + size
    });
    assert_eq!(end, (len as u64).next_multiple_of(4));
    assert_eq!(first, end);
}

/// Calls `check` with a gradient of every shape and type. The gradient begins at an odd word of its buffer.
fn each(shapes: &[(usize, usize)], mut check: impl FnMut(&mut WgpuBackend, &BufferGradient<'_>, Whole)) {
    for &(rows, cols) in shapes {
        for dtype in DTYPES {
            let mut backend = imagined(1 << 40);
            let shape = Shape::new(rows, cols).unwrap();
            let elements = shape.elements() as u64;
            assert!(elements > 1 << 31);
            let (start, bytes) = (36, dtype.bytes() as u64);
            let held = buffer(&backend, (start + bytes * elements).next_multiple_of(4));
            let gradient = BufferGradient { buffer: &held, offset: start, dtype, shape };
            check(&mut backend, &gradient, Whole { start: Some(start), bytes, elements });
        }
    }
}

fn measured(backend: &mut WgpuBackend, gradient: BufferGradient<'_>, candidates: Candidates<'_>) -> Vec<Rehearsed> {
    let job = BufferJob { gradient, candidates, stream: Stream::default() };
    rehearsed(backend, |backend| rows::reserve(backend.gpu(), &work(&[job])).unwrap())
}

/// Returns the commands that the encoding of a payload would record, and what `encode` returns: the buffers of the
/// payload.
fn encoded<W>(
    backend: &mut WgpuBackend,
    gradient: &BufferGradient<'_>,
    encode: impl FnOnce(&mut Batch<'_>, &Tensor, &Buffer) -> Result<W, Error>,
) -> (Vec<Rehearsed>, W) {
    let mut payload = None;
    let recorded = rehearsed(backend, |backend| {
        let mut batch = Batch::new(backend.gpu()).unwrap();
        let results = batch.scratch(Scratch::Results, 16).unwrap();
        let tensor = Input::Device(*gradient).tensor(&mut batch).unwrap();
        payload = Some(encode(&mut batch, &tensor, &results).unwrap());
    });
    (recorded, payload.unwrap())
}

#[test]
fn rows_and_payloads_of_qsgd_cover_every_value() {
    each(&SHAPES, |backend, gradient, whole| {
        for bucket in [1, 512, 1000, u32::MAX] {
            let base = Qsgd { bucket, ..Qsgd::default() };
            let recorded = measured(backend, *gradient, Candidates::Qsgd { base, bits: &[1, 4] });
            assert_eq!(check_qsgd(&recorded, whole, &["extreme_values", "row"], bucket.into()), 2);
            let qsgd = Qsgd { bits: 8, scale: Scale::MinMax, ..base };
            let len = qsgd.payload_len(gradient.shape, gradient.dtype).unwrap();
            let (recorded, payload) = encoded(backend, gradient, |batch, tensor, results| {
                qsgd::encode(batch, tensor, qsgd, Stream::default(), len, results)
            });
            assert_eq!(check_qsgd(&recorded, whole, &["extreme_values", "encode"], bucket.into()), 1);
            check_copies(&recorded, &payload, len);
        }
    });
}

/// Asserts that the kernel reads all values once, one block after another.
fn check_eden(recorded: &[Rehearsed], whole: Whole, kernel: &str) {
    let told = tasks::<eden::Params>(recorded, kernel);
    let seen = told.iter().map(|told| {
        assert_eq!(told.params.first as usize % BLOCK, 0);
        Seen {
            part: told.bound(1).clone(),
            offset: told.params.offset,
            first: Some(told.params.first),
            count: told.params.count,
            workgroups: told.workgroups,
            most_of_each: BLOCK as u64,
        }
    });
    assert_eq!(whole.check(seen), 1, "{kernel}");
    let blocks: u64 = told.iter().map(|told| told.workgroups).sum();
    let block = BLOCK as u64;
    assert_eq!(blocks, whole.elements / block + u64::from((whole.elements % block).count_ones()));
}

#[test]
fn rows_and_payloads_of_eden_cover_every_value() {
    each(&SHAPES, |backend, gradient, whole| {
        let base = Eden { bits: 7, ..Eden::default() };
        let recorded = measured(backend, *gradient, Candidates::Eden { base, bits: &[1, 8] });
        check_eden(&recorded, whole, "rotated_row");
        let len = base.payload_len(gradient.shape, gradient.dtype).unwrap();
        let (recorded, payload) = encoded(backend, gradient, |batch, tensor, results| {
            eden::encode(batch, tensor, base, Stream::default(), len, results)
        });
        check_eden(&recorded, whole, "encode_rotated");
        check_copies(&recorded, &payload, len);
    });
}

/// With WebGPU's default limits, no buffer is large enough for these tensors, but host memory may be.
#[test]
fn values_of_the_host_are_uploaded_in_pieces() {
    for (rows, cols) in SHAPES {
        let mut backend = imagined(256 << 20);
        // Zeros that are never read take no physical memory.
        let values: Vec<u16> = vec![0; rows * cols];
        let values: &[Bf16] = bytemuck::cast_slice(&values);
        let gradient = Gradient::new(Values::Bf16(values), Shape::new(rows, cols).unwrap()).unwrap();
        let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[4] };
        let job = Job { gradient, candidates, stream: Stream::default() };
        let recorded = rehearsed(&mut backend, |backend| {
            backend.reserve(&[job]).unwrap();
        });
        let whole = Whole { start: None, bytes: 2, elements: values.len() as u64 };
        assert_eq!(check_qsgd(&recorded, whole, &["extreme_values", "row"], Qsgd::default().bucket.into()), 1);
    }
}

fn of_topk(told: &Told<topk::Params>, has_first: bool, most_of_each: u64) -> Seen {
    Seen {
        part: told.bound(1).clone(),
        offset: told.params.offset,
        first: has_first.then_some(told.params.first),
        count: told.params.count,
        workgroups: told.workgroups,
        most_of_each,
    }
}

/// Asserts that all values are counted once.
fn check_histograms(recorded: &[Rehearsed], whole: Whole) {
    for kernel in ["histogram_1", "histogram_2", "histogram_3"] {
        let told = tasks(recorded, kernel);
        assert_eq!(whole.check(told.iter().map(|told| of_topk(told, false, 1 << 14))), 1, "{kernel}");
    }
}

/// Asserts that these kernels read all values once, one block after another. Then `write_kept` must read all values
/// once for each window of written words. The windows must cover all words. First come the windows of values, each with
/// the first window of positions, and then the other windows of positions.
fn check_blocks(recorded: &[Rehearsed], whole: Whole, kernels: &[&str], [sent, positions]: [Vec<u64>; 2]) {
    let blocks = whole.elements.div_ceil(2048);
    let mut windows = Vec::new();
    for &kernel in kernels.iter().chain(&["write_kept"]) {
        let told = tasks::<topk::Params>(recorded, kernel);
        let times = whole.check(told.iter().map(|told| of_topk(told, true, 2048)));
        let mut block = 0;
        for Told { params, workgroups, bindings } in &told {
            assert_eq!(u64::from(params.first_block), block);
            block += workgroups;
            if block == blocks && kernel == "write_kept" {
                windows.push([params.window, params.window_len, params.positions_window, params.positions_len]);
            }
            block %= blocks;
            for (number, table) in bindings {
                let words = match number {
                    7 => u64::from(params.block_counts) + 2 * blocks,
                    8 => params.window_len.into(),
                    19 => COUNTED as u64,
                    20 => u64::from(params.first_entry) + u64::from(params.most_entries),
                    21 => params.positions_len.into(),
                    _ => continue,
                };
                assert!(table.size >= 4 * words && params.most_entries as usize <= entries(whole.elements as usize));
                assert!(*number != 20 || u64::from(params.first_entry) == 4 * blocks);
                let sums = u64::from(params.block_counts - params.block_sums);
                assert!(*number != 7 || sums == 2 * blocks.div_ceil(256));
            }
        }
        assert_eq!(block, 0);
        assert_eq!(times, if kernel == "write_kept" { windows.len() as u64 } else { 1 }, "{kernel}");
    }
    let before = |parts: &[u64], number: usize| parts[..number].iter().sum::<u64>();
    let of_sent =
        (0..sent.len()).map(|number| [before(&sent, number), sent[number], 0, *positions.first().unwrap_or(&0)]);
    let of_positions = (1..positions.len()).map(|number| [0, 0, before(&positions, number), positions[number]]);
    let expected: Vec<[u64; 4]> = of_sent.chain(of_positions).collect();
    assert_eq!(windows.iter().map(|window| window.map(u64::from)).collect::<Vec<_>>(), expected);
}

#[test]
fn payloads_of_topk_cover_every_value() {
    each(&SHAPES, |backend, gradient, whole| {
        let (all, shape) = (whole.elements as u32, gradient.shape);
        for (keep, bits) in [(1000, 0), (1000, 3), (all / 2 + 1, 0), (all / 2 + 1, 8), (all - 1, 5), (all, 0)] {
            let top = TopK { keep, values: Dtype::F32 };
            let kept = if bits > 0 { QuantisedTopK { keep, bits }.into() } else { Keep::from(top) };
            let setting =
                if bits > 0 { Setting::QuantisedTopK(QuantisedTopK { keep, bits }) } else { Setting::TopK(top) };
            let len = setting.payload_len(shape, gradient.dtype).unwrap();
            if len as u64 > 4 * u64::from(u32::MAX) {
                let tensor = Tensor::of_buffer(gradient.buffer, 36, all as usize);
                let failed =
                    topk_encode::encode(&mut Batch::new(backend.gpu()).unwrap(), &tensor, kept, len, gradient.buffer);
                assert!(matches!(failed, Err(Error::TooLarge { limit: "reach of 32-bit word numbers", .. })));
                continue;
            }
            let (recorded, written) = encoded(backend, gradient, |batch, tensor, results| {
                topk_encode::encode(batch, tensor, kept, len, results)
            });
            let [means, sent] = kept.bytes();
            let layout = top.layout(all).unwrap();
            let bytes = |tensor: &Tensor| tensor.parts().map(|part| part.size).sum::<u64>();
            let first_len = HEADER_LEN as u64 + means + sent;
            assert_eq!(bytes(&written.sent), first_len.next_multiple_of(4));
            assert_eq!(bytes(&written.positions), (len as u64 - first_len).next_multiple_of(4).max(4));
            let windows = [&written.sent, &written.positions].map(|of| of.parts().map(|part| part.size / 4).collect());
            check_blocks(&recorded, whole, &["sample", "gather_values", "refine", "count_kept"], windows);
            for Told { params, .. } in tasks::<topk::Params>(&recorded, "write_kept") {
                let byte = |word: u32, bit: u32| 4 * u64::from(word) + u64::from(bit) / 8;
                assert_eq!(byte(params.low_word, params.low_bit), 0);
                assert_eq!(byte(params.high_word, params.high_bit), layout.low_bytes);
                assert_eq!((params.elements, byte(params.codes, 0)), (all, HEADER_LEN as u64 + means));
            }
        }
    });
}

#[test]
fn rows_of_topk_cover_every_value() {
    each(&SHAPES, |backend, gradient, whole| {
        let all = whole.elements as u32;
        let keeps = [1, 1000, all / 2 + 1, all];
        let recorded = measured(backend, *gradient, Candidates::TopK { values: Dtype::F16, keeps: &keeps });
        check_histograms(&recorded, whole);
        for most in [all / 2 + 1, all] {
            let few = Candidates::QuantisedTopK { keeps: &[1000, most], bits: &[4] };
            let recorded = measured(backend, *gradient, few);
            check_histograms(&recorded, whole);
            let (all, each) = (u64::from(most).next_multiple_of(32), backend.gpu().piece_len() as u64);
            let windows = (0..all.div_ceil(each)).map(|number| each.min(all - number * each)).collect();
            check_blocks(&recorded, whole, &["count_block"], [windows, vec![]]);
            // The kept values are in separate chunks. For each of the two values of k, a kernel reads the kept values
            // once.
            let told = tasks::<topk::Params>(&recorded, "add_to_sums");
            let kept = Whole { start: None, bytes: 4, elements: most.into() };
            let seen =
                told.iter().map(|told| Seen { workgroups: told.workgroups / 2, ..of_topk(told, false, 1 << 14) });
            assert_eq!(kept.check(seen), 1);
        }
    });
}

/// Asserts that rectangles contain every element of the matrix once.
fn check_rectangles(told: &[Told<powersgd::Params>], whole: Whole, shape: Shape) {
    let width = shape.cols() as u64;
    let rectangle = |told: &Told<powersgd::Params>| {
        let (part, params) = (told.bound(1), told.params);
        let at = part.offset + whole.bytes * u64::from(params.offset) - whole.start.unwrap();
        assert_eq!((at % whole.bytes, u64::from(params.stride)), (0, width));
        let (row, col) = (at / whole.bytes / width, at / whole.bytes % width);
        let (rows, cols) = (u64::from(params.rows), u64::from(params.cols));
        let last = u64::from(params.offset) + (rows - 1) * width + cols;
        assert!(whole.bytes * last <= part.size && col + cols <= width && row + rows <= shape.rows() as u64);
        // Bands of the factors have a multiple of 16 rows, and fit a binding.
        let height = (128 << 20) / 4 / u64::from(params.columns) / 16 * 16;
        assert_eq!([u64::from(params.row), u64::from(params.col)], [row % height, col % height]);
        assert!(params.row + params.rows <= params.all_rows && params.col + params.cols <= params.all_cols);
        [row, col, rows, cols]
    };
    let all: Vec<[u64; 4]> = told.iter().map(rectangle).collect();
    assert_eq!(all.iter().map(|[_, _, rows, cols]| rows * cols).sum::<u64>(), whole.elements);
    for (number, [row, col, rows, cols]) in all.iter().enumerate() {
        let apart = |[y, x, high, wide]: &[u64; 4]| {
            row + rows <= *y || y + high <= *row || col + cols <= *x || x + wide <= *col
        };
        assert!(all[..number].iter().all(apart), "rectangles overlap");
    }
}

#[test]
fn rows_and_payloads_of_powersgd_cover_every_value() {
    each(&MATRICES, |backend, gradient, whole| {
        let shape = gradient.shape;
        let ranks = Candidates::PowerSgd { iterations: 1, ranks: &[1, 64] };
        let rows = measured(backend, *gradient, ranks);
        let (payload, _) = encoded(backend, gradient, |batch, tensor, results| {
            powersgd::encode(batch, tensor, shape, (64, 1), Stream::default(), results)?;
            Tensor::room(batch, 0)
        });
        check_rectangles(&tasks(&rows, "residuals"), whole, shape);
        check_magnitudes(&rows, "largest", whole);
        for recorded in [rows, payload] {
            let (there, back): (Vec<_>, Vec<_>) = tasks::<powersgd::Params>(&recorded, "multiply_chunk")
                .into_iter()
                .partition(|told| told.params.transposed == 0);
            check_rectangles(&there, whole, shape);
            check_rectangles(&back, whole, shape);
        }
    });
}

/// Checks the pieces that a kernel reads to find the largest magnitude or to add up squares.
fn check_magnitudes(recorded: &[Rehearsed], kernel: &str, whole: Whole) {
    let told = tasks::<magnitude::Params>(recorded, kernel);
    let seen = told.iter().map(|told| Seen {
        part: told.bound(1).clone(),
        offset: told.params.offset,
        first: Some(told.params.first),
        count: told.params.count,
        workgroups: told.workgroups,
        most_of_each: 2048,
    });
    assert_eq!(whole.check(seen), 1);
}

#[test]
fn norms_cover_every_value() {
    each(&SHAPES, |backend, gradient, whole| {
        let results = buffer(backend, backend.norms_bytes(1));
        let recorded = rehearsed(backend, |backend| backend.enqueue_norms(&[*gradient], &results, 0).unwrap());
        check_magnitudes(&recorded, "squares", whole);
        let records = tasks::<magnitude::Params>(&recorded, "squares").iter().fold(0, |records, told| {
            assert!(u64::from(told.params.record) == records);
            records + told.workgroups
        });
        let [first, second] = &tasks::<sums::Params>(&recorded, "add_records")[..] else { panic!("two dispatches") };
        assert_eq!((u64::from(first.params.count), first.workgroups), (records, records.div_ceil(4096)));
        assert!(first.bound(1).size >= 64 * records && second.workgroups == 1);
        assert_eq!(u64::from(second.params.count), first.workgroups);
    });
}

#[test]
fn error_feedback_covers_every_value_or_names_the_limit() {
    let setting = Setting::Qsgd(Qsgd { bits: 1, bucket: 1 << 20, ..Qsgd::default() });
    let step = |backend: &mut WgpuBackend, gradient: &BufferGradient<'_>, storage| {
        let elements = gradient.shape.elements();
        let held = buffer(backend, BufferResidual::bytes(storage, elements));
        let residual = BufferResidual { buffer: &held, storage };
        let mut payload = vec![0; setting.payload_len(gradient.shape, gradient.dtype).unwrap()];
        backend.encode_with_feedback(&setting, gradient, &residual, 0.5, Stream::default(), &mut payload).map(|_| held)
    };
    each(&SHAPES[..1], |backend, gradient, whole| {
        let (storage, store) = match gradient.dtype {
            Dtype::F32 => (Storage::Int8, "store_int8"),
            Dtype::Bf16 => (Storage::Bf16, "store_bf16"),
            Dtype::F16 => return,
        };
        let mut held = None;
        let recorded = rehearsed(backend, |backend| held = step(backend, gradient, storage).ok());
        let held = held.unwrap();
        for kernel in ["offer", "remember", store] {
            let (mut next, mut pieces) = (0, 0);
            for recorded in &recorded {
                let Rehearsed::Dispatch { entry, parameters, bindings, groups } = recorded else { continue };
                if *entry != kernel {
                    continue;
                }
                let params: feedback::Params = bytemuck::pod_read_unaligned(parameters);
                let bound = |number| &bindings.iter().find(|(binding, _)| *binding == number).unwrap().1;
                let (memory, offered) = (bound(2), bound(3));
                let of_memory = if storage == Storage::Bf16 { 2 } else { 1 };
                assert_eq!((u64::from(params.first), &memory.buffer), (next, &held));
                assert_eq!((memory.offset, offered.offset), (of_memory * next, 4 * next));
                let count = u64::from(params.count);
                assert!(of_memory * count <= memory.size && 4 * count <= offered.size);
                assert_eq!(groups, &[params.count.div_ceil(2048) as usize, 1, 1]);
                (next, pieces) = (next + count, pieces + 1);
            }
            assert_eq!((next, pieces > 60), (whole.elements, true), "{kernel}");
        }
    });
    let mut backend = imagined(256 << 20);
    let shape = Shape::new(SHAPES[0].0, SHAPES[0].1).unwrap();
    let held = buffer(&backend, 4 * shape.elements() as u64);
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    let failed = step(&mut backend, &gradient, Storage::Int8).unwrap_err();
    assert!(matches!(failed, Error::TooLarge { limit: "max_buffer_size", .. }), "{failed}");
}
