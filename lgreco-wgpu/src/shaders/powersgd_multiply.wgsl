// Products of the matrix, or its transpose, with a factor. The terms of a product are added up in chunks.

fn terms() -> Terms {
    if (params.transposed != 0u) {
        return Terms(true, params.cols, params.rows, params.row, params.all_rows);
    }
    return Terms(false, params.rows, params.cols, params.col, params.all_cols);
}

// partial[chunk][column][o] = sum over inner j of the chunk of M'[o, j] * factor[column][j], or of M'[j, o] if
// transposed.
@compute @workgroup_size(256)
fn multiply_chunk(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    exponent = exponent_of_matrix();
    let shape = terms();
    let start = group.z * CHUNK;
    let sum = chunk_sum(shape, group.x * SIDE, group.y * SIDE, start, min(start + CHUNK, shape.inner), lane);
    let o = group.x * SIDE + lane % SIDE;
    let column = group.y * SIDE + lane / SIDE;
    if (o < shape.outer && column < params.columns) {
        partial[params.partial + (group.z * params.columns + column) * shape.outer + o] = sum;
    }
}

// Adds the chunks' sums to `product`.
@compute @workgroup_size(256)
fn add_chunks(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let outer = select(params.rows, params.cols, params.transposed != 0u);
    let outer_first = select(params.row, params.col, params.transposed != 0u);
    let outer_all = select(params.all_rows, params.all_cols, params.transposed != 0u);
    for (var at = group.x * 256u + lane; at < params.columns * outer; at += groups.x * 256u) {
        var sum = 0.0;
        for (var chunk = 0u; chunk < params.chunks; chunk++) {
            sum += partial[params.partial + chunk * params.columns * outer + at];
        }
        product[in_product((at / outer) * outer_all + outer_first + at % outer)] += sum;
    }
}
