//! Loading a saved state from `tests/golden` restores exactly the steps, settings and residuals that the controller had
//! when it was saved. The `.txt` file beside each state lists steps, settings and residuals, with the bits of residuals
//! as hex digits.
//!
//! With `LGRECO_BLESS=1`, the test writes missing states.

use super::*;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::feedback::Storage;
use std::fs;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/v0.1");
const STATES: [(&str, Storage); 3] =
    [("state-f32", Storage::F32), ("state-bf16", Storage::Bf16), ("state-int8", Storage::Int8)];

/// The controller of rank 0 of two, with a residual in each layer and PowerSGD in the last one.
fn controller(storage: Storage, worker: &ThreadCollective) -> Controller {
    let settings = vec![
        Setting::TopK(TopK { keep: 20, values: Dtype::F32 }),
        Setting::Qsgd(Qsgd { bits: 2, bucket: 8, ..Qsgd::default() }),
        Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 }),
    ];
    let mut config = config(Method::TopK, Policy::Fixed(settings));
    config.feedback = Feedback::always(Residual { storage, ..Residual::CLASSIC });
    Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap()
}

fn facts(controller: &Controller) -> String {
    let mut facts = format!("steps {}\n", controller.steps());
    for (layer, tensor) in controller.tensors().iter().enumerate() {
        facts += &format!("layer {} setting {}\nresidual", tensor.name(), controller.setting(layer));
        residual(controller, layer).iter().for_each(|x| facts += &format!(" {:08x}", x.to_bits()));
        facts.push('\n');
    }
    facts
}

fn bless(state: &Path, storage: Storage) {
    let saved = threads::run(2, |mut worker| {
        let mut controller = controller(storage, &worker);
        (0..5).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        (controller.save().unwrap(), facts(&controller))
    });
    fs::write(state, &saved[0].0).unwrap();
    fs::write(state.with_extension("txt"), &saved[0].1).unwrap();
}

#[test]
fn states_are_read_as_they_always_were() {
    for (name, storage) in STATES {
        let path = Path::new(FOLDER).join(name).with_extension("bin");
        if !path.exists() && std::env::var("LGRECO_BLESS").is_ok_and(|value| value == "1") {
            bless(&path, storage);
        }
        let saved = fs::read(&path).unwrap();
        let mut controller = controller(storage, &ThreadCollective::group(2)[0]);
        controller.load(&[&saved], &[&saved]).unwrap();
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        assert_eq!(facts(&controller), expected, "{name}");
        assert!(controller.save().unwrap() == saved, "{name}: saved again, the state is another");
    }
}
