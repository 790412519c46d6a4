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
    #[cfg(test)]
    if baseline_alone() {
        return kernel.run();
    }
    pulp::Arch::new().dispatch(Adapter(kernel))
}

/// Whether this crate's own tests are to run without vector instructions beyond the target's baseline.
#[cfg(all(test, feature = "std"))]
fn baseline_alone() -> bool {
    static ALONE: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("LGRECO_BASELINE").is_some());
    *ALONE
}

/// Runs `kernel` compiled for the target's baseline instructions.
#[cfg(not(feature = "std"))]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
