use lgreco::num::Sum;
use lgreco::plan::baseline::{kmeans, kmeans_workspace_len};
use lgreco::table::Choice;
use lgreco::{Error, table::Table};
use lgreco_testing::tables::Instance;
use proptest::prelude::*;

fn run(table: &Table, budget: f64, elements: &[u64], metric: &[f64], clusters: usize) -> Result<Vec<u32>, Error> {
    let run = |garbage: u64| {
        let mut workspace = vec![garbage; kmeans_workspace_len(table, clusters)];
        let mut options = vec![!0; table.layers()];
        kmeans(table, budget, elements, metric, clusters, &mut workspace, &mut options).map(|()| options)
    };
    let options = run(0);
    assert_eq!(options, run(!0));
    options
}

/// Layers with options of 5, 4, 3 and 2 bits. Each bit halves the error.
fn widths(scales: &[f64]) -> (Vec<Choice>, Vec<usize>) {
    let row = |&scale: &f64| {
        [5u32, 4, 3, 2].map(|bits| Choice { size: 100 * u64::from(bits), error: scale / f64::from(1 << bits) })
    };
    (scales.iter().flat_map(row).collect(), (1..=scales.len()).map(|layer| 4 * layer).collect())
}

#[test]
fn sensitive_clusters_get_more_bits() {
    let (choices, ends) = widths(&[1.0; 8]);
    let table = Table::new(&choices, &ends).unwrap();
    let metric = [1.0, 90.0, 30.0, 60.0, 31.0, 61.0, 2.0, 91.0];
    assert_eq!(run(&table, 0.9375, &[1000; 8], &metric, 4), Ok(vec![3, 0, 2, 1, 2, 1, 3, 0]));
    // Within larger budgets, no layer needs 5 bits. The four clusters get three different widths, then two, then one.
    assert_eq!(run(&table, 1.125, &[1000; 8], &metric, 4), Ok(vec![3, 1, 2, 2, 2, 2, 3, 1]));
    assert_eq!(run(&table, 1.5, &[1000; 8], &metric, 4), Ok(vec![3, 2, 3, 2, 3, 2, 3, 2]));
    assert_eq!(run(&table, 2.0, &[1000; 8], &metric, 4), Ok(vec![3; 8]));
    // If the layers are at only two distinct points, only the two most exact of the four levels are used.
    assert_eq!(run(&table, 0.375, &[9; 8], &[1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0], 4).unwrap()[..2], [1, 0]);
    // With far more levels than clusters, all layers get the most exact width.
    assert_eq!(run(&table, 0.25, &[9; 8], &metric, usize::MAX), Ok(vec![0; 8]));
    // All layers are at the same point.
    assert_eq!(run(&table, 0.25, &[9; 8], &[0.0; 8], 4), Ok(vec![0; 8]));
    assert_eq!(run(&table, 0.25, &[9; 8], &[0.0; 8], 1), Ok(vec![0; 8]));
}

#[test]
fn sizes_separate_layers_of_equal_metric() {
    let (choices, ends) = widths(&[1.0; 6]);
    let table = Table::new(&choices, &ends).unwrap();
    let found = run(&table, 0.84375, &[100, 1 << 20, 110, 1 << 21, 120, 1 << 20], &[3.0, 1.0, 3.0, 1.0, 3.0, 1.0], 2);
    assert_eq!(found, Ok(vec![0, 3, 0, 3, 0, 3]));
}

#[test]
fn the_budget_raises_the_worst_error_per_bit() {
    let (choices, ends) = widths(&[1.0; 4]);
    let table = Table::new(&choices, &ends).unwrap();
    let run = |budget| run(&table, budget, &[9; 4], &[1.0, 2.0, 3.0, 4.0], 4);
    // Errors are 1/4, 1/8, 1/16 and 1/32 at 2, 3, 4 and 5 bits. For the next two budgets, the first layer gets one more
    // bit each time, because this reduces the error most.
    assert_eq!(run(0.46875), Ok(vec![3, 2, 1, 0]));
    assert_eq!(run(0.4), Ok(vec![2, 2, 1, 0]));
    assert_eq!(run(0.3), Ok(vec![1, 2, 1, 0]));
    assert_eq!(run(0.2), Ok(vec![0, 1, 1, 0]));
    assert_eq!(run(0.125), Ok(vec![0; 4]));
    assert_eq!(run(0.1), Err(Error::Infeasible { budget: 0.1, smallest: 0.125, size: 2000 }));
}

#[test]
fn what_cannot_be_clustered_is_an_error() {
    let (choices, ends) = widths(&[1.0, 8.0]);
    let table = Table::new(&choices, &ends).unwrap();
    let code =
        |elements: &[u64], metric: &[f64], clusters| run(&table, 1.0, elements, metric, clusters).unwrap_err().code();
    assert_eq!([code(&[1], &[1.0; 2], 2), code(&[1; 2], &[1.0; 3], 2), code(&[1; 2], &[1.0; 2], 0)], [1, 1, 2]);
    assert_eq!([code(&[1; 2], &[1.0, f64::INFINITY], 2), code(&[1; 2], &[-1.0, 1.0], 2)], [2, 2]);
}

proptest! {
    #[test]
    fn keeps_the_budget_or_tells_the_smallest_error(
        seed in any::<u64>(), clusters in 1usize..12, elements in prop::collection::vec(any::<u64>(), 8),
    ) {
        let instance = Instance::from_seed(seed, 8, 8);
        let (table, budget) = (instance.table(), instance.budget);
        let metric: Vec<f64> = table.chosen(&instance.defaults).unwrap().map(|choice| choice.error).collect();
        let sum = |options: &[u32]| table.chosen(options).unwrap().map(|choice| choice.error).collect::<Sum>();
        match run(&table, budget, &elements[..table.layers()], &metric, clusters) {
            Ok(options) => prop_assert!(sum(&options).at_most(budget)),
            Err(Error::Infeasible { smallest, .. }) => {
                prop_assert!(smallest > budget);
                prop_assume!(smallest.is_finite());
                prop_assert!(run(&table, smallest, &elements[..table.layers()], &metric, clusters).is_ok());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
