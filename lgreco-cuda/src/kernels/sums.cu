// Partial sums of blocks, added up by one block per total in a fixed order.

struct Params {
    u32 count; // partial records of a total
    u32 width; // sums in a record
    u32 apart; // from one total to the next
};

extern "C" __global__ void add_partials(Params p, const double* partials, double* totals) {
    partials += u64(blockIdx.x) * p.count * p.width;
    totals += u64(blockIdx.x) * p.apart;
    for (u32 w = 0; w < p.width; w++) {
        double sum = 0.0;
        for (u32 i = threadIdx.x; i < p.count; i += BLOCK) {
            sum += partials[u64(i) * p.width + w];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            totals[w] = sum;
        }
    }
}
