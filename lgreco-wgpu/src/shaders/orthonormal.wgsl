// Makes columns orthonormal by Gram-Schmidt, applied twice ("twice is enough"). A workgroup processes a chunk of a
// factor's rows. Column c takes three steps:
//   Step 3c brings column c - 1 to norm 1.
//   Step 3c + 1 subtracts from column c its projection on the columns before it.
//   Step 3c + 2 subtracts the projection of the remainder in the same way.
// Each step ends with computing the inner products of column c and the columns up to c. After the last column, one more
// step brings this column to norm 1.
//
// A factor A of several chunks is made orthonormal by TSQR. Each chunk gives A_g = Q_g R_g, where R_g is a triangle.
// The stacked triangles are a factor of one chunk: R = S T. So A = diag(Q_g) S T, and diag(Q_g) S is the result. Each
// block of S is R_g times the inverse of the triangle T, so the block is a triangle too.

// State of each chunk: the inner products of the previous step, and two squared norms of the column. The first norm is
// taken before the first subtraction of the projection, the second norm after it. With several chunks, the triangles
// follow as one matrix. `in_inner` gives their indices in the binding.
@group(0) @binding(8) var<storage, read_write> inner: array<f32>;

var<workgroup> sums: array<vec4<f32>, 512>;
// Inner products of the current column with the columns up to itself.
var<workgroup> products: array<f32, 1024>;
var<workgroup> norms: array<f32, 2>;

// Index of an element of a chunk's triangle.
fn in_triangle(chunk: u32, row: u32, column: u32) -> u32 {
    let columns = params.columns;
    return in_inner(params.chunks * (columns + 2u) + (column * params.chunks + chunk) * columns + row);
}

// Loads the state of a chunk that `keep_state` has stored after earlier steps.
fn restore_state(chunk: u32, lane: u32) {
    let at = in_inner(chunk * (params.columns + 2u));
    for (var c = lane; c < params.columns; c += 256u) {
        products[c] = inner[at + c];
    }
    if (lane < 2u) {
        norms[lane] = inner[at + params.columns + lane];
    }
}

fn keep_state(chunk: u32, lane: u32) {
    let at = in_inner(chunk * (params.columns + 2u));
    for (var c = lane; c < params.columns; c += 256u) {
        inner[at + c] = products[c];
    }
    if (lane < 2u) {
        inner[at + params.columns + lane] = norms[lane];
    }
}

// Brings a column to norm 1. If the projections removed nearly all of the column, the remainder is rounding error, and
// the column becomes 0. With several chunks, a chunk's remainder may be small compared with the column, but large
// compared with other chunks' remainders. So a chunk keeps every remainder that f32 can bring to norm 1, if the whole
// column has a magnitude near 1. The triangles later show which remainders were rounding errors.
fn normalise(chunk: u32, column: u32, start: u32, end: u32, lane: u32) {
    let left = products[column];
    let least = select(norms[0] * 0x1p-40f, 0x1p-80f, params.chunks > 1u);
    var factor = 0.0;
    if (norms[1] > least && left > norms[1] * 0.25) {
        factor = 1.0 / sqrt(left);
    }
    for (var i = start + lane; i < end; i += 256u) {
        product[in_product(column * params.all_rows + i)] *= factor;
    }
    // No barrier is needed, because the same lane wrote this element in the earlier phases.
    if (params.chunks > 1u && lane == column % 256u) {
        inner[in_triangle(chunk, column, column)] = left * factor;
    }
}

// Adds the coefficients of the subtracted projection to a column of the triangle. The first phase writes the whole
// column, with zeros from the diagonal on.
fn add_to_triangle(chunk: u32, column: u32, phase: u32, lane: u32) {
    for (var row = lane; row < params.columns; row += 256u) {
        let at = in_triangle(chunk, row, column);
        let coefficient = select(0.0, products[row], row < column);
        inner[at] = select(inner[at] + coefficient, coefficient, phase == 1u);
    }
}

fn subtract_projection(column: u32, start: u32, end: u32, lane: u32) {
    let rows = params.all_rows;
    for (var i = start + lane; i < end; i += 256u) {
        var sum = 0.0;
        var c = 0u;
        for (; c + 8u <= column; c += 8u) {
            sum += projection_on_four(c, i);
            sum += projection_on_four(c + 4u, i);
        }
        for (; c + 4u <= column; c += 4u) {
            sum += projection_on_four(c, i);
        }
        for (; c < column; c++) {
            sum += products[c] * product[in_product(c * rows + i)];
        }
        product[in_product(column * rows + i)] -= sum;
    }
}

fn projection_on_four(c: u32, i: u32) -> f32 {
    let rows = params.all_rows;
    let at = in_product(c * rows + i);
    let four = vec4<f32>(product[at], product[at + rows], product[at + 2u * rows], product[at + 3u * rows]);
    return dot(vec4<f32>(products[c], products[c + 1u], products[c + 2u], products[c + 3u]), four);
}

// Adds the `sums` of the second `lanes` lanes to the `sums` of the first `lanes` lanes. The caller repeats this call
// instead of using a loop, because the number of loop iterations of a dispatch is limited.
fn halve_sums(lanes: u32, lane: u32) {
    workgroupBarrier();
    if (lane < lanes) {
        sums[lane] += sums[lane + lanes];
        sums[256u + lane] += sums[256u + lane + lanes];
    }
}

// Computes the inner products eight columns at a time; the last eight may extend beyond `column`.
fn inner_products(column: u32, start: u32, end: u32, lane: u32) {
    let own = in_product(column * params.all_rows);
    for (var c = 0u; c <= column; c += 8u) {
        let four = vec4<u32>(c, c + 1u, c + 2u, c + 3u);
        let at = in_product(0u) + min(four, vec4<u32>(column)) * params.all_rows;
        let more = in_product(0u) + min(four + 4u, vec4<u32>(column)) * params.all_rows;
        var sum = vec4<f32>();
        var more_sum = vec4<f32>();
        for (var i = start + lane; i < end; i += 256u) {
            let x = product[own + i];
            sum += x * vec4<f32>(product[at.x + i], product[at.y + i], product[at.z + i], product[at.w + i]);
            more_sum += x * vec4<f32>(product[more.x + i], product[more.y + i], product[more.z + i], product[more.w + i]);
        }
        workgroupBarrier();
        sums[lane] = sum;
        sums[256u + lane] = more_sum;
        halve_sums(128u, lane);
        halve_sums(64u, lane);
        halve_sums(32u, lane);
        halve_sums(16u, lane);
        halve_sums(8u, lane);
        halve_sums(4u, lane);
        halve_sums(2u, lane);
        halve_sums(1u, lane);
        workgroupBarrier();
        if (lane < 8u && c + lane <= column) {
            products[c + lane] = sums[lane / 4u * 256u][lane % 4u];
        }
    }
}

// Takes the steps from `from_step` up to `to_step`, but none after the last step, for a chunk with the rows start ..
// end. All 256 lanes must call this function. Each lane has separate rows, so lanes wait for each other only where they
// share `products`.
fn take_steps(from_step: u32, to_step: u32, chunk: u32, start: u32, end: u32, lane: u32) {
    restore_state(chunk, lane);
    for (var step = from_step; step < min(to_step, 3u * params.columns + 1u); step++) {
        let column = step / 3u;
        let phase = step % 3u;
        workgroupBarrier();
        if (phase > 0u) {
            if (lane == 0u) {
                norms[phase - 1u] = products[column];
            }
            if (params.chunks > 1u) {
                add_to_triangle(chunk, column, phase, lane);
            }
            subtract_projection(column, start, end, lane);
        } else if (column > 0u) {
            normalise(chunk, column - 1u, start, end, lane);
        }
        if (column < params.columns) {
            inner_products(column, start, end, lane);
        }
    }
    workgroupBarrier();
    keep_state(chunk, lane);
}

// Multiplies row i by its chunk's block of S. The last columns are computed first, so that no input is overwritten
// before it is read.
fn multiply_row(chunk: u32, i: u32) {
    let rows = params.all_rows;
    let last = params.columns - 1u;
    for (var fours = last / 4u + 1u; fours > 0u; fours--) {
        let column = 4u * (fours - 1u);
        let end = min(column + 4u, params.columns);
        var sum = vec4<f32>();
        var c = 0u;
        for (; c + 4u <= end; c += 4u) {
            let at = in_product(c * rows + i);
            sum += product[at] * four_of_triangle(chunk, c, column);
            sum += product[at + rows] * four_of_triangle(chunk, c + 1u, column);
            sum += product[at + 2u * rows] * four_of_triangle(chunk, c + 2u, column);
            sum += product[at + 3u * rows] * four_of_triangle(chunk, c + 3u, column);
        }
        for (; c < end; c++) {
            sum += product[in_product(c * rows + i)] * four_of_triangle(chunk, c, column);
        }
        for (var j = 0u; j < end - column; j++) {
            product[in_product((column + j) * rows + i)] = sum[j];
        }
    }
}

// Four columns of a row of a triangle; some may lie beyond the last column.
fn four_of_triangle(chunk: u32, row: u32, column: u32) -> vec4<f32> {
    let last = params.columns - 1u;
    return vec4<f32>(
        inner[in_triangle(chunk, row, column)],
        inner[in_triangle(chunk, row, min(column + 1u, last))],
        inner[in_triangle(chunk, row, min(column + 2u, last))],
        inner[in_triangle(chunk, row, min(column + 3u, last))]
    );
}
