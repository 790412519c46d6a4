//! TopK: the largest magnitudes and where they stand.
