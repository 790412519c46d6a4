//! State of a run, from the lines read so far.

use super::line::{Decision, Layer, Line, Outcome};
use crate::failure::printable;
use crate::units::{grouped, ratio, seconds, significant};
use std::collections::BTreeMap;

/// Largest number of points that a run keeps. Beyond this number, pairs of consecutive points are merged into means.
const MOST: usize = 2000;

/// A run so far.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The points of the charts. A point is one step, or the mean of several steps.
    pub points: Vec<Point>,
    /// The last line that was read.
    pub last: Option<Line>,
    /// For each layer, the bytes sent in the last step, and the bytes of its gradient.
    pub sent: Vec<(f64, f64)>,
    /// Number of steps with gradients that were not finite, and number of steps that failed.
    pub lost: (u64, u64),
    /// Steps at which the run resumed from a checkpoint.
    pub resumed: Vec<u64>,
}

/// A step, or the mean of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Number of the last step.
    pub step: u64,
    /// Number of steps.
    pub steps: f64,
    /// Bytes of one worker's gradients.
    pub bytes_in: f64,
    /// Bytes that the worker sent.
    pub bytes_out: f64,
    /// The median and the largest of the layers' relative errors.
    pub errors: Option<(f64, f64)>,
    /// Seconds of planning and of the exchange.
    pub seconds: Option<(f64, f64)>,
}

impl Run {
    /// Adds a line of JSON. If the step in the line is not after the last step, the run has resumed from a checkpoint.
    /// Points from this step on are then dropped.
    ///
    /// # Errors
    /// The error states what is wrong, and where in the line. After an error, nothing is added.
    pub fn add(&mut self, line: &[u8]) -> Result<(), String> {
        self.record(Line::parse(line)?);
        Ok(())
    }

    fn record(&mut self, line: Line) {
        if self.last.as_ref().is_some_and(|last| line.step <= last.step) {
            self.points.retain(|point| point.step < line.step);
            if self.points.is_empty() {
                *self = Run::default();
            } else {
                self.resumed.push(line.step);
            }
        }
        match line.outcome {
            Outcome::Exchanged => {}
            Outcome::Skipped | Outcome::PassedThrough => self.lost.0 += 1,
            Outcome::Failed => self.lost.1 += 1,
        }
        self.points.push(Point {
            step: line.step,
            steps: 1.0,
            bytes_in: line.bytes_in as f64,
            bytes_out: line.bytes_out as f64,
            errors: errors(&line.layers),
            seconds: line.exchange_seconds.map(|exchange| (line.planning_seconds.unwrap_or(0.0), exchange)),
        });
        if self.points.len() > MOST {
            self.points = self.points.chunks(2).map(mean).collect();
        }
        self.sent = line.layers.iter().enumerate().map(|(index, layer)| self.of_step(index, layer)).collect();
        self.last = Some(line);
    }

    /// Bytes per step that a layer has sent since the last line, and bytes of the layer's gradient.
    fn of_step(&self, index: usize, layer: &Layer) -> (f64, f64) {
        let before = self.last.as_ref().and_then(|last| last.layers.get(index));
        let before = before.filter(|before| before.name == layer.name && before.steps < layer.steps);
        let (steps, sent, whole) = before.map_or((0, 0, 0), |before| (before.steps, before.bytes_out, before.bytes_in));
        let steps = layer.steps.saturating_sub(steps).max(1) as f64;
        (layer.bytes_out.saturating_sub(sent) as f64 / steps, layer.bytes_in.saturating_sub(whole) as f64 / steps)
    }

    /// Seconds of planning and of the exchange in all steps.
    pub fn seconds(&self) -> Option<(f64, f64)> {
        let known = self.points.iter().filter_map(|point| Some((point.steps, point.seconds?)));
        known.fold(None, |sum, (steps, (planning, exchange))| {
            let (a, b) = sum.unwrap_or((0.0, 0.0));
            Some((a + steps * planning, b + steps * exchange))
        })
    }

    /// The heading of the columns of [`row`](Run::row).
    pub fn head() -> String {
        let [step, sent, ratio, median, largest] = ["step", "bytes sent", "ratio", "error", "largest"];
        format!(
            "{step:>9} {sent:>13} {ratio:>8} {median:>8} {largest:>8} {:>9} {:>9}  layers\n",
            "exchange", "planning"
        )
    }

    /// The last step as a row of columns.
    pub fn row(&self) -> String {
        let (Some(line), Some(point)) = (&self.last, self.points.last()) else { return String::new() };
        let errors =
            point.errors.map_or(["-".into(), "-".into()], |(median, largest)| [percent(median), percent(largest)]);
        let of = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), seconds);
        format!(
            "{:>9} {:>13} {:>8} {:>8} {:>8} {:>9} {:>9}  {}{}{}\n",
            line.step,
            grouped(line.bytes_out),
            ratio(line.bytes_in, line.bytes_out),
            errors[0],
            errors[1],
            of(line.exchange_seconds),
            of(line.planning_seconds),
            self.settings(),
            if line.switched { ", new" } else { "" },
            match line.outcome {
                Outcome::Exchanged => "",
                Outcome::Skipped => "; not finite, skipped",
                Outcome::PassedThrough => "; not finite, passed through",
                Outcome::Failed => "; failed",
            }
        )
    }

    /// Number of layers of each method: `13 eden, 2 dense`.
    pub fn settings(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for layer in self.last.iter().flat_map(|line| &line.layers) {
            *counts.entry(layer.setting.split(' ').next().unwrap_or("")).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        counts.iter().map(|(method, count)| format!("{count} {}", printable(method))).collect::<Vec<_>>().join(", ")
    }
}

/// A fraction as text: `12.3 %`.
pub fn percent(part: f64) -> String {
    format!("{} %", significant(100.0 * part))
}

/// Describes a decision.
pub fn decided(decision: &Decision) -> String {
    let Decision { step, cause, unit, size, uncompressed_size, error, pays } = decision;
    let mut text = format!("at step {step}, by {}", printable(cause));
    if let (Some(size), Some(unit)) = (size, unit) {
        text += &format!("; {} {}", grouped(*size), printable(unit));
        text += &uncompressed_size
            .map_or_else(String::new, |whole| format!(", {} fewer than uncompressed", ratio(whole, *size)));
    }
    text += &error.map_or_else(String::new, |error| format!(", error {}", significant(error)));
    if *pays == Some(false) {
        text += "; compressing does not pay";
    }
    text
}

/// The median and the largest of the layers' relative errors.
fn errors(layers: &[Layer]) -> Option<(f64, f64)> {
    let mut errors: Vec<f64> = layers.iter().filter_map(|layer| Some(layer.relative_error?.sqrt())).collect();
    errors.sort_by(f64::total_cmp);
    Some((*errors.get(errors.len() / 2)?, *errors.last()?))
}

/// The mean of one or two points, weighted by their numbers of steps.
fn mean(points: &[Point]) -> Point {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Point::default() };
    if points.len() == 1 {
        return *first;
    }
    let steps = first.steps + last.steps;
    let of = |a: f64, b: f64| (a * first.steps + b * last.steps) / steps;
    let pair = |a: Option<(f64, f64)>, b: Option<(f64, f64)>| match (a, b) {
        (Some(a), Some(b)) => Some((of(a.0, b.0), of(a.1, b.1))),
        _ => a.or(b),
    };
    Point {
        step: last.step,
        steps,
        bytes_in: of(first.bytes_in, last.bytes_in),
        bytes_out: of(first.bytes_out, last.bytes_out),
        errors: pair(first.errors, last.errors),
        seconds: pair(first.seconds, last.seconds),
    }
}
