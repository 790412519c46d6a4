// Eight sums for each of 64 lanes. In buffers, a record is eight mantissas, and then eight exponents.

var<workgroup> mantissas: array<f32, 512>;
var<workgroup> exponents: array<i32, 512>;

// Sum w of a lane is at w * 64 + lane.
fn sum_at(at: u32) -> Wide {
    return Wide(mantissas[at], exponents[at]);
}

fn put_sum(at: u32, sum: Wide) {
    mantissas[at] = sum.m;
    exponents[at] = sum.e;
}

// Adds up the lanes' sums in the order of a tree. Lane 0 then has the totals.
fn add_lanes(lane: u32) {
    for (var reach = 32u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            for (var w = 0u; w < 8u; w++) {
                put_sum(w * 64u + lane, plus(sum_at(w * 64u + lane), sum_at(w * 64u + lane + reach)));
            }
        }
    }
}
