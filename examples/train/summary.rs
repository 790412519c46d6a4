//! Means over seeds and their confidence intervals, as a Markdown table.

use crate::report::Row;
use std::fmt::Write;

/// Quantiles 0.975 of Student's t with 1, 2, … degrees of freedom.
const STUDENT: [f64; 15] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131];

/// A mean with its confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval by Student's t; `None` for fewer than two numbers.
    pub confidence: Option<f64>,
}

impl Mean {
    /// The mean of some numbers; `None` without numbers.
    pub fn of(numbers: &[f64]) -> Option<Mean> {
        let n = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
        let freedom = numbers.len().checked_sub(1)?;
        let quantile = freedom.checked_sub(1).map(|index| STUDENT[index.min(STUDENT.len() - 1)]);
        Some(Mean { mean, confidence: quantile.map(|quantile| quantile * (variance / n).sqrt()) })
    }
}

/// The runs of one scheme with different seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The compression method.
    pub method: String,
    /// The scheme that chose the method's parameters.
    pub scheme: String,
    /// Number of runs.
    pub seeds: usize,
    /// Validation loss after the last step.
    pub loss: Mean,
    /// Increase of the loss over the uncompressed run of the same seed, in per cent. The differences vary less between
    /// seeds than the losses do. Seeds without an uncompressed run are left out.
    pub increase: Option<Mean>,
    /// Bytes of uncompressed gradients divided by bytes sent.
    pub ratio: f64,
    /// Bytes that one worker sent per step.
    pub bytes: f64,
}

/// The lines of one model under one optimiser.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The model's name.
    pub model: String,
    /// The optimiser.
    pub optimizer: String,
    /// Number of training steps.
    pub steps: u32,
    /// One line per scheme, in the order of their first runs.
    pub lines: Vec<Line>,
}

/// All runs, by model, optimiser and number of steps.
pub fn groups(rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let Row { model, optimizer, steps, .. } = row;
        if !groups.iter().any(|group| (&group.model, &group.optimizer, group.steps) == (model, optimizer, *steps)) {
            let (model, optimizer) = (model.clone(), optimizer.clone());
            groups.push(Group { model, optimizer, steps: *steps, lines: vec![] });
        }
    }
    for group in &mut groups {
        let of_group =
            |row: &&Row| (&row.model, &row.optimizer, row.steps) == (&group.model, &group.optimizer, group.steps);
        let of_group: Vec<&Row> = rows.iter().filter(of_group).collect();
        for row in &of_group {
            let Row { method, scheme, .. } = row;
            if group.lines.iter().any(|line| (&line.method, &line.scheme) == (method, scheme)) {
                continue;
            }
            let runs: Vec<&Row> =
                of_group.iter().copied().filter(|row| (&row.method, &row.scheme) == (method, scheme)).collect();
            group.lines.extend(line(&runs, rows));
        }
    }
    groups
}

fn line(runs: &[&Row], all: &[Row]) -> Option<Line> {
    let mean = |of: &dyn Fn(&Row) -> f64| runs.iter().map(|row| of(row)).sum::<f64>() / runs.len() as f64;
    let losses: Vec<f64> = runs.iter().map(|row| f64::from(row.final_loss)).collect();
    let increases: Vec<f64> = runs.iter().filter_map(|row| row.increase(all)).collect();
    Some(Line {
        method: runs.first()?.method.clone(),
        scheme: runs.first()?.scheme.clone(),
        seeds: runs.len(),
        loss: Mean::of(&losses)?,
        increase: Mean::of(&increases),
        ratio: mean(&|row| row.ratio),
        bytes: mean(&|row| row.bytes as f64 / f64::from(row.steps)),
    })
}

/// A Markdown table per group.
pub fn table(groups: &[Group]) -> String {
    let mut text = String::new();
    for Group { model, optimizer, steps, lines } in groups {
        let _ = writeln!(text, "\n{model}, {optimizer}, {steps} steps\n");
        let _ = writeln!(text, "| method | scheme | seeds | ratio | bytes per step | loss | against uncompressed |");
        let _ = writeln!(text, "|---|---|---|---|---|---|---|");
        for Line { method, scheme, seeds, loss, increase, ratio, bytes } in lines {
            let increase = increase.map_or(String::from("–"), |Mean { mean, confidence }| {
                format!("{mean:+.2}{} %", confidence.map_or(String::new(), |half| format!(" ± {half:.2}")))
            });
            let loss = loss.mean;
            let _ =
                writeln!(text, "| {method} | {scheme} | {seeds} | {ratio:.2}× | {bytes:.0} | {loss:.4} | {increase} |");
        }
    }
    text
}
