//! The suites: conformance, exchanges of several ranks with one stream per rank, means of gradients for plans, and
//! steps captured into graphs. If the argument `few` is true, fewer bytes are damaged.

use super::{Outcome, ROWS};
use crate::checks::graphs::check_graphs;
use crate::checks::memory::{Driven, enter};
use crate::checks::space::{OnDevice, all_members_of, damaged, damaged_qsgd, members_of};
use crate::checks::window::check_window;
use lgreco::compress::Setting;
use lgreco::gradient::Dtype;
use lgreco_cuda::CudaBackend;
use lgreco_testing::backend::check_all;
use lgreco_testing::exchange::{Member, check_space, check_space_damage, check_space_failures};

/// Opens a rank's bucket. Each rank has its own thread.
fn open<const SHARDED: bool>(members: &[Member], _: bool, _: u32) -> OnDevice<Driven, SHARDED> {
    enter(0).expect("the device's context");
    OnDevice::new(CudaBackend::new(0).expect("the device, as before"), members)
}

/// The types of gradients and means.
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

pub(super) fn conformance(_: bool) -> Outcome<()> {
    check_all(&mut CudaBackend::new(0)?, ROWS);
    Ok(())
}

pub(super) fn exchanges(_: bool) -> Outcome<()> {
    for dtype in DTYPES {
        let of_narrow = dtype == Dtype::Bf16;
        // If sums are also bf16, the rounding errors of PowerSGD's factors and means may together exceed the suite's
        // tolerance.
        check_space(&all_members_of(dtype), !of_narrow, open::<false>);
        if of_narrow {
            check_space(&members_of(dtype), true, open::<false>);
        }
    }
    Ok(())
}

pub(super) fn shards(_: bool) -> Outcome<()> {
    DTYPES.into_iter().for_each(|dtype| check_space(&members_of(dtype), true, open::<true>));
    Ok(())
}

/// Tests gradients and settings that make an exchange fail.
pub(super) fn failures(_: bool) -> Outcome<()> {
    check_space_failures(&members_of(Dtype::F32), open::<false>);
    check_space_failures(&members_of(Dtype::F32), open::<true>);
    Ok(())
}

/// Tests damaged messages.
pub(super) fn damage(few: bool) -> Outcome<()> {
    let apart = if few { 3 } else { 1 };
    let of_shards: Vec<Member> =
        damaged().into_iter().filter(|member| !matches!(member.setting, Setting::PowerSgd(_))).collect();
    check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<false>);
    check_space_damage(&damaged(), 1, 11 * apart, open::<false>);
    check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<true>);
    check_space_damage(&of_shards, 1, 5 * apart, open::<true>);
    Ok(())
}

/// Tests the means of gradients from which plans are made.
pub(super) fn window(_: bool) -> Outcome<()> {
    check_window::<Driven>(&mut CudaBackend::new(0)?);
    Ok(())
}

pub(super) fn graphs(_: bool) -> Outcome<()> {
    check_graphs();
    Ok(())
}
