//! Memory of the caller: structs with a guard behind them, and buffers of exact length.

use super::Bytes;
use crate::structs::SizedStruct;
use core::ffi::c_void;

const WORD: usize = size_of::<u64>();

/// Consecutive structs. The first word of each struct states the struct's size.
pub(super) struct CallerStructs {
    words: Vec<u64>,
    /// Number of words of the structs. A guard word follows.
    used: usize,
    null: bool,
}

const GUARD: u64 = 0x5aa5_a55a_5aa5_a55a;

/// Numbers that callers often get wrong.
const WORDS: [u64; 12] = [
    0,
    1,
    u64::MAX,
    1 << 63,
    (1 << 63) - 1,
    1 << 32,
    (1 << 32) - 1,
    0x7ff8_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7fc0_0000_7fc0_0000,
    0x0000_0001_0000_0001,
];

/// Makes structs from `values` as a caller may pass them, with a right or wrong size. Random words may overwrite any
/// field, except the words at the byte offsets `kept`, which are pointers and lengths of arrays.
pub(super) fn caller_structs<T: SizedStruct>(bytes: &mut Bytes, values: &[T], kept: &[usize]) -> CallerStructs {
    let size = match bytes.below(64) {
        0 => size_of::<T>() - WORD,
        1 => size_of::<T>() + WORD,
        2 => size_of::<T>() + 8 * WORD,
        3 => usize::from(bytes.next()) % size_of::<T>(),
        _ => size_of::<T>(),
    };
    let stride = size.next_multiple_of(WORD).max(WORD);
    let used = stride / WORD * values.len();
    let mut words = vec![0u64; used + 1];
    words[used] = GUARD;
    for (value, to) in values.iter().zip(words.chunks_exact_mut(stride / WORD)) {
        let (len, to) = (to.len(), to.as_mut_ptr());
        // SAFETY: source and destination have at least the copied number of bytes. Padding of a struct is never read.
        unsafe {
            (&raw const *value).cast::<u8>().copy_to_nonoverlapping(to.cast(), stride.min(size_of::<T>()));
            to.write(u64::from(crate::LGRECO_HEADER_REVISION) << 16 | size as u64);
        }
        for _ in 0..bytes.below(8) / 6 {
            let at = 1 + usize::from(bytes.next()) % len.max(2);
            let word = match bytes.below(16) {
                kind @ 0..12 => WORDS[usize::from(kind)],
                _ => u64::from(bytes.next()),
            };
            if at >= len || kept.contains(&(at * WORD)) {
                continue;
            }
            // SAFETY: the address is within the struct.
            let to = unsafe { to.add(at) };
            match bytes.below(2) {
                // Overwrites half of a word, because a word may hold two numbers.
                // SAFETY: as above.
                0 => unsafe { to.cast::<u32>().write(word as u32) },
                // SAFETY: as above.
                _ => unsafe { to.write(word) },
            }
        }
    }
    CallerStructs { words, used, null: bytes.below(32) == 31 }
}

impl CallerStructs {
    pub(super) fn pointer<T>(&self) -> *const T {
        if self.null { core::ptr::null() } else { self.words.as_ptr().cast() }
    }

    pub(super) fn place<T>(&mut self) -> *mut T {
        if self.null { core::ptr::null_mut() } else { self.words.as_mut_ptr().cast() }
    }

    /// Asserts that no call has written behind the structs.
    pub(super) fn check_guard(&self) {
        assert_eq!(self.words[self.used], GUARD, "a call wrote behind the structs");
    }
}

/// An array with its exact length allocated, so that sanitizers detect accesses beyond it.
pub(super) struct Buffer<T> {
    values: Vec<T>,
}

impl<T: Clone + Default> Buffer<T> {
    pub(super) fn of(values: Vec<T>) -> Buffer<T> {
        Buffer { values }
    }

    pub(super) fn new(len: usize) -> Buffer<T> {
        Buffer { values: vec![T::default(); len] }
    }

    /// Returns the pointer, or NULL one time in 16.
    pub(super) fn place(&mut self, bytes: &mut Bytes) -> *mut T {
        if bytes.below(16) == 15 { core::ptr::null_mut() } else { self.values.as_mut_ptr() }
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }

    pub(super) fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

/// Values of a layer in one of the element types. Values of an unknown type are f32.
pub(super) struct Values {
    wide: Vec<f32>,
    narrow: Vec<u16>,
}

impl Values {
    pub(super) fn new(bytes: &mut Bytes, elements: usize, dtype: u32) -> Values {
        match dtype {
            1 | 2 => {
                let narrow = |byte: u8| match byte {
                    // 254 gives NaN in both 16-bit types. 255 gives infinity in bf16 and NaN in f16.
                    254 => 0x7fc0,
                    255 => 0x7f80,
                    byte => u16::from(byte) << 7 & 0x3fff | u16::from(byte & 1) << 15,
                };
                Values { wide: vec![], narrow: (0..elements).map(|_| narrow(bytes.next())).collect() }
            }
            _ => Values { wide: (0..elements).map(|_| bytes.value()).collect(), narrow: vec![] },
        }
    }

    pub(super) fn place(&mut self, bytes: &mut Bytes) -> *mut c_void {
        let place: *mut c_void = match self.narrow.is_empty() {
            true => self.wide.as_mut_ptr().cast(),
            false => self.narrow.as_mut_ptr().cast(),
        };
        bytes.maybe_mut(place)
    }

    /// Whether all values are finite in the type `dtype`.
    pub(super) fn are_finite(&self, dtype: u32) -> bool {
        let exponent = if dtype == 1 { 0x7c00 } else { 0x7f80 };
        self.wide.iter().all(|x| x.is_finite()) && self.narrow.iter().all(|x| x & exponent != exponent)
    }
}
