// Packed codes of 1 to 8 bits. Eight codes of b bits take b bytes.

#define PER_CODER 8

// Stores `here` codes, at most eight, which are in the low bits of `packed`. Writes only their bytes. Uses wider stores
// if all eight codes exist and their bytes are aligned words.
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

// Loads `here` codes, at most eight, in the format of `store_codes`.
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
