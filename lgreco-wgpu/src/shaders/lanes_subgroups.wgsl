// Sums, maxima and scans over the lanes of a workgroup, one subgroup at a time. This file replaces `lanes.wgsl` on
// devices with subgroups. The functions are correct for subgroups of any width, with inactive lanes, and in any order
// of lanes.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> of_subgroups: array<vec2<u32>, 256>;

// Makes x, which is equal in all lanes of a subgroup, visible to all lanes. The caller must have passed a barrier
// before: all reads of earlier shared values must be done, and diverged lanes must have converged.
fn share(lane: Lane, x: vec2<u32>) {
    if (subgroupExclusiveAdd(1u) == 0u) {
        of_subgroups[lane.subgroup] = x;
    }
    workgroupBarrier();
}

// The sum of x over all lanes. The workgroup has `lanes` lanes, a power of two.
fn sum_of(lane: Lane, lanes: u32, x: vec2<u32>) -> vec2<u32> {
    workgroupBarrier();
    share(lane, subgroupAdd(x));
    var sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane.subgroups; other++) {
        sum += of_subgroups[other];
    }
    return sum;
}

// The largest x of all lanes.
fn largest_of(lane: Lane, lanes: u32, x: u32) -> u32 {
    workgroupBarrier();
    share(lane, vec2<u32>(subgroupMax(x), 0u));
    var largest = 0u;
    for (var other = 0u; other < lane.subgroups; other++) {
        largest = max(largest, of_subgroups[other].x);
    }
    return largest;
}

// The lane's place in the order in which `sum_before` adds lanes.
fn place(lane: Lane) -> u32 {
    return sum_before(lane, vec2<u32>(1u, 0u)).x;
}

// The sum of x over all lanes whose `place` is smaller: all lanes of earlier subgroups, and earlier lanes of the same
// subgroup.
fn sum_before(lane: Lane, x: vec2<u32>) -> vec2<u32> {
    workgroupBarrier();
    share(lane, subgroupAdd(x));
    var sum = subgroupExclusiveAdd(x);
    for (var other = 0u; other < lane.subgroup; other++) {
        sum += of_subgroups[other];
    }
    return sum;
}
