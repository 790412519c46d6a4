//! Tests outside compressors in all parts of lgreco: payloads, searches, plans and their files, controllers, saved states.

use lgreco::backend::Portable;
use lgreco::compress::method::{Method, Methods, OwnSetting, Parameters};
use lgreco::compress::{Compressor, Setting, decode, decode_with, stated_len};
use lgreco::file::{PlanFile, TableFile};
use lgreco::gradient::{Dtype, Element, Gradient, Shape, Values, with_elements};
use lgreco::plan::{self, Solver, budget::Budget};
use lgreco::rng::Stream;
use lgreco::search::{Layer, Measured, Range, Search};
use lgreco::{Error, Result, search};
use lgreco_train::controller::{Config, Controller, Feedback, Objective, Policy, Tensor};
use lgreco_train::exchange::{Route, threads};
use lgreco_train::gradient::ValuesMut;
use own_compressor::{Sign, methods, setting};

/// Sends values above a threshold with their positions; the payload's length depends on the values.
#[derive(Debug)]
struct NonZero;

impl Method for NonZero {
    fn id(&self) -> u8 {
        0xf0
    }
    fn name(&self) -> &'static str {
        "non-zero"
    }
    fn parameters(&self) -> usize {
        2
    }
    fn is_float(&self, index: usize) -> bool {
        index == 0
    }
    fn check(&self, [least, ..]: &Parameters) -> Result<()> {
        let least = f32::from_bits(*least);
        Error::require(least >= 0.0, "threshold", least.into(), "at least 0")
    }
    fn is_bounded(&self, _: &Parameters) -> bool {
        true
    }
    fn has_fixed_len(&self, _: &Parameters) -> bool {
        false
    }
    fn body_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> Result<usize> {
        Ok(8 * shape.elements())
    }
    fn encode(
        &self,
        [least, ..]: &Parameters,
        gradient: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize> {
        let mut len = 0;
        with_elements!(gradient.values(), values => for (index, x) in values.iter().enumerate() {
            let x = x.to_f32();
            if x.abs() > f32::from_bits(*least) {
                body[len..len + 4].copy_from_slice(&(index as u32).to_le_bytes());
                body[len + 4..len + 8].copy_from_slice(&x.to_le_bytes());
                len += 8;
            }
        });
        Ok(len)
    }
    fn decode(&self, _: &Parameters, _: Shape, body: &[u8], values: &mut [f32]) -> Result<()> {
        Error::require_body(body.len().is_multiple_of(8), "half an element")?;
        values.fill(0.0);
        for part in body.chunks_exact(8) {
            let word = |at: usize| [part[at], part[at + 1], part[at + 2], part[at + 3]];
            let place = values.get_mut(u32::from_le_bytes(word(0)) as usize);
            *place.ok_or(Error::PayloadBody { what: "a position beyond the tensor" })? = f32::from_le_bytes(word(4));
        }
        Ok(())
    }
}

static ALL: &[&dyn Method] = &[&Sign, &own_compressor::Natural, &NonZero];

fn all() -> Methods {
    Methods::new(ALL).unwrap()
}

fn own(text: &str) -> Setting {
    Setting::parse(text, &all()).unwrap()
}

fn wave(elements: usize, scale: f32, seed: u32) -> Vec<f32> {
    (0..elements).map(|i| scale * ((i as f32 * 0.37 + seed as f32).sin() + 0.2 * (i as f32 * 0.011).cos())).collect()
}

fn encoded(setting: Setting, values: &[f32]) -> Vec<u8> {
    let gradient = Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap();
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    let len = setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    payload.truncate(len);
    payload
}

const SETTINGS: [&str; 4] = ["sign", "natural", "non-zero 0.95 0", "non-zero 0.99 7"];

#[test]
fn payloads_say_what_they_are_and_damage_is_an_error() {
    for text in SETTINGS {
        let (setting, values) = (own(text), wave(1003, 1.0, 3));
        assert_eq!(setting.to_string(), text);
        let payload = encoded(setting, &values);
        let (mut decoded, mut again) = (vec![0.0; 1003], vec![0.0; 1003]);
        assert_eq!(stated_len(&[&payload[..], &[9; 5]].concat()), Ok(payload.len()));
        decode_with(&all(), &payload, &mut decoded).unwrap();
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
        let error = square(&mut values.iter().zip(&decoded).map(|(x, y)| x - y));
        assert!(error < square(&mut values.iter().copied()), "{text}");
        assert_eq!(decode(&payload, &mut again), Err(Error::UnknownMethod { id: payload[2] }));
        assert!(decode_with(&Methods::NONE, &payload, &mut again).is_err());
        for len in 0..payload.len() {
            assert!(decode_with(&all(), &payload[..len], &mut again).is_err(), "{text}: {len} bytes");
        }
        for at in 0..40.min(payload.len()) {
            let mut damaged = payload.clone();
            damaged[at] ^= 0x81;
            let _ = decode_with(&all(), &damaged, &mut again);
        }
        let empty = setting.payload_len(Shape::new(0, 1).unwrap(), Dtype::F32);
        assert_eq!(Ok(encoded(setting, &[]).len()), empty);
    }
    let unknown = decode(&encoded(own("sign"), &[1.0]), &mut [0.0]).unwrap_err().to_string();
    assert!(unknown.starts_with("method 0x80 is unknown"), "{unknown}");
}

#[test]
fn they_keep_what_lgreco_relies_on() {
    for text in SETTINGS {
        lgreco::conformance::check(&own(text), &all());
    }
}

#[test]
fn natural_compression_is_unbiased() {
    let values = wave(64, 1.0, 1);
    let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 1).unwrap()).unwrap();
    let (setting, mut sums, mut decoded) = (setting("natural"), vec![0.0f64; 64], vec![0.0; 64]);
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    for step in 0..4000 {
        let len = setting.encode(&gradient, Stream { step, ..Stream::default() }, &mut [], &mut payload).unwrap();
        decode_with(&methods(), &payload[..len], &mut decoded).unwrap();
        sums.iter_mut().zip(&decoded).for_each(|(sum, x)| *sum += f64::from(*x) / 4000.0);
    }
    assert!(sums.iter().zip(&values).all(|(mean, x)| (mean - f64::from(*x)).abs() < 0.05));
}

#[test]
fn texts_and_lists_that_are_wrong_are_told() {
    let told = |text: &str| Setting::parse(text, &all()).unwrap_err().to_string();
    assert_eq!(told("sign 3"), "setting: found `3`, expected the end");
    assert!(told("non-zero 3").contains("expected a whole number"), "{}", told("non-zero 3"));
    assert!(told("non-zero x 1").contains("found `x`, expected a number"), "{}", told("non-zero x 1"));
    assert!(told("non-zero inf 1").contains("expected a finite number"), "{}", told("non-zero inf 1"));
    assert!(told("non-zero -1 1").contains("threshold is -1"), "{}", told("non-zero -1 1"));
    assert_eq!(own("non-zero 1e-30 0").to_string(), "non-zero 1e-30 0");
    assert!(told("sing").contains("`sing` is unknown"));
    assert!(OwnSetting::new(&Sign, [1, 0, 0, 0]).is_err());
    static TWICE: &[&dyn Method] = &[&Sign, &Sign];
    assert!(Methods::new(TWICE).unwrap_err().to_string().contains("two methods have it"));
}

fn measured() -> Measured {
    let (a, b) = (wave(8192, 1.0, 1), wave(4096, 0.01, 2));
    let layers = [
        Layer::new("fc1.weight", &[128, 64], Values::F32(&a)).unwrap(),
        Layer::new("fc2.weight", &[64, 64], Values::F32(&b)).unwrap(),
    ];
    let mut search = Search::new(search::Method::Qsgd);
    (search.methods, search.beside) = (all(), SETTINGS.map(own).into());
    search.measure(&layers, &mut Portable).unwrap()
}

#[test]
fn searches_measure_them_and_plan_files_name_them() {
    let measured = measured();
    assert_eq!(measured.table.labels(0)[7..], SETTINGS);
    let view = measured.table.view();
    // Payloads whose length depends on the values are measured.
    let payload = encoded(own(SETTINGS[3]), &wave(8192, 1.0, 1));
    assert_eq!(view.layer(0)[10].size, 8 * payload.len() as u64);

    let budget = Budget::Absolute(0.9 * (view.layer(0)[7].error + view.layer(1)[7].error) + 1.0);
    let plan = plan::solve(&view, budget, Solver::default()).unwrap();
    assert!(plan.summary().proven());
    let settings: Vec<Setting> = (0..2).map(|l| measured.setting(l, plan.options()[l] as usize).unwrap()).collect();
    assert!(settings.iter().any(|setting| matches!(setting, Setting::Own(_))), "{settings:?}");
    let json = PlanFile::new(&measured.table, &plan).to_json();
    let read = PlanFile::parse_with(json.as_bytes(), &all()).unwrap();
    assert!(read.layers.iter().zip(&settings).all(|(layer, setting)| layer.setting == Some(*setting)));
    let unknown = PlanFile::parse(json.as_bytes()).unwrap_err().to_string();
    assert!(unknown.contains("is unknown"), "{unknown}");
    let table = TableFile { table: measured.table.clone(), budget: None }.to_json();
    assert_eq!(TableFile::parse_with(table.as_bytes(), &all()).unwrap().table, measured.table);
    assert!(TableFile::parse(table.as_bytes()).is_err());
}

#[test]
fn a_search_needs_the_methods_of_its_settings() {
    let values = wave(4096, 1.0, 1);
    let layers = [Layer::new("w", &[64, 64], Values::F32(&values)).unwrap()];
    let mut search = Search::new(search::Method::Qsgd);
    search.beside = vec![own("sign")];
    let error = search.measure(&layers, &mut Portable).unwrap_err();
    assert_eq!(error.error, Error::UnknownMethod { id: 0x80 });
}

fn config(beside: &[&str]) -> Config {
    let range = Range { first: 4.0, last: 8.0, step: 1.0 };
    let mut search = Search::new(search::Method::Qsgd).with_range(range).unwrap();
    (search.methods, search.beside, search.min_elements) = (all(), beside.iter().map(|text| own(text)).collect(), 16);
    let mut config = Config::new(search);
    (config.schedule.warmup, config.schedule.period, config.schedule.window) = (2, 4, 2);
    (config.budget, config.alpha) = (lgreco_train::controller::Budget::Error, 40.0); // plans choose the smallest options
    config
}

fn layers() -> Vec<Tensor> {
    vec![
        Tensor::new("a", &[64, 32], Dtype::F32).unwrap(),
        Tensor::new("b", &[32, 32], Dtype::F32).unwrap(),
        Tensor::new("bias", &[7], Dtype::F32).unwrap(),
    ]
}

fn gradients(rank: u32, step: u64) -> Vec<Vec<f32>> {
    layers().iter().map(|layer| wave(layer.shape().elements(), 1.0, 10 * rank + step as u32)).collect()
}

/// The time of one outside method says nothing about other methods, so each outside method must be timed.
#[test]
fn each_is_tried_out_before_plans_by_measured_seconds() {
    fn clock() -> f64 {
        0.0
    }
    let mut config = config(&["sign", "natural"]);
    (config.objective, config.clock) = (Objective::MeasuredSeconds, Some(clock as fn() -> f64));
    let worker = threads::ThreadCollective::group(1).remove(0);
    let trials = Controller::new(config, layers(), worker.rank(), worker.world_size())
        .unwrap()
        .external()
        .trials(&[0, 1])
        .unwrap();
    let tried = |text| trials.contains(&vec![own(text); 2]);
    assert!(tried("sign") && tried("natural") && trials.len() == 3, "{trials:?}");
}

/// The layers, with shards if the route is sharded. The shards differ in length, and some are empty.
fn layers_by(route: Route) -> Vec<Tensor> {
    let ends: [&[u64]; 3] = [&[700, 700, 2048], &[0, 1, 1024], &[3, 7, 7]];
    let shard = |(layer, ends): (Tensor, &[u64])| if route == Route::Sharded { layer.with_shards(ends) } else { layer };
    layers().into_iter().zip(ends).map(shard).collect()
}

/// Selects the values of a rank's shards, or all values if the route has no shards.
fn wanted<T: Copy>(route: Route, rank: u32, values: &[T]) -> Vec<T> {
    let (mut parts, mut first) = (vec![], 0);
    for layer in layers_by(route) {
        let all = [layer.shape().elements() as u64];
        let end = |rank: usize| layer.shards().get(rank).unwrap_or(&all[0]).to_owned() as usize;
        let start = if route == Route::Sharded && rank > 0 { end(rank as usize - 1) } else { 0 };
        parts.extend_from_slice(&values[first + start..first + end(rank as usize)]);
        first += layer.shape().elements();
    }
    parts
}

type Trained = std::result::Result<(Vec<Vec<u32>>, Vec<Vec<u8>>, Vec<String>), lgreco_train::Error>;

/// Trains three ranks from step `first` to `last`, from saved states if given. Returns the bits of each rank's last means,
/// its state and its settings.
fn train(config: &Config, first: u64, last: u64, states: Option<&[Vec<u8>]>) -> Trained {
    let run = threads::run(3, |mut worker| {
        let mut controller =
            Controller::new(config.clone(), layers_by(config.route), worker.rank(), worker.world_size())?;
        if let Some(states) = states {
            controller.load(&[&states[worker.rank() as usize]], &[&states[worker.rank() as usize]])?;
        }
        let mut bits = vec![];
        for step in first..last {
            let mut values = gradients(worker.rank(), step);
            let mut gradients: Vec<_> = values.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            controller.step(&mut worker, &mut gradients, 0.1)?;
            let means: Vec<f32> = wanted(config.route, worker.rank(), &values.concat());
            bits = means.iter().map(|x| x.to_bits()).collect();
        }
        let settings = (0..3).map(|layer| controller.setting(layer).to_string()).collect::<Vec<_>>();
        Ok::<_, lgreco_train::Error>((bits, controller.save()?, settings))
    });
    let run = run.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let settings = run[0].2.clone();
    Ok((run.iter().map(|rank| rank.0.clone()).collect(), run.into_iter().map(|rank| rank.1).collect(), settings))
}

#[test]
fn controllers_plan_switch_save_and_resume_with_them() {
    let offered: [&[&str]; 3] = [&["sign", "non-zero 0.9 0"], &["natural"], &["non-zero 9 0"]];
    let routes = [Route::AllGather, Route::ScatterReduce, Route::Sharded];
    for (route, beside) in routes.into_iter().flat_map(|route| offered.map(|beside| (route, beside))) {
        let mut config = config(beside);
        (config.route, config.alpha) = (route, 1e6);
        let (_, _, begun) = train(&config, 0, 1, None).unwrap();
        let (means, states, settings) = train(&config, 0, 12, None).unwrap();
        assert!(route == Route::Sharded || means[0] == means[1] && means[1] == means[2]);
        // The run begins uncompressed. Then the plan chooses outside methods, even a method that sends nothing at
        // present.
        assert_eq!(begun, ["dense"; 3]);
        assert!(settings[..2].iter().all(|text| beside.contains(&&**text)), "{settings:?}");
        // A run that is resumed halfway gives the same bits.
        let (_, half, _) = train(&config, 0, 7, None).unwrap();
        let (resumed, saved, _) = train(&config, 7, 12, Some(&half)).unwrap();
        assert!(resumed == means && saved == states);
        let mut without = config.clone();
        without.search.methods = Methods::NONE;
        without.search.beside.clear();
        let refused = train(&without, 7, 8, Some(&half)).unwrap_err().to_string();
        assert!(refused.contains("is unknown"), "{refused}");
    }
}

#[test]
fn means_of_shards_are_those_of_the_whole_layers() {
    for feedback in [Feedback::default(), Feedback::NONE] {
        let mut config = config(&[]);
        config.feedback = feedback;
        config.policy = Policy::Fixed(vec![own("sign"), own("non-zero 0.9 0"), own("natural")]);
        let (whole, ..) = train(&config, 0, 6, None).unwrap();
        config.route = Route::Sharded;
        let (shards, ..) = train(&config, 0, 6, None).unwrap();
        for (rank, (shards, whole)) in (0..).zip(shards.iter().zip(&whole)) {
            assert_eq!(*shards, wanted(Route::Sharded, rank, whole));
        }
    }
}

#[test]
fn fixed_settings_with_error_feedback_reach_the_mean_of_the_gradients() {
    let mut config = config(&[]);
    config.policy = Policy::Fixed(vec![own("sign"), own("natural"), own("dense")]);
    let sums = threads::run(3, |mut worker| {
        let mut controller = Controller::new(config.clone(), layers(), worker.rank(), worker.world_size()).unwrap();
        let mut sum = vec![0.0f64; 2048 + 1024];
        for _ in 0..400 {
            let mut values = gradients(worker.rank(), 0);
            let mut gradients: Vec<_> = values.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            controller.step(&mut worker, &mut gradients, 0.1).unwrap();
            let means = values[0].iter().chain(&values[1]);
            sum.iter_mut().zip(means).for_each(|(sum, x)| *sum += f64::from(*x) / 400.0);
        }
        sum
    });
    let exact: Vec<f64> = (0..2048 + 1024)
        .map(|i| (0..3).map(|rank| f64::from(gradients(rank, 0)[..2].concat()[i]) / 3.0).sum())
        .collect();
    assert!(sums.iter().all(|sum| sum.iter().zip(&exact).all(|(sum, x)| (sum - x).abs() < 0.08)));
}

#[test]
fn ranks_that_know_other_methods_learn_of_it_in_the_first_step() {
    let told = threads::run(3, |mut worker| {
        let mut config = config(&["sign", "non-zero 0.99 7"]);
        if worker.rank() == 1 {
            (config.search.methods, config.search.beside) = (methods(), vec![own("sign")]);
        }
        let mut controller = Controller::new(config, layers(), worker.rank(), worker.world_size())?;
        let mut values = gradients(worker.rank(), 0);
        let mut gradients: Vec<_> = values.iter_mut().map(|values| ValuesMut::F32(values)).collect();
        controller.step(&mut worker, &mut gradients, 0.1).map(drop)
    });
    for told in told {
        let told = told.unwrap_err().to_string();
        assert!(told.contains("outside method") && told.contains("non-zero") && told.contains("none"), "{told}");
    }
}
