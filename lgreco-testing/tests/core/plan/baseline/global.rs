use lgreco::plan::Summary;
use lgreco::plan::baseline::{global_topk, global_topk_workspace_len};
use lgreco::plan::{Limit, Proof};
use lgreco::table::Choice;
use lgreco::{Error, table::Table};
use lgreco_testing::tables::Instance;
use proptest::prelude::*;

fn run(table: &Table, limit: impl Into<Limit>, squared: bool) -> Result<Vec<u32>, Error> {
    let limit = limit.into();
    let run = |garbage: u64| {
        let mut workspace = vec![garbage; global_topk_workspace_len(table)];
        let mut options = vec![!0; table.layers()];
        global_topk(table, limit, squared, &mut workspace, &mut options).map(|()| options)
    };
    let options = run(0);
    assert_eq!(options, run(!0));
    options
}

/// By definition, global TopK sorts all magnitudes of the model, and keeps the largest ones until the budget is met.
#[test]
fn keeps_the_largest_magnitudes_of_the_model() {
    let layers: [&[u32]; 3] = [&[9, 7, 3, 1], &[8, 6, 5], &[4, 2]];
    let mut choices = Vec::new();
    let mut ends = Vec::new();
    for layer in layers {
        for kept in 0..=layer.len() {
            let squared: u32 = layer[kept..].iter().map(|x| x * x).sum();
            choices.push(Choice { size: 40 * kept as u64 + 8, error: f64::from(squared) });
        }
        ends.push(choices.len());
    }
    let table = Table::new(&choices, &ends).unwrap();
    for threshold in 0..10 {
        let dropped: u32 = layers.iter().copied().flatten().filter(|&&x| x <= threshold).map(|x| x * x).sum();
        let kept: Vec<u32> =
            layers.iter().map(|layer| layer.iter().filter(|&&x| x > threshold).count() as u32).collect();
        let bits = kept.iter().map(|&kept| 40 * u64::from(kept) + 8).sum();
        assert_eq!(run(&table, f64::from(dropped), true), Ok(kept.clone()));
        assert_eq!(run(&table, Limit::Size(bits), true), Ok(kept));
    }
}

proptest! {
    /// There is one multiplier λ with which each layer's chosen option minimises the squared error plus λ times the
    /// size.
    #[test]
    fn one_multiplier_explains_all_layers(seed in any::<u64>(), squared in any::<bool>(), sized in any::<bool>()) {
        let mut instance = Instance::from_seed(seed, 5, 6);
        let largest = instance.choices.iter().fold(0f64, |largest, choice| largest.max(choice.error));
        prop_assume!(largest > 0.0);
        instance.choices.iter_mut().for_each(|choice| choice.error /= largest);
        let table = instance.table();
        let limit = match sized {
            true => Limit::Size(instance.size_limit),
            false => Limit::Error((instance.budget / largest).min(1e9)),
        };
        let Ok(options) = run(&table, limit, squared) else { return Ok(()) };
        let unproved = match limit {
            Limit::Error(budget) => Proof::Size { lower_bound: 0, budget },
            Limit::Size(size_limit) => Proof::Error { lower_bound: 0.0, size_limit },
        };
        prop_assert!(Summary::of(&table, &options, unproved).is_ok());
        let cost = |error: f64| if squared { error } else { error * error };
        // Each layer's choice is optimal for the multipliers in [low, high].
        let (mut low, mut high) = (0f64, f64::INFINITY);
        for (choices, &option) in table.iter().zip(&options) {
            let chosen = choices[option as usize];
            for choice in choices {
                let (saved, bits) = (cost(choice.error) - cost(chosen.error), chosen.size.abs_diff(choice.size) as f64);
                match choice.size.cmp(&chosen.size) {
                    core::cmp::Ordering::Less => high = high.min(saved / bits),
                    core::cmp::Ordering::Greater => low = low.max(-saved / bits),
                    core::cmp::Ordering::Equal => prop_assert!(saved >= 0.0),
                }
            }
        }
        prop_assert!(low <= high * (1.0 + 1e-9), "{low} > {high}");
    }
}

#[test]
fn infeasible_tells_the_smallest_error() {
    let choices = [(9, 3.0), (5, 4.0)].map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2]).unwrap();
    assert_eq!(run(&table, 2.0, false), Err(Error::Infeasible { budget: 2.0, smallest: 3.0, size: 9 }));
    assert_eq!(run(&table, -1.0, false).unwrap_err().code(), 25);
    assert_eq!(run(&table, Limit::Size(4), false), Err(Error::SizeInfeasible { limit: 4, smallest: 5, error: 4.0 }));
    assert_eq!((run(&table, Limit::Size(8), false), run(&table, Limit::Size(9), false)), (Ok(vec![1]), Ok(vec![0])));
}
