//! The caller's pointers become references here, after the checks that can be made.

use crate::failure::{Failure, Result};
use crate::status::LGRECO_HEADER_REVISION;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use lgreco_train::CoreError;

fn check<T>(pointer: *const T, what: &'static str) -> Result<()> {
    match pointer {
        pointer if pointer.is_null() => Err(Failure::Null(what)),
        pointer if !pointer.is_aligned() => Err(Failure::Alignment(what)),
        _ => Ok(()),
    }
}

/// `Err` for the pointer of an array of `len` elements that cannot be one; any will do when `len` is 0.
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

/// The caller's array of `len` elements; empty whatever the pointer when `len` is 0.
///
/// # Safety
/// `pointer` is null, misaligned, or valid for reads of `len` values of `T` during `'a`.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &'static str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_array(pointer, len, what)?;
    // SAFETY: not null, aligned, not beyond isize::MAX, and valid by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, len) })
}

/// The caller's output array; see [`slice`].
///
/// # Safety
/// `pointer` is null, misaligned, or valid for reads and writes of `len` values of `T` during `'a`, and nothing else uses
/// them meanwhile.
pub(crate) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize, what: &'static str) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_array(pointer, len, what)?;
    // SAFETY: not null, aligned, not beyond isize::MAX, and valid and unshared by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, len) })
}

/// The address of an array of `len` elements in a device's memory; 0 when `len` is 0. Nothing is read.
pub(crate) fn address<T>(pointer: *const T, len: usize, what: &'static str) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    check_array(pointer, len, what)?;
    Ok(pointer.addr() as u64)
}

/// `Err` when there is less of something than is needed.
pub(crate) fn at_least(needed: u64, found: u64, what: &'static str) -> Result<()> {
    if found >= needed {
        return Ok(());
    }
    Err(CoreError::Length { what, expected: needed as usize, found: found as usize }.into())
}

/// `Err` unless there are as many of something as is expected.
pub(crate) fn exactly(expected: usize, found: usize, what: &'static str) -> Result<()> {
    if expected == found { Ok(()) } else { Err(CoreError::Length { what, expected, found }.into()) }
}

/// `Err` unless a model of so many layers has a layer of this index.
pub(crate) fn check_layer(layer: usize, layers: usize) -> Result<()> {
    if layer < layers {
        Ok(())
    } else {
        Err(CoreError::Length { what: "layer", expected: layers, found: layer }.into())
    }
}

/// The place for one output.
///
/// # Safety
/// As [`slice_mut`] for one value.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &'static str) -> Result<&'a mut MaybeUninit<T>> {
    check(pointer, what)?;
    // SAFETY: not null, aligned, and valid and unshared by the caller's promise; a MaybeUninit may hold anything.
    Ok(unsafe { &mut *pointer.cast() })
}

/// Writes what `make` returns, once the place for it has been checked.
///
/// # Safety
/// As [`place`].
pub(crate) unsafe fn write<T>(pointer: *mut T, what: &'static str, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: passed on.
    unsafe { place(pointer, what) }?.write(make()?);
    Ok(())
}

/// An array of the caller's to be filled, and the place for the number of elements.
pub(crate) struct Output<T> {
    /// The argument, for messages.
    pub(crate) what: &'static str,
    pub(crate) to: *mut T,
    pub(crate) capacity: usize,
    pub(crate) length: *mut usize,
}

impl<T> Output<T> {
    /// Tells `length`, also where the array has fewer than `needed` elements, and has `fill` fill that many.
    ///
    /// # Safety
    /// As [`slice_mut`] and [`place`].
    pub(crate) unsafe fn fill(
        self,
        length: usize,
        needed: usize,
        fill: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<()> {
        let Output { what, to, capacity, length: told } = self;
        disjoint(Range::of(told, 1, "length"), &[Range::of(to, capacity, what)])?;
        // SAFETY: passed on.
        unsafe { place(told, "length") }?.write(length);
        at_least(needed as u64, capacity as u64, what)?;
        // SAFETY: passed on.
        fill(&mut unsafe { slice_mut(to, capacity, what) }?[..needed])
    }
}

impl Output<c_char> {
    /// Writes `text` with a NUL after it, which does not count as its length.
    ///
    /// # Safety
    /// As [`Output::fill`].
    pub(crate) unsafe fn write_text(self, text: &str) -> Result<()> {
        let Output { what, to, capacity, length } = self;
        let fill = |to: &mut [u8]| {
            to[..text.len()].copy_from_slice(text.as_bytes());
            to[text.len()] = 0;
            Ok(())
        };
        // SAFETY: passed on.
        unsafe { Output { what, to: to.cast::<u8>(), capacity, length }.fill(text.len(), text.len() + 1, fill) }
    }
}

/// The caller's NUL-terminated text.
///
/// # Safety
/// `pointer` is null or points to text with a NUL at its end that is valid and unchanged during `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    check(pointer, what)?;
    // SAFETY: not null, and NUL-terminated by the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::Text { what, why: "is not UTF-8" })
}

/// Where an array lies in memory; NULL lies nowhere.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    what: &'static str,
    start: usize,
    bytes: usize,
    layer: Option<usize>,
}

impl Range {
    /// That of this layer of a model.
    pub(crate) fn of_layer(self, layer: usize) -> Range {
        Range { layer: Some(layer), ..self }
    }

    pub(crate) fn of<T>(pointer: *const T, len: usize, what: &'static str) -> Range {
        let bytes = if pointer.is_null() { 0 } else { len.saturating_mul(size_of::<T>()) };
        Range { what, start: pointer.addr(), bytes, layer: None }
    }
}

/// `Err` when an output shares memory with an input or another output.
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

/// `Err` when two of the ranges share memory. Sorts them.
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

/// Bytes of the caller's that a call is to decode, and the values that it makes of them, which do not overlap. `what` is the
/// bytes' argument, for messages.
///
/// # Safety
/// README.md, pointers; `'a` is within the call.
pub(crate) unsafe fn encoded<'a>(
    what: &'static str,
    (bytes, length): (*const u8, usize),
    (values, values_len): (*mut f32, usize),
) -> Result<(&'a [u8], &'a mut [f32])> {
    disjoint(Range::of(values, values_len, "values"), &[Range::of(bytes, length, what)])?;
    // SAFETY: passed on.
    unsafe { Ok((slice(bytes, length, what)?, slice_mut(values, values_len, "values")?)) }
}

/// What `struct_size` is of a struct of the header that belongs to this library: its bytes, and above them the header's revision,
/// so that structs and callbacks of another header are refused, of whatever size they are.
pub(crate) const fn size_of_struct<T>() -> usize {
    assert!(size_of::<T>() <= SIZES);
    (LGRECO_HEADER_REVISION as usize) << SIZE_BITS | size_of::<T>()
}

/// Bits of `struct_size` for the size.
const SIZE_BITS: u32 = 16;
const SIZES: usize = (1 << SIZE_BITS) - 1;

/// A struct that starts with `struct_size`.
///
/// # Safety
/// `repr(C)`; its first field is a `usize`, the size of the struct as the caller knows it; every bit pattern is valid.
pub(crate) unsafe trait SizedStruct: Copy + Default {
    /// The struct, for messages.
    const WHAT: &'static str;
}

/// Implements `SizedStruct` and `Default`. Fields that are not named are 0, NULL or the constant that is 0.
///
/// A `SAFETY` comment at each use says why the struct keeps to the contract of `SizedStruct`.
macro_rules! sized_struct {
    ($what:literal, $name:ident { $($field:ident: $value:expr),* $(,)? }) => {
        const _: () = assert!(core::mem::offset_of!($name, struct_size) == 0);

        // SAFETY: the comment where the macro is used.
        unsafe impl $crate::pointers::SizedStruct for $name {
            const WHAT: &'static str = $what;
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: every bit pattern is valid.
                let zeros: Self = unsafe { core::mem::zeroed() };
                Self { struct_size: $crate::pointers::size_of_struct::<Self>(), $($field: $value,)* ..zeros }
            }
        }
    };
}
pub(crate) use sized_struct;

/// `Err` unless the caller's struct says that it has the size of a `T`, and is of the header that belongs to this library.
///
/// # Safety
/// `pointer` is null, misaligned, or points to a readable `usize`, and to as many readable bytes as it says if it is that of a `T`.
unsafe fn check_size<T: SizedStruct>(pointer: *const T) -> Result<()> {
    check(pointer, T::WHAT)?;
    // SAFETY: not null and aligned; the first field is readable by the caller's promise.
    let found = unsafe { pointer.cast::<usize>().read() };
    if found == size_of_struct::<T>() {
        return Ok(());
    }
    let (what, [found, revision]) = (T::WHAT, [found & SIZES, found >> SIZE_BITS]);
    Err(match revision == LGRECO_HEADER_REVISION as usize {
        true => Failure::StructSize { what, expected: size_of::<T>(), found },
        false => Failure::HeaderRevision { what, found: revision },
    })
}

/// The caller's struct.
///
/// # Safety
/// As [`check_size`].
pub(crate) unsafe fn read_struct<T: SizedStruct>(pointer: *const T) -> Result<T> {
    // SAFETY: passed on; a struct of that size is readable, and any bits make a `T`.
    unsafe {
        check_size(pointer)?;
        Ok(pointer.read())
    }
}

/// The caller's array of structs.
///
/// # Safety
/// As [`read_struct`] for `count` structs, one after the other.
pub(crate) unsafe fn read_structs<T: SizedStruct>(pointer: *const T, count: usize) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check_array(pointer, count, T::WHAT)?;
    // SAFETY: within the array that the caller promised, as long as every struct before has the size of a `T`.
    (0..count).map(|index| unsafe { read_struct(pointer.add(index)) }).collect()
}

/// Fills the caller's struct with what `make` returns, once its size has been checked.
///
/// # Safety
/// As [`check_size`]; also valid for writes.
pub(crate) unsafe fn fill<T: SizedStruct>(pointer: *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: passed on; a struct of that size is writable.
    unsafe {
        check_size(pointer)?;
        pointer.write(make()?);
    }
    Ok(())
}

/// As [`fill`], but the struct may be NULL: then `make` is only called.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn fill_unless_null<T: SizedStruct>(pointer: *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: passed on.
    if pointer.is_null() { make().map(drop) } else { unsafe { fill(pointer, make) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_ALIGNMENT, LGRECO_LENGTH, LGRECO_NULL_POINTER, LGRECO_OVERLAP, LGRECO_STRUCT_SIZE};

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Pair {
        struct_size: usize,
        first: u64,
        second: u64,
    }

    impl Default for Pair {
        fn default() -> Self {
            pair(1, 2)
        }
    }

    const PAIR: u64 = size_of_struct::<Pair>() as u64;

    fn pair(first: u64, second: u64) -> Pair {
        Pair { struct_size: size_of_struct::<Pair>(), first, second }
    }

    // SAFETY: repr(C), starts with a usize, integers only.
    unsafe impl SizedStruct for Pair {
        const WHAT: &'static str = "pair";
    }

    #[test]
    fn structs_of_another_size_are_refused() {
        let read = |pointer: *const Pair| {
            // SAFETY: null, misaligned, or as long as the first element says.
            unsafe { read_struct(pointer) }.map_err(|failure| failure.status())
        };
        assert_eq!(read([PAIR, 7, 8].as_ptr().cast()), Ok(pair(7, 8)));
        let of_another_header = [24, PAIR - (1 << SIZE_BITS), PAIR + (1 << SIZE_BITS)];
        for size in [0, PAIR - 8, PAIR - 1, PAIR + 1, PAIR + 8].into_iter().chain(of_another_header) {
            let words = [size, 7, 8, 0];
            assert_eq!(read(words.as_ptr().cast()), Err(LGRECO_STRUCT_SIZE), "{size}");
            let mut filled = words;
            // SAFETY: as above.
            let refused = unsafe { fill(filled.as_mut_ptr().cast::<Pair>(), || Ok(pair(5, 6))) };
            assert_eq!(refused.map_err(|failure| failure.status()), Err(LGRECO_STRUCT_SIZE), "{size}");
            assert_eq!(filled, words, "{size}");
        }
        assert_eq!(read(core::ptr::null()), Err(LGRECO_NULL_POINTER));
        assert_eq!(read(core::ptr::without_provenance(4)), Err(LGRECO_ALIGNMENT));
    }

    #[test]
    fn structs_are_filled_whole_and_no_further() {
        let mut words = [PAIR, 7, 8, 99];
        // SAFETY: as long as the first element says.
        unsafe { fill(words.as_mut_ptr().cast::<Pair>(), || Ok(pair(5, 6))) }.unwrap();
        assert_eq!(words, [PAIR, 5, 6, 99]);
    }

    #[test]
    fn every_struct_of_an_array_is_checked() {
        let read_all = |words: &[u64], count| {
            // SAFETY: arrays of `count` structs, or of fewer before one of another size.
            unsafe { read_structs(words.as_ptr().cast::<Pair>(), count) }.map_err(|failure| failure.status())
        };
        assert_eq!(read_all(&[PAIR, 3, 4, PAIR, 5, 6], 2), Ok(vec![pair(3, 4), pair(5, 6)]));
        assert_eq!(read_all(&[PAIR, 3, 4, PAIR + 8, 5, 6], 2), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_all(&[PAIR - 16], 1), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_all(&[], 0), Ok(vec![]));
        assert_eq!(read_all(&[PAIR], usize::MAX / 8), Err(LGRECO_LENGTH));
    }

    #[test]
    fn arrays_are_checked_for_what_can_be_checked() {
        let status = |pointer: *const f32, len| {
            // SAFETY: never valid, which the checks find.
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
