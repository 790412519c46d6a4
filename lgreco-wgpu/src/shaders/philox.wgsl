// Words 4 * index .. 4 * index + 4 of the stream: ten rounds of Philox4x32.
fn random(index: u32) -> vec4<u32> {
    var c = vec4<u32>(index, params.step, params.layer, params.rank);
    var k = vec2<u32>(params.seed_low, params.seed_high);
    for (var round = 0u; round < 10u; round++) {
        let p0 = mul_wide(0xD2511F53u, c.x);
        let p1 = mul_wide(0xCD9E8D57u, c.z);
        c = vec4<u32>(p1.y ^ c.y ^ k.x, p1.x, p0.y ^ c.w ^ k.y, p0.x);
        k += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}
