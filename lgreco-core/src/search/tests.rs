use super::*;
use crate::backend::Portable;
use crate::compress::Compressor;
use crate::compress::powersgd::PowerSgd;
use crate::testing::powersgd::{round_trip, squared_error, uniform};
use std::string::ToString;

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
    assert_eq!(measured.table.label(0, measured.defaults[0] as usize), "qsgd 4");
    let mut methods = [0; 4];
    for (option, label) in labels(&measured, 0).into_iter().enumerate() {
        let setting = measured.setting(0, option);
        let payload = setting.payload_len(model[0].gradient().shape(), crate::gradient::Dtype::F32).unwrap();
        assert_eq!(measured.table.view().layer(0)[option].size, 8 * payload as u64, "{label}");
        methods[match setting {
            Setting::Dense => 0,
            Setting::Qsgd(_) => 1,
            Setting::TopK(_) => 2,
            Setting::PowerSgd(_) => 3,
            other => panic!("{other} is not searched"),
        }] += 1;
        match setting {
            Setting::TopK(top) => {
                let density: f64 = label["topk ".len()..].trim_end_matches('%').parse().unwrap();
                assert_eq!((density / 100.0 * 2560.0).round() as u32, top.keep, "{label}");
            }
            other => assert_eq!(other.to_string(), label),
        }
    }
    // Rank 16 of 64 x 40 sends 26 numbers per row of 40; no candidate is as large as the tensor.
    assert_eq!((methods[0], methods[1], methods[3]), (0, 7, 13));
    assert!(methods[2] > 90);
}

#[test]
fn what_comes_to_the_same_is_offered_once() {
    let values = uniform(1024 * 3, 2);
    let model = [Layer::new("thin", &[1024, 3], Values::F32(&values)).unwrap()];
    let ranks = Range { first: 1.0, last: 8.0, step: 1.0 };
    let measured = measure(Search::new(Method::PowerSgd).with_range(ranks).unwrap(), &model);
    // Rank 3, and the default 4 which is the same, would send more than the tensor has.
    assert_eq!(labels(&measured, 0), ["powersgd 1", "powersgd 2", "dense"]);
    assert_eq!((measured.defaults[0], measured.setting(0, 2)), (2, Setting::Dense));
    let dense = measured.table.view().layer(0)[2];
    assert_eq!((dense.size, dense.error), (8 * (16 + 4 * 3072), 0.0));

    let few = uniform(50, 3);
    let model = [Layer::new("few", &[5, 10], Values::F32(&few)).unwrap()];
    let densities = Range { first: 0.01, last: 0.07, step: 0.01 };
    let search = Search { min_elements: 1, ..Search::new(Method::TopK).with_range(densities).unwrap() };
    let measured = measure(search, &model);
    // 0.5 and 1 and 1.5 of 50 elements, rounded half up: 1, 1, 2, 2, 3, 3, 4.
    assert_eq!(labels(&measured, 0), ["topk 1%", "topk 3%", "topk 5%", "topk 7%"]);
}

#[test]
fn the_stream_makes_the_payloads_that_were_measured() {
    let (bias, values) = ([0.5; 8], uniform(40 * 50, 4));
    let model = [
        Layer::new("bias", &[8], Values::F32(&bias)).unwrap(),
        Layer::new("w", &[40, 50], Values::F32(&values)).unwrap(),
    ];
    let search = Search { seed: 9, metric: Metric::SquaredL2, ..Search::new(Method::PowerSgd) };
    let measured = measure(search, &model);
    let Setting::PowerSgd(compressor) = measured.setting(0, 1) else { panic!("rank 3") };
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

#[test]
fn an_offer_becomes_the_table_that_measuring_makes() {
    let (wide, tall) = (uniform(64 * 40, 1), uniform(64 * 40, 2));
    let model = [
        Layer::new("wide", &[40, 64], Values::F32(&wide)).unwrap(),
        Layer::new("bias", &[64], Values::F32(&wide[..64])).unwrap(),
        Layer::new("tall", &[64, 40], Values::F32(&tall)).unwrap(),
    ];
    for method in Method::ALL {
        let search = Search { seed: 5, ..Search::new(method) };
        let described = model.map(|layer| (layer.name(), layer.dims(), Dtype::F32));
        let mut errors = Vec::new();
        let offer = search.offer(described).unwrap();
        for OfferedRow { layer, candidates, stream } in offer.rows() {
            let gradient = model[layer].gradient();
            let mut workspace = vec![0; candidates.measure_workspace_len(gradient.shape(), Dtype::F32)];
            let mut row = vec![0.0; candidates.len()];
            candidates.measure(&gradient, stream, &mut workspace, &mut row).unwrap();
            errors.extend(row);
        }
        let expected = measure(search.clone(), &model);
        assert_eq!((expected.layers.as_slice(), expected.uncompressed.as_slice()), (&[0, 2][..], &[1][..]));
        assert_eq!(std::format!("{:?}", offer.into_measured(&errors).unwrap()), std::format!("{expected:?}"));
        let short = search.offer(described).unwrap().into_measured(&errors[1..]).unwrap_err();
        let (expected, found) = (errors.len(), errors.len() - 1);
        assert_eq!(short.error, Error::Length { what: "squared errors, one per candidate", expected, found });
    }
}
