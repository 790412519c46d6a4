//! Tests of a few steps.

use crate::convnet::{Early, Late};
use crate::digits::Digits;
use crate::optimiser::{Kind, Optimiser};
use crate::parameters::Parameters;
use crate::stages::{BATCH, Failure, Images};
use crate::{Outcome, SEED, batch::Batch, new, rate, recurring, train};

const STEPS: u32 = 3;

/// Returns the mean loss of the uncut network, which has the same parameters and images as the cut one.
fn whole() -> Result<f32, Failure> {
    let digits = Digits::load();
    let mut stages = [Parameters::new(SEED), Parameters::new(SEED + 1)];
    let [above, below] = &mut stages;
    let (early, late) = (Early::new(above)?, Late::new(below)?);
    let loss = |Batch { inputs, targets }: Batch| {
        let scores = late.scores(&early.features(&inputs)?)?;
        Batch { inputs, targets }.loss(&scores)
    };
    let lens = |parameters: &Parameters| -> Vec<usize> {
        parameters.all().iter().map(|parameter| parameter.dims.iter().product()).collect()
    };
    let mut optimisers = stages.each_ref().map(|stage| Optimiser::new(Kind::Sgd, lens(stage).into_iter()));
    for step in 0..STEPS {
        let gradients = loss(digits.training(BATCH, SEED, step, 0, 1)?)?.backward()?;
        for (stage, optimiser) in stages.iter().zip(&mut optimisers) {
            let mut values = stage.values()?;
            optimiser.step(&mut values, &stage.gradients(&gradients)?, rate(step, STEPS));
            stage.set(&values)?;
        }
    }
    let (mut sum, mut count) = (0.0, 0.0);
    for Batch { inputs, targets } in digits.validation(2)? {
        for first in (0..inputs.dim(0)?).step_by(BATCH) {
            let batch = Batch { inputs: inputs.narrow(0, first, BATCH)?, targets: targets.narrow(0, first, BATCH)? };
            sum += loss(batch)?.to_scalar::<f32>()?;
            count += 1.0;
        }
    }
    Ok(sum / count)
}

const BOTH: [u64; 2] = [2049; 2];
/// Bytes per image that the settings for [`Images::New`] send, as in docs/src/experiments/pipeline-cut.md. Every image
/// takes the same number of bytes.
const SENT: [[u64; 2]; 21] = [
    BOTH,
    [244, 2049],
    [244, 209],
    [244, 2049],
    [244, 2049],
    [126, 2049],
    [126, 105],
    [126, 2049],
    [126, 2049],
    [2049, 244],
    [2049, 126],
    [161, 2049],
    [2049, 161],
    [97, 2049],
    [2049, 97],
    [289, 545],
    [130, 2049],
    [2049, 130],
    [66, 2049],
    [2049, 66],
    [194, 130],
];

#[test]
fn a_cut_without_compression_changes_nothing_and_compressed_ones_something() {
    let (whole, rows) = (whole().unwrap(), new().unwrap());
    assert_eq!(rows.len(), SENT.len());
    for (row, sent) in rows.iter().zip(SENT) {
        let Outcome { bytes, evaluated: [(so, _), (plain, _)] } = train(Images::New, row, STEPS).unwrap();
        assert_eq!(bytes, sent, "{}", row.name);
        assert!(so.is_finite() && plain.is_finite(), "{}: {so} {plain}", row.name);
        assert_eq!(plain == whole, sent == BOTH, "{}: {plain}, whole {whole}", row.name);
        // Models that are trained with compressed activations are also evaluated with compressed activations.
        assert_eq!(so != plain, sent[0] < BOTH[0], "{}: {so} {plain}", row.name);
    }
}

/// AQ-SGD sends an image uncompressed when it first appears, with 16 more bytes that identify it.
#[test]
fn images_that_come_for_the_first_time_are_sent_whole_where_changes_are_sent() {
    let rows = recurring().unwrap();
    let sent: Vec<u64> = rows.iter().map(|row| train(Images::Recurring, row, 1).unwrap().bytes[0]).collect();
    assert_eq!(sent, [2049, 161, 2065, 97, 2065, 66, 2065, 126, 2065]);
}
