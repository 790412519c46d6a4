use lgreco_testing::noise;
use lgreco_train::compress::Setting;
use lgreco_train::compress::topk::TopK;
use lgreco_train::controller::{Config, Policy, Report, Tensor};
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::gradient::Dtype;
use lgreco_train::outer::*;
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error, OptionValue};

mod saved;

const SHAPES: [[usize; 2]; 3] = [[40, 30], [64, 1], [20, 50]];
const PLAIN: Outer = Outer {
    every: 1,
    learning_rate: 1.0,
    momentum: 0.0,
    feedback_decay: 1.0,
    fragments: 1,
    joined: false,
    forget_moved: false,
};

fn tensors() -> Vec<Tensor> {
    let named = SHAPES.iter().zip(["fc1", "bias", "fc2"]);
    named.map(|(dims, name)| Tensor::new(name, dims, Dtype::F32).unwrap()).collect()
}

fn settings(keep: u32) -> Vec<Setting> {
    vec![Setting::TopK(TopK { keep, values: Dtype::F32 }); SHAPES.len()]
}

/// Without settings, all layers are uncompressed. With settings, layers are compressed from the first step on.
fn config(settings: Option<Vec<Setting>>) -> Config {
    let mut config = Config::new(Search::new(Method::TopK));
    config.policy = settings.map_or(Policy::Uncompressed, Policy::Fixed);
    config.metrics_every = 0;
    config
}

fn noise(layer: u32, rank: u32, step: u64, len: usize) -> Vec<f32> {
    noise::uniform(Stream { seed: 11, step: step as u32, layer, rank }, len)
}

fn start() -> Vec<Vec<f32>> {
    (0..).zip(SHAPES).map(|(layer, [rows, cols])| noise(layer, 99, 0, rows * cols)).collect()
}

fn views(parameters: &mut [Vec<f32>]) -> Vec<&mut [f32]> {
    parameters.iter_mut().map(|values| &mut values[..]).collect()
}

/// An inner step of a rank, on random gradients.
fn train(parameters: &mut [Vec<f32>], rank: u32, step: u64) {
    for (layer, values) in (0..).zip(parameters) {
        let noise = noise(layer, rank, step, values.len());
        values.iter_mut().zip(noise).for_each(|(x, noise)| *x -= 0.01 * noise);
    }
}

struct Rank {
    outer: OuterStep,
    joined: bool,
    parameters: Vec<Vec<f32>>,
}

impl Rank {
    fn new(outer: Outer, config: Config, worker: &mut ThreadCollective) -> Rank {
        let (mut parameters, joined) = (start(), outer.joined);
        let outer = OuterStep::new(outer, config, tensors(), &mut views(&mut parameters), worker).unwrap();
        Rank { outer, joined, parameters }
    }

    fn step(&mut self, worker: &mut ThreadCollective) -> Result<Option<Report>, Error> {
        train(&mut self.parameters, worker.rank(), self.outer.steps());
        self.outer.step(worker, &mut views(&mut self.parameters))
    }

    fn residuals(&self) -> Vec<Vec<f32>> {
        let mut all = vec![];
        for (layers, controller) in self.outer.fragments() {
            let lens = layers.map(|place| SHAPES[place].iter().product());
            let lens: Vec<usize> = if self.joined { vec![lens.sum()] } else { lens.collect() };
            for (layer, len) in lens.into_iter().enumerate() {
                let mut residual = vec![0.0; len];
                controller.residual(layer, &mut residual).unwrap();
                all.push(residual);
            }
        }
        all
    }
}

/// The values of all ranks after `steps` steps, from the equations in f64, without the library's feedback.
fn by_equations(outer: &Outer, world: u32, keep: Option<usize>, steps: u64) -> Vec<f64> {
    let wide = |values: Vec<Vec<f32>>| -> Vec<f64> { values.concat().into_iter().map(f64::from).collect() };
    let mut shared = wide(start());
    let lens = SHAPES.map(|[rows, cols]| rows * cols);
    let selected: &[usize] = if outer.joined { &[shared.len()] } else { &lens };
    let mut velocity = vec![0.0; shared.len()];
    let mut residuals = vec![velocity.clone(); world as usize];
    let [eta, mu, beta] = [outer.learning_rate, outer.momentum, outer.feedback_decay].map(f64::from);
    for round in 0..steps / outer.every {
        let mut mean = vec![0.0; shared.len()];
        for (rank, residual) in (0..).zip(&mut residuals) {
            for step in round * outer.every..(round + 1) * outer.every {
                let noise = wide((0..).zip(lens).map(|(layer, len)| noise(layer, rank, step, len)).collect());
                residual.iter_mut().zip(noise).for_each(|(e, noise)| *e += 0.01 * noise);
            }
            let mut first = 0;
            for len in selected {
                let mut order: Vec<usize> = (first..first + len).collect();
                order.sort_by(|&i, &j| residual[j].abs().total_cmp(&residual[i].abs()));
                for &i in &order[..keep.unwrap_or(*len)] {
                    mean[i] += residual[i] / f64::from(world);
                    residual[i] = 0.0;
                }
                first += len;
            }
            residual.iter_mut().for_each(|e| *e *= beta);
        }
        if outer.forget_moved {
            for (place, _) in mean.iter().enumerate().filter(|(_, mean)| **mean != 0.0) {
                residuals.iter_mut().for_each(|residual| residual[place] = 0.0);
            }
        }
        for ((x, v), mean) in shared.iter_mut().zip(&mut velocity).zip(mean) {
            *v = mu * *v + mean;
            *x -= eta * (mean + mu * *v);
        }
    }
    shared
}

#[test]
fn outer_steps_are_those_of_the_equations() {
    for (outer, keep) in [
        (PLAIN, None),
        (Outer { every: 3, ..Outer::default() }, None),
        (Outer { every: 3, ..Outer::default() }, Some(8)),
        (Outer { every: 2, momentum: 0.9, feedback_decay: 0.5, ..Outer::default() }, Some(8)),
        (Outer { every: 3, joined: true, ..Outer::default() }, None),
        (Outer { every: 2, momentum: 0.9, feedback_decay: 0.5, joined: true, ..Outer::default() }, Some(24)),
        (Outer { every: 1, forget_moved: true, ..Outer::default() }, Some(40)),
        (Outer { every: 2, forget_moved: true, joined: true, ..Outer::default() }, Some(700)),
        (Outer { every: 2, feedback_decay: 1.0, forget_moved: true, ..Outer::default() }, Some(60)),
    ] {
        let expected = by_equations(&outer, 3, keep, 12);
        let found = threads::run(3, |mut worker| {
            let settings = keep.map(|keep| match outer.joined {
                true => settings(keep as u32)[..1].to_vec(),
                false => settings(keep as u32),
            });
            let mut rank = Rank::new(outer, config(settings), &mut worker);
            (0..12).for_each(|_| {
                rank.step(&mut worker).unwrap();
            });
            rank.parameters
        });
        assert!(found.iter().all(|parameters| *parameters == found[0]), "ranks differ");
        for (found, expected) in found[0].iter().flatten().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found}, not {expected}: {outer:?} {keep:?}");
        }
    }
}

#[test]
fn ranks_begin_with_those_of_the_first() {
    let all = threads::run(2, |mut worker| {
        let mut parameters = start();
        parameters[1].fill(worker.rank() as f32);
        OuterStep::new(PLAIN, config(None), tensors(), &mut views(&mut parameters), &mut worker).unwrap();
        parameters
    });
    assert!(all[0] == all[1] && all[0][1][0] == 0.0);
}

#[test]
fn fragments_take_turns() {
    threads::run(2, |mut worker| {
        let outer = Outer { every: 5, fragments: 3, ..Outer::default() };
        let mut rank = Rank::new(outer, config(Some(settings(8))), &mut worker);
        let parts: Vec<_> = rank.outer.fragments().map(|(layers, _)| layers).collect();
        assert_eq!(parts, [0..1, 1..2, 2..3]);
        for step in 1..=15 {
            let before = rank.parameters.clone();
            train(&mut rank.parameters, worker.rank(), step);
            let trained = rank.parameters.clone();
            let report = rank.outer.step(&mut worker, &mut views(&mut rank.parameters)).unwrap();
            let moved: Vec<usize> = (0..3).filter(|&layer| rank.parameters[layer] != trained[layer]).collect();
            let turn = match step % 5 {
                0 => vec![0],
                4 => vec![1],
                2 => vec![2],
                _ => vec![],
            };
            assert_eq!((report.is_some(), moved), (!turn.is_empty(), turn), "step {step}");
            assert!(before != trained);
        }
    });
}

#[test]
fn joined_layers_have_a_controller_and_a_setting_per_fragment() {
    let outer = Outer { every: 4, fragments: 2, joined: true, ..Outer::default() };
    let told = vec![settings(8)[0], settings(5)[0]];
    let mut worker = ThreadCollective::group(1).remove(0);
    let rank = Rank::new(outer, config(Some(told.clone())), &mut worker);
    let layers: Vec<_> = rank.outer.fragments().map(|(layers, _)| layers).collect();
    assert_eq!(layers, [0..1, 1..3]);
    for ((_, controller), setting) in rank.outer.fragments().zip(&told) {
        assert_eq!(controller.setting(0), *setting);
    }
    let mut parameters = start();
    let refused = OuterStep::new(outer, config(Some(settings(8))), tensors(), &mut views(&mut parameters), &mut worker);
    assert!(refused.is_err(), "a setting per layer");
}

#[test]
fn what_is_not_finite_on_one_rank_fails_on_all_and_changes_nothing() {
    for joined in [false, true] {
        what_is_not_finite(Outer { every: 2, joined, ..Outer::default() });
    }
}

/// Errors of the second fragment name layers by their index in the model, and elements by their index in the layer.
#[test]
fn errors_of_later_fragments_name_the_layer_of_the_model() {
    let half = Setting::TopK(TopK { keep: 8, values: Dtype::F16 });
    for (joined, value) in [(false, f32::NAN), (true, f32::NAN), (false, 1e30), (true, 1e30)] {
        let outer = Outer { every: 2, fragments: 2, joined, ..PLAIN };
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut rank = Rank::new(outer, config(Some(vec![half; if joined { 2 } else { 3 }])), &mut worker);
        let layers: Vec<_> = rank.outer.fragments().map(|(layers, _)| layers).collect();
        assert_eq!(layers, [0..1, 1..3]);
        rank.parameters[2][7] = value;
        // The second fragment is averaged after the first inner step.
        let error = rank.outer.step(&mut worker, &mut views(&mut rank.parameters)).unwrap_err();
        let element = match error {
            Error::NonFiniteGradient { layer, index, .. } if value.is_nan() => (layer, index),
            Error::OfLayer { layer, error: CoreError::ElementOverflow { index, .. } } => (layer, index),
            error => panic!("{error:?}"),
        };
        assert_eq!(element, (2, 7), "joined: {joined}, value {value}");
    }
}

fn what_is_not_finite(outer: Outer) {
    let settings = settings(8)[..if outer.joined { 1 } else { 3 }].to_vec();
    let found = threads::run(2, |mut worker| {
        let mut rank = Rank::new(outer, config(Some(settings.clone())), &mut worker);
        (0..3).for_each(|_| {
            rank.step(&mut worker).unwrap();
        });
        let residuals = rank.residuals();
        let good = rank.parameters[2][7];
        if worker.rank() == 1 {
            rank.parameters[2][7] = f32::NAN;
        }
        let trained = rank.parameters.clone();
        let error = rank.outer.step(&mut worker, &mut views(&mut rank.parameters)).unwrap_err();
        assert_eq!(rank.residuals(), residuals);
        let bits = |parameters: &[Vec<f32>]| parameters.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&rank.parameters), bits(&trained));
        rank.parameters[2][7] = good;
        (0..2).for_each(|_| {
            rank.step(&mut worker).unwrap();
        });
        (error, rank.parameters)
    });
    assert!(matches!(found[1].0, Error::NonFiniteGradient { layer: 2, index: 7, .. }), "{:?}", found[1].0);
    assert!(matches!(found[0].0, Error::Peer { rank: 1, .. }), "{:?}", found[0].0);
    assert_eq!(found[0].1, found[1].1);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut refused = |outer: Outer, tensors: Vec<Tensor>, parameters: &mut [Vec<f32>]| {
        let made = OuterStep::new(outer, config(None), tensors, &mut views(parameters), &mut worker);
        std::string::ToString::to_string(&made.err().unwrap())
    };
    let wrong = [
        (Outer { every: 0, ..PLAIN }, "steps between outer steps is 0, expected at least 1"),
        (Outer { learning_rate: f32::NAN, ..PLAIN }, "outer learning rate is NaN, expected above 0 and finite"),
        (Outer { momentum: 1.0, ..PLAIN }, "outer momentum is 1, expected from 0 to below 1"),
        (Outer { feedback_decay: 0.0, ..PLAIN }, "decay of error feedback is 0, expected above 0 and at most 1"),
        (Outer { fragments: 4, every: 9, ..PLAIN }, "fragments is 4, expected 1 to the number of layers and of steps"),
        (Outer { fragments: 2, ..PLAIN }, "fragments is 2, expected 1 to the number of layers and of steps"),
    ];
    for (outer, said) in wrong {
        assert_eq!(refused(outer, tensors(), &mut start()), said);
    }
    let half = vec![Tensor::new("w", &[64], Dtype::Bf16).unwrap()];
    assert_eq!(
        refused(PLAIN, half, &mut [vec![0.0; 64]]),
        "bytes of a parameter is 2, expected 4: outer steps are taken in f32"
    );
    let mut parameters = start();
    parameters[1].pop();
    assert_eq!(refused(PLAIN, tensors(), &mut parameters), "layer 1: number of elements is 63, expected 64");
    assert_eq!(refused(PLAIN, tensors(), &mut start()[..2]), "parameters, one per tensor: expected 3, found 2");
    assert_eq!(
        refused(PLAIN, tensors()[..2].to_vec(), &mut start()),
        "parameters, one per tensor: expected 2, found 3"
    );
    let mut rank = Rank::new(PLAIN, config(None), &mut worker);
    assert!(rank.outer.step(&mut worker, &mut views(&mut parameters)).is_err());
    assert_eq!(rank.outer.steps(), 1);
}

/// The result of [`OuterStep::new`] on each of two ranks, if rank 1 has other arguments.
fn made(
    change: impl Fn(&mut Outer, &mut Config, &mut Vec<Tensor>, &mut Vec<Vec<f32>>) + Sync,
) -> Vec<Result<(), Error>> {
    threads::run(2, |mut worker| {
        let (mut outer, mut config) = (Outer { every: 4, ..Outer::default() }, config(Some(settings(8))));
        let (mut tensors, mut parameters) = (tensors(), start());
        if worker.rank() == 1 {
            change(&mut outer, &mut config, &mut tensors, &mut parameters);
        }
        OuterStep::new(outer, config, tensors, &mut views(&mut parameters), &mut worker).map(drop)
    })
}

#[test]
fn what_does_not_fit_on_one_rank_is_told_to_all() {
    assert_eq!(made(|_, _, _, _| ()), [Ok(()), Ok(())]);
    let failed = |made: Vec<Result<(), Error>>, code: u32| {
        assert_eq!(made[0], Err(Error::Peer { rank: 1, code }));
        assert_eq!(made[1].unwrap_err().code(), code);
    };
    failed(made(|outer, _, _, _| outer.momentum = 1.0), 2);
    failed(made(|_, _, tensors, _| tensors[1] = Tensor::new("bias", &[64, 1], Dtype::Bf16).unwrap()), 2);
    failed(made(|_, _, _, parameters| drop(parameters.pop())), 1);
    failed(made(|_, _, _, parameters| parameters[0].truncate(9)), 100);
    failed(made(|_, config, _, _| config.schedule.period = 0), 2);
}

#[test]
fn options_that_differ_are_named_at_once() {
    use OptionValue::{Name, Real, Whole};
    let differ = |made: Vec<Result<(), Error>>, what: &'static str, found: OptionValue, expected: OptionValue| {
        assert_eq!(made, [Err(Error::PeerOption { rank: 1, what, found, expected }); 2]);
    };
    differ(made(|outer, _, _, _| outer.every = 5), "steps between outer steps", Whole(5), Whole(4));
    differ(made(|outer, _, _, _| outer.learning_rate = 0.5), "outer learning rate", Real(0.5), Real(0.7f32.into()));
    differ(made(|outer, _, _, _| outer.momentum = 0.5), "outer momentum", Real(0.5), Real(0.6f32.into()));
    differ(
        made(|outer, _, _, _| outer.feedback_decay = 0.5),
        "decay of error feedback",
        Real(0.5),
        Real(0.95f32.into()),
    );
    differ(made(|outer, _, _, _| outer.fragments = 2), "fragments", Whole(2), Whole(1));
    let joined = |outer: &mut Outer, config: &mut Config, _: &mut Vec<Tensor>, _: &mut Vec<Vec<f32>>| {
        (outer.joined, config.policy) = (true, Policy::Fixed(settings(8)[..1].to_vec()));
    };
    differ(made(joined), "joined", Name("yes"), Name("no"));
    differ(made(|outer, _, _, _| outer.forget_moved = true), "forget_moved", Name("yes"), Name("no"));
    differ(made(|_, config, _, _| config.search.seed = 3), "seed", Whole(3), Whole(0));
    let other_shape = made(|_, config, tensors, parameters| {
        config.policy = Policy::Fixed(settings(8)[..2].to_vec());
        tensors.pop();
        parameters.pop();
    });
    differ(other_shape, "number of layers", Whole(2), Whole(3));
}

/// A rank has parameters of other lengths. At the next turn of a fragment, all ranks get an error. The ranks stay at the same
/// inner step.
#[test]
fn parameters_that_do_not_fit_on_one_rank_fail_on_all_at_the_same_step() {
    for broken in 1..=4 {
        let found = threads::run(2, |mut worker| {
            let mut rank = Rank::new(Outer { every: 2, ..Outer::default() }, config(Some(settings(8))), &mut worker);
            let mut results = vec![];
            for step in 1..=8 {
                train(&mut rank.parameters, worker.rank(), step);
                let mut views = views(&mut rank.parameters);
                if worker.rank() == 1 && step == broken {
                    views[1] = &mut [];
                }
                results.push(rank.outer.step(&mut worker, &mut views).map(|report| report.is_some()));
                assert_eq!(rank.outer.steps(), step);
            }
            (results, rank.parameters)
        });
        for (step, results) in (1..).zip(found[0].0.iter().zip(&found[1].0)) {
            let what = "number of elements";
            match step == broken && step % 2 == 0 {
                true => assert_eq!(
                    results,
                    (
                        &Err(Error::Peer { rank: 1, code: 100 }),
                        &Err(Error::LayerMismatch { layer: 1, what, expected: 64, found: 0 })
                    )
                ),
                false => assert_eq!(results, (&Ok(step % 2 == 0), &Ok(step % 2 == 0))),
            }
        }
        assert_eq!(found[0].1, found[1].1);
    }
}
