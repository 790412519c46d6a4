//! How well metrics of a plan's compression errors predict the increase of the loss under random plans.

use crate::errors::{Errors, Layer, Moments, Plan};
use crate::fitted;
use crate::report::Row;
use crate::summary::Mean;
use crate::{WORKERS, drawn};
use lgreco_train::compress::Setting;
use std::fmt::Write;

/// A layer's summand in a plan's metric: a function of the squared norm of its gradient and its relative squared error.
type Term = fn(f64, f64) -> f64;

/// The summand of each candidate metric, for biased methods and for unbiased ones.
const METRICS: [(&str, Term, Term); 9] = [
    ("l2", |n, r| (n * r).sqrt(), |n, r| (n * r).sqrt()),
    ("squared-l2", |n, r| n * r, |n, r| n * r),
    ("relative squared", |_, r| r, |_, r| r),
    ("squared-l2, bias by delay (1−r)", |n, r| n * r / remaining(r), |n, r| n * r),
    ("l2, noise by workers", |n, r| (n * r).sqrt(), |n, r| (n * averaged(r)).sqrt()),
    ("squared-l2, noise by workers", |n, r| n * r, |n, r| n * averaged(r)),
    ("relative squared, noise by workers", |_, r| r, |_, r| averaged(r)),
    ("squared-l2, noise by workers, bias by delay (1−r)", |n, r| n * r / remaining(r), |n, r| n * averaged(r)),
    ("squared-l2, noise by workers, bias by delay (1−r)²", |n, r| n * r / remaining(r).powi(2), |n, r| n * averaged(r)),
];

/// Metrics that are multiplied by the layer's sensitivity to noise. Source: Malinovskii et al., "HIGGS", NAACL 2025. In
/// that paper, the loss increases linearly with the layers' squared errors. Noise in one layer at a time measures the
/// coefficients.
const PROBED: [(&str, Term, Term); 2] = [
    ("squared-l2 by sensitivity", |n, r| n * r, |n, r| n * r),
    ("squared-l2 by sensitivity, noise by workers", |n, r| n * r, |n, r| n * averaged(r)),
];

type OfAdam = fn(&Moments, f64) -> f64;

/// Metrics that use Adam's second moments. Each function returns a layer's summand at one step, from the relative
/// squared error of the mean gradient.
const OF_ADAM: [(&str, OfAdam); 2] = [
    ("noise in Adam's step, noise by workers", Moments::noise_in_step),
    ("squared-l2 over the layer's mean second moment, noise by workers", Moments::noise_by_mean),
];

fn averaged(r: f64) -> f64 {
    r / f64::from(WORKERS)
}

/// The part of the input that error feedback sends in a step if the relative squared error is `r`.
fn remaining(r: f64) -> f64 {
    (1.0 - r).max(1e-3)
}

/// Random plans of one model, with their increase of the loss in per cent.
struct Measured<'a> {
    model: &'a str,
    plans: Vec<(&'a str, Mean)>,
    errors: Vec<&'a Errors>,
}

impl<'a> Measured<'a> {
    fn new(model: &'a str, rows: &[Row], errors: &'a [Errors]) -> Measured<'a> {
        let increases = |name: &str| -> Vec<f64> {
            let drawn = |row: &&Row| row.model == model && row.method == drawn::METHOD && row.scheme == name;
            rows.iter().filter(drawn).filter_map(|row| row.increase(rows)).filter(|x| x.is_finite()).collect()
        };
        let plans = drawn::NAMES.iter().filter_map(|name| Some((*name, Mean::of(&increases(name))?)));
        Measured { model, plans: plans.collect(), errors: errors.iter().filter(|e| e.model == model).collect() }
    }

    fn losses(&self) -> Vec<f64> {
        self.plans.iter().map(|(_, mean)| mean.mean).collect()
    }

    /// Each plan's metric, summed over the runs.
    fn predicted(
        &self,
        predict: impl Fn(&Errors, &Plan) -> Result<f64, lgreco_train::Error>,
    ) -> Result<Vec<f64>, lgreco_train::Error> {
        let predict = |(name, _): &(&str, Mean)| {
            self.errors.iter().filter_map(|errors| Some(predict(errors, errors.plan(name)?))).sum()
        };
        self.plans.iter().map(predict).collect()
    }

    fn spearman(
        &self,
        predict: impl Fn(&Errors, &Plan) -> Result<f64, lgreco_train::Error>,
    ) -> Result<f64, lgreco_train::Error> {
        Ok(spearman(&self.predicted(predict)?, &self.losses()))
    }

    /// Correlations of squared errors on half of the plans. The weight of unbiased methods is fitted on the other half, or
    /// is one over the number of workers.
    fn halves(&self) -> Result<[f64; 2], lgreco_train::Error> {
        let part =
            |biased: Term, unbiased: Term| self.predicted(|errors, plan| cost(errors, plan, |_| 1.0, biased, unbiased));
        let (of_biased, of_unbiased) = (part(|n, r| n * r, |_, _| 0.0)?, part(|_, _| 0.0, |n, r| n * r)?);
        let parts: Vec<[f64; 2]> = std::iter::zip(of_biased, of_unbiased).map(Into::into).collect();
        Ok(fitted::halves(&parts, &self.losses(), averaged(1.0)))
    }
}

/// Spearman's correlation of every metric with the increase of the loss, model by model, as Markdown.
pub fn table(rows: &[Row], errors: &[Errors]) -> Result<String, lgreco_train::Error> {
    let mut models: Vec<&str> = Vec::new();
    for Errors { model, .. } in errors {
        if !models.contains(&&**model) {
            models.push(model);
        }
    }
    let all: Vec<Measured> = models.iter().map(|model| Measured::new(model, rows, errors)).collect();
    let mut text = String::new();
    for measured in &all {
        let (losses, [least, most]) = (measured.losses(), [f64::min, f64::max]);
        let [least, most] = [least, most].map(|of| losses.iter().copied().reduce(of).unwrap_or(f64::NAN));
        let scatter = measured.plans.iter().filter_map(|(_, mean)| mean.confidence).sum::<f64>() / losses.len() as f64;
        let _ = writeln!(
            text,
            "{}: {} plans cost {least:.1} to {most:.1} % of the loss, ± {scatter:.1} by the seeds",
            measured.model,
            losses.len()
        );
    }
    let line = |name: &str, correlations: Vec<f64>| {
        let columns: String = correlations.iter().map(|correlation| format!(" {correlation:.3} |")).collect();
        format!("| {name} |{columns}\n")
    };
    let columns = |of: &dyn Fn(&Measured) -> Result<f64, lgreco_train::Error>| {
        all.iter().map(of).collect::<Result<Vec<f64>, _>>()
    };
    let _ = writeln!(text, "\n| Spearman's correlation with the loss | {} |", models.join(" | "));
    let _ = writeln!(text, "|---|{}", "--:|".repeat(models.len()));
    text += &line("the size alone", columns(&|measured| measured.spearman(|_, plan| Ok(-(plan.size as f64))))?);
    for (name, biased, unbiased) in METRICS {
        let cost = |errors: &Errors, plan: &Plan| cost(errors, plan, |_| 1.0, biased, unbiased);
        text += &line(name, columns(&|measured| measured.spearman(cost))?);
    }
    for (name, biased, unbiased) in PROBED {
        let cost = |errors: &Errors, plan: &Plan| cost(errors, plan, Layer::sensitivity, biased, unbiased);
        text += &line(name, columns(&|measured| measured.spearman(cost))?);
    }
    if errors.iter().all(|errors| errors.layers.iter().all(|layer| !layer.moments.is_empty())) {
        for (name, part) in OF_ADAM {
            text +=
                &line(name, columns(&|measured| measured.spearman(|errors, plan| cost_of_adam(errors, plan, part)))?);
        }
    }
    let halves = all.iter().map(Measured::halves).collect::<Result<Vec<_>, _>>()?;
    for (index, name) in
        ["squared-l2, noise's weight fitted on the other half of the plans", "the same, noise by workers"]
            .into_iter()
            .enumerate()
    {
        text += &line(name, halves.iter().map(|halves| halves[index]).collect());
    }
    Ok(text)
}

/// A plan's metric: the sum over layers and decisions.
fn cost(
    errors: &Errors,
    plan: &Plan,
    weight: impl Fn(&Layer) -> f64,
    biased: Term,
    unbiased: Term,
) -> Result<f64, lgreco_train::Error> {
    let mut sum = 0.0;
    for ((layer, setting), relative) in errors.layers.iter().zip(&plan.settings).zip(&plan.errors) {
        let term = if setting.parse::<Setting>()?.is_unbiased() { unbiased } else { biased };
        let terms = std::iter::zip(&layer.squared_norms, relative).map(|(&norm, &error)| term(norm, error));
        sum += weight(layer) * terms.sum::<f64>();
    }
    Ok(sum)
}

/// A plan's cost by a metric that uses Adam's second moments, summed over layers and decisions.
fn cost_of_adam(errors: &Errors, plan: &Plan, part: OfAdam) -> Result<f64, lgreco_train::Error> {
    let mut sum = 0.0;
    for ((layer, setting), relative) in errors.layers.iter().zip(&plan.settings).zip(&plan.errors) {
        let by: fn(f64) -> f64 = if setting.parse::<Setting>()?.is_unbiased() { averaged } else { |r| r };
        sum += std::iter::zip(&layer.moments, relative).map(|(moments, &error)| part(moments, by(error))).sum::<f64>();
    }
    Ok(sum)
}

/// Spearman's correlation: Pearson's correlation of ranks. Equal values get the mean of their ranks.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |x: &[f64]| -> Vec<f64> {
        x.iter()
            .map(|&at| {
                x.iter()
                    .map(|&y| {
                        if y < at {
                            1.0
                        } else if y == at {
                            0.5
                        } else {
                            0.0
                        }
                    })
                    .sum()
            })
            .collect()
    };
    let (a, b) = (ranks(a), ranks(b));
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (at, bt) = (mean(&a), mean(&b));
    let product = |x: &[f64], xt: f64, y: &[f64], yt: f64| -> f64 {
        std::iter::zip(x, y).map(|(x, y)| (x - xt) * (y - yt)).sum()
    };
    product(&a, at, &b, bt) / (product(&a, at, &a, at) * product(&b, bt, &b, bt)).sqrt()
}
