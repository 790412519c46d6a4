// Layers under QSGD or EDEN of an exchange, or the parts of layers that ranks have as shards: what is known of each.

struct Layer {
    u64 first;    // its first value
    u64 payload;  // where its payload begins in a message
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
    u32 id;      // by which random words are named,
    u32 rank;    // and so they are by this
    u32 number;  // in the bucket
    u32 start;   // its first value's place in the layer
    u32 least_squares;  // of EDEN; what says how levels and buckets are, but for the bits, is of QSGD
};
