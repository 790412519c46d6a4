//! Gradients that the caller observes (here on a stand-in for a device) must lead to the same plans as gradients that
//! the controller observes.

use super::*;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::controller::{Accordion, Budget, Config, Contents, Observed, Policy, Schedule, Tensor};
use lgreco_train::gradient::{Bf16, Element, Values, with_elements};
use lgreco_train::plan::Solver;
use lgreco_train::search::OfferedRow;

/// A simulated device. For each layer, the device keeps the window's mean gradient in f32, and measures this mean like
/// the host.
struct Device {
    tensors: Vec<Tensor>,
    means: Vec<Vec<f32>>,
    /// The error that the device returns instead of measuring.
    failing: Option<CoreError>,
    rows: usize,
}

impl Device {
    fn new(tensors: &[Tensor]) -> Device {
        let means = tensors.iter().map(|tensor| vec![0.0; tensor.shape().elements()]).collect();
        Device { tensors: tensors.to_vec(), means, failing: None, rows: 0 }
    }

    fn observe(&mut self, layer: usize, gradient: Values<'_>, steps: u64) {
        let (old, new) = ((steps - 1) as f32 / steps as f32, 1.0 / steps as f32);
        let means = &mut self.means[layer];
        with_elements!(gradient, values => {
            means.iter_mut().zip(values).for_each(|(mean, x)| *mean = *mean * old + x.to_f32() * new);
        });
    }

    fn with<T>(&self, layer: usize, then: impl FnOnce(Gradient<'_>) -> T) -> T {
        let (mean, tensor) = (&self.means[layer], &self.tensors[layer]);
        let halves: Vec<Bf16>;
        let values = match tensor.dtype() {
            Dtype::Bf16 => {
                halves = mean.iter().map(|&x| Bf16::from_f32(x)).collect();
                Values::Bf16(&halves)
            }
            _ => Values::F32(mean),
        };
        then(Gradient::new(values, tensor.shape()).unwrap())
    }
}

impl Observed for Device {
    fn squared_norms(&mut self, layers: &[usize], norms: &mut [f64]) -> Result<(), CoreError> {
        let square = |x: f32| f64::from(x) * f64::from(x);
        for (norm, &layer) in norms.iter_mut().zip(layers) {
            *norm = self.with(
                layer,
                |gradient| with_elements!(gradient.values(), values => values.iter().map(|x| square(x.to_f32())).sum()),
            );
        }
        Ok(())
    }

    fn measure(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), JobError> {
        if let Some(error) = self.failing {
            return Err(JobError { job: Some(0), error });
        }
        let mut rest = squared_errors;
        for row in rows {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(row.candidates.len());
            rest = others;
            self.with(row.layer, |gradient| {
                let job = [Job { gradient, candidates: row.candidates, stream: row.stream }];
                Portable.measure(&job, &mut vec![0; Portable.workspace_len(&job)], own)
            })?;
        }
        self.rows += rows.len();
        Ok(())
    }
}

fn tensors() -> Vec<Tensor> {
    let layers: [(&str, &[usize], Dtype); 5] = [
        ("fc1", &[64, 48], Dtype::F32),
        ("bias", &[64], Dtype::F32),
        ("half", &[40, 50], Dtype::Bf16),
        ("fc2", &[30, 70], Dtype::F32),
        ("none", &[0, 3], Dtype::F32),
    ];
    layers.map(|(name, dims, dtype)| Tensor::new(name, dims, dtype).unwrap()).into()
}

fn gradient(layer: usize, step: u64, len: usize) -> Vec<f32> {
    let power = 1 + 2 * (layer as i32 % 3);
    (0..len).map(|i| (i as f32 * 0.7 + step as f32 * (1.0 + layer as f32)).sin().powi(power)).collect()
}

fn with_values<T>(tensor: &Tensor, values: &[f32], then: impl FnOnce(Values<'_>) -> T) -> T {
    match tensor.dtype() {
        Dtype::Bf16 => then(Values::Bf16(&values.iter().map(|&x| Bf16::from_f32(x)).collect::<Vec<_>>())),
        _ => then(Values::F32(values)),
    }
}

fn controller(config: &Config) -> (Controller, ThreadCollective) {
    let worker = ThreadCollective::group(1).remove(0);
    (Controller::new(config.clone(), tensors(), worker.rank(), worker.world_size()).unwrap(), worker)
}

/// Begins a step, up to the point at which gradients are observed.
fn begin(controller: &mut Controller, worker: &mut ThreadCollective, rate: f64) {
    controller.begin_step(rate).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
}

fn finish(controller: &mut Controller) {
    controller.external().note_exchanged(&[0, 1, 2, 3, 4]).unwrap();
    controller.finish_step().unwrap();
}

/// Takes twelve steps, with the layers `elsewhere` on the device. Returns the decisions, and the number of rows that
/// the device has measured.
fn decisions(config: &Config, elsewhere: &[usize]) -> (Vec<(u64, std::string::String, Vec<Setting>)>, usize) {
    let (tensors, (mut controller, mut worker)) = (tensors(), controller(config));
    let (mut device, mut decided) = (Device::new(&tensors), vec![]);
    for step in 0..12 {
        begin(&mut controller, &mut worker, if step < 6 { 0.1 } else { 0.01 });
        if let Some(decision) = controller.decision().filter(|decision| decision.step == step) {
            decided.push((step, decision.to_string(), settings(&controller)));
        }
        let window = controller.external().window_step();
        for (layer, tensor) in tensors.iter().enumerate() {
            let values = gradient(layer, step, tensor.shape().elements());
            with_values(tensor, &values, |values| {
                if !elsewhere.contains(&layer) {
                    controller.external().observe(layer, values).unwrap();
                } else if window > 0 {
                    controller.external().note_observed(layer).unwrap();
                    device.observe(layer, values, window);
                }
            });
        }
        finish(&mut controller);
        if let Some(task) = controller.planning().take_task() {
            let result = match elsewhere {
                [] => task.run(&mut Portable),
                _ => task.run_with(&mut device, &mut Portable),
            };
            assert!(controller.planning().hand_in(result));
        }
    }
    (decided, device.rows)
}

fn configs() -> Vec<(&'static str, Config, bool)> {
    let config = |method: Method| {
        let mut config = Config::new(Search::new(method));
        config.schedule = Schedule { warmup: 3, period: 4, window: 2, lead: 0 };
        config.search.min_elements = 100;
        config
    };
    let accordion = Accordion::new(8.0, 2.0);
    let with = |mut config: Config, policy| {
        config.policy = policy;
        config
    };
    let rough = Setting::Qsgd(Qsgd { bits: 2, bucket: 2048, ..Qsgd::default() });
    let top = Setting::TopK(TopK { keep: 30, values: Dtype::F32 });
    let fixed = vec![top, Setting::Dense, Setting::Dense, rough, Setting::Dense];
    let mut bounded = config(Method::TopK);
    bounded.budget = Budget::Bits(20_000);
    vec![
        ("topk", config(Method::TopK), true),
        ("qsgd", config(Method::Qsgd), true),
        ("hybrid", config(Method::Hybrid), true),
        ("bits", bounded, true),
        ("k-means", with(config(Method::PowerSgd), Policy::KMeans { clusters: 3 }), true),
        ("uniform", with(config(Method::TopK), Policy::Uniform), true),
        ("without feedback", with(config(Method::Qsgd), Policy::Uniform), false),
        ("fixed", with(config(Method::TopK), Policy::Fixed(fixed)), true),
        ("accordion", with(config(Method::PowerSgd), Policy::Accordion(accordion)), true),
        (
            "with accordion",
            with(config(Method::PowerSgd), Policy::LGreco { solver: Solver::default(), accordion: Some(accordion) }),
            true,
        ),
    ]
}

#[test]
fn plans_are_those_of_the_host() {
    for (name, config, measures) in configs() {
        for lead in [0, 1] {
            let mut config = config.clone();
            config.schedule.lead = lead;
            let (expected, none) = decisions(&config, &[]);
            assert!(!expected.is_empty() && none == 0, "{name}");
            // All layers are on the device, or only some.
            for elsewhere in [&[0, 1, 2, 3, 4][..], &[2, 0]] {
                let (found, rows) = decisions(&config, elsewhere);
                assert_eq!(found, expected, "{name}, lead {lead}, {elsewhere:?}");
                assert_eq!(rows > 0, measures, "{name}: who measures");
            }
        }
    }
}

fn elsewhere_until_due(lead: u64) -> (Controller, ThreadCollective, Device) {
    let (tensors, mut config) = (tensors(), configs().swap_remove(0).1);
    config.schedule.lead = lead;
    let (mut controller, mut worker) = controller(&config);
    let mut device = Device::new(&tensors);
    for step in 0..3 - lead {
        begin(&mut controller, &mut worker, 0.1);
        for (layer, tensor) in tensors.iter().enumerate() {
            let values = gradient(layer, step, tensor.shape().elements());
            if controller.external().watches() {
                controller.external().note_observed(layer).unwrap();
                with_values(tensor, &values, |values| device.observe(layer, values, 1));
            }
        }
        finish(&mut controller);
    }
    (controller, worker, device)
}

#[test]
fn nothing_is_decided_of_what_nobody_has_measured() {
    let (mut controller, mut worker, _) = elsewhere_until_due(0);
    begin(&mut controller, &mut worker, 0.1);
    assert!(controller.decision().is_none(), "it is asked for again");
    finish(&mut controller);
    // Missing gradients are an error. The missing gradients are not replaced by zeros.
    let result = controller.planning().take_task().unwrap().run(&mut Portable);
    assert!(matches!(result.decision(), Err(Error::StepOrder { .. })));
    drop(result);
    assert!(controller.planning().take_task().is_some(), "it is there again");
}

#[test]
fn what_fails_elsewhere_is_the_decisions_error() {
    let (mut controller, _, mut device) = elsewhere_until_due(1);
    device.failing = Some(CoreError::Device { what: "it is out of memory" });
    let result = controller.planning().take_task().unwrap().run_with(&mut device, &mut Portable);
    let error = result.decision().unwrap_err();
    assert_eq!(error, Error::Core(CoreError::Device { what: "it is out of memory" }));
}

#[test]
fn means_that_are_brought_are_planned_by_here() {
    let (mut controller, _, device) = elsewhere_until_due(1);
    let expected = {
        let (mut controller, _, mut device) = elsewhere_until_due(1);
        controller.planning().take_task().unwrap().run_with(&mut device, &mut Portable).decision().unwrap()
    };
    for (layer, mean) in device.means.iter().enumerate() {
        controller.external().set_observed(layer, mean).unwrap();
    }
    assert_eq!(controller.planning().take_task().unwrap().run(&mut Portable).decision().unwrap(), expected);
    assert!(
        controller.external().set_observed(0, &[0.0]).is_err() && controller.external().set_observed(5, &[]).is_err()
    );
    assert!(controller.external().note_observed(0).is_err(), "no step is under way");
}

/// Saved states contain the observed gradients that the device has handed over, also while a task is running. The task
/// keeps running.
#[test]
fn saved_states_have_what_is_elsewhere_when_it_is_brought() {
    let (mut config, tensors) = (configs().swap_remove(0).1, tensors());
    config.schedule.lead = 1;
    let new = |config: &Config| {
        let worker = ThreadCollective::group(1).remove(0);
        Controller::new(config.clone(), tensors.clone(), worker.rank(), worker.world_size()).unwrap()
    };
    let (mut controller, mut device) = (new(&config), Device::new(&tensors));
    let mut host = new(&config);
    for step in 0..2 {
        for controller in [&mut controller, &mut host] {
            controller.begin_step(0.1).unwrap();
            assert!(controller.control().unwrap().is_none());
        }
        for (layer, tensor) in tensors.iter().enumerate() {
            let values = gradient(layer, step, tensor.shape().elements());
            with_values(tensor, &values, |values| {
                let window_step = controller.external().window_step();
                assert!(window_step == host.external().window_step());
                host.external().observe(layer, values).unwrap();
                if window_step > 0 {
                    controller.external().note_observed(layer).unwrap();
                    device.observe(layer, values, window_step);
                }
            });
        }
        for controller in [&mut controller, &mut host] {
            controller.external().note_exchanged(&[0, 1, 2, 3, 4]).unwrap();
            controller.finish_step().unwrap();
        }
    }
    let is_refused = |controller: &Controller| matches!(controller.save(), Err(Error::StepOrder { .. }));
    let task = controller.planning().take_task().unwrap();
    assert!(is_refused(&controller) && controller.save_part(None, Contents::Everything).is_err());
    assert!(controller.save_only(Contents::WithoutWindow).is_ok());
    (0..tensors.len()).for_each(|layer| controller.external().set_observed(layer, &device.means[layer]).unwrap());
    assert!(controller.save().unwrap() == host.save().unwrap(), "while a task is out");
    assert!(controller.planning().hand_in(task.run_with(&mut device, &mut Portable)));
    // After the task has returned, the device hands the gradients over again.
    (0..tensors.len()).for_each(|layer| controller.external().set_observed(layer, &device.means[layer]).unwrap());
    assert!(controller.save().unwrap() == host.save().unwrap());
    let saved = controller.save().unwrap();
    let mut continued = new(&config);
    continued.load(&[&saved], &[&saved]).unwrap();
    let planned = |controller: &mut Controller| {
        controller.planning().take_task().unwrap().run(&mut Portable).decision().unwrap().to_string()
    };
    assert_eq!(planned(&mut continued), planned(&mut host));
}
