//! Handles: the memory behind a caller's opaque pointers, and how calls access this memory.

use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::message;
use crate::status::{LGRECO_OK, lgreco_status};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An opaque C type, and the state behind it.
pub(crate) trait Kind {
    /// Name of the type, for messages.
    const WHAT: &'static str;
    /// The first bytes of every handle of this kind. The tag distinguishes the handle from handles of other kinds.
    const TAG: [u8; 8];
    type State;
    /// Name of the handle's layer for messages, if the handle has one layer.
    fn layer(state: &Self::State) -> Option<&str> {
        let _ = state;
        None
    }
    /// Names of the layers for messages. Errors hold indices into this list.
    fn names(state: &Self::State) -> &[String] {
        let _ = state;
        &[]
    }
    /// The handle's device, if the device may be a GPU. A GPU's backend may have a more precise text for a failure.
    fn device(state: &Self::State) -> Option<&Device> {
        let _ = state;
        None
    }
}

/// Implements [`Kind`] for an opaque type. Takes the type's name, tag and state. Optionally also takes the fields of
/// the state that `layer`, `names` and `device` return.
macro_rules! kind {
    (
        $kind:ident, $what:literal, $tag:literal, $state:ty
        $(, layer: $layer:ident)? $(, names: $names:ident)? $(, device: $device:ident)?
    ) => {
        impl $crate::handle::Kind for $kind {
            const WHAT: &'static str = $what;
            const TAG: [u8; 8] = *$tag;
            type State = $state;
            $(fn layer(state: &$state) -> Option<&str> {
                Some(&state.$layer)
            })?
            $(fn names(state: &$state) -> &[String] {
                &state.$names
            })?
            $(fn device(state: &$state) -> Option<&$crate::device::Device> {
                Some(&state.$device)
            })?
        }
    };
}
pub(crate) use kind;

/// A kind of handle whose state never changes. Any number of calls may read it at the same time.
pub(crate) trait Immutable: Kind<State: Sync> {}

const FREE: u8 = 0;
const BUSY: u8 = 1;
const PANICKED: u8 = 2;

#[repr(C)]
struct Handle<S> {
    tag: [u8; 8],
    lock: AtomicU8,
    state: UnsafeCell<S>,
}

/// A new handle, to be freed by [`destroy`].
pub(crate) fn new<K: Kind>(state: K::State) -> *mut K {
    let handle = Handle { tag: K::TAG, lock: AtomicU8::new(FREE), state: UnsafeCell::new(state) };
    Box::into_raw(Box::new(handle)).cast()
}

/// # Safety
/// `pointer` is null, or points to a live handle of any kind.
unsafe fn checked<'a, K: Kind>(pointer: *const K) -> Result<&'a Handle<K::State>> {
    let handle = pointer.cast::<Handle<K::State>>();
    if handle.is_null() {
        return Err(Failure::Null(K::WHAT));
    }
    // A handle of another kind may be smaller, but its tag has the same offset. SAFETY: a live handle begins with its
    // tag.
    if !handle.is_aligned() || unsafe { handle.cast::<[u8; 8]>().read() } != K::TAG {
        return Err(Failure::Handle(K::WHAT));
    }
    // SAFETY: only `new::<K>` makes handles with this tag, and the caller promises that the handle is live.
    Ok(unsafe { &*handle })
}

/// The state of a handle that never changes.
///
/// # Safety
/// `pointer` is null, or points to a handle of any kind that is live during `'a`.
pub(crate) unsafe fn shared<'a, K: Immutable>(pointer: *const K) -> Result<&'a K::State> {
    // SAFETY: the caller meets the safety requirements of this function.
    let handle = unsafe { checked(pointer) }?;
    // SAFETY: nobody writes the state of an immutable kind.
    Ok(unsafe { &*handle.state.get() })
}

/// Takes a handle's lock. Fails while another call holds the lock, and after a panic.
fn lock(lock: &AtomicU8) -> Result<()> {
    match lock.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(BUSY) => Err(Failure::Busy),
        Err(_) => Err(Failure::Panicked),
    }
}

/// The handle, with its lock taken.
///
/// # Safety
/// The requirements of [`checked`] apply.
unsafe fn locked<'a, K: Kind>(pointer: *const K) -> Result<&'a Handle<K::State>> {
    // SAFETY: the caller meets the safety requirements of this function.
    let handle = unsafe { checked(pointer) }?;
    lock(&handle.lock)?;
    Ok(handle)
}

/// Runs `call` on the state of a handle. If `call` fails, the failure's text, with the layer's name, becomes the
/// thread's message.
///
/// # Safety
/// `pointer` is null, or points to a handle of any kind that is live until the call returns.
pub(crate) unsafe fn call<K: Kind>(pointer: *mut K, call: impl FnOnce(&mut K::State) -> Result<()>) -> lgreco_status {
    // SAFETY: the caller meets the safety requirements of this function.
    let handle = match unsafe { locked(pointer) } {
        Ok(handle) => handle,
        Err(failure) => return message::failed(&failure),
    };
    // SAFETY: the lock was free, so no other call uses the state.
    let state = unsafe { &mut *handle.state.get() };
    let (status, next) = match catch_unwind(AssertUnwindSafe(|| call(state))) {
        Ok(Ok(())) => (LGRECO_OK, FREE),
        Ok(Err(failure)) => {
            let failure = match K::device(state) {
                Some(device) => device.in_its_words(failure),
                None => failure,
            };
            let failure = failure.with_name(K::names(state));
            match K::layer(state).filter(|_| !failure.is_of_device()) {
                Some(name) => message::say(format_args!("layer `{name}`: {failure}")),
                None => message::say(format_args!("{failure}")),
            }
            (failure.status(), FREE)
        }
        Err(panic) => (message::panicked(&*panic), PANICKED),
    };
    handle.lock.store(next, Ordering::Release);
    status
}

/// Unlocks a handle when dropped. If the call has panicked, later calls refuse the handle.
struct Lock<'a>(&'a AtomicU8);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.0.store(if std::thread::panicking() { PANICKED } else { FREE }, Ordering::Release);
    }
}

/// Runs `work` on the state of a second handle, inside a [`call`] on the first handle. The outer call returns the
/// errors of `work`.
///
/// # Safety
/// The requirements of [`call`] apply.
pub(crate) unsafe fn with<K: Kind, T>(pointer: *mut K, work: impl FnOnce(&mut K::State) -> Result<T>) -> Result<T> {
    // SAFETY: the caller meets the safety requirements of this function.
    let handle = unsafe { checked(pointer) }?;
    lock(&handle.lock)?;
    let _lock = Lock(&handle.lock);
    // SAFETY: the lock was free, so no other call uses the state.
    work(unsafe { &mut *handle.state.get() })
}

/// Sets the caller's pointer for a new handle to NULL, and returns a reference to it.
///
/// # Safety
/// `place` is null, misaligned, or valid for writes during `'a`.
unsafe fn emptied<'a, N: Kind>(place: *mut *mut N) -> Result<&'a mut *mut N> {
    // SAFETY: the caller meets the safety requirements of this function.
    Ok(unsafe { crate::pointers::place(place, N::WHAT) }?.write(core::ptr::null_mut()))
}

/// Creates a handle with the state that `make` returns. After a failure, `*place` is NULL.
///
/// # Safety
/// `place` is null, misaligned, or valid for writes.
pub(crate) unsafe fn create<N: Kind>(place: *mut *mut N, make: impl FnOnce() -> Result<N::State>) -> lgreco_status {
    call_without_handle(|| {
        // SAFETY: the caller meets the safety requirements of this function.
        let place = unsafe { emptied(place) }?;
        *place = new::<N>(make()?);
        Ok(())
    })
}

/// Like [`create`], but `make` uses the state of the existing handle `pointer`. That handle is locked during the call.
/// If `make` returns `None`, `*place` is NULL.
///
/// # Safety
/// `pointer` meets the requirements of [`call`], and `place` those of [`create`].
pub(crate) unsafe fn create_on<K: Kind, N: Kind, M: Into<Option<N::State>>>(
    pointer: *mut K,
    place: *mut *mut N,
    make: impl FnOnce(&mut K::State) -> Result<M>,
) -> lgreco_status {
    // SAFETY: the caller meets the safety requirements of this function, and `place` stays valid.
    unsafe {
        let place = emptied(place);
        call(pointer, |state| {
            let place = place?;
            if let Some(state) = make(state)?.into() {
                *place = new::<N>(state);
            }
            Ok(())
        })
    }
}

/// Runs a call that changes no handle.
pub(crate) fn call_without_handle(call: impl FnOnce() -> Result<()>) -> lgreco_status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => LGRECO_OK,
        Ok(Err(failure)) => message::failed(&failure),
        Err(panic) => message::panicked(&*panic),
    }
}

/// Frees a handle and sets the caller's pointer to null. A handle in use is not freed.
///
/// # Safety `place` is null or valid for reads and writes. The memory at `place` holds null, or a live handle of any
/// kind.
pub(crate) unsafe fn destroy<K: Kind>(place: *mut *mut K) -> lgreco_status {
    // SAFETY: the caller meets the safety requirements of this function.
    call_without_handle(|| match unsafe { take(place, |_| Ok(())) } {
        Ok(_) | Err(Failure::Panicked) => Ok(()),
        Err(failure) => Err(failure),
    })
}

/// Takes the state of a handle if `may` allows it, frees the handle and sets the caller's pointer to null. Returns
/// `None` if `place` or the caller's pointer is null. A handle in use is not freed. After a panic, the state is freed
/// too.
///
/// # Safety
/// The requirements of [`destroy`] apply.
pub(crate) unsafe fn take<K: Kind>(
    place: *mut *mut K,
    may: impl FnOnce(&K::State) -> Result<()>,
) -> Result<Option<K::State>> {
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: `place` is not null, and the caller promises that it is valid.
    let place = unsafe { crate::pointers::place(place, "handle")?.assume_init_mut() };
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller meets the safety requirements of this function.
    let handle = unsafe { checked(*place) }?;
    let found = match handle.lock.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Acquire) {
        Err(BUSY) => return Err(Failure::Busy),
        Ok(found) | Err(found) => found,
    };
    // SAFETY: no call uses the state, because the lock was free, or because a panic has closed the handle.
    if let Err(failure) = may(unsafe { &*handle.state.get() }) {
        handle.lock.store(found, Ordering::Release);
        return Err(failure);
    }
    let handle = place.cast::<Handle<K::State>>();
    // SAFETY: `new` boxed the handle, and no call is using it. The volatile write clears the tag: until the memory is
    // reused, calls refuse copies of the pointer. The compiler would remove a plain write.
    let handle = unsafe {
        (&raw mut (*handle).tag).write_volatile([0; 8]);
        Box::from_raw(handle)
    };
    *place = core::ptr::null_mut();
    match found {
        FREE => Ok(Some(handle.state.into_inner())),
        _ => Err(Failure::Panicked),
    }
}

#[cfg(test)]
mod tests;
