//! Tests that the columns of all kinds of factors become orthonormal.

use super::simt::{Flavour, Simt, flavour};
use crate::gpu::{Gpu, Scratch};
use crate::powersgd::orthonormalise;
use lgreco_testing::powersgd::{check_orthonormal, orthonormal_columns, uniform};
use proptest::prelude::*;

/// Makes the columns orthonormal.
fn orthonormal(flavour: Flavour, order: i32, columns: &[Vec<f32>]) -> Option<Vec<Vec<f32>>> {
    let mut gpu = Gpu::new(Box::new(Simt::new(flavour, order, None)?));
    let factor = gpu.upload(Scratch::Values, bytemuck::cast_slice(&columns.concat())).unwrap();
    let rows = columns[0].len();
    orthonormalise(&mut gpu, factor, rows as u32, columns.len() as u32).unwrap();
    Some(gpu.read::<f32>(factor).unwrap().chunks(rows).map(<[f32]>::to_vec).collect())
}

fn product(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| x * f64::from(y)).sum()
}

/// Returns the norm of a column's part outside the span of the orthonormal columns, relative to the column's norm.
fn left(column: &[f32], orthonormal: &[Vec<f32>]) -> f64 {
    let mut rest: Vec<f64> = column.iter().map(|&x| x.into()).collect();
    let norm = product(&rest, column);
    for _ in 0..2 {
        for unit in orthonormal {
            let along = product(&rest, unit);
            rest.iter_mut().zip(unit).for_each(|(x, &y)| *x -= along * f64::from(y));
        }
    }
    let square: f64 = rest.iter().map(|x| x * x).sum();
    if norm > 0.0 { (square / norm).sqrt() } else { 0.0 }
}

/// Returns the products of a matrix with random columns, as at the start of power iterations. Each column of the matrix
/// is smaller than the previous column by a factor of 10^-`fade`.
fn fading(rows: usize, columns: usize, fade: f64, seed: u64) -> Vec<Vec<f32>> {
    let (matrix, mixed) = (uniform(rows * columns, seed), uniform(columns * columns, seed + 1));
    let weights: Vec<f64> = (0..columns).map(|c| 10f64.powf(-fade * c as f64)).collect();
    let term =
        |i: usize, c: usize, k: usize| weights[k] * f64::from(matrix[k * rows + i]) * f64::from(mixed[c * columns + k]);
    let element = |i, c| (0..columns).map(|k| term(i, c, k)).sum::<f64>() as f32;
    (0..columns).map(|c| (0..rows).map(|i| element(i, c)).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn columns_are_orthonormal_reach_what_they_did_and_do_not_depend_on_later_ones(
        (rows, count) in (1usize..400).prop_flat_map(|rows| (Just(rows), 1..=rows.min(40))),
        fade in prop_oneof![Just(0.0), 0.0..2.0],
        exponent in -30i32..=30,
        copies in proptest::collection::vec((0usize..40, 0usize..40, -2i32..=2), 0..4),
        fewer in 1usize..40,
        order in 0..3,
        seed: u32,
    ) {
        let mut columns = fading(rows, count, fade, seed.into());
        for (from, to, factor) in copies {
            columns[to % count] = columns[from % count].iter().map(|x| x * factor as f32).collect();
        }
        columns.iter_mut().flatten().for_each(|x| *x *= 2f32.powi(exponent));
        let Some(found) = orthonormal(flavour(), order, &columns) else { return Ok(()) };
        let nonzero = found.iter().filter(|column| column.iter().any(|&x| x != 0.0)).count();
        check_orthonormal(&found, nonzero);
        for (c, column) in columns.iter().enumerate() {
            let left = left(column, &found[..=c]);
            prop_assert!(left < 4e-6, "column {c}: {left:e} of it left");
        }
        let fewer = fewer.min(count);
        let bits = |columns: &[Vec<f32>]| columns.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        let alone = orthonormal(flavour(), 0, &columns[..fewer]).expect("as before");
        prop_assert_eq!(bits(&alone), bits(&found[..fewer]));
    }
}

/// Even if the Gram matrix does not fit into shared memory, the first columns must be the same as without later
/// columns. The columns that become zeros must be those of the core.
#[test]
fn more_columns_than_shared_memory_holds() {
    let mut columns = fading(300, 100, 0.03, 1);
    columns[70] = columns[3].clone();
    columns[90].fill(0.0);
    let Some(found) = orthonormal(flavour(), 2, &columns) else { return };
    check_orthonormal(&found, 98);
    let expected = orthonormal_columns(&columns);
    let zeros =
        |columns: &[Vec<f32>]| columns.iter().map(|column| column.iter().all(|&x| x == 0.0)).collect::<Vec<_>>();
    assert_eq!(zeros(&found), zeros(&expected));
    for fewer in [64, 65] {
        assert!(orthonormal(flavour(), 1, &columns[..fewer]).expect("as before") == found[..fewer]);
    }
}

/// If few rows are nonzero, the rounding error of a dependent column lies in the same rows.
#[test]
fn columns_with_few_rows_become_zeros() {
    for seed in 0..30 {
        let values = uniform(6, seed);
        let of = |x: f32, y: f32| [[x, y].to_vec(), vec![0.0; 48]].concat();
        let near = |k| values[k] + 1e-3 * values[2 + k];
        let columns = [of(values[0], values[1]), of(near(0), near(1)), of(values[4], values[5])];
        let Some(found) = orthonormal(flavour(), 0, &columns) else { return };
        check_orthonormal(&found, 2);
    }
}

#[test]
fn no_kernel_has_a_data_race() {
    for count in [30, 70] {
        let columns = fading(300, count, 0.0, 2);
        let Some(found) = orthonormal(Flavour::Races, 0, &columns) else { return };
        check_orthonormal(&found, count);
    }
}
