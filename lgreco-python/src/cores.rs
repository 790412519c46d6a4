//! Threads for compressors and plans.

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};

/// Those of this process: of one that has forked, a child has none, and would wait for them for ever.
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Does `work` without the interpreter's lock, as [`on_cores`].
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    fn run(py: Python<'_>, work: Work<'_>) {
        py.detach(|| run_on_cores(work));
    }
    erased(work, |work| run(py, work))
}

/// Work of any type, to be called once.
type Work<'a> = &'a mut (dyn FnMut() + Send);

/// What `work` returns, which `run` calls. What `run` is made of is compiled once, not for each work: wheels have a limit.
fn erased<T: Send>(work: impl FnOnce() -> T + Send, run: impl FnOnce(Work<'_>)) -> T {
    let (mut work, mut done) = (Some(work), None);
    run(&mut || done = work.take().map(|work| work()));
    done.expect("work is called")
}

/// Does `work` on as many threads as RAYON_NUM_THREADS or else OMP_NUM_THREADS says, which torchrun sets to 1 where it is
/// not set, or else on all cores; on the calling thread alone where none can be had. `work` must not take a lock: a thread
/// of the pool that holds it may take up this work meanwhile.
pub(crate) fn on_cores<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    erased(work, run_on_cores)
}

fn run_on_cores(work: Work<'_>) {
    match pool() {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

fn pool() -> Option<Arc<ThreadPool>> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.is_none() {
        let of = |name| env::var(name).ok()?.parse().ok().filter(|&threads| threads > 0);
        let threads = of("RAYON_NUM_THREADS").or_else(|| of("OMP_NUM_THREADS")).unwrap_or(0);
        *pool = ThreadPoolBuilder::new().num_threads(threads).build().ok().map(Arc::new);
    }
    pool.clone()
}

/// In a process that has just been forked: its threads are not there.
#[pyfunction]
pub(crate) fn after_fork() {
    let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Its end would wait for its threads.
    std::mem::forget(pool);
}
