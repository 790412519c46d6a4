// PowerSGD: products with a matrix and its transpose, orthonormal columns, and what a product of factors leaves.
//
// The matrix is read as M' = M / 2^e, where 2^e brings its largest magnitude into [1, 2), so that nothing overflows.
// Factors hold their columns one after the other.

struct Params {
    offset: u32,
    dtype: u32,
    // The rectangle of M' that lies in the binding: where it is, its size, and values from one row to the next.
    row: u32,
    col: u32,
    rows: u32,
    cols: u32,
    stride: u32,
    transposed: u32,
    // Of the whole matrix.
    all_rows: u32,
    all_cols: u32,
    columns: u32,
    column: u32, // the one being orthonormalised
    second: u32, // whether that is its second pass
    chunks: u32,
    stretch: u32, // rows of an inner product that one workgroup adds up
    groups: u32, // workgroups dispatched
    largest: u32, // word of `results` with the largest magnitude of M
    tiles: u32,
    ranks: u32, // of `sought`
    record: u32,
    exponent: u32, // field of the power of two that values are multiplied by at the end
    layer: u32,
    seed_low: u32,
    seed_high: u32,
    step: u32,
    rank: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// The factor a product is taken with, and the one it makes.
@group(0) @binding(2) var<storage, read_write> factor: array<f32>;
@group(0) @binding(3) var<storage, read_write> product: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;
// Eight ranks, ascending.
@group(0) @binding(7) var<storage, read_write> sought: array<u32>;

const SIDE = 16u;
const DEPTH = 32u;
const CHUNK = 4096u;

// e, for `results`.
fn exponent_of_matrix() -> i32 {
    let largest = results[params.largest];
    if (largest == 0u) {
        return 0;
    }
    return i32(unpack(largest).y) - 127;
}

// x * 2^-e; 0 when that is no normal number.
fn scaled(bits: u32, e: i32) -> f32 {
    let magnitude = bits & MAGNITUDE;
    if (magnitude == 0u) {
        return 0.0;
    }
    let x = unpack(magnitude);
    let exponent = i32(x.y) - e;
    if (exponent < 1 || exponent > 254) {
        return 0.0;
    }
    return bitcast<f32>((bits & SIGN) | (u32(exponent) << 23u) | (x.x & 0x007fffffu));
}

fn matrix(row: u32, col: u32, e: i32) -> f32 {
    return scaled(value(row * params.stride + col), e);
}

// The start matrix: an odd multiple of 2^-24 per element.
@compute @workgroup_size(256)
fn start(@builtin(global_invocation_id) id: vec3<u32>) {
    let count = params.all_cols * params.columns;
    for (var block = id.x; block * 4u < count; block += params.groups * 256u) {
        let words = random(block);
        for (var j = 0u; j < 4u && block * 4u + j < count; j++) {
            let odd = i32(2u * (words[j] >> 8u) + 1u) - 16777216;
            factor[block * 4u + j] = f32(odd) * 0x1p-24f;
        }
    }
}

var<workgroup> lanes: array<u32, 256>;
var<workgroup> floats: array<f32, 256>;

// Multiplies every column of `product` by the power of two that brings its largest magnitude into [1, 2). One workgroup
// per column; all_rows is the length of columns.
@compute @workgroup_size(256)
fn scale_columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var column = group.x; column < params.columns; column += params.groups) {
        let first = column * params.all_rows;
        var largest = 0u;
        for (var i = lane; i < params.all_rows; i += 256u) {
            largest = max(largest, bitcast<u32>(product[first + i]) & MAGNITUDE);
        }
        workgroupBarrier();
        lanes[lane] = largest;
        for (var reach = 128u; reach > 0u; reach >>= 1u) {
            workgroupBarrier();
            if (lane < reach) {
                lanes[lane] = max(lanes[lane], lanes[lane + reach]);
            }
        }
        workgroupBarrier();
        largest = lanes[0];
        if (largest != 0u) {
            let e = i32(largest >> 23u) - 127;
            for (var i = lane; i < params.all_rows; i += 256u) {
                product[first + i] = scaled(bitcast<u32>(product[first + i]), e);
            }
        }
    }
}

var<workgroup> tile: array<f32, 512>;
var<workgroup> slab: array<f32, 512>;

// partial[chunk][column][o] = sum over inner j of the chunk of M'[o, j] * factor[column][j], or of M'[j, o] when
// transposed.
@compute @workgroup_size(256)
fn multiply_chunk(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let e = exponent_of_matrix();
    let outer = select(params.rows, params.cols, params.transposed != 0u);
    let inner = select(params.cols, params.rows, params.transposed != 0u);
    let inner_first = select(params.col, params.row, params.transposed != 0u);
    let inner_all = select(params.all_cols, params.all_rows, params.transposed != 0u);
    let first_o = group.x * SIDE;
    let first_column = group.y * SIDE;
    let start = group.z * CHUNK;
    let end = min(start + CHUNK, inner);
    let o = lane % SIDE;
    let column = lane / SIDE;
    var sum = 0.0;
    for (var j0 = start; j0 < end; j0 += DEPTH) {
        for (var half = 0u; half < 2u; half++) {
            let at = lane + 256u * half;
            // Neighbouring invocations read neighbouring values.
            var tile_o = at / DEPTH;
            var tile_j = at % DEPTH;
            if (params.transposed != 0u) {
                tile_o = at % SIDE;
                tile_j = at / SIDE;
            }
            var x = 0.0;
            if (first_o + tile_o < outer && j0 + tile_j < end) {
                if (params.transposed != 0u) {
                    x = matrix(j0 + tile_j, first_o + tile_o, e);
                } else {
                    x = matrix(first_o + tile_o, j0 + tile_j, e);
                }
            }
            tile[tile_j * SIDE + tile_o] = x;
            let slab_column = at / DEPTH;
            let slab_j = at % DEPTH;
            var y = 0.0;
            if (first_column + slab_column < params.columns && j0 + slab_j < end) {
                y = factor[(first_column + slab_column) * inner_all + inner_first + j0 + slab_j];
            }
            slab[slab_column * DEPTH + slab_j] = y;
        }
        workgroupBarrier();
        var part = 0.0;
        for (var j = 0u; j < DEPTH; j++) {
            part += tile[j * SIDE + o] * slab[column * DEPTH + j];
        }
        sum += part;
        workgroupBarrier();
    }
    if (first_o + o < outer && first_column + column < params.columns) {
        partial[(group.z * params.columns + first_column + column) * outer + first_o + o] = sum;
    }
}

// Adds the chunks' sums to `product`.
@compute @workgroup_size(256)
fn add_chunks(@builtin(global_invocation_id) id: vec3<u32>) {
    let outer = select(params.rows, params.cols, params.transposed != 0u);
    let outer_first = select(params.row, params.col, params.transposed != 0u);
    let outer_all = select(params.all_rows, params.all_cols, params.transposed != 0u);
    for (var at = id.x; at < params.columns * outer; at += params.groups * 256u) {
        var sum = 0.0;
        for (var chunk = 0u; chunk < params.chunks; chunk++) {
            sum += partial[chunk * params.columns * outer + at];
        }
        product[(at / outer) * outer_all + outer_first + at % outer] += sum;
    }
}

// Orthonormal columns by Gram-Schmidt, twice over ("twice is enough"), a column at a time.

// partial[stretch][c] = inner product of columns c <= `column` and `column`, over a stretch of rows.
@compute @workgroup_size(256)
fn inner_products(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = params.column * params.all_rows;
    let start = group.x * params.stretch;
    let end = min(start + params.stretch, params.all_rows);
    for (var c = group.y; c <= params.column; c += params.groups) {
        var sum = 0.0;
        for (var i = start + lane; i < end; i += 256u) {
            sum += product[c * params.all_rows + i] * product[own + i];
        }
        workgroupBarrier();
        floats[lane] = sum;
        for (var reach = 128u; reach > 0u; reach >>= 1u) {
            workgroupBarrier();
            if (lane < reach) {
                floats[lane] += floats[lane + reach];
            }
        }
        if (lane == 0u) {
            partial[group.x * params.columns + c] = floats[0];
        }
    }
}

fn inner_product(c: u32) -> f32 {
    var sum = 0.0;
    for (var chunk = 0u; chunk < params.chunks; chunk++) {
        sum += partial[chunk * params.columns + c];
    }
    return sum;
}

// Subtracts from `column` its projection on those before it. Keeps its squared norm before the pass, in the word of
// `partial` after the inner products.
@compute @workgroup_size(256)
fn subtract_projection(@builtin(global_invocation_id) id: vec3<u32>) {
    let own = params.column * params.all_rows;
    for (var i = id.x; i < params.all_rows; i += params.groups * 256u) {
        var sum = 0.0;
        for (var c = 0u; c < params.column; c++) {
            sum += inner_product(c) * product[c * params.all_rows + i];
        }
        product[own + i] -= sum;
    }
    if (id.x == 0u) {
        partial[params.chunks * params.columns + params.second] = inner_product(params.column);
    }
}

// Brings `column` to norm 1, or to 0 when either pass took too much of it: what is left is rounding then.
@compute @workgroup_size(256)
fn normalise(@builtin(global_invocation_id) id: vec3<u32>) {
    let at_first = partial[params.chunks * params.columns];
    let between = partial[params.chunks * params.columns + 1u];
    let left = inner_product(params.column);
    var factor = 0.0;
    if (between > at_first * 0x1p-40f && left > between * 0.25) {
        factor = 1.0 / sqrt(left);
    }
    let own = params.column * params.all_rows;
    for (var i = id.x; i < params.all_rows; i += params.groups * 256u) {
        product[own + i] *= factor;
    }
}

// output = `product` * 2^e, in bits; for what is sent.
@compute @workgroup_size(256)
fn unscale(@builtin(global_invocation_id) id: vec3<u32>) {
    let e = exponent_of_matrix();
    let power = select(1u << u32(clamp(e + 149, 0, 22)), u32(max(e, -126) + 127) << 23u, e >= -126);
    for (var at = id.x; at < params.columns * params.all_cols; at += params.groups * 256u) {
        output[at] = multiply(bitcast<u32>(product[at]), power);
    }
}

var<workgroup> mantissas: array<f32, 512>;
var<workgroup> exponents: array<i32, 512>;

// Element (row, col) of the tile's product, summed over columns from .. to.
fn dot_tile(sum: f32, from_column: u32, to_column: u32, row: u32, col: u32) -> f32 {
    var total = sum;
    for (var c = from_column; c < to_column; c++) {
        total += tile[(c % SIDE) * SIDE + row] * slab[(c % SIDE) * SIDE + col];
    }
    return total;
}

// Loads 16 columns of both factors, the parts a tile of the product needs. `factor` holds P, `product` holds Q.
fn load_slabs(first_column: u32, first_row: u32, first_col: u32, lane: u32) {
    let c = first_column + lane / SIDE;
    let row = first_row + lane % SIDE;
    let col = first_col + lane % SIDE;
    var x = 0.0;
    var y = 0.0;
    if (c < params.columns && row < params.all_rows) {
        x = factor[c * params.all_rows + row];
    }
    if (c < params.columns && col < params.all_cols) {
        y = product[c * params.all_cols + col];
    }
    workgroupBarrier();
    tile[lane] = x;
    slab[lane] = y;
    workgroupBarrier();
}

// The squared distance of M' from the product of the first columns of the factors, for each of the sought ranks; M''s
// exponent is put back. A workgroup goes through `tiles` tiles next to each other.
@compute @workgroup_size(256)
fn residuals(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let e = exponent_of_matrix();
    let row = group.x * SIDE + lane / SIDE;
    var sums: array<Wide, 8>;
    for (var t = 0u; t < params.tiles; t++) {
        let first_col = (group.y * params.tiles + t) * SIDE;
        let col = first_col + lane % SIDE;
        let inside = row < params.rows && col < params.cols;
        var x = 0.0;
        if (inside) {
            x = matrix(row, col, e);
        }
        var sum = 0.0;
        var next = 0u;
        for (var c = 0u; c < params.columns; c += SIDE) {
            load_slabs(c, params.row + group.x * SIDE, params.col + first_col, lane);
            var done = c;
            // Ranks that end in this slab.
            while (next < params.ranks && sought[next] <= min(c + SIDE, params.columns)) {
                sum = dot_tile(sum, done, sought[next], lane / SIDE, lane % SIDE);
                done = sought[next];
                if (inside) {
                    let left = wide(abs(x - sum), 0);
                    sums[next] = plus(sums[next], wide(left.m * left.m, 2 * left.e));
                }
                next += 1u;
            }
            sum = dot_tile(sum, done, min(c + SIDE, params.columns), lane / SIDE, lane % SIDE);
        }
    }
    // Lanes beyond the sixteenth columns first, so that eight sums of 64 lanes fit.
    for (var quarter = 0u; quarter < 4u; quarter++) {
        workgroupBarrier();
        if (lane / 64u == quarter) {
            for (var w = 0u; w < 8u; w++) {
                let at = w * 64u + lane % 64u;
                var sum = sums[w];
                if (quarter > 0u) {
                    sum = plus(sum, Wide(mantissas[at], exponents[at]));
                }
                mantissas[at] = sum.m;
                exponents[at] = sum.e;
            }
        }
    }
    for (var reach = 32u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            for (var w = 0u; w < 8u; w++) {
                let at = w * 64u + lane;
                let sum = plus(Wide(mantissas[at], exponents[at]), Wide(mantissas[at + reach], exponents[at + reach]));
                mantissas[at] = sum.m;
                exponents[at] = sum.e;
            }
        }
    }
    if (lane == 0u) {
        for (var w = 0u; w < 8u; w++) {
            let at = (params.record + group.y * params.groups + group.x) * 16u + w;
            output[at] = bitcast<u32>(mantissas[w * 64u]);
            output[at + 8u] = bitcast<u32>(exponents[w * 64u] + 2 * e);
        }
    }
}

// output[row][col] = bits of the product of the factors times a power of two, for a rectangle of rows.
@compute @workgroup_size(256)
fn reconstruct(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * SIDE + lane / SIDE;
    let col = group.y * SIDE + lane % SIDE;
    var sum = 0.0;
    for (var c = 0u; c < params.columns; c += SIDE) {
        load_slabs(c, params.row + group.x * SIDE, params.col + group.y * SIDE, lane);
        sum = dot_tile(sum, c, min(c + SIDE, params.columns), lane / SIDE, lane % SIDE);
    }
    if (row < params.rows && col < params.cols) {
        output[row * params.cols + col] = multiply(bitcast<u32>(sum), params.exponent << 23u);
    }
}
