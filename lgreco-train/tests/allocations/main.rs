//! Tests how much memory a controller allocates, and when.

mod held;
#[cfg(feature = "std")] // for ranks on threads
mod nodes;

use lgreco_train::compress::{Setting, powersgd::PowerSgd, topk::TopK};
#[cfg(feature = "std")]
use lgreco_train::controller::two_level::{Topology, TwoLevel};
use lgreco_train::controller::{Config, Controller, Policy, Tensor};
#[cfg(feature = "std")]
use lgreco_train::exchange::threads;
use lgreco_train::exchange::{Collective, CollectiveError};
#[cfg(feature = "std")]
use lgreco_train::gradient::Bf16;
use lgreco_train::gradient::{Dtype, ValuesMut};
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Number of bytes that are allocated now, and the largest number so far.
    static HELD: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
    /// Allocations of this many bytes or more are refused.
    static REFUSED: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Counting;

// SAFETY: `alloc` returns null or passes the call on to the system's allocator; `dealloc` always passes the call on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        if layout.size() >= REFUSED.get() {
            return std::ptr::null_mut();
        }
        let [held, most] = HELD.get();
        let held = held.wrapping_add(layout.size());
        HELD.set([held, most.max(held)]);
        // SAFETY: the caller keeps the contract of this method, which is the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let [held, most] = HELD.get();
        HELD.set([held.wrapping_sub(layout.size()), most]);
        // SAFETY: the caller keeps the contract of this method, which is the contract of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A group of one worker that allocates nothing.
struct Alone;

impl Collective for Alone {
    fn rank(&self) -> u32 {
        0
    }
    fn world_size(&self) -> u32 {
        1
    }
    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }
    fn all_gather(&mut self, _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }
    fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }
    fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// Runs ten steps with decisions at steps 2, 5 and 8. Returns the steps that allocate memory.
fn allocating(method: Method) -> Result<Vec<usize>, Error> {
    let mut config = Config::new(Search::new(method));
    config.policy = Policy::LGreco { solver: Default::default(), accordion: None };
    (config.schedule.warmup, config.schedule.period, config.schedule.window) = (2, 3, 2);
    (config.bucket_bytes, config.metrics_every) = (20_000, 1);
    let layers = [("a", &[64, 32][..]), ("b", &[64]), ("c", &[40, 40])];
    let layers =
        layers.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32)).into_iter().collect::<Result<_, _>>()?;
    let mut controller = Controller::new(config, layers, 0, 1)?;
    let mut allocating = vec![];
    for step in 0..10 {
        let wave = |len: usize| (0..len).map(|i| ((i + step) as f32 * 0.7).sin()).collect::<Vec<f32>>();
        let (mut a, mut b, mut c) = (wave(64 * 32), wave(64), wave(1600));
        let before = ALLOCATIONS.get();
        controller.step(&mut Alone, &mut [&mut a[..], &mut b[..], &mut c[..]].map(ValuesMut::from), 0.1)?;
        if ALLOCATIONS.get() > before {
            allocating.push(step);
        }
    }
    Ok(allocating)
}

/// Begins a step. If `refused` is true, this rank's calls of `control` get no 4 KiB or more at a time.
#[cfg(feature = "std")]
fn agree(controller: &mut Controller, worker: &mut threads::ThreadCollective, refused: bool) -> Result<(), Error> {
    controller.begin_step(0.1)?;
    loop {
        REFUSED.set(if refused { 4096 } else { usize::MAX });
        let request = controller.control();
        REFUSED.set(usize::MAX);
        match request? {
            Some(request) => request.perform(worker)?,
            None => return Ok(()),
        }
    }
}

/// One rank has no memory for the residuals that a decision needs. All ranks get an error and nothing changes. After that rank has
/// memory, the step succeeds.
#[cfg(feature = "std")] // for ranks on threads
#[test]
fn no_memory_for_a_decision_is_told_to_all() {
    let results = threads::run(2, |mut worker| {
        let mut config = Config::new(Search::new(Method::TopK));
        config.policy = Policy::Fixed(vec![Setting::TopK(TopK { keep: 20, values: Dtype::F32 })]);
        config.schedule.warmup = 2;
        let layers = vec![Tensor::new("a", &[64, 32], Dtype::F32).expect("a layer")];
        let mut controller =
            Controller::new(config, layers, worker.rank(), worker.world_size()).expect("a sound configuration");
        let mut step = |refused: bool| -> Result<bool, Error> {
            // A residual takes 8 KiB.
            let is_refused = refused && worker.rank() == 1;
            agree(&mut controller, &mut worker, is_refused)?;
            let mut values: Vec<f32> = (0..64 * 32).map(|i| (i as f32 * 0.7).sin()).collect();
            let values = &mut [ValuesMut::F32(&mut values)];
            let mut bucket = controller.open(&[0])?;
            bucket.submit(values)?;
            while let Some(request) = bucket.next(values)? {
                request.perform(&mut worker)?;
            }
            controller.close(bucket)?;
            controller.finish_step().map(|report| report.switched)
        };
        [step(false), step(false), step(true), step(true), step(false), step(false)]
    });
    let none = Err(Error::Core(CoreError::OutOfMemory { words: 1024 }));
    assert_eq!(results[1], [Ok(false), Ok(false), none, none, Ok(true), Ok(false)]);
    let told = Err(Error::Peer { rank: 1, code: 7 });
    assert_eq!(results[0], [Ok(false), Ok(false), told, told, Ok(true), Ok(false)]);
}

/// One rank has no memory to compress gradients. All ranks get an error in the same step, and the next step succeeds. Memory is
/// refused only in `submit`, because `next` uses the memory of `submit`.
#[cfg(feature = "std")] // for ranks on threads
#[test]
fn no_memory_for_a_bucket_is_told_to_all() {
    let results = threads::run(2, |mut worker| {
        let mut config = Config::new(Search::new(Method::PowerSgd));
        config.policy = Policy::Fixed(vec![Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 })]);
        config.schedule.warmup = 2;
        let layers = vec![Tensor::new("a", &[64, 512], Dtype::F32).expect("a layer")];
        let mut controller =
            Controller::new(config, layers, worker.rank(), worker.world_size()).expect("a sound configuration");
        let mut step = |refused: bool| -> Result<bool, Error> {
            controller.begin_step(0.1)?;
            while let Some(request) = controller.control()? {
                request.perform(&mut worker)?;
            }
            let refuse = |now: bool| REFUSED.set(if now && worker.rank() == 1 { 4096 } else { usize::MAX });
            let mut values: Vec<f32> = (0..64 * 512).map(|i| (i as f32 * 0.7).sin()).collect();
            let values = &mut [ValuesMut::F32(&mut values)];
            let mut bucket = controller.open(&[0])?;
            refuse(refused);
            let submitted = bucket.submit(values);
            refuse(false);
            let exchanged = submitted.and_then(|()| {
                while let Some(request) = bucket.next(values)? {
                    request.perform(&mut worker)?;
                }
                Ok(())
            });
            controller.close(bucket)?;
            controller.finish_step()?;
            exchanged.map(|()| true)
        };
        [step(false), step(false), step(false), step(true), step(false)]
    });
    let own = results[1][3];
    assert!(matches!(own, Err(Error::Core(CoreError::OutOfMemory { .. }))), "{own:?}");
    assert_eq!(results[0][3], Err(Error::Peer { rank: 1, code: 7 }));
    assert!(results.iter().all(|steps| steps[4] == Ok(true)), "{results:?}");
}

/// The measuring rank has no memory for the gradients of the window. All ranks get an error in the same step, and the process does
/// not abort. The window begins in the next step.
#[cfg(feature = "std")] // for ranks on threads
#[test]
fn no_memory_for_the_window_is_told_to_all() {
    let results = threads::run(2, |mut worker| {
        let mut config = Config::new(Search::new(Method::TopK));
        config.policy = Policy::LGreco { solver: Default::default(), accordion: None };
        (config.schedule.warmup, config.schedule.window) = (3, 2);
        let layers = vec![Tensor::new("a", &[64, 32], Dtype::F32).expect("a layer")];
        let mut controller =
            Controller::new(config, layers, worker.rank(), worker.world_size()).expect("a sound configuration");
        let mut step = |refused: bool| -> Result<bool, Error> {
            // The window's mean takes 8 KiB.
            let is_refused = refused && worker.rank() == 0;
            agree(&mut controller, &mut worker, is_refused)?;
            let mut values: Vec<f32> = (0..64 * 32).map(|i| (i as f32 * 0.7).sin()).collect();
            let values = &mut [ValuesMut::F32(&mut values)];
            let mut bucket = controller.open(&[0])?;
            let exchanged = bucket.submit(values).and_then(|()| {
                while let Some(request) = bucket.next(values)? {
                    request.perform(&mut worker)?;
                }
                Ok(())
            });
            controller.close(bucket)?;
            let switched = controller.finish_step()?.switched;
            exchanged.map(|()| switched)
        };
        [step(false), step(true), step(false), step(false), step(false)]
    });
    let none = Err(Error::Core(CoreError::OutOfMemory { words: 1024 }));
    assert_eq!(results[0], [Ok(false), none, Ok(false), Ok(true), Ok(false)]);
    assert_eq!(results[1], [Ok(false), Err(Error::Peer { rank: 0, code: 7 }), Ok(false), Ok(true), Ok(false)]);
}

/// A group whose allocations are neither refused nor counted.
#[cfg(feature = "std")] // for ranks on threads
struct Unlimited<'a>(&'a mut threads::ThreadCollective);

#[cfg(feature = "std")]
impl Unlimited<'_> {
    fn call<T>(&mut self, call: impl FnOnce(&mut threads::ThreadCollective) -> T) -> T {
        let (refused, held) = (REFUSED.replace(usize::MAX), HELD.get());
        let result = call(self.0);
        REFUSED.set(refused);
        HELD.set(held);
        result
    }
}

#[cfg(feature = "std")]
impl Collective for Unlimited<'_> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn world_size(&self) -> u32 {
        self.0.world_size()
    }
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.call(|group| group.all_reduce_sum(values))
    }
    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.call(|group| group.all_reduce_sum_bf16(values))
    }
    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.call(|group| group.all_gather(buffer))
    }
    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.call(|group| group.all_gather_each(lens, buffer))
    }
    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.call(|group| group.broadcast(root, bytes))
    }
    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        self.call(|group| group.reduce_scatter_sum(lens, values))
    }
    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        self.call(|group| group.all_to_all(send, send_lens, received, received_lens))
    }
}

/// One rank has no memory in a blocking step of two levels, which has two buckets. At the first step, all ranks get an error.
/// Later steps need no memory except small lists.
#[cfg(feature = "std")] // for ranks on threads
#[test]
fn no_memory_for_a_step_of_two_levels_is_told_to_all() {
    let results = threads::run_nodes(2, 2, |mut node, mut peers| {
        let mut config = Config::new(Search::new(Method::TopK));
        config.policy = Policy::Uniform;
        (config.schedule.warmup, config.schedule.window, config.bucket_bytes) = (2, 1, 0);
        let layers = [("a", [64, 64]), ("b", [64, 128])];
        let layers = layers.map(|(name, dims)| Tensor::new(name, &dims, Dtype::F32).expect("a layer"));
        let place = Topology::of(&node, &peers);
        let mut training = TwoLevel::new(config, layers.into(), place).expect("a sound configuration");
        [true, false, false, false, true, true].map(|refused| {
            let mut values =
                [64 * 64, 64 * 128].map(|len| (0..len).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
            let mut gradients = values.each_mut().map(|values| ValuesMut::F32(values));
            REFUSED.set(if refused && place.rank() == 1 { 4096 } else { usize::MAX });
            let (mut node, mut peers) = (Unlimited(&mut node), Unlimited(&mut peers));
            let result = training.step(&mut node, &mut peers, &mut gradients, 0.1);
            REFUSED.set(usize::MAX);
            result.map(|report| report.step)
        })
    });
    for (rank, [first, others @ ..]) in results.iter().enumerate() {
        match rank {
            1 => assert!(matches!(first, Err(Error::Core(CoreError::OutOfMemory { .. }))), "{first:?}"),
            _ => assert_eq!(*first, Err(Error::Peer { rank: 1, code: 7 }), "rank {rank}"),
        }
        assert_eq!(*others, [0, 1, 2, 3, 4].map(Ok), "rank {rank}");
    }
}

/// Creating a controller fails if there is too little memory for the messages of 65536 workers.
#[test]
fn no_memory_for_a_controller_is_an_error() {
    struct Many;
    impl Collective for Many {
        fn rank(&self) -> u32 {
            0
        }
        fn world_size(&self) -> u32 {
            1 << 16
        }
        fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
            Ok(())
        }
        fn all_gather(&mut self, _: &mut [u8]) -> Result<(), CollectiveError> {
            Ok(())
        }
        fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
            Ok(())
        }
        fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
            Ok(())
        }
    }
    // The model has no layers, so that nothing else needs much memory.
    let new = |limit| {
        let config = Config::new(Search::new(Method::TopK));
        REFUSED.set(limit);
        let made = Controller::new(config, vec![], Many.rank(), Many.world_size()).map(drop);
        REFUSED.set(usize::MAX);
        made
    };
    assert_eq!(new(usize::MAX), Ok(()));
    for limit in [1 << 16, 1 << 20] {
        assert!(matches!(new(limit), Err(Error::Core(CoreError::OutOfMemory { .. }))), "{limit}");
    }
}

#[test]
fn steps_between_decisions_allocate_nothing() {
    // Only decisions (steps 2, 5 and 8) and the first step of each window (0, 3, 6 and 9) allocate.
    for method in [Method::Qsgd, Method::TopK] {
        assert_eq!(allocating(method), Ok(vec![0, 2, 3, 5, 6, 8, 9]), "{method:?}");
    }
}

/// This test runs only without the feature `gemm`, whose matrix products allocate.
#[cfg(not(feature = "gemm"))]
#[test]
fn nor_do_those_of_powersgd() {
    for method in [Method::PowerSgd, Method::Hybrid] {
        assert_eq!(allocating(method), Ok(vec![0, 2, 3, 5, 6, 8, 9]), "{method:?}");
    }
}
