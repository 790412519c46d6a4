//! Draws the increase of the loss against bytes sent, with confidence intervals over the seeds, as SVG. The picture has
//! few series, so that it can be read.

use crate::summary::{Group, Line, Mean};
use lgreco_cli::chart::{Anchor, Area, Axis, Chart, Colour, INK, Kind, MUTED, SERIES, Series, Svg};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 500.0;

/// The compared series: plans first, then the same setting in every layer. Each point is a compressor and a scheme,
/// fewest bytes first.
const SHOWN: [(&str, &[(&str, &str)]); 5] = [
    (
        "plans of EDEN, TopK and PowerSGD",
        &[
            ("mixed", "l-greco-30x+bits+bf16"),
            ("mixed", "l-greco-15.6x+bits+bf16"),
            ("mixed", "l-greco-10.5x+bits+bf16"),
        ],
    ),
    ("TopK, 10 %", &[("topk", "uniform")]),
    ("PowerSGD, rank 4", &[("powersgd", "uniform")]),
    ("QSGD, 4 bits", &[("qsgd", "uniform")]),
    ("EDEN, 1 to 3 bits", &[("eden", "uniform-1"), ("eden", "uniform-2"), ("eden", "uniform-3")]),
];

/// Draws the group (one model, one optimiser) with the most of these schemes, or the first of several such groups.
pub fn svg(groups: &[Group]) -> String {
    let points = |group: &Group| SHOWN.iter().map(|(_, schemes)| lines(group, schemes).len()).sum::<usize>();
    let most = groups.iter().map(points).max();
    let group = groups.iter().find(|group| Some(points(group)) == most);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let title = "Loss after training against bytes sent";
    svg.text(title, (22.0, 30.0), 19.0, INK, Anchor::Start);
    let note = group.map_or_else(String::new, |group| {
        let seeds = group.lines.iter().map(|line| line.seeds).max().unwrap_or(0);
        let of = format!("{}, {}, {} steps", group.model, group.optimizer, group.steps);
        format!("{of}; means of {seeds} seeds with 95 % confidence; times: fewer bytes than uncompressed")
    });
    svg.text(&note, (22.0, 56.0), 13.0, MUTED, Anchor::Start);
    let of_group = |schemes| group.map_or_else(Vec::new, |group| lines(group, schemes));
    let shown = SHOWN.into_iter().zip(SERIES);
    let mut all: Vec<_> = shown.map(|((name, schemes), colour)| series(name, &of_group(schemes), colour)).collect();
    // Ratio of uncompressed bytes to the bytes that plans send.
    let ratios = of_group(SHOWN[0].1).into_iter().map(|(line, _)| format!("{:.1}×", line.ratio));
    all[0].notes = ratios.enumerate().collect();
    let chart = Chart {
        x: Axis { name: "bytes sent per worker and step", kind: Kind::Log, write: &|x| format!("{:.0} kB", x / 1e3) },
        y: Axis {
            name: "loss against uncompressed",
            kind: Kind::Linear { zero: true },
            write: &|y| if y == 0.0 { "0 %".into() } else { format!("{:+} %", (y * 10.0).round() / 10.0) },
        },
        series: all,
        names_right: false,
    };
    chart.draw(&mut svg, Area::new(22.0, 74.0, WIDTH - 16.0, HEIGHT - 4.0));
    svg.file(title)
}

/// The lines of these schemes that can be drawn: they sent bytes, and the increase of the loss is known and finite.
fn lines<'a>(group: &'a Group, schemes: &[(&str, &str)]) -> Vec<(&'a Line, Mean)> {
    let find = |&(method, scheme): &(&str, &str)| {
        let line = group.lines.iter().find(|line| (&*line.method, &*line.scheme) == (method, scheme))?;
        let increase = line.increase.filter(|increase| increase.mean.is_finite())?;
        (line.bytes > 0.0).then_some((line, increase))
    };
    schemes.iter().filter_map(find).collect()
}

fn series<'a>(name: &'a str, lines: &[(&Line, Mean)], colour: Colour) -> Series<'a> {
    Series {
        spread: lines.iter().map(|(_, increase)| increase.confidence).collect(),
        marks: true,
        ..Series::line(name, colour, lines.iter().map(|(line, increase)| (line.bytes, increase.mean)).collect())
    }
}
