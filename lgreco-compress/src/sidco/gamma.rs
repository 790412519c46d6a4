//! The incomplete gamma function and its inverse.

use crate::num::{exp, ln};

/// ln Γ(x) for x > 0. The error is at most 1e-14 times the result's magnitude, or 1e-14 if the magnitude is below 1.
fn ln_gamma(x: f64) -> f64 {
    // Lanczos approximation with g = 7 and nine coefficients.
    const COEFFICIENTS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    const HALF_LN_TAU: f64 = 0.918_938_533_204_672_7;
    if x < 0.5 {
        return ln_gamma(x + 1.0) - ln(x);
    }
    let x = x - 1.0;
    let series = COEFFICIENTS.iter().zip(1..).fold(0.999_999_999_999_809_9, |sum, (c, i)| sum + c / (x + i as f64));
    let t = x + 7.5;
    HALF_LN_TAU + (x + 0.5) * ln(t) - t + ln(series)
}

/// Q(a, x): the probability that a gamma distribution of shape `a` > 0 exceeds `x` ≥ 0.
fn upper_gamma(a: f64, x: f64) -> f64 {
    const TERMS: usize = 100_000;
    if x <= 0.0 {
        return 1.0;
    }
    let front = exp(a * ln(x) - x - ln_gamma(a));
    if x < a + 1.0 {
        // P = front · Σ x^n / (a (a + 1) … (a + n)).
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..TERMS {
            term *= x / (a + n as f64);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        return 1.0 - front * sum;
    }
    // Q = front / (x + 1 − a − 1 (1 − a) / (x + 3 − a − …)), by Lentz's method.
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for n in 1..TERMS {
        let numerator = -(n as f64) * (n as f64 - a);
        b += 2.0;
        d = numerator * d + b;
        c = b + numerator / c;
        d = 1.0 / if d.abs() < TINY { TINY } else { d };
        c = if c.abs() < TINY { TINY } else { c };
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-16 {
            break;
        }
    }
    front * fraction
}

/// Finds the x with Q(a, x) = `density` by bisection; `density` is in (0, 1].
pub(super) fn inverse_upper_gamma(a: f64, density: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while upper_gamma(a, high) > density && high < 1e300 {
        (low, high) = (high, 2.0 * high);
    }
    // Small shapes have quantiles of any magnitude. Halving reaches the smallest f64 in 1100 steps.
    for _ in 0..1100 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        (low, high) = if upper_gamma(a, middle) > density { (middle, high) } else { (low, middle) };
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gammas_of_whole_and_half_numbers() {
        let mut factorial = 1.0f64;
        for n in 1..30 {
            let off = (ln_gamma(n as f64) - factorial.ln()).abs();
            assert!(off <= 1e-13 * factorial.ln().max(1.0), "{n}: {off}");
            factorial *= n as f64;
        }
        let pi = core::f64::consts::PI;
        assert!((ln_gamma(0.5) - 0.5 * pi.ln()).abs() < 1e-14);
        assert!((ln_gamma(1e-8) - 1e8f64.ln()).abs() < 1e-7);
    }

    /// Compares with the closed forms of shapes 1, 2 and 3.
    #[test]
    fn shares_of_whole_shapes() {
        for i in 1..400 {
            let x = i as f64 * 0.1;
            let e = (-x).exp();
            for (a, expected) in [(1.0, e), (2.0, e * (1.0 + x)), (3.0, e * (1.0 + x + x * x / 2.0))] {
                let found = upper_gamma(a, x);
                assert!((found - expected).abs() <= 1e-13 + 1e-11 * expected, "Q({a}, {x}): {found}, {expected}");
            }
        }
    }

    /// Compares with Simpson's rule on the density in t, where x = t^k. The integrand is smooth for large k.
    #[test]
    fn shares_of_any_shape() {
        for a in [0.05f64, 0.3, 0.5, 0.77, 1.4, 7.5] {
            let k = (6.0 / a).ceil();
            for x in [0.01f64, 0.3, 1.0, 2.5, 9.0] {
                let integrand = |t: f64| k * t.powf(k * a - 1.0) * (-t.powf(k)).exp();
                let (steps, end) = (20_000, x.powf(1.0 / k));
                let h = end / steps as f64;
                let weight = |i: usize| if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
                let sum: f64 = (0..=steps).map(|i| integrand(i as f64 * h) * weight(i)).sum();
                let upper = 1.0 - sum * h / 3.0 / ln_gamma(a).exp();
                let found = upper_gamma(a, x);
                assert!((found - upper).abs() < 1e-9, "Q({a}, {x}): {found}, {upper}");
            }
        }
    }

    #[test]
    fn the_inverse_is_one() {
        for a in [1e-3, 0.05, 0.5, 1.0, 3.0, 40.0, 1e4, 1e6] {
            for density in [0.25, 0.1, 1e-3, 1e-6] {
                let x = inverse_upper_gamma(a, density);
                let back = if x > 0.0 { upper_gamma(a, x) } else { density };
                assert!((back / density - 1.0).abs() < 1e-6, "shape {a}, density {density}: {x}, {back}");
            }
        }
        assert!((inverse_upper_gamma(1.0, 0.001) - 1000f64.ln()).abs() < 1e-12);
        assert_eq!(inverse_upper_gamma(2.0, 1.0), 0.0f64.next_up());
    }
}
