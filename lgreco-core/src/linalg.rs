//! Small dense algebra: tall-skinny products and orthonormal columns.
