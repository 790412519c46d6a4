use super::*;
use lgreco_train::backend::Portable;
use lgreco_train::compress::Compressor;
use lgreco_train::file::{Error, PlanFile};
use lgreco_train::gradient::Values;
use lgreco_train::plan::{Plan, Solver, budget::Budget, solve};
use lgreco_train::search::{Layer, Measured};

/// Plans for the model's gradients of the first step, with the last layer first. Returns the measurement, the plan
/// and the plan file.
fn planned(method: Method) -> (Measured, Plan, PlanFile) {
    let (model, gradients) = (model(), gradients(0, 0, 1.0));
    let layers = model
        .iter()
        .zip(&gradients)
        .map(|(tensor, values)| Layer::new(tensor.name(), tensor.dims(), Values::F32(values)).unwrap());
    let layers: Vec<Layer<'_>> = layers.rev().collect();
    let measured = search(method).measure(&layers, &mut Portable).unwrap();
    let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
    let plan = solve(&measured.table.view(), budget, Solver::default()).unwrap();
    let json = PlanFile::new(&measured.table, &plan).to_json();
    (measured, plan, PlanFile::parse(json.as_bytes()).unwrap())
}

/// In each step, a worker sends exactly the number of bytes that the solver has counted. The layers have the measured
/// settings.
#[test]
fn a_plan_file_is_trained_with() {
    for method in [Method::Qsgd, Method::TopK, Method::PowerSgd, Method::Hybrid] {
        let (measured, plan, file) = planned(method);
        let chosen = |layer: usize| measured.setting(layer, plan.options()[layer] as usize).unwrap();
        // In the table, the layer fc2 comes before the layer fc1.
        let expected = vec![chosen(1), Setting::Dense, chosen(0)];
        assert!(expected[0] != Setting::Dense && expected[2] != Setting::Dense, "{method:?}");
        let bias = 4 * 24;
        on_all(2, |mut worker| {
            let policy = Policy::from_plan(&file, &model()).unwrap();
            let mut controller =
                Controller::new(config(method, policy), model(), worker.rank(), worker.world_size()).unwrap();
            for step in 0..6 {
                let (report, _) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
                if step >= 2 {
                    assert_eq!(settings(&controller), expected, "{method:?}");
                    assert_eq!(report.bytes_out, bias + plan.summary().size / 8, "{method:?}");
                }
            }
        });
    }
}

#[test]
fn a_plan_of_another_model_is_refused() {
    let (measured, _, file) = planned(Method::TopK);
    let refused = |layers: &[(&str, &[usize])]| {
        let tensors: Vec<Tensor> =
            layers.iter().map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap()).collect();
        Policy::from_plan(&file, &tensors).unwrap_err().to_string()
    };
    let unknown = refused(&[("fc1", &[16, 24]), ("fc3", &[20, 16])]);
    assert_eq!(unknown, "layer `fc2`: unknown layer, expected one of the model's");
    let keep = match file.layers[1].setting {
        Some(Setting::TopK(top)) => top.keep,
        other => panic!("{other:?}"),
    };
    let tiny = Tensor::new("fc1", &[1, keep as usize - 1], Dtype::F32).unwrap();
    assert!(Setting::TopK(TopK { keep, values: Dtype::F32 }).payload_len(tiny.shape(), Dtype::F32).is_err());
    let small = refused(&[("fc2", &[20, 16]), ("fc1", &[1, keep as usize - 1])]);
    assert!(small.starts_with(&format!("layer `fc1`: kept elements is {keep}, expected")), "{small}");

    let mut bare = file.clone();
    bare.layers[0].setting = None;
    let label = bare.layers[0].label.clone();
    let found = Policy::from_plan(&bare, &model());
    assert_eq!(found, Err(Error::NoSetting { layer: measured.table.name(0).into(), label }));
}
