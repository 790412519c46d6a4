use lgreco::plan::dp::*;
use lgreco::plan::{Limit, Summary};
use lgreco::table::Choice;
use lgreco::{Error, table::Table};
use lgreco_testing::{plans, tables::Instance};
use proptest::prelude::*;

fn layers(options: usize) -> impl Strategy<Value = Vec<Vec<(u64, usize)>>> {
    prop::collection::vec(prop::collection::vec((0u64..12, 0usize..9), 1..options), 1..7)
}

fn run(table: &Table, budget: f64, levels: u32) -> Result<(Summary, Vec<u32>), Error> {
    plans::check_solver(table, Limit::Error(budget), workspace_len(table, levels), |workspace, options| {
        solve(table, budget, levels, workspace, options)
    })
}

proptest! {
    #[test]
    fn equals_the_textbook(layers in layers(6), levels in 1usize..80, wide in any::<bool>()) {
        plans::check_dp_against_textbook(&layers, levels, if wide { (1 << 57) + 1 } else { 8 });
    }

    #[test]
    fn equals_the_textbook_on_long_rows(layers in layers(20), cost in 1usize..40, levels in 1usize..700) {
        let stretched: Vec<Vec<_>> =
            layers.iter().map(|layer| layer.iter().map(|&(size, cells)| (size, cells * cost)).collect()).collect();
        plans::check_dp_against_textbook(&stretched, levels, 1);
    }

    #[test]
    fn keeps_its_promises(bytes in prop::collection::vec(any::<u8>(), 0..300), levels in 1u32..300) {
        plans::check_dp(&Instance::from_bytes(&bytes, 8, 8), levels);
    }
}

#[test]
fn layers_with_more_options_than_a_byte_counts() {
    for options in [255, 256, 257, 1000] {
        let layer: Vec<(u64, usize)> = (0..options).map(|option| ((options - option) as u64, option)).collect();
        plans::check_dp_against_textbook(&[layer.clone(), layer[7..].to_vec()], options + 3, 1);
    }
}

#[test]
fn the_number_formats_meet_at_52_bits() {
    for total in [(1u64 << 51) - 2, (1 << 51) - 1, 1 << 51, 1 << 52, u64::MAX - 1] {
        let choices = [(total, 0.0), (total - 1, 1.0), (1, 0.5)].map(|(size, error)| Choice { size, error });
        let table = Table::new(&choices, &[2, 3]).unwrap();
        assert_eq!(run(&table, 1.5, 3).unwrap(), run(&table, 1.5, 3000).unwrap());
        assert_eq!(run(&table, 1.5, 3).unwrap().0.size, total);
        assert_eq!(run(&table, 1.0, 3).unwrap().0.size, total + 1);
    }
}

#[test]
fn a_budget_of_zero_and_a_useless_grid() {
    let choices = [(9, 0.0), (5, 0.5), (7, 0.0), (4, 0.5)].map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4]).unwrap();
    assert_eq!(run(&table, 0.0, LEVELS).unwrap().1, [0, 0]);
    // On a grid of one cell, each layer's error is rounded up to the whole budget. The most exact plan takes no cell.
    assert_eq!(run(&table, 1.0, 1).unwrap().1, [1, 0]);
    assert_eq!(run(&table, 1.0, 2).unwrap().1, [1, 1]);
    let off_grid = Table::new(&choices[1..2], &[1]).unwrap();
    assert_eq!(run(&off_grid, 0.5, 1).unwrap().0.size, 5);
    let two = [choices[1], choices[3]];
    let useless = Table::new(&two, &[1, 2]).unwrap();
    assert_eq!(run(&useless, 1.5, 1).unwrap().1, [0, 0]);
    assert_eq!(run(&useless, 0.9, 1), Err(Error::Infeasible { budget: 0.9, smallest: 1.0, size: 9 }));
}

#[test]
fn what_cannot_be_solved_is_an_error() {
    let choices = [Choice { size: 1, error: 1.0 }];
    let table = Table::new(&choices, &[1]).unwrap();
    let mut workspace = vec![0; workspace_len(&table, 10)];
    let mut run = |budget, levels, options: &mut [u32]| solve(&table, budget, levels, &mut workspace, options);
    assert_eq!(run(f64::NAN, 10, &mut [0]).unwrap_err().code(), 25);
    assert_eq!(run(1.0, 0, &mut [0]).unwrap_err().code(), 2);
    assert_eq!(run(1.0, 10, &mut [0, 0]).unwrap_err().code(), 1);
    assert_eq!(run(1.0, u32::MAX, &mut [0]).unwrap_err().code(), 1);
}
