// Orthonormal columns by Gram-Schmidt, twice over ("twice is enough"), of a chunk of a factor's rows, by one workgroup. Column c
// takes three steps, each of which ends with its inner products with the columns up to itself:
//   3c      brings column c - 1 to norm 1
//   3c + 1  subtracts from column c its projection on those before it
//   3c + 2  does so again
// and one more step ends the last column.
//
// A factor A of several chunks is made orthonormal by TSQR. Of each chunk this makes A_g = Q_g R_g, R_g a triangle. The triangles,
// one below the other, are a factor of one chunk: R = S T. So A = diag(Q_g) S T, of which diag(Q_g) S is what is sought. Each block
// of S is R_g times the inverse of T, a triangle too.

// Of each chunk: inner products of the step before, the squared norms of the column before its first projection was subtracted and
// between both; then, where chunks are several, the triangles, as one matrix. `in_inner` says where in the binding they begin.
@group(0) @binding(8) var<storage, read_write> inner: array<f32>;

var<workgroup> sums: array<vec4<f32>, 512>;
// Of the column that is worked on with those up to itself.
var<workgroup> products: array<f32, 1024>;
var<workgroup> norms: array<f32, 2>;

// The element of a chunk's triangle.
fn in_triangle(chunk: u32, row: u32, column: u32) -> u32 {
    let columns = params.columns;
    return in_inner(params.chunks * (columns + 2u) + (column * params.chunks + chunk) * columns + row);
}

// What lies between the steps of a chunk, when they are in several dispatches.
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

// Brings a column to norm 1, or to 0 when either projection took too much of it: what is left is rounding then. Of a chunk among
// others, what is left may be little beside the column and much beside what is left of the others; so all is kept that f32 can
// bring to norm 1, of columns whose magnitude is near 1 as a whole, and the triangles tell what was rounding.
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
    // The lane that has made it in the phases before.
    if (params.chunks > 1u && lane == column % 256u) {
        inner[in_triangle(chunk, column, column)] = left * factor;
    }
}

// Adds to a column of the triangle what is subtracted in this phase; the first makes it, with zeros below.
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

// Of the `sums` of twice as many lanes those of so many. A call is no iteration of a loop, of which a dispatch may have few.
fn halve_sums(lanes: u32, lane: u32) {
    workgroupBarrier();
    if (lane < lanes) {
        sums[lane] += sums[lane + lanes];
        sums[256u + lane] += sums[256u + lane + lanes];
    }
}

// Eight columns at a time; of the last eight some may lie beyond `column`.
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

// Takes the steps from .. to, or up to the last, of a chunk whose rows are start .. end. All 256 lanes call it. Each has rows of its
// own, so that lanes wait for each other only where they share `products`.
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

// Multiplies row i by the block of S of its chunk. The last columns come first, so that what they are made of has not been written.
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

// Four columns of a row of a triangle, of which some may lie beyond the last.
fn four_of_triangle(chunk: u32, row: u32, column: u32) -> vec4<f32> {
    let last = params.columns - 1u;
    return vec4<f32>(
        inner[in_triangle(chunk, row, column)],
        inner[in_triangle(chunk, row, min(column + 1u, last))],
        inner[in_triangle(chunk, row, min(column + 2u, last))],
        inner[in_triangle(chunk, row, min(column + 3u, last))]
    );
}
