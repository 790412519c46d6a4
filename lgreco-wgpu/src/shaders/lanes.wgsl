// What the lanes of a workgroup find out together. `lanes_subgroups.wgsl` has the same functions for devices with
// subgroups; whole numbers come out alike, whatever the order they are added in.

struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> of_lanes: array<vec2<u32>, 256>;

// Makes x of every lane known to all.
fn share(lane: Lane, x: vec2<u32>) {
    workgroupBarrier(); // until nobody reads what was shared before
    of_lanes[lane.index] = x;
    workgroupBarrier();
}

// The sum over all lanes of a workgroup of `lanes`, a power of two.
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

// The lane's place in the order of `sum_before`.
fn place(lane: Lane) -> u32 {
    return lane.index;
}

// The sum over the lanes of smaller places.
fn sum_before(lane: Lane, x: vec2<u32>) -> vec2<u32> {
    share(lane, x);
    var sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane.index; other++) {
        sum += of_lanes[other];
    }
    return sum;
}
