// Codes of 1 to 8 bits, eight to a group of as many bytes.

#define PER_CODER 8

// What is left of eight codes when the last `8 - here` are not there: so many bytes of `packed`. Words are written where they
// fit.
__device__ inline void store_codes(u8* target, u64 packed, u32 bits, u32 here) {
    if (here == PER_CODER && bits == 8 && reinterpret_cast<u64>(target) % 8 == 0) {
        *reinterpret_cast<u64*>(target) = packed;
        return;
    }
    if (here == PER_CODER && bits % 4 == 0 && reinterpret_cast<u64>(target) % 4 == 0) {
        u32* words = reinterpret_cast<u32*>(target);
        words[0] = u32(packed);
        if (bits == 8) {
            words[1] = u32(packed >> 32);
        }
        return;
    }
    u32 bytes = (here * bits + 7) / 8;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte++) {
        if (byte < bytes) {
            target[byte] = u8(packed >> (8 * byte));
        }
    }
}

// The same the other way.
__device__ inline u64 load_codes(const u8* source, u32 bits, u32 here) {
    if (here == PER_CODER && bits % 4 == 0 && reinterpret_cast<u64>(source) % 4 == 0) {
        const u32* words = reinterpret_cast<const u32*>(source);
        u64 packed = words[0];
        return bits == 8 ? packed | u64(words[1]) << 32 : packed;
    }
    u32 bytes = (here * bits + 7) / 8;
    u64 packed = 0;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte++) {
        packed |= byte < bytes ? u64(source[byte]) << (8 * byte) : 0;
    }
    return packed;
}
