use std::time::Instant;
use lgreco_core::plan::exact::{Limits, solve, workspace_len};
use lgreco_core::testing::models::{Rows, model};
fn main() {
    let states: usize = std::env::var("STATES").map_or(1 << 18, |s| s.parse().unwrap());
    let which = std::env::var("ROWS").unwrap_or_default();
    for rows in Rows::ALL {
        if !which.is_empty() && !which.contains(&format!("{rows:?}")) { continue; }
        for (layers, options) in [(27, 100), (150, 100), (300, 100)] {
            for seed in 0..8 {
                let model = model(rows, layers, options, seed);
                let table = model.table();
                let limits = Limits { states };
                    let mut workspace = vec![0; workspace_len(&table, limits)];
                    let mut choices = vec![0; layers];
                        let start = Instant::now();
                    let summary = solve(&table, model.budget, limits, &mut workspace, &mut choices).unwrap();
                        let t = start.elapsed().as_secs_f64();
                    println!(
                        "{rows:?} {layers} x {options} seed {seed} states {}: {:.3} ms gap {:e} {} size {}",
                        limits.states,
                        t * 1e3,
                        summary.gap(),
                        if summary.proven() { "proven" } else { "OPEN" }, summary.size
                    );
            }
        }
    }
}
