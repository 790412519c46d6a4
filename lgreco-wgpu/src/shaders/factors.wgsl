// Products with thin factors, in tiles of 16 by 16. `powersgd.wgsl` defines the matrix by `element(row, col)`. The
// functions `in_factor` and `in_product` of the same file give the places of the factors in the bindings.

const SIDE = 16u;
const DEPTH = 32u;

var<workgroup> tile: array<f32, 512>;
var<workgroup> slab: array<f32, 512>;

// The shape of a product with the matrix or its transpose. Per column, the product has `outer` sums of `inner` terms
// each. In the factor's columns, which have `inner_all` values, the first term has index `inner_first`.
struct Terms {
    transposed: bool,
    outer: u32,
    inner: u32,
    inner_first: u32,
    inner_all: u32,
}

// x * 2^-e; 0 if the result is not a normal number.
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

// The sum over inner j from start to end of M[o, j] * factor[column][j], or of M[j, o] if transposed. Each lane has one
// o, from `first_o` on, and one column, from `first_column` on. All 256 lanes must call this function.
fn chunk_sum(shape: Terms, first_o: u32, first_column: u32, start: u32, end: u32, lane: u32) -> f32 {
    let o = lane % SIDE;
    let column = lane / SIDE;
    var sum = 0.0;
    for (var j0 = start; j0 < end; j0 += DEPTH) {
        for (var half = 0u; half < 2u; half++) {
            let at = lane + 256u * half;
            // Neighbouring invocations read neighbouring values.
            var tile_o = at / DEPTH;
            var tile_j = at % DEPTH;
            if (shape.transposed) {
                tile_o = at % SIDE;
                tile_j = at / SIDE;
            }
            var x = 0.0;
            if (first_o + tile_o < shape.outer && j0 + tile_j < end) {
                if (shape.transposed) {
                    x = element(j0 + tile_j, first_o + tile_o);
                } else {
                    x = element(first_o + tile_o, j0 + tile_j);
                }
            }
            tile[tile_j * SIDE + tile_o] = x;
            let slab_column = at / DEPTH;
            let slab_j = at % DEPTH;
            var y = 0.0;
            if (first_column + slab_column < params.columns && j0 + slab_j < end) {
                y = factor[in_factor((first_column + slab_column) * shape.inner_all + shape.inner_first + j0 + slab_j)];
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
    return sum;
}

// Element (row, col) of the tile's product, summed over columns from .. to.
fn dot_tile(sum: f32, from_column: u32, to_column: u32, row: u32, col: u32) -> f32 {
    var total = sum;
    for (var c = from_column; c < to_column; c++) {
        total += tile[(c % SIDE) * SIDE + row] * slab[(c % SIDE) * SIDE + col];
    }
    return total;
}

// Loads 16 columns of both factors: the rows that a tile of the product needs. `factor` holds P, `product` holds Q.
fn load_slabs(first_column: u32, first_row: u32, first_col: u32, lane: u32) {
    let c = first_column + lane / SIDE;
    let row = first_row + lane % SIDE;
    let col = first_col + lane % SIDE;
    var x = 0.0;
    var y = 0.0;
    if (c < params.columns && row < params.all_rows) {
        x = factor[in_factor(c * params.all_rows + row)];
    }
    if (c < params.columns && col < params.all_cols) {
        y = product[in_product(c * params.all_cols + col)];
    }
    workgroupBarrier();
    tile[lane] = x;
    slab[lane] = y;
    workgroupBarrier();
}

// A lane's element of the tile of the factors' product that begins at this row and column. All 256 lanes must call this
// function.
fn tile_of_product(first_row: u32, first_col: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var c = 0u; c < params.columns; c += SIDE) {
        load_slabs(c, first_row, first_col, lane);
        sum = dot_tile(sum, c, min(c + SIDE, params.columns), lane / SIDE, lane % SIDE);
    }
    return sum;
}
