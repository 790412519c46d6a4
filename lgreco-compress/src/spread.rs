//! Divides long loops between the cores of rayon's current thread pool, with the feature `rayon`.
//!
//! The results do not depend on the division. Loops with a sum of floats are not divided, and the results of parts are
//! joined in order. Without the feature, and for short loops, [`spread`] runs the whole loop on this core. [`join`]
//! runs two functions in parallel.

use crate::simd::{Kernel, dispatch};

/// Smallest number of elements for which a second core pays off.
pub const WORTHWHILE: usize = 1 << 16;

/// A loop over many elements that can be divided.
pub trait Divide: Kernel<Output: Join> + Send + Sized {
    /// Number of elements in the loop.
    fn elements(&self) -> usize;

    /// Splits into two loops, the first over about `at` elements. Returns `Err` with this loop if it cannot be divided.
    fn divide(self, at: usize) -> Result<(Self, Self), Self>;

    /// Runs the loop on one core. Loops that need scratch memory per part allocate the memory in this function.
    fn start(self) -> Self::Output {
        dispatch(self)
    }
}

/// Result of a loop.
pub trait Join: Send {
    /// Joins the results of the loop's two parts into the result of the whole loop.
    fn join(self, second: Self) -> Self;
}

impl Join for () {
    fn join(self, (): ()) {}
}

impl Join for bool {
    fn join(self, second: bool) -> bool {
        self && second
    }
}

impl<T: Send, E: Send> Join for Result<T, E> {
    fn join(self, second: Self) -> Self {
        self.and(second)
    }
}

/// The data of a loop: slices, and the index of the first element.
pub trait Cut: Send + Sized {
    /// Splits the data after the first `at` elements.
    fn cut(self, at: usize) -> (Self, Self);
}

impl<T: Sync> Cut for &[T] {
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl<T: Send> Cut for &mut [T] {
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Index of the first element.
#[derive(Clone, Copy)]
pub struct Start(pub usize);

impl Cut for Start {
    fn cut(self, at: usize) -> (Self, Self) {
        (self, Start(self.0 + at))
    }
}

/// A slice with `.1` entries for every `.2` elements of the loop. The slice may be shorter than the loop.
pub struct Per<S>(pub S, pub usize, pub usize);

impl<T: Sync> Cut for Per<&[T]> {
    fn cut(self, at: usize) -> (Self, Self) {
        let Per(slice, places, of) = self;
        let (first, second) = slice.split_at(slice.len().min(at / of * places));
        (Per(first, places, of), Per(second, places, of))
    }
}

impl<T: Send> Cut for Per<&mut [T]> {
    fn cut(self, at: usize) -> (Self, Self) {
        let Per(slice, places, of) = self;
        let (first, second) = slice.split_at_mut(slice.len().min(at / of * places));
        (Per(first, places, of), Per(second, places, of))
    }
}

impl<A: Cut, B: Cut> Cut for (A, B) {
    fn cut(self, at: usize) -> (Self, Self) {
        let (a, b) = (self.0.cut(at), self.1.cut(at));
        ((a.0, b.0), (a.1, b.1))
    }
}

impl<A: Cut, B: Cut, C: Cut> Cut for (A, B, C) {
    fn cut(self, at: usize) -> (Self, Self) {
        let ((a, b), c) = ((self.0, self.1).cut(at), self.2.cut(at));
        ((a.0, a.1, c.0), (b.0, b.1, c.1))
    }
}

/// A loop that calls `run` with the data in `parts` and the arguments in `with`. When the loop is divided, `parts` is
/// divided as well, and each part of the loop gets the same arguments.
struct Loop<P, A, F> {
    elements: usize,
    unit: usize,
    parts: P,
    with: A,
    run: F,
}

impl<P, A, R, F: Fn(P, A) -> R> Kernel for Loop<P, A, F> {
    type Output = R;

    #[inline(always)]
    fn run(self) -> R {
        (self.run)(self.parts, self.with)
    }
}

impl<P: Cut, A: Copy + Send, R: Join, F: Fn(P, A) -> R + Copy + Send> Divide for Loop<P, A, F> {
    fn elements(&self) -> usize {
        self.elements
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let at = at / self.unit * self.unit;
        if at == 0 {
            return Err(self);
        }
        let Loop { elements, unit, parts, with, run } = self;
        let (parts, others) = parts.cut(at);
        let second = Loop { elements: elements - at, unit, parts: others, with, run };
        Ok((Loop { elements: at, unit, parts, with, run }, second))
    }
}

/// Runs a loop over `elements` elements on all cores of the pool. `run` is an `#[inline(always)]` function. Each call
/// of `run` gets `with`, and the `parts` for a range of elements. The length of a range is a multiple of `unit`, except
/// at the end. This is a macro, like [`dispatch_with!`](crate::simd), because Rust does not inline a function that is
/// passed as a value. Without inlining, the function would use only the baseline instructions.
#[macro_export]
macro_rules! spread_parts {
    ($elements:expr, $unit:expr, $parts:expr, $with:expr, $run:expr $(,)?) => {
        $crate::spread::spread_inlined(
            $elements,
            $unit,
            $parts,
            $with,
            #[inline(always)]
            |parts, with| $run(parts, with),
        )
    };
}
pub use spread_parts;

/// The function that [`spread_parts!`] expands to.
#[doc(hidden)]
pub fn spread_inlined<P: Cut, A: Copy + Send, R: Join>(
    elements: usize,
    unit: usize,
    parts: P,
    with: A,
    run: impl Fn(P, A) -> R + Copy + Send,
) -> R {
    spread(Loop { elements, unit, parts, with, run })
}

/// Runs a loop on the cores of the current thread pool.
#[cfg(feature = "rayon")]
pub fn spread<D: Divide>(work: D) -> D::Output {
    fn divided<D: Divide>(work: D, cores: usize) -> D::Output {
        let elements = work.elements();
        if cores < 2 || elements < WORTHWHILE {
            return work.start();
        }
        let first = cores / 2;
        match work.divide((elements as u128 * first as u128 / cores as u128) as usize) {
            Ok((a, b)) => {
                let (a, b) = rayon::join(|| divided(a, first), || divided(b, cores - first));
                a.join(b)
            }
            Err(whole) => whole.start(),
        }
    }
    // Short loops do not ask rayon for its threads, because rayon starts them when first asked.
    if work.elements() < WORTHWHILE { work.start() } else { divided(work, rayon::current_num_threads()) }
}

/// Runs a loop on this core.
#[cfg(not(feature = "rayon"))]
pub fn spread<D: Divide>(work: D) -> D::Output {
    work.start()
}

/// Runs both functions, on two cores if the current pool has them.
#[cfg(feature = "rayon")]
pub fn join<A: Send, B: Send>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B + Send) -> (A, B) {
    if rayon::current_num_threads() < 2 { (first(), second()) } else { rayon::join(first, second) }
}

/// Runs both functions on this core.
#[cfg(not(feature = "rayon"))]
pub fn join<A: Send, B: Send>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B + Send) -> (A, B) {
    (first(), second())
}

#[cfg(all(test, feature = "rayon"))]
mod tests {
    use crate::Error;
    use crate::combine::Combine;
    use crate::eden::Eden;
    use crate::gradient::{Dtype, Gradient, Shape, Values};
    use crate::rng::Stream;
    use crate::setting::combine;
    use crate::wire::Payload;
    use crate::{Compressor, Setting, decode, powersgd::PowerSgd, qsgd, topk::TopK};
    use alloc::vec;
    use alloc::vec::Vec;

    const ROWS: usize = 1000;
    const COLS: usize = 700;

    fn values() -> Vec<f32> {
        let stream = Stream { seed: 9, ..Stream::default() };
        (0..(ROWS * COLS) as u64).map(|i| (stream.word(i) % 1000) as f32 - 500.0).collect()
    }

    fn settings() -> Vec<Setting> {
        let qsgd = |bits, bucket| Setting::Qsgd(qsgd::Qsgd { bits, bucket, ..qsgd::Qsgd::default() });
        let topk = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
        let power = |rank| Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
        vec![
            qsgd(4, 512),
            qsgd(1, 64),
            qsgd(7, 96),
            qsgd(3, 1000),
            qsgd(8, 1 << 20),
            topk(1),
            topk(7000),
            topk(500_000),
            topk(700_000),
            power(4),
            power(20),
            Setting::Dense,
            Setting::Eden(Eden { bits: 1, ..Eden::default() }),
            Setting::Eden(Eden { bits: 4, ..Eden::default() }),
        ]
    }

    /// Encodes and combines in a pool of `threads` threads.
    fn in_pool(threads: usize, setting: Setting, values: &[f32]) -> Result<(Vec<u8>, Vec<u32>), Error> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let shape = Shape::new(ROWS, COLS)?;
            let gradient = Gradient::new(Values::F32(values), shape)?;
            let mut workspace = vec![7; setting.encode_workspace_len(shape, Dtype::F32)];
            let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
            let stream = Stream { seed: 4, step: 1, layer: 2, rank: 3 };
            setting.encode(&gradient, stream, &mut workspace, &mut payload)?;
            let (mut decoded, mut scratch) = (vec![0.0; values.len()], vec![0.0; values.len()]);
            decode(&payload, &mut decoded)?;
            combine(&setting, &Payload::parse(&payload)?, Combine::Add, &mut decoded, &mut scratch)?;
            Ok((payload, decoded.iter().map(|x| x.to_bits()).collect()))
        })
    }

    #[test]
    fn any_number_of_threads_makes_the_same_bits() {
        let values = values();
        for setting in settings() {
            let alone = in_pool(1, setting, &values).unwrap();
            for threads in [2, 3, 5] {
                assert!(in_pool(threads, setting, &values).unwrap() == alone, "{setting}, {threads} threads");
            }
        }
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_named() {
        for nans in [vec![3, 600_000], vec![400_000, 699_999], vec![699_999]] {
            let mut values = values();
            nans.iter().for_each(|&i| values[i] = f32::NAN);
            for setting in settings() {
                let found = in_pool(3, setting, &values).map(|_| ());
                assert!(
                    matches!(found, Err(Error::NonFinite { index, .. }) if index == nans[0]),
                    "{setting}: {found:?}"
                );
            }
        }
    }
}
