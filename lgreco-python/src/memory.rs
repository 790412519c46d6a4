//! Gradients and means that are given by host address. This module, `device` and `window` contain the only unsafe code of
//! this crate.

use crate::error::LgrecoError;
use lgreco_train::gradient::{Bf16, Dtype, Element, F16, Values, ValuesMut};
use pyo3::PyResult;
use std::ptr::with_exposed_provenance_mut;
use std::slice::from_raw_parts_mut;

/// A gradient in memory that belongs to the caller.
#[derive(Clone, Copy, Debug)]
struct Place {
    address: usize,
    dtype: Dtype,
    elements: usize,
}

impl Place {
    fn end(&self) -> usize {
        self.address + self.elements * self.dtype.bytes()
    }

    /// # Safety
    /// For `'a`, `address` must point to `elements` values of this type that stay alive and that nothing else uses.
    unsafe fn values<'a>(&self) -> ValuesMut<'a> {
        let Place { address, dtype, elements } = *self;
        // SAFETY: `Gradients::new` has checked that the address is aligned and not null. The address of an empty
        // gradient is dangling. By the contract of this function, the memory is valid and unshared. F16 and Bf16 are
        // transparent over u16.
        unsafe {
            match dtype {
                Dtype::F32 => ValuesMut::F32(from_raw_parts_mut(with_exposed_provenance_mut(address), elements)),
                Dtype::F16 => ValuesMut::F16(from_raw_parts_mut(with_exposed_provenance_mut(address), elements)),
                Dtype::Bf16 => ValuesMut::Bf16(from_raw_parts_mut(with_exposed_provenance_mut(address), elements)),
            }
        }
    }
}

/// Gradients in flight, one per layer of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Gradients(Vec<Place>);

impl Gradients {
    /// Refuses null and unaligned addresses, and gradients that share memory.
    pub(crate) fn new(places: impl Iterator<Item = (usize, Dtype, usize)>) -> PyResult<Gradients> {
        let refused = |text: String| Err(LgrecoError::new_err(text));
        let mut all = Vec::with_capacity(places.size_hint().0);
        for (address, dtype, elements) in places {
            let bytes = dtype.bytes();
            if elements > 0 && (address == 0 || address % bytes != 0 || address.checked_add(elements * bytes).is_none())
            {
                return refused(format!("{address:#x} is not the address of {elements} values of {bytes} bytes"));
            }
            all.push(Place { address: if elements == 0 { bytes } else { address }, dtype, elements });
        }
        let mut sorted = all.clone();
        sorted.retain(|place| place.elements > 0);
        sorted.sort_unstable_by_key(|place| place.address);
        match sorted.windows(2).find(|pair| pair[0].end() > pair[1].address) {
            Some(pair) => {
                refused(format!("gradients at {:#x} and {:#x} share memory", pair[0].address, pair[1].address))
            }
            None => Ok(Gradients(all)),
        }
    }

    /// The memory of all gradients as address and number of bytes, if they are f32 and follow each other without gaps.
    pub(crate) fn in_one_piece(&self) -> Option<(usize, usize)> {
        let (first, bytes) = (self.0.first()?.address, |place: &Place| place.elements * place.dtype.bytes());
        let mut end = first;
        let follows = |place: &Place| {
            let follows = place.elements > 0 && place.dtype == Dtype::F32 && place.address == end;
            end += bytes(place);
            follows
        };
        self.0.iter().all(follows).then(|| (first, self.0.iter().map(bytes).sum()))
    }

    /// Runs `work` on the gradients.
    pub(crate) fn with<T>(&mut self, work: impl FnOnce(&mut [ValuesMut<'_>]) -> T) -> T {
        // SAFETY: by the contract of `Bucket.submit` and `Controller.forget_moved` (`_lgreco.pyi`), the caller keeps
        // the memory alive and unused until the bucket or the call is done. `Gradients::new` has refused places that
        // overlap, and `&mut self` excludes other references.
        let mut values: Vec<_> = self.0.iter().map(|place| unsafe { place.values() }).collect();
        work(&mut values)
    }

    /// Whether all values of a gradient are zero; NaN is not zero.
    pub(crate) fn is_zero(&mut self, index: usize) -> bool {
        fn zeros<T: Element>(values: &[T]) -> bool {
            values.iter().all(|x| x.to_f32() == 0.0)
        }
        self.with(|values| match values[index].values() {
            Values::F32(values) => zeros(values),
            Values::F16(values) => zeros::<F16>(values),
            Values::Bf16(values) => zeros::<Bf16>(values),
        })
    }
}
