//! Buckets with layers under PowerSGD, beyond what the suite of all spaces has.

use super::exchange::{OnDevice, is_there, open, open_on};
use super::{backend, backend_with, planted, small};
use crate::exchange::matrices::Table;
use crate::kernels::Shader;
use lgreco_core::Error as CoreError;
use lgreco_core::compress::{Setting, powersgd::PowerSgd};
use lgreco_core::gradient::{Dtype, Element, F16, Shape};
use lgreco_testing::exchange::{Bucket, Member, check_space};
use lgreco_train::Error;
use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::exchange::{Agreement, Collective, CollectiveError, Moment, Route, Space};

fn member(index: u32, rank: u32, (rows, cols): (usize, usize), dtype: Dtype) -> Member {
    let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
    Member { index, setting, shape: Shape::new(rows, cols).unwrap(), dtype }
}

/// Layers whose factors one workgroup makes orthonormal among some whose factors several share, with one dispatch or several.
pub(super) fn of_all_lengths() -> [Member; 4] {
    let f32 = Dtype::F32;
    [
        member(0, 2, (40, 30), f32),
        member(1, 8, (16_600, 11), f32),
        member(2, 195, (260, 205), Dtype::Bf16),
        member(3, 70, (1900, 71), f32),
    ]
}

#[test]
fn factors_of_all_lengths_are_made_orthonormal_together() {
    let mut table = Table::default();
    for (number, Member { setting, shape, .. }) in (0..).zip(of_all_lengths()) {
        let Setting::PowerSgd(PowerSgd { rank, .. }) = setting else { panic!("{setting}") };
        table.add(shape, rank as usize, (number, number), (0, 0)).unwrap();
    }
    assert_eq!(table.steps().map(|steps| steps.len()), [2, 1], "dispatches");
    if is_there() {
        check_space(&of_all_lengths(), false, open);
    }
}

/// What lies between dispatches is of so little weight that no value shows when two layers share it.
#[test]
fn triangles_and_what_lies_between_their_steps_belong_to_a_layer_alone() {
    let mut table = Table::default();
    let shapes = [(40, 30, 2), (16_600, 11, 8), (300, 45, 40), (1200, 126, 125), (19_000, 9, 7)];
    for (number, (rows, cols, rank)) in (0..).zip(shapes) {
        table.add(Shape::new(rows, cols).unwrap(), rank, (number, number), (0, 0)).unwrap();
    }
    let (mut inner, mut partial) = (0, 0);
    let mut of_triangles = table.triangles.iter();
    for matrix in &table.matrices {
        assert_eq!((matrix.inner, matrix.partial), (inner, partial));
        inner += matrix.chunks * (matrix.columns + 2);
        if matrix.chunks > 1 {
            let triangles = of_triangles.next().unwrap();
            assert_eq!((triangles.p, triangles.inner), (inner, partial));
            assert_eq!((triangles.all_rows, triangles.columns), (matrix.chunks * matrix.columns, matrix.columns));
            inner += triangles.all_rows * triangles.columns;
        }
        partial += matrix.columns * matrix.all_rows.max(matrix.all_rows.div_ceil(1024) * matrix.all_cols);
    }
    assert_eq!((inner as usize, partial as usize), (table.inner, table.partial));
    assert_eq!((table.triangles.len(), of_triangles.next().is_none()), (3, true));
}

#[test]
fn faults_in_long_factors_are_found() {
    if !is_there() {
        return;
    }
    for (text, fault) in planted([
        ("multiply_row(row / params.chunk_rows, row)", "multiply_row(0u, row)"),
        ("let row = piece * 256u + lane;", "let row = lane;"),
        ("return params.inner + i;", "return i;"),
    ]) {
        let found = std::panic::catch_unwind(|| {
            check_space(&of_all_lengths(), false, |members, feedback, world| {
                let mut backend = backend().expect("the device there was before");
                backend.gpu().kernels.edits.push((Shader::ExchangeFactors, text, fault));
                open_on(backend, members, feedback, world)
            });
        });
        let message = found.expect_err(&format!("not found: {text}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(message.contains("apart"), "{text}: {message}");
    }
}

/// More workgroups than a dimension of a dispatch has.
#[test]
fn dispatches_have_two_dimensions_where_one_is_short() {
    if backend_with(wgpu::Features::empty(), small).is_some() {
        let members = [member(0, 3, (150, 170), Dtype::F32), member(1, 4, (33, 2070), Dtype::F16)];
        check_space(&members, true, |members, feedback, world| {
            let backend = backend_with(wgpu::Features::empty(), small).expect("the device there was before");
            open_on(backend, members, feedback, world)
        });
    }
}

/// A step of a rank alone with these values of its only layer.
fn step(on: &mut OnDevice, values: &[F16]) -> Result<Vec<f32>, Error> {
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let moment = Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
    let mut network = ThreadCollective::group(1).remove(0);
    let gradients = [bytemuck::cast_slice(values).to_vec()];
    on.exchange(&gradients, moment, Agreement::Reached, &mut network)?;
    Ok(bytemuck::pod_collect_to_vec::<u8, F16>(&on.means()[0]).iter().map(|x| x.to_f32()).collect())
}

/// The residual makes a sum of it that f16 has not.
#[test]
fn a_mean_beyond_its_type_is_an_error_with_its_place_and_changes_nothing() {
    if !is_there() {
        return;
    }
    let mut on = open(&[member(3, 1, (40, 1), Dtype::F16)], true, 1);
    let mut residual = vec![0.0f32; 40];
    residual[5] = 50_000.0;
    let (buffer, offset) = on.bucket.residual(0).map(|(buffer, offset)| (buffer.clone(), offset)).unwrap();
    on.backend().queue().write_buffer(&buffer, offset, bytemuck::cast_slice(&residual));
    let mut values = vec![F16::from_f32(1.0); 40];
    values[5] = F16::from_f32(60_000.0);
    match step(&mut on, &values) {
        Err(Error::Core(CoreError::ElementOverflow { index: 5, value })) => {
            assert!((value - 110_000.0).abs() < 11.0, "{value}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((on.bucket.faulty_layer(), on.residuals()), (Some(0), Some(vec![residual])));
    values[5] = F16::from_f32(-60_000.0);
    // A column is a matrix of rank 1, so nothing is left.
    let means = step(&mut on, &values).unwrap();
    assert!((means[5] + 10_000.0).abs() < 10.0 && (means[0] - 1.0).abs() < 1e-3, "{means:?}");
    let left = on.residuals().unwrap().remove(0);
    assert!(left.iter().all(|x| x.abs() < 0.1), "{left:?}");
}

/// A network that brings other sums than the one rank's own: one after the other, where it has any.
struct Forger(Vec<Vec<f32>>);

impl Collective for Forger {
    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        if !self.0.is_empty() {
            let sums = self.0.remove(0);
            values[..sums.len()].copy_from_slice(&sums);
        }
        Ok(())
    }

    fn all_gather(&mut self, _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// Asserts that a product of mean factors beyond f32, and what is left beyond f32 though factors and product are not, are told,
/// and change no residual.
pub(super) fn check_beyond(open: impl Fn(&[Member], bool, u32) -> OnDevice) {
    // Both columns of P, once they are orthonormal, in the first row have the same sign, and so has all of the mean Q.
    let product = (member(3, 2, (2, 3), Dtype::F32), vec![1e20; 6], vec![vec![1.0, 1.0, 1.0, -1.0], vec![3e38; 6]]);
    // P points away from the first value and to all others, so that its own is sent with the wrong sign.
    let mut values = vec![1.6e38f32; 16];
    values[0] = -1.6e38;
    let mut p = vec![0.714 / 15f32.sqrt(); 16];
    p[0] = 0.7;
    let rest = (member(3, 1, (16, 1), Dtype::F32), values, vec![p]);
    for ((member, values, sums), what) in [(product, "the product of the factors"), (rest, "what is to be remembered")]
    {
        let mut on = open(&[member], true, 1);
        let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
        let moment = Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
        let gradients = [bytemuck::cast_slice(&values).to_vec()];
        let result = on.exchange(&gradients, moment, Agreement::Reached, &mut Forger(sums));
        assert_eq!(result, Err(Error::Core(CoreError::Overflow { what })));
        assert_eq!((on.bucket.faulty_layer(), on.residuals()), (Some(0), Some(vec![vec![0.0; values.len()]])));
    }
}

#[test]
fn products_and_residuals_beyond_f32_are_told_and_change_nothing() {
    if is_there() {
        check_beyond(open);
    }
}

/// A host's factors come of other sums, so its means would be others.
#[test]
fn ranks_on_the_host_have_other_fingerprints() {
    if is_there() {
        let mut on = open(&[member(3, 1, (40, 1), Dtype::F32)], true, 1);
        let mut backend = super::backend().expect("the device there was before");
        assert_eq!(on.bucket.on(&mut backend).remembered(), 0);
        let dense = Member { setting: Setting::Dense, ..member(3, 1, (40, 1), Dtype::F32) };
        let host = lgreco_core::internal::checksum::Hash::START.0;
        assert_eq!(open(&[dense], true, 1).bucket.on(&mut backend).remembered(), host);
    }
}

/// Zeros leave no factor to start from.
#[test]
fn gradients_of_zeros_start_the_next_step_afresh() {
    if !is_there() {
        return;
    }
    let mut on = open(&[member(3, 1, (40, 1), Dtype::F16)], true, 1);
    let ones = vec![F16::from_f32(1.0); 40];
    for values in [&ones, &vec![F16::from_f32(0.0); 40], &ones] {
        let means = step(&mut on, values).unwrap();
        assert!(means.iter().zip(values).all(|(mean, x)| (mean - x.to_f32()).abs() < 1e-3), "{means:?}");
    }
}
