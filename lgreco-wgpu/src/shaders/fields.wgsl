// Fields of a few bits, one after the other.

// Word and bit of the `index`-th field of `width` bits after a start.
fn field(word: u32, bit: u32, index: u32, width: u32) -> vec2<u32> {
    let offset = mul_wide(index, width);
    let within = (offset.x & 31u) + bit;
    return vec2<u32>(word + (offset.y << 27u) + (offset.x >> 5u) + (within >> 5u), within & 31u);
}
