use super::*;
use crate::compress::wire::Payload;
use crate::gradient::Values;

#[test]
fn every_number_of_levels_times_its_inverse_is_one() {
    for log_levels in 1..=8 {
        assert_eq!(((1u32 << log_levels) - 1) as f32 * grid::inverse_levels(log_levels), 1.0);
    }
}

#[test]
fn rows_are_near_the_error_of_one_round_trip() {
    let values: [f32; 1000] = core::array::from_fn(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0);
    let gradient = Gradient::new(Values::F32(&values), Shape::new(1000, 1).unwrap()).unwrap();
    for scale in [Scale::MaxNorm, Scale::MinMax] {
        for rounding in [Rounding::Nearest, Rounding::Stochastic] {
            for bits in 1..=8 {
                let qsgd = Qsgd { bits, bucket: 300, scale, rounding };
                let mut payload = [0; 2000];
                let len = qsgd.encode(&gradient, Stream::default(), &mut [], &mut payload).unwrap();
                let mut out = [0f32; 1000];
                decode(&Payload::parse(&payload[..len]).unwrap(), &mut out).unwrap();
                let real: f64 = values.iter().zip(out).map(|(a, b)| (*a as f64 - b as f64).powi(2)).sum();
                let mut e = [0.0];
                measure(&gradient, qsgd, &[bits], &mut e).unwrap();
                assert!((real / e[0] - 1.0).abs() < if rounding == Rounding::Nearest { 1e-5 } else { 0.2 });
            }
        }
    }
}
