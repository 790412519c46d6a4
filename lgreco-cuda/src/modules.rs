//! Modules that are loaded into a context. All backends of a context share them, because loading takes long: a driver links
//! the code, and a sanitizer patches all of it.

use crate::Result;
use crate::kernels::Module;
use crate::libcuda::Cuda;
use cudarc::driver::sys;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The modules of one context. While a backend has them, its context is there.
pub(crate) struct Modules {
    loaded: Mutex<HashMap<Module, sys::CUmodule>>,
}

// SAFETY: the driver's handles may be used from any thread, with their context current.
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

/// The address of a context, and its modules while any backend has them. A later context may have the same address: no
/// backend has the earlier one's modules then.
static OF_CONTEXTS: Mutex<Vec<(usize, Weak<Modules>)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// Those of a context, which is there until they are given [back](Modules::give_back).
    pub(crate) fn of(context: sys::CUcontext) -> Arc<Self> {
        let mut all = locked(&OF_CONTEXTS);
        all.retain(|(_, modules)| modules.strong_count() > 0);
        let known = all.iter().find(|(address, _)| *address == context.addr());
        if let Some(modules) = known.and_then(|(_, modules)| modules.upgrade()) {
            return modules;
        }
        let modules = Arc::new(Modules { loaded: Mutex::new(HashMap::new()) });
        all.push((context.addr(), Arc::downgrade(&modules)));
        modules
    }

    /// A module, by `load` if it is not loaded yet. The context is current.
    pub(crate) fn get(&self, module: Module, load: impl FnOnce() -> Result<sys::CUmodule>) -> Result<sys::CUmodule> {
        let mut loaded = locked(&self.loaded);
        if let Some(&handle) = loaded.get(&module) {
            return Ok(handle);
        }
        let handle = load()?;
        loaded.insert(module, handle);
        Ok(handle)
    }

    /// Unloads them if no other backend has them. The context is current, and none of the caller's kernels is enqueued any
    /// more. Nothing can be done about an error.
    pub(crate) fn give_back(self: Arc<Self>, cuda: &Cuda) {
        let Some(mut last) = Arc::into_inner(self) else { return };
        for (_, module) in last.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).drain() {
            // SAFETY: loaded by `get`, and used no more.
            let _ = unsafe { cuda.cuModuleUnload(module) };
        }
    }

    /// Leaves them loaded as long as the context is there. No later backend gets them: nobody knows how long that is.
    pub(crate) fn leave(self: Arc<Self>) {
        locked(&OF_CONTEXTS).retain(|(_, modules)| modules.as_ptr() != Arc::as_ptr(&self));
        std::mem::forget(self);
    }
}
