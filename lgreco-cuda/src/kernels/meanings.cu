// What codes of TopK in few bits stand for.

// The mean of the code's bin, with the sign in the code's highest bit.
__device__ inline float meaning_of(const u32* means, u32 code, u32 bits) {
    u32 sign = code >> (bits - 1);
    return __uint_as_float(means[code ^ sign << (bits - 1)] | sign << 31);
}
