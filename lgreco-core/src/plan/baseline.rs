//! What others do, as plans for the same table: uniform, k-means (CGX), two levels (Accordion), global top-k.
