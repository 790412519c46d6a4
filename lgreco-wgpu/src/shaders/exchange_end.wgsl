// The end of a step, whose means are made.

@group(0) @binding(19) var<storage, read> remembered: array<u32>;
@group(0) @binding(20) var<storage, read_write> factors: array<u32>;
// What loss scalers call so.
@group(0) @binding(21) var<storage, read_write> found_inf: array<f32>;

// From here on `offered` holds residuals and `factors` what the next step starts with. Where the step has failed, both get
// back what was there before; residuals alone where the means are sound, and what is left is beyond f32.
@compute @workgroup_size(64)
fn end_step(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32
) {
    let no_means = (atomicLoad(&faults[1]) | atomicLoad(&faults[2]) | atomicLoad(&faults[OF_PEERS])) != 0u;
    let no_rest = no_means || atomicLoad(&faults[3]) != 0u;
    let first = group.x * 64u + lane;
    if (first == 0u) {
        found_inf[0] = select(0.0, 1.0, no_means);
    }
    if (no_rest && moment.feedback != 0u) {
        for (var i = first; i < arrayLength(&residual); i += groups.x * 64u) {
            offered[i] = residual[i];
        }
    }
    if (no_means) {
        for (var i = first; i < arrayLength(&remembered); i += groups.x * 64u) {
            factors[i] = remembered[i];
        }
    }
}
