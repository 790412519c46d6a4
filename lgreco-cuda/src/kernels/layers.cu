// The table of layers in an exchange. An entry is a layer under QSGD or EDEN, or a rank's shard of one.

struct Layer {
    u64 first;    // index of its first value among all layers' values
    u64 payload;  // byte offset of its payload; with shards, from this rank's own message on
    u64 header_low;
    u64 header_high;
    u32 first_span;
    u32 count;
    u32 bucket;
    u32 buckets;
    u32 sign_magnitude;
    u32 min_max;
    u32 nearest;
    u32 bits;
    u32 log_levels;
    u32 id;      // layer number that its random words depend on
    u32 rank;    // rank that its random words depend on
    u32 number;  // number of the layer in the bucket
    u32 start;   // index of its first value in the layer
    u32 least_squares;  // for EDEN; other fields from `bucket` to `log_levels`, except `bits`, are for QSGD
};
