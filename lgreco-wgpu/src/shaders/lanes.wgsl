// Sums, maxima and scans over the lanes of a workgroup. `lanes_subgroups.wgsl` has the same functions for devices with
// subgroups. Integers give the same results in any order of addition.

struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> of_lanes: array<vec2<u32>, 256>;

// Makes the x of every lane visible to all lanes.
fn share(lane: Lane, x: vec2<u32>) {
    workgroupBarrier(); // waits until earlier shared values have been read
    of_lanes[lane.index] = x;
    workgroupBarrier();
}

// The sum of x over all lanes. The workgroup has `lanes` lanes, a power of two.
fn sum_of(lane: Lane, lanes: u32, x: vec2<u32>) -> vec2<u32> {
    share(lane, x);
    for (var reach = lanes / 2u; reach > 0u; reach >>= 1u) {
        if (lane.index < reach) {
            of_lanes[lane.index] += of_lanes[lane.index + reach];
        }
        workgroupBarrier();
    }
    return of_lanes[0];
}

// The largest x of all lanes.
fn largest_of(lane: Lane, lanes: u32, x: u32) -> u32 {
    share(lane, vec2<u32>(x, 0u));
    for (var reach = lanes / 2u; reach > 0u; reach >>= 1u) {
        if (lane.index < reach) {
            of_lanes[lane.index].x = max(of_lanes[lane.index].x, of_lanes[lane.index + reach].x);
        }
        workgroupBarrier();
    }
    return of_lanes[0].x;
}

// The lane's place in the order in which `sum_before` adds lanes.
fn place(lane: Lane) -> u32 {
    return lane.index;
}

// The sum of x over all lanes whose `place` is smaller.
fn sum_before(lane: Lane, x: vec2<u32>) -> vec2<u32> {
    share(lane, x);
    var sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane.index; other++) {
        sum += of_lanes[other];
    }
    return sum;
}
