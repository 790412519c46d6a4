// Products of the matrix, or its transpose, with a factor, whose terms are added up in chunks.

fn terms() -> Terms {
    if (params.transposed != 0u) {
        return Terms(true, params.cols, params.rows, params.row, params.all_rows);
    }
    return Terms(false, params.rows, params.cols, params.col, params.all_cols);
}

// partial[chunk][column][o] = sum over inner j of the chunk of M'[o, j] * factor[column][j], or of M'[j, o] when
// transposed.
@compute @workgroup_size(256)
fn multiply_chunk(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    exponent = exponent_of_matrix();
    let shape = terms();
    let start = group.z * CHUNK;
    let sum = chunk_sum(shape, group.x * SIDE, group.y * SIDE, start, min(start + CHUNK, shape.inner), lane);
    let o = group.x * SIDE + lane % SIDE;
    let column = group.y * SIDE + lane / SIDE;
    if (o < shape.outer && column < params.columns) {
        partial[(group.z * params.columns + column) * shape.outer + o] = sum;
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
