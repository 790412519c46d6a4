// PowerSGD's layers of a bucket, of which a dispatch works on all: factors, what a worker's own product leaves of its matrix, and
// means. Each workgroup finds in `pieces` which matrix it is to work on, and on which piece of it.

// Of a matrix; the fields from `all_rows` on are what the functions for single tensors ask for.
struct Params {
    number: u32, // in the bucket of layers
    start: u32, // its first value in flat memory
    p: u32, // where its P begins among what is summed first
    q: u32, // and its Q among factors
    partial: u32, // and the chunks of its products
    inner: u32, // and what orthonormalisation keeps
    all_rows: u32,
    all_cols: u32,
    columns: u32,
    chunks: u32,
    chunk_rows: u32,
    layer: u32,
    seed_low: u32,
    seed_high: u32,
    step: u32,
    rank: u32,
}

struct Job {
    first: u32, // of its pieces
    count: u32,
    transposed: u32, // whether `factor` holds P and `product` Q, not the other way about
    first_step: u32, // of orthonormalisation
    last_step: u32, // the one after
    halves: u32, // whether sums travel as bf16
    seed_low: u32,
    seed_high: u32,
}

@group(0) @binding(0) var<uniform> job: Job;
@group(0) @binding(1) var<storage, read_write> offered: array<u32>;
@group(0) @binding(2) var<storage, read_write> factor: array<f32>;
@group(0) @binding(3) var<storage, read_write> product: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<storage, read> matrices: array<Params>;
@group(0) @binding(6) var<storage, read> pieces: array<vec2<u32>>;
@group(0) @binding(7) var<storage, read> remembered: array<f32>;
@group(0) @binding(12) var<storage, read_write> totals: array<u32>;

// Terms of a product that one workgroup adds up.
const CHUNK = 1024u;
const NONE = 0xffffffffu;

var<private> params: Params;

// Makes a workgroup's matrix the one that is worked on; the number of its piece, or `NONE`.
fn begin(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    let at = group.y * groups.x + group.x;
    if (at >= job.count) {
        return NONE;
    }
    let piece = pieces[job.first + at];
    params = matrices[piece.x];
    return piece.y;
}

fn element(row: u32, col: u32) -> f32 {
    return bitcast<f32>(offered[params.start + row * params.all_cols + col]);
}

fn in_factor(i: u32) -> u32 {
    return select(params.q, params.p, job.transposed != 0u) + i;
}

fn in_product(i: u32) -> u32 {
    return select(params.p, params.q, job.transposed != 0u) + i;
}

fn in_inner(i: u32) -> u32 {
    return params.inner + i;
}

fn terms() -> Terms {
    if (job.transposed != 0u) {
        return Terms(true, params.all_cols, params.all_rows, 0u, params.all_rows);
    }
    return Terms(false, params.all_rows, params.all_cols, 0u, params.all_cols);
}

// An element of the start matrix, an odd multiple of 2^-24.
fn start_element(i: u32) -> f32 {
    params.seed_low = job.seed_low;
    params.seed_high = job.seed_high;
    params.step = 0u;
    params.rank = 0xffffffffu;
    var words = random(i / 4u);
    let odd = i32(2u * (words[i % 4u] >> 8u) + 1u) - 16777216;
    return f32(odd) * 0x1p-24f;
}

// A column of the Q that P is made with: the last step's, or that of the start matrix where it is zero, times the power of two
// that brings its largest magnitude into [1, 2).
@compute @workgroup_size(256)
fn start(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, lane: Lane) {
    let column = begin(group, groups);
    if (column == NONE) {
        return;
    }
    let first = in_product(column * params.all_cols);
    var largest = 0u;
    for (var i = lane.index; i < params.all_cols; i += 256u) {
        largest = max(largest, bitcast<u32>(remembered[first + i]) & MAGNITUDE);
    }
    let afresh = largest_of(lane, 256u, largest) == 0u;
    for (var i = lane.index; i < params.all_cols; i += 256u) {
        var x = remembered[first + i];
        if (afresh) {
            x = start_element(column * params.all_cols + i);
            largest = max(largest, bitcast<u32>(x) & MAGNITUDE);
        }
        product[first + i] = x;
    }
    scale_column(first, params.all_cols, largest_of(lane, 256u, largest), lane);
}

// Divides a lane's share of a column by the power of two that this magnitude has.
fn scale_column(first: u32, len: u32, largest: u32, lane: Lane) {
    let e = i32(largest >> 23u) - 127;
    for (var i = lane.index; i < len; i += 256u) {
        product[first + i] = scaled(bitcast<u32>(product[first + i]), e);
    }
}

// Brings the columns of a P to magnitudes near 1.
@compute @workgroup_size(256)
fn scale_columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, lane: Lane) {
    let column = begin(group, groups);
    if (column == NONE) {
        return;
    }
    let first = in_product(column * params.all_rows);
    var largest = 0u;
    for (var i = lane.index; i < params.all_rows; i += 256u) {
        largest = max(largest, bitcast<u32>(product[first + i]) & MAGNITUDE);
    }
    largest = largest_of(lane, 256u, largest);
    if (largest != 0u) {
        scale_column(first, params.all_rows, largest, lane);
    }
}

// partial[chunk][column][o] = a chunk's part of the matrix' product with `factor`, or its transpose's.
@compute @workgroup_size(256)
fn multiply_chunk(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let piece = begin(group, groups);
    if (piece == NONE) {
        return;
    }
    let shape = terms();
    let tiles = (shape.outer + SIDE - 1u) / SIDE;
    let panels = (params.columns + SIDE - 1u) / SIDE;
    let first_o = piece % tiles * SIDE;
    let first_column = piece / tiles % panels * SIDE;
    let chunk = piece / tiles / panels;
    let sum = chunk_sum(shape, first_o, first_column, chunk * CHUNK, min((chunk + 1u) * CHUNK, shape.inner), lane);
    let o = first_o + lane % SIDE;
    let column = first_column + lane / SIDE;
    if (o < shape.outer && column < params.columns) {
        partial[params.partial + (chunk * params.columns + column) * shape.outer + o] = sum;
    }
}

// The product, of its chunks: what is sent of it.
@compute @workgroup_size(256)
fn add_chunks(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let piece = begin(group, groups);
    if (piece == NONE) {
        return;
    }
    let shape = terms();
    let len = params.columns * shape.outer;
    let at = piece * 256u + lane;
    if (at >= len) {
        return;
    }
    var sum = 0.0;
    for (var chunk = 0u; chunk * CHUNK < shape.inner; chunk++) {
        sum += partial[params.partial + chunk * len + at];
    }
    if (!is_finite(bitcast<u32>(sum))) {
        fault(5u, 0u);
    }
    // P is rounded when it is sent, of Q the rest is kept.
    if (job.transposed != 0u && job.halves != 0u) {
        sum = bitcast<f32>(narrow_bf16(bitcast<u32>(sum)) << 16u);
    }
    product[in_product(at)] = sum;
}

@compute @workgroup_size(256)
fn orthonormalise(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let own = begin(group, groups);
    if (own == NONE) {
        return;
    }
    let start = own * params.chunk_rows;
    let end = min(start + params.chunk_rows, params.all_rows);
    take_steps(job.first_step, job.last_step, own, start, end, lane);
}

@compute @workgroup_size(256)
fn multiply_by_triangles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let piece = begin(group, groups);
    if (piece == NONE) {
        return;
    }
    let row = piece * 256u + lane;
    if (row < params.all_rows) {
        multiply_row(row / params.chunk_rows, row);
    }
}

// An element of the factors' product.
struct Element {
    at: u32, // its place in the matrix, `NONE` outside of it
    bits: u32,
}

// A lane's element of a piece. All lanes call it.
fn element_of_product(piece: u32, lane: u32) -> Element {
    let across = (params.all_cols + SIDE - 1u) / SIDE;
    let first_row = piece / across * SIDE;
    let first_col = piece % across * SIDE;
    let bits = bitcast<u32>(tile_of_product(first_row, first_col, lane));
    let row = first_row + lane / SIDE;
    let col = first_col + lane % SIDE;
    let is_inside = row < params.all_rows && col < params.all_cols;
    return Element(select(NONE, row * params.all_cols + col, is_inside), bits);
}

// Takes this worker's product off what it has offered.
@compute @workgroup_size(256)
fn take_off(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let piece = begin(group, groups);
    if (piece == NONE) {
        return;
    }
    let held = element_of_product(piece, lane);
    if (held.at != NONE) {
        let left = sum(offered[params.start + held.at], held.bits ^ SIGN);
        if (!is_finite(left)) {
            fault(3u, held.at);
        }
        offered[params.start + held.at] = left;
    }
}

// Means, in f32.
@compute @workgroup_size(256)
fn reconstruct(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let piece = begin(group, groups);
    if (piece == NONE) {
        return;
    }
    let mean = element_of_product(piece, lane);
    if (mean.at != NONE) {
        totals[params.start + mean.at] = mean.bits;
    }
}
