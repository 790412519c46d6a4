// Decoding of the codes of TopK in few bits.

// The value of a code: the mean of its bin. The highest bit of the code is the sign.
__device__ inline float meaning_of(const u32* means, u32 code, u32 bits) {
    u32 sign = code >> (bits - 1);
    return __uint_as_float(means[code ^ sign << (bits - 1)] | sign << 31);
}
