// PowerSGD of tensors: parameters, the scaled matrix, and factors. `powersgd_multiply.wgsl` has the products with the
// matrix, and `powersgd_residual.wgsl` compares the factors' product with the matrix. `factors.wgsl` has products of
// thin factors in tiles, and `orthonormal.wgsl` makes columns orthonormal.
//
// The matrix is read as M' = M / 2^e. The power 2^e brings the matrix's largest magnitude into [1, 2), so that nothing
// overflows. Factors lie in bands of rows that fit a binding; a band is stored in column-major order.

struct Params {
    offset: u32,
    dtype: u32,
    // A rectangle of M' begins at `row` and `col`, counted from the start of the bands of P and Q. The rectangle has
    // `rows` rows and `cols` columns. `stride` is the number of values from one row to the next.
    row: u32,
    col: u32,
    rows: u32,
    cols: u32,
    stride: u32,
    transposed: u32,
    // Indices in the bindings at which the matrix's data begin: bands of factors, partial sums, state, output, ranks.
    factor: u32,
    product: u32,
    partial: u32,
    inner: u32,
    output: u32,
    sought: u32,
    // Rows of the bands of P and of Q.
    all_rows: u32,
    all_cols: u32,
    columns: u32,
    first_step: u32, // first step of orthonormalisation
    last_step: u32, // the step after the last one
    chunks: u32, // number of chunks: of a product, or of a factor's rows in orthonormalisation
    first_chunk: u32, // first chunk of the band in orthonormalisation
    chunk_rows: u32, // rows that one workgroup orthonormalises
    largest_only: u32, // whether to find only the largest magnitudes of a band's columns, without scaling
    largest: u32, // index of the word of `results` with the largest magnitude of M
    tiles: u32,
    ranks: u32, // number of ranks in `sought`
    record: u32,
    exponent: u32, // exponent field of the power of two by which `reconstruct` multiplies
    layer: u32,
    seed_low: u32,
    seed_high: u32,
    step: u32,
    rank: u32,
}

// The factor that a product reads, and the factor that it makes.
@group(0) @binding(2) var<storage, read_write> factor: array<f32>;
@group(0) @binding(3) var<storage, read_write> product: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;
// Up to eight ranks of each matrix, in ascending order.
@group(0) @binding(7) var<storage, read_write> sought: array<u32>;

const CHUNK = 4096u;

// The exponent e, from `results`.
fn exponent_of_matrix() -> i32 {
    let largest = results[params.largest];
    if (largest == 0u) {
        return 0;
    }
    return i32(unpack(largest).y) - 127;
}

// The matrix's exponent e, once a kernel has read it.
var<private> exponent: i32;

fn element(row: u32, col: u32) -> f32 {
    return scaled(value(row * params.stride + col), exponent);
}

fn in_factor(i: u32) -> u32 {
    return params.factor + i;
}

fn in_product(i: u32) -> u32 {
    return params.product + i;
}

fn in_inner(i: u32) -> u32 {
    return params.inner + i;
}

// Writes `rows` rows of the start matrix, which has `all_cols` rows, from row `row` on. Each element is an odd multiple
// of 2^-24.
@compute @workgroup_size(256)
fn start(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    // A call of `random` gives four elements. The first and the last four elements of a column may lie partly outside
    // the band.
    let fours = (params.rows + 2u) / 4u + 1u;
    for (var at = group.x * 256u + lane; at < fours * params.columns; at += groups.x * 256u) {
        let column = at / fours;
        let first = column * params.all_cols + params.row;
        let block = first / 4u + at % fours;
        let words = random(block);
        for (var j = 0u; j < 4u; j++) {
            let i = block * 4u + j - first;
            if (i < params.rows) {
                let odd = i32(2u * (words[j] >> 8u) + 1u) - 16777216;
                factor[in_factor(column * params.rows + i)] = f32(odd) * 0x1p-24f;
            }
        }
    }
}

// Multiplies every column of `product` by the power of two that brings its largest magnitude into [1, 2). There is one
// workgroup per column; all_rows is the length of columns. `output` has the largest magnitudes of other bands.
@compute @workgroup_size(256)
fn scale_columns(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    for (var column = group.x; column < params.columns; column += groups.x) {
        let first = in_product(column * params.all_rows);
        var largest = 0u;
        for (var i = lane.index; i < params.all_rows; i += 256u) {
            largest = max(largest, bitcast<u32>(product[first + i]) & MAGNITUDE);
        }
        largest = largest_of(lane, 256u, largest);
        if (params.largest_only != 0u) {
            if (lane.index == 0u) {
                output[params.output + column] = max(largest, output[params.output + column]);
            }
            continue;
        }
        largest = max(largest, output[params.output + column]);
        if (largest != 0u) {
            let e = i32(largest >> 23u) - 127;
            for (var i = lane.index; i < params.all_rows; i += 256u) {
                product[first + i] = scaled(bitcast<u32>(product[first + i]), e);
            }
        }
    }
}

// output = `product` * 2^e, in bits, for the payload. all_cols is the length of columns.
@compute @workgroup_size(256)
fn unscale(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let e = exponent_of_matrix();
    let power = select(1u << u32(clamp(e + 149, 0, 22)), u32(max(e, -126) + 127) << 23u, e >= -126);
    for (var at = group.x * 256u + lane; at < params.columns * params.all_cols; at += groups.x * 256u) {
        output[at] = multiply(bitcast<u32>(product[in_product(at)]), power);
    }
}

// Takes steps of Gram-Schmidt for a band's rows, or for triangles. There is one workgroup per chunk.
@compute @workgroup_size(256)
fn orthonormalise(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let start = group.x * params.chunk_rows;
    let end = min(start + params.chunk_rows, params.all_rows);
    take_steps(params.first_step, params.last_step, params.first_chunk + group.x, start, end, lane);
}

// Multiplies each row by the triangular factor of its chunk, after the chunks were made orthonormal.
@compute @workgroup_size(256)
fn multiply_by_triangles(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let row = group.x * 256u + lane;
    if (row < params.all_rows) {
        multiply_row(params.first_chunk + row / params.chunk_rows, row);
    }
}
