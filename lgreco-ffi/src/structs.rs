//! Checks, reads and fills the caller's structs, which begin with their size.

use crate::failure::{Failure, Result};
use crate::pointers::{check, check_array};
use crate::status::LGRECO_HEADER_REVISION;

/// The value of `struct_size` in a struct of this library's header. The low bits are the struct's size in bytes, and
/// the bits above are the header's revision. Because of the revision, structs of another header are refused even if
/// they have the same size.
pub(crate) const fn size_of_struct<T>() -> usize {
    assert!(size_of::<T>() <= SIZES);
    (LGRECO_HEADER_REVISION as usize) << SIZE_BITS | size_of::<T>()
}

/// The low bits of `struct_size`, which hold the size.
const SIZE_BITS: u32 = 16;
const SIZES: usize = (1 << SIZE_BITS) - 1;

/// A struct that starts with `struct_size`.
///
/// # Safety The struct is `repr(C)`. The first field is a `usize`, in which the caller states the struct's size. Every
/// bit pattern is valid.
pub(crate) unsafe trait SizedStruct: Copy + Default {
    /// Name of the struct, for messages.
    const WHAT: &'static str;
}

/// Implements `SizedStruct` and `Default`. Fields without a value in the macro call default to 0, NULL or the constant
/// with value 0.
///
/// A `SAFETY` comment at each use says why the struct fulfils the contract of `SizedStruct`.
macro_rules! sized_struct {
    ($what:literal, $name:ident { $($field:ident: $value:expr),* $(,)? }) => {
        const _: () = assert!(core::mem::offset_of!($name, struct_size) == 0);

        // SAFETY: see the comment where the macro is used.
        unsafe impl $crate::structs::SizedStruct for $name {
            const WHAT: &'static str = $what;
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: every bit pattern is valid.
                let zeros: Self = unsafe { core::mem::zeroed() };
                Self { struct_size: $crate::structs::size_of_struct::<Self>(), $($field: $value,)* ..zeros }
            }
        }
    };
}
pub(crate) use sized_struct;

/// Returns `Err` unless the caller's struct states the size of `T` and the revision of this library's header.
///
/// # Safety `pointer` is null, misaligned, or points to a readable `usize`. If the number there is the `struct_size` of
/// `T`, the whole `T` is readable.
unsafe fn check_size<T: SizedStruct>(pointer: *const T) -> Result<()> {
    check(pointer, T::WHAT)?;
    // SAFETY: the pointer is not null and is aligned, and the caller promises that the first field is readable.
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
/// The requirements of [`check_size`] apply.
pub(crate) unsafe fn read_struct<T: SizedStruct>(pointer: *const T) -> Result<T> {
    // SAFETY: the caller meets the safety requirements of this function. A struct of the checked size is readable, and
    // any bits make a `T`.
    unsafe {
        check_size(pointer)?;
        Ok(pointer.read())
    }
}

/// The caller's array of structs.
///
/// # Safety
/// The requirements of [`read_struct`] apply to `count` structs, one after the other.
pub(crate) unsafe fn read_structs<T: SizedStruct>(pointer: *const T, count: usize) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check_array(pointer, count, T::WHAT)?;
    // SAFETY: the pointer stays in the caller's array as long as all earlier structs have the size of `T`.
    (0..count).map(|index| unsafe { read_struct(pointer.add(index)) }).collect()
}

/// Checks the size of the caller's struct, then fills it with the result of `make`.
///
/// # Safety
/// The requirements of [`check_size`] apply. The struct is also valid for writes.
pub(crate) unsafe fn fill<T: SizedStruct>(pointer: *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the caller meets the safety requirements of this function. A struct of the checked size is writable.
    unsafe {
        check_size(pointer)?;
        pointer.write(make()?);
    }
    Ok(())
}

/// Like [`fill`]. If the pointer is NULL, the function only calls `make`.
///
/// # Safety
/// The requirements of [`fill`] apply.
pub(crate) unsafe fn fill_unless_null<T: SizedStruct>(pointer: *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the caller meets the safety requirements of this function.
    if pointer.is_null() { make().map(drop) } else { unsafe { fill(pointer, make) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_ALIGNMENT, LGRECO_LENGTH, LGRECO_NULL_POINTER, LGRECO_STRUCT_SIZE};

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

    // SAFETY: the struct is repr(C), starts with a usize, and has only integers.
    unsafe impl SizedStruct for Pair {
        const WHAT: &'static str = "pair";
    }

    #[test]
    fn structs_of_another_size_are_refused() {
        let read = |pointer: *const Pair| {
            // SAFETY: the pointer is null, misaligned, or points to a struct of the size that its first word states.
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
        // SAFETY: the struct has the size that its first word states.
        unsafe { fill(words.as_mut_ptr().cast::<Pair>(), || Ok(pair(5, 6))) }.unwrap();
        assert_eq!(words, [PAIR, 5, 6, 99]);
    }

    #[test]
    fn every_struct_of_an_array_is_checked() {
        let read_all = |words: &[u64], count| {
            // SAFETY: the array has `count` structs, or fewer and then a struct of another size.
            unsafe { read_structs(words.as_ptr().cast::<Pair>(), count) }.map_err(|failure| failure.status())
        };
        assert_eq!(read_all(&[PAIR, 3, 4, PAIR, 5, 6], 2), Ok(vec![pair(3, 4), pair(5, 6)]));
        assert_eq!(read_all(&[PAIR, 3, 4, PAIR + 8, 5, 6], 2), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_all(&[PAIR - 16], 1), Err(LGRECO_STRUCT_SIZE));
        assert_eq!(read_all(&[], 0), Ok(vec![]));
        assert_eq!(read_all(&[PAIR], usize::MAX / 8), Err(LGRECO_LENGTH));
    }
}
