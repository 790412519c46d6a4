// The values of the factors' product, and its distance from the matrix.

// For each sought rank r, the squared distance of M' from the product of the factors' first r columns. The results are
// multiplied by 2^(2e), so they are in the scale of M. A workgroup processes `tiles` adjacent tiles.
@compute @workgroup_size(256)
fn residuals(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    exponent = exponent_of_matrix();
    let row = group.x * SIDE + lane / SIDE;
    var sums: array<Wide, 8>;
    for (var t = 0u; t < params.tiles; t++) {
        let first_col = (group.y * params.tiles + t) * SIDE;
        let col = first_col + lane % SIDE;
        let inside = row < params.rows && col < params.cols;
        var x = 0.0;
        if (inside) {
            x = element(row, col);
        }
        var sum = 0.0;
        var next = 0u;
        for (var c = 0u; c < params.columns; c += SIDE) {
            load_slabs(c, params.row + group.x * SIDE, params.col + first_col, lane);
            var done = c;
            // Measures each rank whose last column is among the loaded columns.
            while (next < params.ranks && sought[params.sought + next] <= min(c + SIDE, params.columns)) {
                sum = dot_tile(sum, done, sought[params.sought + next], lane / SIDE, lane % SIDE);
                done = sought[params.sought + next];
                if (inside) {
                    let left = wide(abs(x - sum), 0);
                    sums[next] = plus(sums[next], wide(left.m * left.m, 2 * left.e));
                }
                next += 1u;
            }
            sum = dot_tile(sum, done, min(c + SIDE, params.columns), lane / SIDE, lane % SIDE);
        }
    }
    // The four quarters of the workgroup take turns, because workgroup memory has room for the sums of only 64 lanes.
    for (var quarter = 0u; quarter < 4u; quarter++) {
        workgroupBarrier();
        if (lane / 64u == quarter) {
            for (var w = 0u; w < 8u; w++) {
                let at = w * 64u + lane % 64u;
                var sum = sums[w];
                if (quarter > 0u) {
                    sum = plus(sum, sum_at(at));
                }
                put_sum(at, sum);
            }
        }
    }
    add_lanes(lane);
    if (lane == 0u) {
        for (var w = 0u; w < 8u; w++) {
            let at = (params.record + group.y * groups.x + group.x) * 16u + w;
            output[at] = bitcast<u32>(mantissas[w * 64u]);
            output[at + 8u] = bitcast<u32>(exponents[w * 64u] + 2 * exponent);
        }
    }
}

// output[offset + row * stride + col] = bits of the factors' product times a power of two, for a rectangle.
@compute @workgroup_size(256)
fn reconstruct(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let row = group.x * SIDE + lane / SIDE;
    let col = group.y * SIDE + lane % SIDE;
    let sum = tile_of_product(params.row + group.x * SIDE, params.col + group.y * SIDE, lane);
    if (row < params.rows && col < params.cols) {
        output[params.offset + row * params.stride + col] = multiply(bitcast<u32>(sum), params.exponent << 23u);
    }
}
