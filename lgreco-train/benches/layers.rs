//! Times creating, saving and loading a controller of 10,000 and of 100,000 layers. The time per layer should be the
//! same for both sizes.

use lgreco_train::controller::{Config, Controller, Loaded, Tensor};
use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::gradient::Dtype;
use lgreco_train::search::{Method, Search};
use std::time::Instant;

fn timed<T>(what: &str, layers: usize, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let made = work();
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:8}{layers:8} layers {seconds:8.3} s {:8.0} ns per layer", 1e9 * seconds / layers as f64);
    made
}

fn main() {
    for layers in [10_000, 100_000] {
        let worker = ThreadCollective::group(1).remove(0);
        let make = || {
            let tensor = |i| Tensor::new(&format!("blocks.{i}.weight"), &[4, 4], Dtype::F32).expect("a small tensor");
            let config = Config::new(Search::new(Method::TopK));
            Controller::new(config, (0..layers).map(tensor).collect(), worker.rank(), worker.world_size())
                .expect("names that differ")
        };
        let controller = timed("create", layers, make);
        let saved = timed("save", layers, || controller.save().expect("nothing has failed"));
        let mut other = make();
        let loaded = timed("load", layers, || other.load(&[&saved], &[&saved]).expect("what was saved"));
        assert_eq!(loaded, Loaded { rank: 0, world_size: 1, ..Loaded::default() });
        assert!(other.save().as_ref() == Ok(&saved), "what was loaded is not what was saved");
    }
}
