use lgreco::Error;
use lgreco::backend::{Backend, Job, JobError, Portable};
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Values};
use lgreco::rng::Stream;
use lgreco::search::*;
use lgreco_testing::powersgd::{round_trip, squared_error, uniform};
use std::num::NonZeroU32;

fn measure(search: Search, model: &[Layer<'_>]) -> Measured {
    search.measure(model, &mut Portable).unwrap()
}

fn labels(measured: &Measured, layer: usize) -> Vec<&str> {
    (0..measured.table.view().layer(layer).len()).map(|option| measured.table.label(layer, option)).collect()
}

#[test]
fn labels_settings_and_sizes_belong_together() {
    let values = uniform(64 * 40, 1);
    let model = [Layer::new("w", &[64, 40], Values::F32(&values)).unwrap()];
    let measured = measure(Search::new(Method::Hybrid), &model);
    assert_eq!(measured.table.label(0, measured.defaults[0] as usize), "eden 3");
    let mut methods = [0; 4];
    for (option, label) in labels(&measured, 0).into_iter().enumerate() {
        let setting = measured.setting(0, option).unwrap();
        let payload = setting.payload_len(model[0].gradient().shape(), lgreco::gradient::Dtype::F32).unwrap();
        assert_eq!(measured.table.view().layer(0)[option].size, 8 * payload as u64, "{label}");
        methods[match setting {
            Setting::Dense => 0,
            Setting::Eden(_) => 1,
            Setting::TopK(_) => 2,
            Setting::PowerSgd(_) => 3,
            other => panic!("{other} is not searched"),
        }] += 1;
        match setting {
            Setting::TopK(top) => {
                let density: f64 = label["topk ".len()..].trim_end_matches('%').parse().unwrap();
                assert_eq!((density / 100.0 * 2560.0).round() as u32, top.keep, "{label}");
            }
            Setting::PowerSgd(_) => assert_eq!(setting.to_string(), format!("{label} iterations 5")),
            other => assert_eq!(other.to_string(), label),
        }
    }
    // At rank 16, PowerSGD sends 26 numbers per row of a 64 x 40 tensor, which is less than 40. So no candidate is as
    // large as the tensor.
    assert_eq!((methods[0], methods[1], methods[3]), (0, 8, 13));
    assert!(methods[2] > 90);
}

#[test]
fn what_comes_to_the_same_is_offered_once() {
    let values = uniform(1024 * 3, 2);
    let model = [Layer::new("thin", &[1024, 3], Values::F32(&values)).unwrap()];
    let ranks = Range { first: 1.0, last: 8.0, step: 1.0 };
    let measured = measure(Search::new(Method::PowerSgd).with_range(ranks).unwrap(), &model);
    // Rank 3 would send more numbers than the tensor has. The default, rank 4, is reduced to 3, the number of columns.
    assert_eq!(labels(&measured, 0), ["powersgd 1", "powersgd 2", "dense"]);
    assert_eq!((measured.defaults[0], measured.setting(0, 2).unwrap()), (2, Setting::Dense));
    let dense = measured.table.view().layer(0)[2];
    assert_eq!((dense.size, dense.error), (8 * (16 + 4 * 3072), 0.0));

    let few = uniform(50, 3);
    let model = [Layer::new("few", &[5, 10], Values::F32(&few)).unwrap()];
    let densities = Range { first: 0.01, last: 0.07, step: 0.01 };
    let mut search = Search::new(Method::TopK).with_range(densities).unwrap();
    search.min_elements = 1;
    let measured = measure(search, &model);
    // Of 50 elements, 1 % to 7 % are 0.5 to 3.5 elements. Rounded half up, these numbers are 1, 1, 2, 2, 3, 3 and 4.
    assert_eq!(labels(&measured, 0), ["topk 1%", "topk 3%", "topk 5%", "topk 7%"]);
}

#[test]
fn the_stream_makes_the_payloads_that_were_measured() {
    let (bias, values) = ([0.5; 8], uniform(40 * 50, 4));
    let model = [
        Layer::new("bias", &[8], Values::F32(&bias)).unwrap(),
        Layer::new("w", &[40, 50], Values::F32(&values)).unwrap(),
    ];
    let mut search = Search::new(Method::PowerSgd);
    (search.seed, search.metric) = (9, Metric::SquaredL2);
    let measured = measure(search, &model);
    let Setting::PowerSgd(compressor) = measured.setting(0, 1).unwrap() else { panic!("rank 3") };
    assert_eq!(compressor, PowerSgd { rank: 3, iterations: 5 });
    let error = |stream: Stream| {
        let trip = round_trip(&model[1].gradient(), compressor, stream).unwrap();
        squared_error(&model[1].gradient(), &trip.decoded)
    };
    let stream = measured.stream(0);
    let stated = measured.table.view().layer(0)[1].error;
    assert!((error(Stream { step: 5, rank: 3, ..stream }) - stated).abs() <= 1e-5 * stated);
    assert!((error(Stream { layer: 0, ..stream }) - stated).abs() > 1e-5 * stated);
}

/// At every width, the table has the sizes and errors of real payloads.
#[test]
fn widths_are_offered_with_the_sizes_and_errors_of_their_payloads() {
    let values: Vec<f32> = uniform(64 * 40, 3).into_iter().map(|x| x * x * x).collect();
    let model = [Layer::new("weight", &[40, 64], Values::F32(&values)).unwrap()];
    let range = Range { first: 0.05, last: 0.1, step: 0.05 };
    let search = Search::new(Method::TopK).with_widths(&[Width::Bits(2), Width::Bits(4)]).unwrap();
    let search = search.with_default(0.1).unwrap().with_range(range).unwrap();
    let measured = measure(search.clone(), &model);
    let expected = ["topk 10%", "topk 5% bits 4", "topk 5% bits 2", "topk 10% bits 4", "topk 10% bits 2"];
    assert_eq!((labels(&measured, 0), measured.defaults[0]), (expected.to_vec(), 0));
    assert_eq!(search.uniform(&[40, 64], Dtype::F32).unwrap(), measured.setting(0, 0).unwrap());
    let gradient = model[0].gradient();
    for (option, choice) in measured.table.view().layer(0).iter().enumerate() {
        let setting = measured.setting(0, option).unwrap();
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
        let len = setting.encode(&gradient, measured.stream(0), &mut workspace, &mut payload).unwrap();
        assert_eq!(choice.size, 8 * len as u64, "{setting}");
        let mut decoded = vec![f32::NAN; values.len()];
        lgreco::compress::decode(&payload, &mut decoded).unwrap();
        let error = squared_error(&gradient, &decoded);
        assert!((choice.error - error).abs() <= 1e-5 * error, "{setting}: {} is not {error}", choice.error);
    }
    let hybrid = measure(Search::new(Method::Hybrid).with_widths(&[Width::Bits(3)]).unwrap(), &model);
    let topk: Vec<&str> = labels(&hybrid, 0).into_iter().filter(|label| label.starts_with("topk")).collect();
    assert!(!topk.is_empty() && topk.iter().all(|label| label.ends_with(" bits 3")));
    assert_eq!(hybrid.table.label(0, hybrid.defaults[0] as usize), "eden 3");
    assert!(matches!(Search::new(Method::TopK).with_widths(&[]), Err(Error::Length { .. })));
    assert!(matches!(Search::new(Method::TopK).with_widths(&[Width::Bits(9)]), Err(Error::Parameter { .. })));
    assert!(matches!(Search::new(Method::PowerSgd).with_widths(&[Width::Full]), Err(Error::UnknownName { .. })));
}

/// The expected result of a search.
struct Expected {
    labels: &'static [&'static str],
    default: u32,
    settings: Vec<Setting>,
    /// Bytes of payloads.
    sizes: &'static [u64],
}

/// A backend for tests. The measured errors count down to 1, or measuring fails if `failure` is set. The backend
/// records the settings and the stream of each job.
#[derive(Default)]
struct Scripted {
    asked: Vec<(Vec<Setting>, Stream)>,
    failure: Option<JobError>,
}

impl Backend for Scripted {
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }
    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let settings = |job: &Job<'_>| (0..job.candidates.len()).filter_map(|i| job.candidates.setting(i)).collect();
        self.asked = jobs.iter().map(|job| (settings(job), job.stream)).collect();
        rows.iter_mut().rev().enumerate().for_each(|(i, place)| *place = (1 + i) as f64);
        self.failure.map_or(Ok(()), Err)
    }
    fn encode(
        &mut self,
        _: &Setting,
        _: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        _: &mut [u8],
    ) -> Result<usize, Error> {
        unreachable!("measuring encodes nothing")
    }
    fn decode(&mut self, _: &[u8], _: &mut [f32]) -> Result<(), Error> {
        unreachable!("measuring decodes nothing")
    }
}

/// Searches with short ranges, and their expected results, which are the same for a 40 x 64 and a 64 x 40 tensor.
fn expectations() -> Vec<(Search, Expected)> {
    let range = |first, last, step| Range { first, last, step };
    let qsgd = |bits| Setting::Qsgd(Qsgd { bits, ..Qsgd::default() });
    let topk = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
    let low_rank = |rank| Setting::PowerSgd(PowerSgd { rank, iterations: 5 });
    vec![
        (
            Search::new(Method::Qsgd).with_range(range(2.0, 8.0, 2.0)).unwrap(),
            Expected {
                labels: &["qsgd 2", "qsgd 4", "qsgd 6", "qsgd 8"],
                default: 1,
                settings: [2, 4, 6, 8].map(qsgd).to_vec(),
                // Five buckets of at most 512 values, and 320 bytes per bit.
                sizes: &[16 + 20 + 640, 16 + 20 + 1280, 16 + 20 + 1920, 16 + 20 + 2560],
            },
        ),
        (
            Search::new(Method::TopK).with_default(0.1).unwrap().with_range(range(0.05, 1.0, 0.95)).unwrap(),
            Expected {
                labels: &["topk 5%", "topk 10%", "dense"],
                default: 1,
                settings: [topk(128), topk(256), Setting::Dense].to_vec(),
                // Elias-Fano coding. k = 128: 4 lower bits per position, and 128 + 2559 / 16 upper bits in total.
                // k = 256: 3 lower bits per position, and 256 + 2559 / 8 upper bits in total.
                sizes: &[16 + 512 + 64 + 36, 16 + 1024 + 96 + 72, 16 + 10240],
            },
        ),
        (
            Search::new(Method::PowerSgd).with_range(range(3.0, 5.0, 2.0)).unwrap(),
            Expected {
                labels: &["powersgd 3", "powersgd 4", "powersgd 5"],
                default: 1,
                settings: [3, 4, 5].map(low_rank).to_vec(),
                // PowerSGD sends 40 + 64 numbers per rank.
                sizes: &[16 + 3 * 416, 16 + 4 * 416, 16 + 5 * 416],
            },
        ),
    ]
}

#[test]
fn tables_offers_and_jobs_are_those_written_down() {
    let values = uniform(64 * 40, 1);
    let model = [
        Layer::new("wide", &[40, 64], Values::F32(&values)).unwrap(),
        Layer::new("bias", &[64], Values::F32(&values[..64])).unwrap(),
        Layer::new("tall", &[64, 40], Values::F32(&values)).unwrap(),
    ];
    for (mut search, expected) in expectations() {
        (search.seed, search.metric) = (5, Metric::SquaredL2);
        let mut backend = Scripted::default();
        let measured = search.measure(&model, &mut backend).unwrap();
        check_measured(&measured, &expected);
        // The uncompressed option was measured as TopK of all elements.
        let all = Setting::TopK(TopK { keep: 2560, values: Dtype::F32 });
        let asked = expected.settings.iter().map(|&setting| if setting == Setting::Dense { all } else { setting });
        let asked: Vec<Setting> = asked.collect();
        let streams = [0, 2].map(|layer| Stream { seed: 5, layer, ..Stream::default() });
        assert_eq!(backend.asked, streams.map(|stream| (asked.clone(), stream)));

        let described = model.map(|layer| (layer.name(), layer.dims(), Dtype::F32));
        let offer = search.offer(described).unwrap();
        let offered = offer.rows().map(|OfferedRow { layer, candidates, stream }| {
            ((0..candidates.len()).filter_map(|i| candidates.setting(i)).collect::<Vec<_>>(), stream, layer)
        });
        let [first, second] = streams;
        assert_eq!(offered.collect::<Vec<_>>(), [(asked.clone(), first, 0), (asked.clone(), second, 2)]);
        let candidates = 2 * asked.len();
        let errors: Vec<f64> = (1..=candidates).rev().map(|error| error as f64).collect();
        check_measured(&offer.into_measured(&errors).unwrap(), &expected);
        let short = search.offer(described).unwrap().into_measured(&errors[1..]).unwrap_err();
        let (expected, found) = (candidates, candidates - 1);
        assert_eq!(short.error, Error::Length { what: "squared errors, one per candidate", expected, found });
    }
}

/// Compares a measurement with the expected one. The expected squared errors count down over both layers.
fn check_measured(measured: &Measured, expected: &Expected) {
    let options = expected.labels.len();
    assert_eq!((&measured.layers[..], &measured.uncompressed[..]), (&[0, 2][..], &[1][..]));
    assert_eq!(measured.defaults, [expected.default; 2]);
    assert_eq!([0, 1].map(|layer| measured.table.name(layer)), ["wide", "tall"]);
    for layer in [0, 1] {
        assert_eq!(labels(measured, layer), expected.labels);
        let settings: Vec<Setting> = (0..options).map(|option| measured.setting(layer, option).unwrap()).collect();
        assert_eq!(settings, expected.settings);
        assert_eq!(measured.stream(layer), Stream { seed: 5, layer: 2 * layer as u32, ..Stream::default() });
        for (option, choice) in measured.table.view().layer(layer).iter().enumerate() {
            let counted = (2 * options - layer * options - option) as f64;
            let error = if settings[option] == Setting::Dense { 0.0 } else { counted };
            assert_eq!((choice.size, choice.error), (8 * expected.sizes[option], error));
        }
    }
}

#[test]
fn a_hybrid_search_offers_what_the_three_methods_do() {
    let offer = Search::new(Method::Hybrid).offer([("w", &[64, 40][..], Dtype::F32)]).unwrap();
    let rows = offer.rows().map(|row| (row.candidates.len(), row.candidates.setting(0).unwrap()));
    let eden = Setting::Eden(Eden { bits: 1, ..Eden::default() });
    let top = Setting::TopK(TopK { keep: 3, values: Dtype::F32 });
    let low_rank = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 5 });
    assert_eq!(rows.collect::<Vec<_>>(), [(8, eden), (100, top), (13, low_rank)]);
}

#[test]
fn layers_that_stay_uncompressed_are_checked_too() {
    let (weight, bias, broken) = (uniform(4096, 1), [1.0; 8], [1.0, f32::NAN]);
    let layer = |name, dims, values| Layer::new(name, dims, Values::F32(values)).unwrap();
    let told = |model: &[Layer<'_>]| Search::new(Method::Qsgd).measure(model, &mut Portable).unwrap_err().to_string();
    let weight = layer("weight", &[64, 64], &weight);
    assert_eq!(told(&[weight, layer("b", &[2], &broken)]), "layer `b`: element 1 is NaN: gradients must be finite");
    let twice = [layer("b", &[8], &bias), weight, layer("b", &[8], &bias)];
    assert_eq!(told(&twice), "layer `b`: layers 0 and 2 share this name");
    let none = told(&[layer("b", &[8], &bias)]);
    assert!(none.contains("fewer than `min_elements` elements"), "{none}");
}

#[test]
fn a_setting_beside_the_search_that_fits_no_layer_is_an_error() {
    let values = uniform(4096, 1);
    let model = [Layer::new("w", &[64, 64], Values::F32(&values)).unwrap()];
    let mut search = Search::new(Method::Qsgd);
    search.beside = vec![Setting::Qsgd(Qsgd { bits: 9, ..Qsgd::default() })];
    let error = search.measure(&model, &mut Portable).unwrap_err();
    assert_eq!(error.to_string(), "bits is 9, expected 1 to 8");
    search.beside = vec![Setting::TopK(TopK { keep: 5000, values: Dtype::F32 })];
    search.measure(&model, &mut Portable).unwrap();
}

#[test]
fn failures_name_a_layer_where_they_are_about_one() {
    let values = uniform(64 * 40, 1);
    let model = ["a", "b"].map(|name| Layer::new(name, &[64, 40], Values::F32(&values)).unwrap());
    let error = Error::Device { what: "it is lost" };
    let said = |job| {
        let mut backend = Scripted { failure: Some(JobError { job, error }), ..Scripted::default() };
        Search::new(Method::Hybrid).measure(&model, &mut backend).unwrap_err().to_string()
    };
    assert_eq!(said(Some(2)), "layer `a`: the device failed: it is lost");
    assert_eq!(said(Some(3)), "layer `b`: the device failed: it is lost");
    assert_eq!(said(None), "the device failed: it is lost");
}

#[test]
fn noise_averages_out_over_the_workers_and_bias_does_not() {
    let values: Vec<f32> = uniform(64 * 40, 3).into_iter().map(|x| x * x * x).collect();
    let model = [Layer::new("weight", &[40, 64], Values::F32(&values)).unwrap()];
    for metric in [Metric::L2, Metric::SquaredL2] {
        let mut one = Search::new(Method::Hybrid);
        one.metric = metric;
        let mut four = one.clone();
        four.workers = NonZeroU32::new(4);
        let [alone, mean] = [&one, &four].map(|search| measure(search.clone(), &model));
        assert_eq!(
            [alone.table.metric(), mean.table.metric()],
            [metric.name(), &format!("{} (mean of 4 workers)", metric.name()),]
        );
        let [alone_row, mean_row] = [&alone, &mean].map(|measured| measured.table.view().layer(0).to_vec());
        let mut noisy = 0;
        for (option, (alone_choice, choice)) in alone_row.iter().zip(&mean_row).enumerate() {
            let setting = mean.setting(0, option).unwrap();
            let divisor = match (setting, metric) {
                (Setting::Eden(_), Metric::L2) => 2.0,
                (Setting::Eden(_), Metric::SquaredL2) => 4.0,
                _ => 1.0,
            };
            noisy += u32::from(divisor > 1.0);
            assert_eq!((choice.size, choice.error), (alone_choice.size, alone_choice.error / divisor), "{setting}");
            let [squared, of_one] = [(&four, choice), (&one, alone_choice)]
                .map(|(search, choice)| search.squared_error(&setting, choice.error));
            assert!((squared - of_one).abs() <= 1e-12 * of_one, "{setting}");
        }
        assert!(noisy > 0 && noisy < mean_row.len() as u32);
    }
}
