//! Pools of threads for compressors and plans.

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};

/// This process's pool. A forked child process does not have its threads, and would wait for them forever.
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Runs `work` as [`on_cores`] does, without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    fn run(py: Python<'_>, work: Work<'_>) {
        py.detach(|| run_on_cores(work));
    }
    erased(work, |work| run(py, work))
}

/// Like [`detached`], on a pool of its own, so that work on the usual pool does not wait for this work. The pool ends with it.
pub(crate) fn detached_aside<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    fn run(py: Python<'_>, work: Work<'_>) {
        py.detach(|| match new_pool() {
            Some(pool) => pool.install(work),
            None => work(),
        });
    }
    erased(work, |work| run(py, work))
}

/// A type-erased closure to be called once.
type Work<'a> = &'a mut (dyn FnMut() + Send);

/// Returns the result of `work`, which `run` calls. Type erasure compiles `run` once and not for each closure, because the size of
/// wheels is limited.
fn erased<T: Send>(work: impl FnOnce() -> T + Send, run: impl FnOnce(Work<'_>)) -> T {
    let (mut work, mut done) = (Some(work), None);
    run(&mut || done = work.take().map(|work| work()));
    done.expect("work is called")
}

/// Runs `work` on the pool. The number of threads is RAYON_NUM_THREADS, else OMP_NUM_THREADS, else the number of cores. torchrun
/// sets OMP_NUM_THREADS to 1 if it is not set. If no threads can be started, the calling thread runs `work` alone. `work` must not
/// take a lock. A thread of the pool that holds the lock may start this work while it waits.
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
        *pool = new_pool().map(Arc::new);
    }
    pool.clone()
}

fn new_pool() -> Option<ThreadPool> {
    let of = |name| env::var(name).ok()?.parse().ok().filter(|&threads| threads > 0);
    let threads = of("RAYON_NUM_THREADS").or_else(|| of("OMP_NUM_THREADS")).unwrap_or(0);
    ThreadPoolBuilder::new().num_threads(threads).build().ok()
}

/// Drops the pool in a process that was just forked and does not have its threads.
#[pyfunction]
pub(crate) fn after_fork() {
    let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Dropping the pool would wait for its threads.
    std::mem::forget(pool);
}
