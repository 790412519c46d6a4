// Products of the matrix, or its transpose, with a factor: tiles of 16 by 16, whose terms are added up in chunks.

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
