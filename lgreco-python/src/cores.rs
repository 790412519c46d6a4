//! Pools of threads for compressors and plans.

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};

/// This process's pool. A forked child process must not use the pool: the child lacks its threads, and would wait
/// forever.
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Runs `work` as [`on_cores`] does, without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    fn run(py: Python<'_>, work: Work<'_>) {
        py.detach(|| run_on_cores(work));
    }
    erased(work, |work| run(py, work))
}

/// The pool of one plan. Steps do not wait for the plan, because they work on [`POOL`]. The threads end when this value
/// is dropped.
pub(crate) struct PlanPool(Option<ThreadPool>);

impl PlanPool {
    /// Starts the same number of threads as the usual pool.
    pub(crate) fn new() -> PlanPool {
        PlanPool(new_pool("plan"))
    }

    /// Runs `work` on this pool. If no threads could be started, the calling thread runs `work`.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        erased(work, |work| run_on(self.0.as_ref(), work))
    }
}

/// A type-erased closure to be called once.
type Work<'a> = &'a mut (dyn FnMut() + Send);

/// Passes `work` to `run` and returns the result of `work`. With the erased type, `run` is compiled only once, because
/// the size of wheels is limited.
fn erased<T: Send>(work: impl FnOnce() -> T + Send, run: impl FnOnce(Work<'_>)) -> T {
    let (mut work, mut done) = (Some(work), None);
    run(&mut || done = work.take().map(|work| work()));
    done.expect("work is called")
}

/// Runs `work` on the pool. The number of threads is RAYON_NUM_THREADS, else OMP_NUM_THREADS, else the number of cores. torchrun
/// sets OMP_NUM_THREADS to 1 if it is not set. If no threads can be started, the calling thread runs `work` alone.
///
/// `work` must not take a lock. A pool thread that waits for other work may run `work` while it holds the same lock.
pub(crate) fn on_cores<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    erased(work, run_on_cores)
}

fn run_on_cores(work: Work<'_>) {
    run_on(pool().as_deref(), work);
}

fn run_on(pool: Option<&ThreadPool>, work: Work<'_>) {
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

fn pool() -> Option<Arc<ThreadPool>> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.is_none() {
        *pool = new_pool("step").map(Arc::new);
    }
    pool.clone()
}

/// A pool whose threads are named `lgreco-step-0` or `lgreco-plan-0` and so on.
fn new_pool(purpose: &'static str) -> Option<ThreadPool> {
    let of = |name| env::var(name).ok()?.parse().ok().filter(|&threads| threads > 0);
    let threads = of("RAYON_NUM_THREADS").or_else(|| of("OMP_NUM_THREADS")).unwrap_or(0);
    let named = move |thread| format!("lgreco-{purpose}-{thread}");
    ThreadPoolBuilder::new().num_threads(threads).thread_name(named).build().ok()
}

/// Forgets the pool in a forked child process, which does not have the pool's threads.
#[pyfunction]
pub(crate) fn after_fork() {
    let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Dropping the pool would wait for threads that the child does not have.
    std::mem::forget(pool);
}
