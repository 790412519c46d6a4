//! Times of the exact solver on tables of every kind, with their answers checked.

use std::time::Instant;

use lgreco_core::plan::exact::{Limits, solve, workspace_len};
use lgreco_core::testing::models::{Rows, model};

fn main() {
    for rows in Rows::ALL {
        for (layers, options) in [(27, 100), (150, 100), (300, 100)] {
            for seed in 0..3 {
                let model = model(rows, layers, options, seed);
                let table = model.table();
                for limits in [Limits { states: 0 }, Limits::default()] {
                    let mut workspace = vec![0; workspace_len(&table, limits)];
                    let mut choices = vec![0; layers];
                    let mut best = f64::INFINITY;
                    let mut summary = None;
                    for _ in 0..1 {
                        let start = Instant::now();
                        summary = Some(solve(&table, model.budget, limits, &mut workspace, &mut choices).unwrap());
                        best = best.min(start.elapsed().as_secs_f64());
                    }
                    let summary = summary.unwrap();
                    println!(
                        "{rows:?} {layers} x {options} seed {seed} states {}: {:.3} ms gap {:e} {} size {}",
                        limits.states,
                        best * 1e3,
                        summary.gap(),
                        if summary.proven() { "proven" } else { "OPEN" }, summary.size
                    );
                }
            }
        }
    }
}
