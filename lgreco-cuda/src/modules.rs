//! Modules that are loaded into a context. Loading takes long, because the driver links the code. NVIDIA's sanitizer,
//! if used, also patches the code. So all backends of a context share the modules.

use crate::Result;
use crate::kernels::Module;
use crate::libcuda::Cuda;
use cudarc::driver::sys;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The modules of one context. The context exists as long as a backend holds these modules.
pub(crate) struct Modules {
    loaded: Mutex<HashMap<Module, sys::CUmodule>>,
}

// SAFETY: any thread may use the driver's handles while their context is current.
unsafe impl Send for Modules {}
// SAFETY: as for `Send`.
unsafe impl Sync for Modules {}

/// The addresses of contexts, and the modules of each context while a backend holds them. A later context may have the
/// same address as an earlier one. A reused address is safe, because no backend holds the earlier context's modules by
/// then.
static OF_CONTEXTS: Mutex<Vec<(usize, Weak<Modules>)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// Returns the modules of a context. The context must exist until the modules are [given back](Modules::give_back).
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

    /// Returns a module, which `load` loads on first use. The context must be current.
    pub(crate) fn get(&self, module: Module, load: impl FnOnce() -> Result<sys::CUmodule>) -> Result<sys::CUmodule> {
        let mut loaded = locked(&self.loaded);
        if let Some(&handle) = loaded.get(&module) {
            return Ok(handle);
        }
        let handle = load()?;
        loaded.insert(module, handle);
        Ok(handle)
    }

    /// Unloads the modules unless another backend holds them. The context must be current, and none of the caller's
    /// kernels may still be enqueued. Errors are ignored, because callers could not handle them.
    pub(crate) fn give_back(self: Arc<Self>, cuda: &Cuda) {
        let Some(mut last) = Arc::into_inner(self) else { return };
        for (_, module) in last.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).drain() {
            // SAFETY: `get` loaded the module, and no backend uses the module any more.
            let _ = unsafe { cuda.cuModuleUnload(module) };
        }
    }

    /// Leaves the modules loaded for the lifetime of the context. No later backend gets these modules, because it is
    /// unknown how long the context exists.
    pub(crate) fn leave(self: Arc<Self>) {
        locked(&OF_CONTEXTS).retain(|(_, modules)| modules.as_ptr() != Arc::as_ptr(&self));
        std::mem::forget(self);
    }
}
