//! QSGD and CGX: bucketed quantisation to a few bits.
