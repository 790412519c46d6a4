//! Measures EDEN's row of the error table: the squared error of every bit width, from one rotation of each block.

use super::decode::{put_back, unquantise};
use super::encode::{Sums, encode_block};
use super::grid::nearest;
use super::rotate::{LANES, Norm, Signs, as_f32, blocks, total};
use super::{BLOCK, Eden, Scale, seed};
use crate::bits::with_width;
use crate::error::expect_len;
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::Stream;
use crate::select::check_finite;
use crate::simd::dispatch_with;
use crate::{Error, Result};

/// Measures the squared error of compressing `gradient` with each bit width in `bits`, with the random signs of
/// `stream`. The result is within 1e-5 of the error of encoding with this stream and decoding. Another stream gives
/// another error. For blocks of 4096 values, all streams give about the same error unless a few values dominate. For
/// short blocks, the errors differ more.
///
/// # Errors
/// [`Error::Length`] when `squared_errors` is not as long as `bits`. [`Error::Parameter`] when a bit width is outside
/// 1 to 8. [`Error::NonFinite`] with the first NaN or infinity. [`Error::Overflow`] as for encoding. After an error,
/// `squared_errors` must not be used.
///
/// # Complexity
/// O(elements · (log 4096 + widths)), one pass over the gradient. Needs no workspace.
///
/// ```
/// use lgreco_compress::eden::{self, Scale};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let values: Vec<f32> = (0..4096).map(|i| (i % 17) as f32 - 8.0).collect();
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 64)?)?;
/// let mut errors = [0.0; 4];
/// eden::measure(&gradient, Scale::LeastSquares, &[1, 2, 3, 4], Stream::default(), &mut errors)?;
/// let squared_norm = values.iter().map(|&x| f64::from(x * x)).sum::<f64>();
/// for (error, expected) in errors.iter().zip([0.363, 0.1175, 0.0345, 0.0095]) {
///     assert!((error / squared_norm / expected - 1.0).abs() < 0.1);
/// }
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(
    gradient: &Gradient<'_>,
    scale: Scale,
    bits: &[u8],
    stream: Stream,
    squared_errors: &mut [f64],
) -> Result<(), Error> {
    expect_len("squared errors, one per width", bits.len(), squared_errors.len())?;
    bits.iter().try_for_each(|&bits| Eden { bits, scale }.check())?;
    squared_errors.fill(0.0);
    let seed = seed(stream);
    with_elements!(gradient.values(), values => match bits {
        [] => check_finite(values),
        _ => measure_all((scale, bits, seed), values, squared_errors, |chunk| dispatch_with!(chunk, measure_chunk)),
    })
}

/// Up to [`BLOCK`] values, the index of the first value, the sums of squared errors, and scratch memory.
pub(super) struct Chunk<'a> {
    coordinates: &'a mut [f32; BLOCK],
    scale: Scale,
    bits: &'a [u8],
    seed: u64,
    first: usize,
    values: &'a [f32],
    squared_errors: &'a mut [f64],
}

/// Adds the errors to `squared_errors`. `chunk` is [`measure_chunk`]. The call goes through this argument, so that
/// [`measure_chunk`] is compiled once and not per element type.
pub(super) fn measure_all<E: Element>(
    (scale, bits, seed): (Scale, &[u8], u64),
    values: &[E],
    squared_errors: &mut [f64],
    chunk: impl Fn(Chunk<'_>) -> Result<()>,
) -> Result<()> {
    let (mut room, mut coordinates) = ([0.0; BLOCK], [0.0; BLOCK]);
    for (i, values) in values.chunks(BLOCK).enumerate() {
        let values = as_f32(values, &mut room);
        let coordinates = &mut coordinates;
        chunk(Chunk { coordinates, scale, bits, seed, first: i * BLOCK, values, squared_errors })?;
    }
    Ok(())
}

#[inline(always)]
pub(super) fn measure_chunk(chunk: Chunk<'_>) -> Result<()> {
    let Chunk { coordinates, scale, bits, seed, first, values, squared_errors } = chunk;
    let signs = Signs::new(seed, first);
    for (at, len) in blocks(values.len()) {
        let (block, coordinates) = (&values[at..at + len], &mut coordinates[..len]);
        let norm = Norm::of(block, first + at)?;
        if norm.is_zero() {
            continue;
        }
        norm.rotate(block, &signs, at, coordinates);
        let mean_square = norm.norm * norm.norm / len as f64;
        for (&bits, error) in bits.iter().zip(squared_errors.iter_mut()) {
            let relative = with_width!(bits, relative_error(coordinates, scale));
            *error += match relative {
                Some(relative) if norm.is_moderate() => relative * mean_square,
                _ => by_decoding(Eden { bits, scale }, &norm, block, &signs, at)?,
            };
        }
    }
    Ok(())
}

/// Blocks with fewer values than this are measured by decoding, because their f32 rounding errors do not average out.
const FEW: usize = 256;

/// Squared error of rounding the coordinates. Returns `None` if the error is too small to distinguish from f32
/// rounding.
///
/// With t = z − q and the relative scale s, the error is Σ (t + (1 − s)·q)². This form avoids subtracting nearly equal
/// sums. Σ z² is the number of coordinates.
#[inline(always)]
fn relative_error<const BITS: usize>(coordinates: &[f32], scale: Scale) -> Option<f64> {
    if coordinates.len() < FEW {
        return None;
    }
    let (mut squares, mut products) = ([0.0f32; LANES], [0.0f32; LANES]);
    for chunk in coordinates.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let magnitude = chunk[lane].abs();
            let (_, level) = nearest::<BITS>(magnitude);
            let residual = magnitude - level;
            squares[lane] += residual * residual;
            products[lane] += residual * level;
        }
    }
    let (square, product) = (total(squares), total(products));
    let len = coordinates.len();
    let points = len as f64 - 2.0 * product - square;
    let away = 1.0 - Sums { product: points + product, square: points }.relative_scale(scale, len);
    let error = square + 2.0 * away * product + away * away * points;
    (error > square / 8.0 && error > len as f64 * 1e-6).then_some(error)
}

/// Squared error of a block, measured by encoding and decoding it.
#[cold]
#[inline(never)]
fn by_decoding(eden: Eden, norm: &Norm, values: &[f32], signs: &Signs, at: usize) -> Result<f64> {
    let (mut coordinates, mut codes, mut decoded) = ([0.0; BLOCK], [0; BLOCK], [0.0; BLOCK]);
    let (coordinates, codes) = (&mut coordinates[..values.len()], &mut codes[..values.len()]);
    let scale = encode_block(eden.bits, norm, values, eden.scale, (signs, at), coordinates, codes)?;
    unquantise(eden.bits, codes, coordinates);
    put_back(coordinates, scale, signs, at, &mut decoded[..values.len()]);
    let errors = values.iter().zip(&decoded).map(|(x, &decoded)| *x as f64 - decoded as f64);
    Ok(errors.map(|error| error * error).sum())
}
