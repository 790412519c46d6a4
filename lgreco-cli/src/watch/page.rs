//! A page about a run: settings, bytes, errors and seconds.

use super::Run;
use super::run::{Point, decided, percent};
use crate::chart::{Area, Axis, BLUE, Chart, Colour, GREY, Kind, ORANGE, Series, Svg};
use crate::failure::printable;
use crate::page::{Cell, Page, table};
use crate::plot::{Bar, Layers, Measure};
use crate::units::{bytes, counted, grouped, ratio, round, seconds, significant};

/// The page about a run. Browsers reload the page after `refresh` seconds. Without `refresh` they never reload.
pub fn html(name: &str, run: &Run, refresh: Option<u32>) -> String {
    let mut page = Page::new(&printable(name));
    refresh.into_iter().for_each(|seconds| page.refresh(seconds));
    let Some(line) = &run.last else {
        page.section("No step yet", "");
        return page.finish();
    };
    let facts = facts(run, refresh.is_some());
    page.facts(facts.iter().map(|(name, value)| (*name, &**value)));
    let sizes = [
        series("uncompressed", GREY, run, |point| Some(point.bytes_in)),
        series("sent", BLUE, run, |point| Some(point.bytes_out)),
    ];
    chart(&mut page, "Bytes", "per step and worker", &sizes, Kind::Log, &|value| round(&bytes(value as u64)));
    let errors = [
        series("median layer", BLUE, run, |point| Some(point.errors?.0)),
        series("worst layer", ORANGE, run, |point| Some(point.errors?.1)),
    ];
    let note = "of what a layer sends, relative to what it had to send; when last measured";
    chart(&mut page, "Error", note, &errors, Kind::Linear { zero: true }, &|part| round(&percent(part)));
    let times = [
        series("exchange", BLUE, run, |point| Some(point.seconds?.1)),
        series("planning", ORANGE, run, |point| Some(point.seconds?.0)),
    ];
    chart(&mut page, "Seconds", "per step", &times, Kind::Linear { zero: true }, &|value| match value {
        0.0 => "0".into(),
        value => round(&seconds(value)),
    });
    page.section("Settings over the model's depth", "payload bytes of the last step, logarithmic");
    let bars: Vec<Bar> = line
        .layers
        .iter()
        .zip(&run.sent)
        .map(|(layer, &(sent, whole))| Bar {
            name: printable(&layer.name),
            label: printable(&layer.setting),
            chosen: sent,
            mark: Some(whole),
        })
        .collect();
    let layers = Layers { bars: &bars, measure: Measure::Bytes, mark: "uncompressed" };
    page.drawing("each layer's setting and bytes", |width| layers.svg(width));
    page.section("Layers", "A click on a column's name sorts by it.");
    let total: f64 = run.sent.iter().map(|(sent, _)| sent).sum();
    let row = |(index, (layer, &(sent, whole))): (usize, (&super::line::Layer, &(f64, f64)))| {
        let why = layer.uncompressed.as_ref().map_or_else(String::new, |why| format!(" ({})", printable(why)));
        let part = sent / total.max(1.0);
        [
            Cell::count(index as u64 + 1),
            Cell::Text(printable(&layer.name)),
            Cell::Text(printable(&layer.setting) + &why),
            Cell::Number(Some(sent), grouped(sent as u64)),
            Cell::Number(Some(part), percent(part)),
            Cell::Number(Some(whole / sent), ratio(whole as u64, sent as u64)),
            Cell::Number(
                layer.relative_error.map(f64::sqrt),
                layer.relative_error.map_or_else(String::new, |error| percent(error.sqrt())),
            ),
            Cell::Number(layer.residual_norm, layer.residual_norm.map_or_else(String::new, significant)),
        ]
    };
    let rows: Vec<_> = line.layers.iter().zip(&run.sent).enumerate().map(row).collect();
    page.html(&table(["#", "layer", "setting", "bytes", "share", "ratio", "relative error", "residual norm"], &rows));
    page.finish()
}

fn facts(run: &Run, follows: bool) -> Vec<(&'static str, String)> {
    let Some(line) = &run.last else { return Vec::new() };
    let sum = |of: fn(&super::line::Layer) -> u64| line.layers.iter().map(of).fold(0, u64::saturating_add);
    let (whole, sent) = (sum(|layer| layer.bytes_in), sum(|layer| layer.bytes_out));
    let mut facts = vec![
        ("step", format!("{}{}", grouped(line.step), if follows { ", followed" } else { "" })),
        ("layers", run.settings()),
        (
            "this step",
            format!("{}, {} fewer than uncompressed", bytes(line.bytes_out), ratio(line.bytes_in, line.bytes_out)),
        ),
        ("all steps", format!("{}, {} fewer than uncompressed", bytes(sent), ratio(whole, sent))),
    ];
    if let Some((planning, exchange)) = run.seconds() {
        facts.push(("seconds", format!("{} of exchanging, {} of planning", seconds(exchange), seconds(planning))));
    }
    facts.extend(line.decision.as_ref().map(|decision| ("last decision", decided(decision))));
    if run.lost.0 > 0 {
        facts.push(("not finite", counted(run.lost.0, "step")));
    }
    if run.lost.1 > 0 {
        facts.push(("failed", counted(run.lost.1, "step")));
    }
    if let Some(step) = run.resumed.last() {
        facts.push((
            "resumed",
            format!("{}, the last time at step {}", counted(run.resumed.len() as u64, "time"), grouped(*step)),
        ));
    }
    facts
}

fn series<'a>(name: &'a str, colour: Colour, run: &Run, of: impl Fn(&Point) -> Option<f64>) -> Series<'a> {
    let place = |point: &Point| Some((point.step as f64, of(point)?));
    Series::line(name, colour, run.points.iter().filter_map(place).collect())
}

/// Adds a chart over the steps, unless there are no points.
fn chart(page: &mut Page, heading: &str, note: &str, series: &[Series<'_>], kind: Kind, write: &dyn Fn(f64) -> String) {
    if series.iter().all(|series| series.points.is_empty()) {
        return;
    }
    page.section(heading, note);
    page.drawing(&format!("{heading} over the steps"), |width| {
        let height = if width < 500.0 { 220.0 } else { 250.0 };
        let mut svg = Svg::new(width, height);
        let step = |step: f64| grouped(step as u64);
        Chart {
            x: Axis { name: "step", kind: Kind::Linear { zero: false }, write: &step },
            y: Axis { name: "", kind, write },
            series: series.to_vec(),
            names_right: true,
        }
        .draw(&mut svg, Area::new(0.0, 0.0, width, height));
        svg
    });
}
