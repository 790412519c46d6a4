// Error feedback: the offered values, which are compressed, and the next residual. All results have the same bits as in
// lgreco_train::feedback.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // position of the piece's first value in the tensor, a multiple of 2048
    count: u32,
    storage: u32, // format of `memory`: 0 f32, 1 bf16, 2 int8
    gain: u32, // bits of an f32
    keep: u32, // bits of the f32 1 - gain
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    shift: u32, // for int8: number of values after the last whole word of codes
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> memory: array<u32>;
@group(0) @binding(3) var<storage, read_write> offered: array<u32>;
// For int8: a copy of the residual's bytes after the last whole word of codes. `tail` has `shift` codes, and then one
// byte per group of 512 values of the whole tensor: the group's exponent field.
@group(0) @binding(4) var<storage, read_write> tail: array<atomic<u32>>;

// The bits of value i of the memory as an f32.
fn remembered(i: u32) -> u32 {
    if (params.storage == 0u) {
        return memory[i];
    }
    if (params.storage == 1u) {
        return ((memory[i >> 1u] >> (16u * (i & 1u))) & 0xffffu) << 16u;
    }
    let code = i32(memory[i >> 2u] << (24u - 8u * (i & 3u))) >> 24u;
    let at = params.shift + ((params.first + i) >> 9u);
    let exponent = (atomicLoad(&tail[at >> 2u]) >> (8u * (at & 3u))) & 0xffu;
    if (code == 0 || exponent == 0u) {
        return 0u;
    }
    return bitcast<u32>(f32(code)) + (exponent << 23u) - ONE;
}

// offered = memory + gradient.
@compute @workgroup_size(64)
fn offer(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i < params.count) {
            offered[i] = sum(remembered(i), value(i));
        }
    }
}

// offered = keep * memory + gain * (offered - decoded), where `values` has the decoded values.
@compute @workgroup_size(64)
fn remember(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i < params.count) {
            let left = sum(offered[i], value(i) ^ SIGN);
            if ((left & MAGNITUDE) >= INFINITY) {
                offered[i] = INFINITY;
            } else {
                offered[i] = sum(multiply(params.keep, remembered(i)), multiply(params.gain, left));
            }
        }
    }
}

// The next residual of value i; 0 after the last value.
fn next(i: u32) -> u32 {
    if (i < params.count) {
        return offered[i];
    }
    return 0u;
}

// memory = offered in bf16, rounded at random.
@compute @workgroup_size(64)
fn store_bf16(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 8u; j++) {
        let i = group.x * 2048u + 4u * (j * 64u + lane);
        if (i >= params.count) {
            continue;
        }
        let draws = random((params.first + i) >> 2u);
        var halves: vec4<u32>;
        for (var k = 0u; k < 4u; k++) {
            halves[k] = (next(i + k) + (draws[k] >> 16u)) >> 16u;
        }
        memory[i >> 1u] = halves.x | (halves.y << 16u);
        if (i + 2u < params.count) {
            memory[(i >> 1u) + 1u] = halves.z | (halves.w << 16u);
        }
    }
}

// memory = offered as codes of one byte, rounded at random. `tail` must be zero before the dispatch. `tail` receives
// the codes that do not fill a word, and the exponents of a workgroup's four groups. Two workgroups may share a word of
// `tail`.
@compute @workgroup_size(64)
fn store_int8(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    var exponents = 0u;
    for (var part = 0u; part < 4u; part++) {
        let start = group.x * 2048u + 512u * part;
        var largest = 0u;
        for (var j = 0u; j < 8u; j++) {
            largest = max(largest, next(start + j * 64u + lane.index) & MAGNITUDE);
        }
        largest = largest_of(lane, 64u, largest);
        // The smallest power of two, at least 2^-126, that is at least a 127th of the largest magnitude.
        let exponent = max((largest + 0x1ffffu) >> 23u, 7u) - 6u;
        if (start < params.count) {
            exponents |= exponent << (8u * part);
        }
        for (var j = 0u; j < 2u; j++) {
            let i = start + 4u * (j * 64u + lane.index);
            if (i + 4u <= params.count) {
                memory[i >> 2u] = codes(i, exponent);
            } else if (i < params.count) {
                atomicOr(&tail[0], codes(i, exponent));
            }
        }
    }
    if (lane.index == 0u) {
        let at = params.shift + ((params.first >> 9u) + 4u * group.x);
        atomicOr(&tail[at >> 2u], exponents << (8u * params.shift));
        if (params.shift > 0u) {
            let upper = exponents >> (32u - 8u * params.shift);
            if (upper != 0u) {
                atomicOr(&tail[(at >> 2u) + 1u], upper);
            }
        }
    }
}

fn codes(i: u32, exponent: u32) -> u32 {
    let draws = random((params.first + i) >> 2u);
    var codes = 0u;
    for (var k = 0u; k < 4u; k++) {
        // An odd multiple of 2^-16 in (-1/2, 1/2).
        let dither = f32(i32(2u * (draws[k] >> 17u) + 1u) - 32768) * 0x1p-16f;
        let scaled = add(multiply(next(i + k), (254u - exponent) << 23u), bitcast<u32>(dither));
        // Adding 1.5 * 2^23 moves the rounded number into the low bits.
        codes |= (add(scaled, 0x4b400000u) & 0xffu) << (8u * k);
    }
    return codes;
}
