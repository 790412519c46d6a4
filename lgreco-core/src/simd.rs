//! Run-time choice of vector instructions: the same code, compiled for SSE2, AVX2 and AVX-512.
//!
//! Kernels fix their own lane structure (arrays of partial sums), and Rust neither reassociates nor contracts float
//! operations, so every choice gives the same bits.

/// A loop worth compiling once per instruction set. `run` must be `#[inline(always)]`, and so must what it calls.
pub(crate) trait Kernel {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs `kernel` compiled for the best instructions this processor has.
#[cfg(feature = "std")]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    struct Adapter<K>(K);
    impl<K: Kernel> pulp::WithSimd for Adapter<K> {
        type Output = K::Output;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> K::Output {
            self.0.run()
        }
    }
    pulp::Arch::new().dispatch(Adapter(kernel))
}

/// Runs `kernel` compiled for the target's baseline instructions.
#[cfg(not(feature = "std"))]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
