//! Selection by magnitude: radix histograms over the bits of |x|.
