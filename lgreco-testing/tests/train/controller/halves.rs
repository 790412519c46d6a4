//! Tests of controllers that sum values on the network as bf16.

use super::*;

fn halved(policy: Policy) -> Config {
    let mut config = config(Method::PowerSgd, policy);
    config.search.reduce_dtype = Dtype::Bf16;
    config
}

/// Planned sizes and reported bytes agree with sums in bf16. The rounding errors of the factors stay in the residuals.
#[test]
fn factors_and_uncompressed_layers_take_half_the_bytes() {
    let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
    on_all(2, |mut worker| {
        let settings = vec![setting, Setting::Dense, setting];
        let mut controller =
            Controller::new(halved(Policy::Fixed(settings)), model(), worker.rank(), worker.world_size()).unwrap();
        for step in 0..6 {
            let mut owed: Vec<_> = [0, 2].map(|layer| residual(&controller, layer)).into();
            let (report, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
            let dense = 2 * (16 * 24 + 24 + 20 * 16);
            let compressed = 2 * 2 * (16 + 24) + 16 + 2 * 24 + 2 * 2 * (20 + 16) + 16;
            assert_eq!(report.bytes_out, if step < 2 { dense } else { compressed }, "step {step}");
            for (owed, layer) in owed.iter_mut().zip([0, 2]) {
                let mut left = residual(&controller, layer);
                worker.all_reduce_sum(owed).unwrap();
                worker.all_reduce_sum(&mut left).unwrap();
                let (exact, mean) = (exact_mean(2, step, layer), &means[layer]);
                for i in 0..left.len() {
                    let lost = exact[i] + owed[i] / 2.0 - mean[i] - left[i] / 2.0;
                    // Gradient mass is lost only by the rounding of sums.
                    assert!(lost.abs() < 0.02, "step {step}, layer {layer}, element {i}: {lost} is lost");
                }
            }
        }
    });
}

#[test]
fn plans_count_half_the_bytes() {
    let sizes = [Dtype::F32, Dtype::Bf16].map(|reduce_dtype| {
        on_all(2, |mut worker| {
            let mut config = config(Method::PowerSgd, LGRECO);
            config.search.reduce_dtype = reduce_dtype;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap()));
            let decision = controller.decision().unwrap();
            (decision.default_size, decision.uncompressed_size)
        })
    });
    let headers = 2 * 8 * 16;
    for (whole, half) in [(sizes[0].0, sizes[1].0), (sizes[0].1, sizes[1].1)] {
        assert_eq!(2 * (half - headers), whole - headers);
    }
}

#[test]
fn ranks_must_agree_on_it() {
    let results = threads::run(2, |mut worker| {
        let mut config = halved(Policy::Uncompressed);
        if worker.rank() == 1 {
            config.search.reduce_dtype = Dtype::F32;
        }
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop)
    });
    let [found, expected] = ["f32", "bf16"].map(OptionValue::Name);
    assert_eq!(results, [Err(differ(1, "reduce_dtype", found, expected)); 2]);
}
