//! Measures Algorithm 1 in cell updates per second. Compares the time and the plans with those of the plain loops in
//! the paper.

use lgreco_core::plan::dp::{LEVELS, solve, workspace_len};
use lgreco_core::rng::Stream;
use lgreco_core::table::{Choice, Table};
use std::time::Instant;

const LAYERS: usize = 96;
const OPTIONS: usize = 100;

fn main() {
    let stream = Stream { seed: 1, ..Stream::default() };
    let draw = |layer: usize, option: usize| stream.word((layer * OPTIONS + option) as u64) as usize;
    // A later option costs more cells and has a smaller size, so no option dominates another. The first option costs no
    // cells.
    let cell = 0.25;
    let costs: Vec<Vec<usize>> = (0..LAYERS)
        .map(|layer| {
            (0..OPTIONS).map(|option| if option == 0 { 0 } else { 12 * option + draw(layer, option) % 12 }).collect()
        })
        .collect();
    let sizes: Vec<Vec<u64>> = (0..LAYERS)
        .map(|layer| {
            let scale = 40 + draw(layer, 0) % 4000;
            (0..OPTIONS).map(|option| 8 * (scale * (OPTIONS - option) + draw(layer, option) % scale) as u64).collect()
        })
        .collect();
    let choices: Vec<Choice> = (costs.iter().flatten().zip(sizes.iter().flatten()))
        .map(|(&cost, &size)| Choice { size, error: cost as f64 * cell })
        .collect();
    let ends: Vec<usize> = (1..=LAYERS).map(|layer| layer * OPTIONS).collect();
    let table = Table::new(&choices, &ends).expect("a valid table");
    let budget = f64::from(LEVELS) * cell;

    // Counts the updates that lead from a reachable cell to a cell within the budget. No implementation can skip these
    // updates.
    let (mut reach, mut updates) = (0, 0);
    for row in &costs {
        updates += row.iter().map(|cost| reach.min(LEVELS as usize - cost) + 1).sum::<usize>();
        reach = (reach + row.iter().max().unwrap_or(&0)).min(LEVELS as usize);
    }

    let mut workspace = vec![0; workspace_len(&table, LEVELS)];
    let mut options = vec![0; LAYERS];
    let (mut ours, mut plain) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..7 {
        let start = Instant::now();
        let summary = solve(&table, budget, LEVELS, &mut workspace, &mut options).expect("a plan");
        ours = ours.min(start.elapsed().as_secs_f64());

        let start = Instant::now();
        let (size, expected) = plain_loops(&costs, &sizes, LEVELS as usize);
        plain = plain.min(start.elapsed().as_secs_f64());
        assert_eq!((summary.size, &options), (size, &expected));
    }
    println!("{LAYERS} layers x {OPTIONS} options x {LEVELS} cells: {updates} cell updates, {:.1} ms", ours * 1e3);
    println!("dp: {:.2} G cell updates/s, target >= 4", updates as f64 / ours / 1e9);
    println!("dp: {:.3} of the time of plain loops", ours / plain);
}

fn plain_loops(costs: &[Vec<usize>], sizes: &[Vec<u64>], levels: usize) -> (u64, Vec<u32>) {
    const NONE: u64 = u64::MAX / 2;
    let mut row = vec![NONE; levels + 1];
    row[0] = 0;
    let mut picks = Vec::new();
    for (costs, sizes) in costs.iter().zip(sizes) {
        let (mut next, mut pick) = (vec![NONE; levels + 1], vec![0u32; levels + 1]);
        for (option, (&cost, &size)) in costs.iter().zip(sizes).enumerate() {
            for cell in cost..=levels {
                let candidate = row[cell - cost] + size;
                if candidate < next[cell] {
                    (next[cell], pick[cell]) = (candidate, option as u32);
                }
            }
        }
        row = next;
        picks.push(pick);
    }
    let mut cell = (0..=levels).min_by_key(|&cell| row[cell]).expect("a cell");
    let size = row[cell];
    let mut plan = vec![0; costs.len()];
    for layer in (0..costs.len()).rev() {
        plan[layer] = picks[layer][cell];
        cell -= costs[layer][plan[layer] as usize];
    }
    (size, plan)
}
