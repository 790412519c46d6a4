//! Checks the caller's pointers as far as possible, and turns them into references.

use crate::failure::{Failure, Result};
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use lgreco_train::CoreError;

/// Returns `Err` for a pointer that is NULL or misaligned.
pub(crate) fn check<T>(pointer: *const T, what: &'static str) -> Result<()> {
    match pointer {
        pointer if pointer.is_null() => Err(Failure::Null(what)),
        pointer if !pointer.is_aligned() => Err(Failure::Alignment(what)),
        _ => Ok(()),
    }
}

/// Returns `Err` if `pointer` cannot point to an array of `len` elements. If `len` is 0, every pointer is allowed.
pub(crate) fn check_array<T>(pointer: *const T, len: usize, what: &'static str) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let longest = isize::MAX as usize / size_of::<T>();
    if len > longest {
        return Err(CoreError::Length { what, expected: longest, found: len }.into());
    }
    check(pointer, what)
}

/// Returns the caller's array of `len` elements. If `len` is 0, the pointer is ignored.
///
/// # Safety
/// `pointer` is null, misaligned, or valid for reads of `len` values of `T` during `'a`.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &'static str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_array(pointer, len, what)?;
    // SAFETY: the pointer is aligned and not null, the array has at most isize::MAX bytes, and the caller promises that
    // the pointer is valid.
    Ok(unsafe { core::slice::from_raw_parts(pointer, len) })
}

/// Returns the caller's output array, like [`slice`].
///
/// # Safety `pointer` is null, misaligned, or valid for reads and writes of `len` values of `T` during `'a`. Nothing
/// else uses the values during `'a`.
pub(crate) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize, what: &'static str) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_array(pointer, len, what)?;
    // SAFETY: the pointer is aligned and not null, and the array has at most isize::MAX bytes. The caller promises that
    // the pointer is valid and that nothing else uses the array.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, len) })
}

/// Returns the address of an array of `len` elements in device memory, or 0 if `len` is 0. Reads nothing.
pub(crate) fn address<T>(pointer: *const T, len: usize, what: &'static str) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    check_array(pointer, len, what)?;
    Ok(pointer.addr() as u64)
}

/// Returns `Err` if `found` is less than `needed`.
pub(crate) fn at_least(needed: u64, found: u64, what: &'static str) -> Result<()> {
    if found >= needed {
        return Ok(());
    }
    Err(CoreError::Length { what, expected: needed as usize, found: found as usize }.into())
}

/// Returns `Err` unless `found` is as expected.
pub(crate) fn exactly(expected: usize, found: usize, what: &'static str) -> Result<()> {
    if expected == found { Ok(()) } else { Err(CoreError::Length { what, expected, found }.into()) }
}

/// Returns `Err` unless a table of `layers` layers has a layer of this index.
pub(crate) fn check_layer(layer: usize, layers: usize) -> Result<()> {
    if layer < layers { Ok(()) } else { Err(Failure::NoTableLayer { layer, layers }) }
}

/// Returns the caller's memory for an output.
///
/// # Safety The requirements of [`slice_mut`] apply, with `len` = 1.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &'static str) -> Result<&'a mut MaybeUninit<T>> {
    check(pointer, what)?;
    // SAFETY: the pointer is aligned and not null, and the caller promises that it is valid and that nothing else uses
    // the value. A MaybeUninit may hold anything.
    Ok(unsafe { &mut *pointer.cast() })
}

/// Checks the pointer, then writes the result of `make` to the memory it points to.
///
/// # Safety
/// The requirements of [`place`] apply.
pub(crate) unsafe fn write<T>(pointer: *mut T, what: &'static str, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe { place(pointer, what) }?.write(make()?);
    Ok(())
}

/// The caller's array to fill, and the pointer that receives its number of elements.
pub(crate) struct Output<T> {
    /// Name of the argument, for messages.
    pub(crate) what: &'static str,
    pub(crate) to: *mut T,
    pub(crate) capacity: usize,
    pub(crate) length: *mut usize,
}

impl<T> Output<T> {
    /// Writes `length` to the caller's memory. If the array has at least `needed` elements, calls `fill` on the first
    /// `needed` elements.
    ///
    /// # Safety
    /// The requirements of [`slice_mut`] and [`place`] apply.
    pub(crate) unsafe fn fill(
        self,
        length: usize,
        needed: usize,
        fill: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<()> {
        let Output { what, to, capacity, length: told } = self;
        disjoint(Range::of(told, 1, "length"), &[Range::of(to, capacity, what)])?;
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { place(told, "length") }?.write(length);
        at_least(needed as u64, capacity as u64, what)?;
        // SAFETY: the caller meets the safety requirements of this function.
        fill(&mut unsafe { slice_mut(to, capacity, what) }?[..needed])
    }
}

impl Output<c_char> {
    /// Writes `text` with a NUL after it. The length does not count the NUL.
    ///
    /// # Safety
    /// The requirements of [`Output::fill`] apply.
    pub(crate) unsafe fn write_text(self, text: &str) -> Result<()> {
        let Output { what, to, capacity, length } = self;
        let fill = |to: &mut [u8]| {
            to[..text.len()].copy_from_slice(text.as_bytes());
            to[text.len()] = 0;
            Ok(())
        };
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { Output { what, to: to.cast::<u8>(), capacity, length }.fill(text.len(), text.len() + 1, fill) }
    }
}

/// The caller's NUL-terminated text.
///
/// # Safety `pointer` is null, or points to a NUL-terminated text. The text is valid and does not change during `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    check(pointer, what)?;
    // SAFETY: the pointer is not null, and the caller promises that the text is NUL-terminated.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::Text { what, why: "is not UTF-8" })
}

/// The memory range of an array. The range of NULL is empty.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    what: &'static str,
    start: usize,
    bytes: usize,
    layer: Option<usize>,
}

impl Range {
    /// Adds the index of a layer to the range.
    pub(crate) fn of_layer(self, layer: usize) -> Range {
        Range { layer: Some(layer), ..self }
    }

    pub(crate) fn of<T>(pointer: *const T, len: usize, what: &'static str) -> Range {
        let bytes = if pointer.is_null() { 0 } else { len.saturating_mul(size_of::<T>()) };
        Range { what, start: pointer.addr(), bytes, layer: None }
    }
}

/// Returns `Err` when an output shares memory with an input or another output.
pub(crate) fn disjoint(output: Range, others: &[Range]) -> Result<()> {
    let meets = |other: &&Range| {
        output.bytes > 0
            && other.bytes > 0
            && output.start < other.start.saturating_add(other.bytes)
            && other.start < output.start.saturating_add(output.bytes)
    };
    match others.iter().find(meets) {
        Some(other) => Err(match (output.layer, other.layer) {
            (Some(layer), Some(with)) => Failure::LayersOverlap { what: output.what, layers: [layer, with] },
            _ => Failure::Overlap(output.what, other.what),
        }),
        None => Ok(()),
    }
}

/// Returns `Err` when two of the ranges share memory. Sorts the ranges.
pub(crate) fn all_disjoint(ranges: &mut [Range]) -> Result<()> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut rest = ranges.iter().filter(|range| range.bytes > 0);
    let Some(mut last) = rest.next() else { return Ok(()) };
    for range in rest {
        disjoint(*range, &[*last])?;
        last = range;
    }
    Ok(())
}

/// Returns the caller's bytes to decode, and the array for the decoded values. Checks that the two do not overlap.
/// `what` is the name of the bytes' argument, for messages.
///
/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
pub(crate) unsafe fn encoded<'a>(
    what: &'static str,
    (bytes, length): (*const u8, usize),
    (values, values_len): (*mut f32, usize),
) -> Result<(&'a [u8], &'a mut [f32])> {
    disjoint(Range::of(values, values_len, "values"), &[Range::of(bytes, length, what)])?;
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe { Ok((slice(bytes, length, what)?, slice_mut(values, values_len, "values")?)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_ALIGNMENT, LGRECO_LENGTH, LGRECO_NULL_POINTER, LGRECO_OVERLAP};

    #[test]
    fn arrays_are_checked_for_what_can_be_checked() {
        let status = |pointer: *const f32, len| {
            // SAFETY: the checks refuse the pointers of these tests before any access.
            unsafe { slice(pointer, len, "values") }.map(<[_]>::len).map_err(|failure| failure.status())
        };
        assert_eq!(status(core::ptr::null(), 0), Ok(0));
        assert_eq!(status(core::ptr::null(), 1), Err(LGRECO_NULL_POINTER));
        assert_eq!(status(core::ptr::without_provenance(6), 1), Err(LGRECO_ALIGNMENT));
        assert_eq!(status(core::ptr::without_provenance(8), usize::MAX / 2), Err(LGRECO_LENGTH));
        let there = |pointer: *const f32, len| address(pointer, len, "values").map_err(|failure| failure.status());
        assert_eq!((there(core::ptr::without_provenance(8), 3), there(core::ptr::null(), 0)), (Ok(8), Ok(0)));
        assert_eq!(there(core::ptr::null(), 1), Err(LGRECO_NULL_POINTER));
        assert_eq!(there(core::ptr::without_provenance(6), 1), Err(LGRECO_ALIGNMENT));
        assert_eq!(there(core::ptr::without_provenance(8), usize::MAX / 2), Err(LGRECO_LENGTH));
    }

    #[test]
    fn overlaps_are_found_to_the_byte() {
        let bytes = [0u8; 8];
        let range = |start: usize, len| Range::of(bytes[start..].as_ptr(), len, "bytes");
        let status = |a, b| disjoint(a, &[b]).map_err(|failure| failure.status());
        assert_eq!(status(range(0, 4), range(4, 4)), Ok(()));
        assert_eq!(status(range(0, 5), range(4, 4)), Err(LGRECO_OVERLAP));
        assert_eq!(status(range(4, 4), range(0, 5)), Err(LGRECO_OVERLAP));
        assert_eq!(status(range(2, 1), range(0, 8)), Err(LGRECO_OVERLAP));
        assert_eq!(status(range(2, 0), range(0, 8)), Ok(()));
        let all = |ranges: &mut [Range]| all_disjoint(ranges).map_err(|failure| failure.status());
        assert_eq!(all(&mut [range(6, 2), range(0, 3), range(4, 0), range(3, 3)]), Ok(()));
        assert_eq!(all(&mut [range(6, 2), range(0, 3), range(3, 4)]), Err(LGRECO_OVERLAP));
        assert_eq!(all(&mut []), Ok(()));
    }
}
