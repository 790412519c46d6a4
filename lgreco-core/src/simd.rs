//! Run-time choice of vector instructions: the same code, compiled for SSE2, AVX2 and AVX-512.
//!
//! Kernels fix their own lane structure (arrays of partial sums), and Rust neither reassociates nor contracts float
//! operations, so every choice gives the same bits.
//!
//! Loops are plain Rust over fixed arrays of partial sums. [`dispatch`] compiles each of them for three instruction
//! sets through `pulp`, which owns the unsafe code, so this crate has none; builds without `std` compile them for
//! one, and give the same bits too.
//!
//! Hot loops do not convert floats to integers: they add 2²³ (to an f32) or 2⁵² (to an f64), which puts the rounded
//! integer into the mantissa. That vectorises on every target, is exact, and GPUs can repeat it bit for bit.

/// A loop worth compiling once per instruction set.
///
/// ```
/// use lgreco_core::simd::{Kernel, dispatch};
/// struct Double<'a>(&'a mut [f32]);
/// impl Kernel for Double<'_> {
///     type Output = ();
///     #[inline(always)]
///     fn run(self) {
///         self.0.iter_mut().for_each(|x| *x *= 2.0);
///     }
/// }
/// let mut values = [1.0, 2.0];
/// dispatch(Double(&mut values));
/// assert_eq!(values, [2.0, 4.0]);
/// ```
pub trait Kernel {
    /// What the loop finds out.
    type Output;
    /// The loop. Must be `#[inline(always)]`, and so must what it calls: only what is inlined is compiled for the
    /// instruction set.
    fn run(self) -> Self::Output;
}

/// Runs `kernel`, compiled for the best instructions this processor has; without the feature `std`, for the target's
/// baseline.
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(feature = "std")]
    {
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
    #[cfg(not(feature = "std"))]
    kernel.run()
}

/// [`dispatch`] for a function of one value, which is `#[inline(always)]`: what is not inlined is compiled for the baseline
/// instructions alone, and may take twice as long. A macro, because a function that is passed on as a value is not inlined.
///
/// ```
/// use lgreco_core::simd::dispatch_with;
/// #[inline(always)]
/// fn squares(values: &[f32]) -> f32 {
///     values.iter().map(|value| value * value).sum()
/// }
/// assert_eq!(dispatch_with!(&[3.0, 4.0], squares), 25.0);
/// ```
#[macro_export]
macro_rules! dispatch_with {
    ($arguments:expr, $function:expr $(,)?) => {
        $crate::simd::dispatch_inlined(
            $arguments,
            #[inline(always)]
            |arguments| $function(arguments),
        )
    };
}
pub use dispatch_with;

/// What [`dispatch_with!`] expands to.
#[doc(hidden)]
pub fn dispatch_inlined<A, R>(arguments: A, run: impl FnOnce(A) -> R) -> R {
    struct Call<A, F>(A, F);
    impl<A, R, F: FnOnce(A) -> R> Kernel for Call<A, F> {
        type Output = R;
        #[inline(always)]
        fn run(self) -> R {
            (self.1)(self.0)
        }
    }
    dispatch(Call(arguments, run))
}
