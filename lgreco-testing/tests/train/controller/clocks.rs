//! Runs under measured seconds in which a rank's clock jumps, as a system's clock does when it is set.

use super::*;
use lgreco_train::exchange::Request;
use std::cell::Cell;

std::thread_local! {
    static NOW: Cell<f64> = const { Cell::new(0.0) };
}

fn perform(request: Request<'_>, worker: &mut ThreadCollective) {
    request.perform(worker).unwrap();
    NOW.set(NOW.get() + 1e-3);
}

/// Takes a step in one bucket. The clock jumps by `jump` seconds during the exchange.
fn step(controller: &mut Controller, worker: &mut ThreadCollective, jump: f64) -> Report {
    controller.begin_step(0.1).unwrap();
    while let Some(request) = controller.control().unwrap() {
        perform(request, worker);
        NOW.set(NOW.get() + jump);
    }
    let step = controller.steps() as u32;
    let mut gradient = noise(0, worker.rank(), step, 64 * 64);
    let mut bucket = controller.open(&[0]).unwrap();
    let values = &mut [ValuesMut::F32(&mut gradient)];
    bucket.submit(values).unwrap();
    NOW.set(NOW.get() + jump);
    while let Some(request) = bucket.next(values).unwrap() {
        perform(request, worker);
    }
    controller.close(bucket).unwrap();
    controller.finish_step().unwrap()
}

/// After the jump, decisions continue, and a saved state can be loaded.
#[test]
fn a_clock_that_jumps_stops_no_decision() {
    for (jumping, jump) in [(0, -3600.0), (0, 1.7e9), (1, -1e7), (1, 1.7e9), (0, f64::NAN)] {
        let switched = on_all(2, |mut worker| {
            NOW.set(100.0);
            let mut config = config(Method::TopK, LGRECO);
            config.objective = Objective::MeasuredSeconds;
            config.clock = Some(|| NOW.get());
            config.schedule = Schedule { warmup: 2, period: 1, window: 1, lead: 0 };
            let [rank, world] = [worker.rank(), worker.world_size()];
            let new = || {
                let tensors = vec![Tensor::new("weight", &[64, 64], Dtype::F32).unwrap()];
                Controller::new(config.clone(), tensors, rank, world).unwrap()
            };
            let mut controller = new();
            let mut continued = new();
            let mut switched = 0;
            for at in 0..8 {
                let jump = if worker.rank() == jumping && [1, 4].contains(&at) { jump } else { 0.0 };
                switched += u32::from(step(&mut controller, &mut worker, jump).switched);
                let saved = controller.save().unwrap();
                continued.load(&[&saved], &[&saved]).unwrap();
            }
            switched
        });
        assert_eq!(switched, 6, "{jump} on rank {jumping}");
    }
}
