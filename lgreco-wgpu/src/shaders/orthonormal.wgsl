// Orthonormal columns by Gram-Schmidt, twice over ("twice is enough"). Column c takes three steps, each of which ends
// with its inner products with the columns up to itself:
//   3c      brings column c - 1 to norm 1
//   3c + 1  subtracts from column c its projection on those before it
//   3c + 2  does so again
// and one more step ends the last column. A workgroup works on a chunk of rows and begins a step with the inner
// products of all chunks. One that has all rows goes through many steps in a dispatch.

// Of each chunk: inner products of the last step and of the one before; then the squared norms of a column before its
// first projection was subtracted, and between both. Whoever includes this says where in the binding they begin, by `in_inner`.
@group(0) @binding(8) var<storage, read_write> inner: array<f32>;

var<workgroup> sums: array<vec4<f32>, 256>;
var<workgroup> products: array<f32, 1024>;

fn inner_at(step: u32, chunk: u32, c: u32) -> u32 {
    return in_inner((step % 2u * params.chunks + chunk) * params.columns + c);
}

// products[c] = the inner product of the step before, for c from .. to.
fn gather(step: u32, from_column: u32, to_column: u32, lane: u32) {
    workgroupBarrier();
    for (var c = from_column + lane; c < to_column; c += 256u) {
        var sum = 0.0;
        for (var chunk = 0u; chunk < params.chunks; chunk++) {
            sum += inner[inner_at(step + 1u, chunk, c)];
        }
        products[c] = sum;
    }
    workgroupBarrier();
}

// Brings a column to norm 1, or to 0 when either projection took too much of it: what is left is rounding then.
fn normalise(column: u32, start: u32, end: u32, lane: u32) {
    let norms = in_inner(2u * params.chunks * params.columns);
    let left = products[column];
    var factor = 0.0;
    if (inner[norms + 1u] > inner[norms] * 0x1p-40f && left > inner[norms + 1u] * 0.25) {
        factor = 1.0 / sqrt(left);
    }
    for (var i = start + lane; i < end; i += 256u) {
        product[in_product(column * params.all_rows + i)] *= factor;
    }
}

fn subtract_projection(column: u32, start: u32, end: u32, lane: u32) {
    let rows = params.all_rows;
    for (var i = start + lane; i < end; i += 256u) {
        var sum = 0.0;
        var c = 0u;
        for (; c + 4u <= column; c += 4u) {
            let at = in_product(c * rows + i);
            let four = vec4<f32>(product[at], product[at + rows], product[at + 2u * rows], product[at + 3u * rows]);
            sum += dot(vec4<f32>(products[c], products[c + 1u], products[c + 2u], products[c + 3u]), four);
        }
        for (; c < column; c++) {
            sum += products[c] * product[in_product(c * rows + i)];
        }
        product[in_product(column * rows + i)] -= sum;
    }
}

// Four columns at a time; of the last four some may lie beyond `column`.
fn inner_products(step: u32, chunk: u32, column: u32, start: u32, end: u32, lane: u32) {
    let own = in_product(column * params.all_rows);
    for (var c = 0u; c <= column; c += 4u) {
        let at = in_product(0u) + min(vec4<u32>(c, c + 1u, c + 2u, c + 3u), vec4<u32>(column)) * params.all_rows;
        var sum = vec4<f32>();
        for (var i = start + lane; i < end; i += 256u) {
            let four = vec4<f32>(product[at.x + i], product[at.y + i], product[at.z + i], product[at.w + i]);
            sum += four * product[own + i];
        }
        workgroupBarrier();
        sums[lane] = sum;
        for (var reach = 128u; reach > 0u; reach >>= 1u) {
            workgroupBarrier();
            if (lane < reach) {
                sums[lane] += sums[lane + reach];
            }
        }
        workgroupBarrier();
        if (lane < 4u && c + lane <= column) {
            inner[inner_at(step, chunk, c + lane)] = sums[0][lane];
        }
    }
}

// The steps from .. to of the chunk with number `own`, which has the rows start .. end. All 256 lanes call it.
fn take_steps(from_step: u32, to_step: u32, own: u32, start: u32, end: u32, lane: u32) {
    for (var step = from_step; step < to_step; step++) {
        let column = step / 3u;
        let phase = step % 3u;
        if (phase > 0u) {
            gather(step, 0u, column + 1u, lane);
            if (own == 0u && lane == 0u) {
                inner[in_inner(2u * params.chunks * params.columns) + phase - 1u] = products[column];
            }
            subtract_projection(column, start, end, lane);
        } else if (column > 0u) {
            gather(step, column - 1u, column, lane);
            normalise(column - 1u, start, end, lane);
        }
        if (column < params.columns) {
            inner_products(step, own, column, start, end, lane);
        }
        storageBarrier();
    }
}
