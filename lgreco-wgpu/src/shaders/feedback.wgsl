// Error feedback: what is compressed, and what is remembered. The numbers are those of lgreco_core::feedback, bit for bit.

struct Params {
    offset: u32,
    dtype: u32,
    count: u32,
    gain: u32, // bits of f32
    keep: u32, // of 1 - gain
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> memory: array<u32>;
@group(0) @binding(3) var<storage, read_write> offered: array<u32>;

// What is not finite has no sum.
fn sum(a: u32, b: u32) -> u32 {
    if (max(a & MAGNITUDE, b & MAGNITUDE) >= INFINITY) {
        return INFINITY;
    }
    return add(a, b);
}

// offered = memory + gradient.
@compute @workgroup_size(64)
fn offer(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i < params.count) {
            offered[i] = sum(memory[i], value(i));
        }
    }
}

// offered = keep * memory + gain * (offered - decoded), the decoded values being `values`.
@compute @workgroup_size(64)
fn remember(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i < params.count) {
            let left = sum(offered[i], value(i) ^ SIGN);
            if ((left & MAGNITUDE) >= INFINITY) {
                offered[i] = INFINITY;
            } else {
                offered[i] = sum(multiply(params.keep, memory[i]), multiply(params.gain, left));
            }
        }
    }
}
