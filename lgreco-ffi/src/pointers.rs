//! The caller's pointers become references here, after the checks that can be made.

use crate::status::Failure;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use lgreco_train::CoreError;

fn check<T>(pointer: *const T, what: &'static str) -> Result<(), Failure> {
    match pointer {
        pointer if pointer.is_null() => Err(Failure::Null { what }),
        pointer if !pointer.is_aligned() => Err(Failure::Alignment { what }),
        _ => Ok(()),
    }
}

fn check_array<T>(pointer: *const T, len: usize, what: &'static str) -> Result<(), Failure> {
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
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &'static str) -> Result<&'a [T], Failure> {
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
pub(crate) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize, what: &'static str) -> Result<&'a mut [T], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_array(pointer, len, what)?;
    // SAFETY: not null, aligned, not beyond isize::MAX, and valid and unshared by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, len) })
}

/// The address of an array of `len` elements in a device's memory; 0 when `len` is 0. Nothing is read.
pub(crate) fn address<T>(pointer: *const T, len: usize, what: &'static str) -> Result<u64, Failure> {
    if len == 0 {
        return Ok(0);
    }
    check_array(pointer, len, what)?;
    Ok(pointer.addr() as u64)
}

/// `Err` when memory of a device has fewer bytes than are needed.
pub(crate) fn at_least(needed: u64, found: u64, what: &'static str) -> Result<(), Failure> {
    if found >= needed {
        return Ok(());
    }
    Err(CoreError::Length { what, expected: needed as usize, found: found as usize }.into())
}

/// The place for one output.
///
/// # Safety
/// As [`slice_mut`] for one value.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &'static str) -> Result<&'a mut MaybeUninit<T>, Failure> {
    check(pointer, what)?;
    // SAFETY: not null, aligned, and valid and unshared by the caller's promise; a MaybeUninit may hold anything.
    Ok(unsafe { &mut *pointer.cast() })
}

/// The caller's NUL-terminated text.
///
/// # Safety
/// `pointer` is null or points to text with a NUL at its end that is valid and unchanged during `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str, Failure> {
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
pub(crate) fn disjoint(output: Range, others: &[Range]) -> Result<(), Failure> {
    let meets = |other: &&Range| {
        output.bytes > 0
            && other.bytes > 0
            && output.start < other.start.saturating_add(other.bytes)
            && other.start < output.start.saturating_add(output.bytes)
    };
    match others.iter().find(meets) {
        Some(other) => {
            let layers = [output.layer, other.layer];
            Err(Failure::Overlap { what: output.what, with: other.what, layers })
        }
        None => Ok(()),
    }
}

/// `Err` when two of the ranges share memory. Sorts them.
pub(crate) fn all_disjoint(ranges: &mut [Range]) -> Result<(), Failure> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut rest = ranges.iter().filter(|range| range.bytes > 0);
    let Some(mut last) = rest.next() else { return Ok(()) };
    for range in rest {
        disjoint(*range, &[*last])?;
        last = range;
    }
    Ok(())
}

/// A struct that starts with `struct_size` and may get further fields.
///
/// # Safety
/// `repr(C)`; its first field is a `usize`, the size of the struct as the caller knows it; every bit pattern is valid.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// The struct, for messages.
    const WHAT: &'static str;
    /// Its size in the first release that had it.
    const FIRST_SIZE: usize;
}

/// The caller's struct, with defaults for the fields that the caller does not know.
///
/// # Safety
/// `pointer` is null, misaligned, or points to as many readable bytes as the `usize` there says.
pub(crate) unsafe fn versioned<T: Versioned>(pointer: *const T) -> Result<T, Failure> {
    const { assert!(T::FIRST_SIZE <= size_of::<T>()) };
    check(pointer, T::WHAT)?;
    // SAFETY: not null and aligned; the first field is readable by the caller's promise.
    let found = unsafe { pointer.cast::<usize>().read() };
    if found < T::FIRST_SIZE {
        return Err(Failure::StructSize { what: T::WHAT, smallest: T::FIRST_SIZE, found });
    }
    let bytes = pointer.cast::<u8>();
    for offset in size_of::<T>()..found {
        // SAFETY: within the size the caller promised.
        if unsafe { bytes.add(offset).read() } != 0 {
            return Err(Failure::UnknownField { what: T::WHAT, offset });
        }
    }
    let mut value = T::default();
    let known = found.min(size_of::<T>());
    // SAFETY: both are valid for `known` bytes, do not overlap, and any bits make a `T`.
    unsafe { bytes.copy_to_nonoverlapping((&raw mut value).cast(), known) };
    Ok(value)
}

/// The caller's struct, or the defaults for NULL.
///
/// # Safety
/// As [`versioned`].
pub(crate) unsafe fn versioned_or_default<T: Versioned>(pointer: *const T) -> Result<T, Failure> {
    // SAFETY: passed on.
    if pointer.is_null() { Ok(T::default()) } else { unsafe { versioned(pointer) } }
}

/// The caller's array of structs, which lie as far apart as the caller's size of them says.
///
/// # Safety
/// As [`versioned`] for `count` structs, one after the other.
pub(crate) unsafe fn versioned_array<T: Versioned>(pointer: *const T, count: usize) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check(pointer, T::WHAT)?;
    // SAFETY: not null and aligned; the first field is readable by the caller's promise.
    let stride = unsafe { pointer.cast::<usize>().read() };
    if stride < T::FIRST_SIZE || !stride.is_multiple_of(align_of::<T>()) {
        return Err(Failure::StructSize { what: T::WHAT, smallest: T::FIRST_SIZE, found: stride });
    }
    let mut values = Vec::new();
    for index in 0..count {
        // SAFETY: within the array that the caller promised.
        let one = unsafe { pointer.byte_add(index * stride) };
        // SAFETY: as above.
        let size = unsafe { one.cast::<usize>().read() };
        if size != stride {
            return Err(Failure::StructSize { what: T::WHAT, smallest: stride, found: size });
        }
        // SAFETY: one struct of the array.
        values.push(unsafe { versioned(one) }?);
    }
    Ok(values)
}

/// A struct of the caller's that a call is to fill.
pub(crate) struct Filled<T> {
    pointer: *mut T,
    size: usize,
}

/// The caller's struct to be filled, up to its `struct_size`.
///
/// # Safety
/// `pointer` is null, misaligned, or points to as many bytes as the `usize` there says, valid for writes until
/// [`Filled::fill`] has been called.
pub(crate) unsafe fn filled<T: Versioned>(pointer: *mut T) -> Result<Filled<T>, Failure> {
    const { assert!(T::FIRST_SIZE <= size_of::<T>()) };
    check(pointer, T::WHAT)?;
    // SAFETY: not null and aligned; the first field is readable by the caller's promise.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < T::FIRST_SIZE {
        return Err(Failure::StructSize { what: T::WHAT, smallest: T::FIRST_SIZE, found: size });
    }
    Ok(Filled { pointer, size })
}

impl<T: Versioned> Filled<T> {
    /// Where it lies.
    pub(crate) fn range(&self) -> Range {
        Range::of(self.pointer.cast::<u8>(), self.size, T::WHAT)
    }

    /// Writes all fields but the first that the caller knows; what only the caller knows becomes 0.
    pub(crate) fn fill(self, value: T) {
        let (to, from) = (self.pointer.cast::<u8>(), (&raw const value).cast::<u8>());
        let (head, known) = (size_of::<usize>(), self.size.min(size_of::<T>()));
        // SAFETY: `to` is valid for `size` bytes by the promise made to `filled`, `from` for those of a `T`.
        unsafe {
            from.add(head).copy_to_nonoverlapping(to.add(head), known - head);
            to.add(known).write_bytes(0, self.size - known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_ALIGNMENT, LGRECO_LENGTH, LGRECO_NULL_POINTER, LGRECO_OVERLAP, LGRECO_STRUCT_SIZE};

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Grown {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    impl Default for Grown {
        fn default() -> Self {
            Grown { struct_size: size_of::<Grown>(), old: 1, new: 2 }
        }
    }

    // SAFETY: repr(C), starts with a usize, integers only.
    unsafe impl Versioned for Grown {
        const WHAT: &'static str = "grown";
        const FIRST_SIZE: usize = 16;
    }

    #[repr(C)]
    struct Larger {
        known: Grown,
        later: u64,
    }

    fn larger(later: u64) -> Larger {
        Larger { known: Grown { struct_size: size_of::<Larger>(), old: 7, new: 8 }, later }
    }

    fn read_of(pointer: *const Grown) -> Result<Grown, u32> {
        // SAFETY: the tests pass null, or structs as large as they say.
        unsafe { versioned(pointer) }.map_err(|failure| failure.status())
    }

    #[test]
    fn callers_of_every_age_are_understood() {
        let old = [16u64, 7];
        assert_eq!(read_of(old.as_ptr().cast()), Ok(Grown { struct_size: 16, old: 7, new: 2 }));
        let (zero, set) = (larger(0), larger(1 << 60));
        assert_eq!(read_of((&raw const zero).cast()), Ok(Grown { struct_size: 32, old: 7, new: 8 }));
        assert_eq!(read_of((&raw const set).cast()), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_of([15u64, 7].as_ptr().cast()), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_of(core::ptr::null()), Err(LGRECO_NULL_POINTER));
        assert_eq!(read_of(core::ptr::without_provenance(4)), Err(LGRECO_ALIGNMENT));
    }

    #[test]
    fn structs_are_filled_up_to_the_size_the_caller_knows() {
        let value = Grown { struct_size: 24, old: 5, new: 6 };
        let mut old = [16u64, 7, 99];
        let mut new = [32u64, 7, 8, 99];
        // SAFETY: arrays as long as their first element says.
        unsafe {
            filled(old.as_mut_ptr().cast::<Grown>()).unwrap().fill(value);
            filled(new.as_mut_ptr().cast::<Grown>()).unwrap().fill(value);
        }
        assert_eq!((old, new), ([16, 5, 99], [32, 5, 6, 0]));
    }

    #[test]
    fn arrays_have_the_stride_of_the_callers_struct() {
        let read_all = |words: &[u64], count| {
            // SAFETY: arrays of `count` structs, each as large as its first element says.
            unsafe { versioned_array(words.as_ptr().cast::<Grown>(), count) }.map_err(|failure| failure.status())
        };
        let found = read_all(&[16, 3, 16, 4], 2).unwrap();
        assert_eq!(found.iter().map(|one| (one.old, one.new)).collect::<Vec<_>>(), [(3, 2), (4, 2)]);
        let found = read_all(&[32, 3, 4, 0, 32, 5, 6, 0], 2).unwrap();
        assert_eq!(found.iter().map(|one| (one.old, one.new)).collect::<Vec<_>>(), [(3, 4), (5, 6)]);
        assert_eq!(read_all(&[16, 3, 24, 4, 5], 2), Err(LGRECO_STRUCT_SIZE), "one of another size");
        assert_eq!(read_all(&[17, 3, 0], 1), Err(LGRECO_STRUCT_SIZE), "the next would not be aligned");
        assert_eq!(read_all(&[8], 1), Err(LGRECO_STRUCT_SIZE));
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
