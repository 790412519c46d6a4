//! With the feature `rayon`, compares steps on one core with steps on several.

use super::*;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::gradient::{Bf16, Element};

const SHAPE: [usize; 2] = [500, 400];

fn settings() -> Vec<Setting> {
    let topk = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
    let qsgd = |bucket| Setting::Qsgd(Qsgd { bucket, ..Qsgd::default() });
    let power = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
    let loco = Setting::LoCo(LoCo { group: 64 });
    vec![qsgd(512), topk(2000), power, qsgd(96), loco, topk(150_000), Setting::Dense, Setting::CltK(CltK { keep: 99 })]
}

/// Trains two ranks on `cores` cores each, with f32 and bf16 layers under all settings. Returns their means and saved
/// states.
fn train(cores: usize, metrics_every: u64) -> Vec<(Vec<u32>, Vec<u8>)> {
    threads::run(2, |mut worker| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().expect("threads");
        pool.install(|| {
            let settings = settings();
            let mut config = Config::new(Search::new(Method::TopK));
            config.policy = Policy::Fixed([settings.clone(), settings.clone()].concat());
            config.feedback = Feedback::always(Residual::CLASSIC);
            (config.schedule.warmup, config.metrics_every) = (2, metrics_every);
            let kinds = [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|dtype| settings.iter().map(move |_| dtype));
            let tensors: Vec<Tensor> =
                (0..).zip(kinds).map(|(i, dtype)| Tensor::new(&format!("{i}"), &SHAPE, dtype).unwrap()).collect();
            let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
            let mut bits = vec![];
            for step in 0..4 {
                let stream = |layer| Stream { seed: 5, step, layer, rank: worker.rank() };
                let values = |layer| noise::uniform(stream(layer), SHAPE[0] * SHAPE[1]);
                let half = settings.len() as u32;
                let mut wide: Vec<Vec<f32>> = (0..half).map(values).collect();
                let narrow = |layer| values(layer).into_iter().map(Bf16::from_f32).collect();
                let mut narrow: Vec<Vec<Bf16>> = (half..2 * half).map(narrow).collect();
                let mut gradients: Vec<ValuesMut<'_>> = wide.iter_mut().map(|values| ValuesMut::F32(values)).collect();
                gradients.extend(narrow.iter_mut().map(|values| ValuesMut::Bf16(values)));
                controller.step(&mut worker, &mut gradients, 0.1).unwrap();
                bits.extend(wide.iter().flatten().map(|x| x.to_bits()));
                bits.extend(narrow.iter().flatten().map(|x| u32::from(x.0)));
            }
            (bits, controller.save().unwrap())
        })
    })
}

#[test]
fn any_number_of_cores_makes_the_same_means_and_residuals() {
    for metrics_every in [0, 1] {
        let alone = train(1, metrics_every);
        assert!(alone[0].0 == alone[1].0, "ranks have the same means");
        let cores: &[usize] = if std::env::var_os("LGRECO_FULL").is_some() { &[2, 3, 5] } else { &[3] };
        for &cores in cores {
            assert!(train(cores, metrics_every) == alone, "{cores} cores");
        }
    }
}

/// Trains thirty short layers until the controller has decided. `spoil` may change the gradients of a step.
fn decide(cores: usize, spoil: impl Fn(u32, &mut [Vec<f32>])) -> Result<(Vec<Vec<f32>>, Vec<u8>), Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().expect("threads");
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = Config::new(search(Method::Qsgd));
    config.feedback = Feedback::always(Residual::CLASSIC);
    (config.schedule.warmup, config.schedule.window) = (2, 2);
    let tensors = (0..30).map(|i| Tensor::new(&format!("{i}"), &[60, 50], Dtype::F32).unwrap()).collect();
    let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size())?;
    let mut values = vec![];
    for step in 0..4 {
        values = (0..30).map(|layer| noise(layer, 0, step, 3000)).collect();
        spoil(step, &mut values);
        let mut gradients: Vec<_> = values.iter_mut().map(|values| ValuesMut::F32(values)).collect();
        pool.install(|| controller.step(&mut worker, &mut gradients, 0.1))?;
    }
    Ok((values, controller.save()?))
}

#[test]
fn any_number_of_cores_decides_alike() {
    let alone = decide(1, |_, _| {}).unwrap();
    for cores in [2, 3, 5] {
        assert!(decide(cores, |_, _| {}) == Ok(alone.clone()), "{cores} cores");
    }
}

/// If several layers are not finite, the error names the first one, with and without residuals.
#[test]
fn any_number_of_cores_names_the_first_layer_that_is_not_finite() {
    for bad in [0, 3] {
        let spoil = |step, values: &mut [Vec<f32>]| {
            if step == bad {
                [29, 21, 14].into_iter().for_each(|layer| values[layer][layer] = f32::INFINITY);
            }
        };
        let expected = Error::NonFiniteGradient { layer: 14, index: 14, value: f32::INFINITY };
        for cores in [1, 2, 3, 5] {
            assert_eq!(decide(cores, spoil).map(|_| ()), Err(expected), "{cores} cores");
        }
    }
}
