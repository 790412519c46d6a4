// What the lanes of a workgroup find out together, a subgroup at a time: `lanes.wgsl` for devices with subgroups.
// Right for subgroups of any width, with lanes that do not run, and in any order of lanes.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> of_subgroups: array<vec2<u32>, 256>;

// Makes x, the same in all lanes of a subgroup, known to all.
fn share(lane: Lane, x: vec2<u32>) {
    let first = subgroupExclusiveAdd(1u) == 0u;
    workgroupBarrier(); // until nobody reads what was shared before
    if (first) {
        of_subgroups[lane.subgroup] = x;
    }
    workgroupBarrier();
}

fn sum_before_subgroup(lane: Lane, of_subgroup: vec2<u32>) -> vec2<u32> {
    share(lane, of_subgroup);
    var sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane.subgroup; other++) {
        sum += of_subgroups[other];
    }
    return sum;
}

// The sum over all lanes of a workgroup of `lanes`, a power of two.
fn sum_of(lane: Lane, lanes: u32, x: vec2<u32>) -> vec2<u32> {
    share(lane, subgroupAdd(x));
    var sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane.subgroups; other++) {
        sum += of_subgroups[other];
    }
    return sum;
}

// The largest x of all lanes.
fn largest_of(lane: Lane, lanes: u32, x: u32) -> u32 {
    share(lane, vec2<u32>(subgroupMax(x), 0u));
    var largest = 0u;
    for (var other = 0u; other < lane.subgroups; other++) {
        largest = max(largest, of_subgroups[other].x);
    }
    return largest;
}

// The lane's place in the order of `sum_before`.
fn place(lane: Lane) -> u32 {
    return sum_before_subgroup(lane, vec2<u32>(subgroupAdd(1u), 0u)).x + subgroupExclusiveAdd(1u);
}

// The sum over the lanes of smaller places.
fn sum_before(lane: Lane, x: vec2<u32>) -> vec2<u32> {
    return sum_before_subgroup(lane, subgroupAdd(x)) + subgroupExclusiveAdd(x);
}
