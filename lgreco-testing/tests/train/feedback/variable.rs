//! Tests of hard thresholds, AdaComp and LoCo, each with its usual memory.

use super::*;
use lgreco_testing::adacomp::expected;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::hard_threshold::HardThreshold;

fn hard(lambda: f32) -> Setting {
    Setting::HardThreshold(HardThreshold { lambda, values: Dtype::F32 })
}

fn adacomp(bin: u32) -> Setting {
    Setting::AdaComp(AdaComp { bin })
}

#[test]
fn mass_balances() {
    for setting in [hard(0.8), hard(1e-3), adacomp(20)] {
        check_mass_balance(setting, &steps(300, 40), vector(300)).unwrap();
    }
    let rule = Residual::CLASSIC;
    check_exact_split(rule, hard(0.8), &steps(300, 40), vector(300));
    check_resumes(rule, adacomp(20), &steps(300, 10), vector(300));
    check_resumes(rule, hard(0.8), &steps(300, 10), vector(300));
}

/// While all values are below λ, a hard threshold is not a contraction. Still, the residual stays below λ.
#[test]
fn hard_thresholds_bound_the_memory() {
    let values = vec![0.01; 50];
    let classic = Residual::CLASSIC;
    let mut worker = Worker::new(classic, hard(1.0), vector(50), Stream::default()).unwrap();
    let mut sent = 0.0;
    for _ in 0..1000 {
        sent += worker.step(&gradient(&values, vector(50))).unwrap().decoded[0] as f64;
        assert!(worker.values().iter().all(|x| x.abs() < 1.0));
    }
    assert!((sent - 10.0).abs() < 1.0, "{sent}");
    let relative = contraction(&hard(1.0), &gradient(&values, vector(50)), Stream::default(), &mut [0; 7]);
    assert_eq!(relative, Ok(1.0));
}

/// Compares with the published recursion for the residue R and the gradient w: G = R + w and H = G + w. The next
/// residue is G − q at elements where q is sent, and G at all others.
#[test]
fn adacomp_sees_residue_and_gradient() {
    let classic = Residual::CLASSIC;
    let mut worker = Worker::new(classic, adacomp(25), vector(200), Stream::default()).unwrap();
    let mut residue = vec![0.0f32; 200];
    let mut differs = false;
    for w in steps(200, 30) {
        let p: Vec<f32> = residue.iter().zip(&w).map(|(r, w)| r + w).collect();
        let q = expected(25, &p, &w);
        let sent = worker.step(&gradient(&w, vector(200))).unwrap();
        assert_eq!(sent.decoded, q);
        residue = p.iter().zip(&q).map(|(p, q)| p - q).collect();
        assert_eq!(worker.values(), residue);
        differs |= q != expected(25, &p, &p);
    }
    assert!(differs, "the fresh gradient made no difference");
}

/// On average, 0.3 of a quantiser step arrives as 0.3, for every β. The errors of successive training steps cancel. At
/// most half a quantiser step, divided by the gain and the number of training steps, remains. The value −1 fixes the
/// scale and is always exact.
#[test]
fn loco_delivers_fractions_of_a_step() {
    const STEPS: u32 = 2000;
    let values = [-1.0, 0.3 / 8.0, -0.3 / 8.0, 0.05 / 8.0, 3.7 / 8.0];
    for beta in [0.0, 0.2, 0.5, 0.8, 0.95] {
        let gain = 1.0 - beta;
        let rule = Residual { gain, reset_every: 0, storage: Storage::F32 };
        let error = mean_error(rule, Setting::LoCo(LoCo { group: 5 }), &values, vector(5), STEPS);
        assert!(error < 0.0626 / gain as f64 / STEPS as f64 + 1e-6, "beta {beta}: {error}");
    }
    // LoCo keeps its memory in 8 bits, and resets it from time to time.
    let error = mean_error(Residual::LOCO, Setting::LoCo(LoCo { group: 5 }), &values, vector(5), STEPS);
    assert!(error < 0.0626 / 0.2 / 512.0 + 1e-3, "{error}");
}

/// Without memory, an eighth of the largest value is always lost. With a memory, the whole value arrives on average.
#[test]
fn loco_repays_what_the_largest_value_loses() {
    let values = [1.0, 0.0];
    let loco = Setting::LoCo(LoCo { group: 2 });
    let error = mean_error(Residual::CLASSIC, loco, &values, vector(2), 1000);
    assert!(error < 1e-3, "{error}");
}
