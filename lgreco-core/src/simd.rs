//! Run-time choice of vector instructions: the same code, compiled for SSE2, AVX2 and AVX-512.
//!
//! Loops are plain Rust over fixed arrays of partial sums. Rust neither reorders nor fuses float operations. So every
//! instruction set gives the same bits.
//!
//! [`dispatch`] compiles each loop for three instruction sets through `pulp`, or for two without the feature `avx512`.
//! `pulp` contains the unsafe code; this crate has none. Builds without `std` compile each loop once.
//!
//! Hot loops do not convert floats to integers. Instead, adding 2²³ to an f32, or 2⁵² to an f64, puts the rounded
//! integer into the mantissa. This addition vectorises on every target, and gives the same bits on GPUs.

/// A loop that is compiled once per instruction set.
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
    /// The result of the loop.
    type Output;
    /// Runs the loop. `run` and the functions that it calls must be `#[inline(always)]`: only inlined code is compiled
    /// for the instruction set. A `fold` over `zip` or `map` may not be inlined, so use a `for` loop instead.
    fn run(self) -> Self::Output;
}

/// Runs `kernel` with the best instructions of this processor. Without the feature `std`, uses the target's baseline
/// instructions.
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

/// Runs a function of one argument as [`dispatch`] runs a kernel.
///
/// The function must be `#[inline(always)]`. Without this attribute, the function is compiled for the baseline
/// instructions alone, and may take twice as long. This is a macro because Rust does not inline a function that is
/// passed as a value.
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

/// The expansion of [`dispatch_with!`].
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
