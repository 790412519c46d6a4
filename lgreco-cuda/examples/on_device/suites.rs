//! The suites of what trainers do on the device: exchanges of several ranks, which have a stream each, and steps that are captured
//! into graphs.

use super::Outcome;
use lgreco_core::compress::Setting;
use lgreco_core::gradient::Dtype;
use lgreco_cuda::CudaBackend;
use lgreco_cuda::testing::graphs::check_graphs;
use lgreco_cuda::testing::memory::{Driven, enter};
use lgreco_cuda::testing::space::{OnDevice, all_members_of, damaged, damaged_qsgd, members_of};
use lgreco_cuda::testing::window::check_window;
use lgreco_train::testing::exchange::{Member, check_space, check_space_damage, check_space_failures};
use std::time::Instant;

/// A rank's bucket, on a thread of its own.
fn open<const SHARDED: bool>(members: &[Member], _: bool, _: u32) -> OnDevice<Driven, SHARDED> {
    enter(0).expect("the device's context");
    OnDevice::new(CudaBackend::new(0).expect("the device, as before"), members)
}

/// Of gradients and their means.
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Runs a suite, and says so.
fn passes(name: &str, suite: impl FnOnce()) {
    let start = Instant::now();
    suite();
    println!("{name} pass, {:.1} s", start.elapsed().as_secs_f64());
}

/// Runs all of them. `few` spares most of the damage.
pub(super) fn run(few: bool) -> Outcome<()> {
    enter(0)?;
    let apart = if few { 3 } else { 1 };
    passes("exchanges", || {
        for dtype in DTYPES {
            let of_narrow = dtype == Dtype::Bf16;
            // With sums in bf16 as well, what PowerSGD's factors and means are rounded by may be more than the suite allows.
            check_space(&all_members_of(dtype), !of_narrow, open::<false>);
            if of_narrow {
                check_space(&members_of(dtype), true, open::<false>);
            }
        }
    });
    passes("exchanges of shards", || {
        DTYPES.into_iter().for_each(|dtype| check_space(&members_of(dtype), true, open::<true>));
    });
    passes("exchanges that fail", || {
        check_space_failures(&members_of(Dtype::F32), open::<false>);
        check_space_failures(&members_of(Dtype::F32), open::<true>);
    });
    passes("exchanges of damaged messages", || {
        let of_shards: Vec<Member> =
            damaged().into_iter().filter(|member| !matches!(member.setting, Setting::PowerSgd(_))).collect();
        check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<false>);
        check_space_damage(&damaged(), 1, 11 * apart, open::<false>);
        check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<true>);
        check_space_damage(&of_shards, 1, 5 * apart, open::<true>);
    });
    passes("gradients of plans", || check_window::<Driven>(&mut CudaBackend::new(0).expect("the device, as before")));
    passes("steps that are captured into graphs", check_graphs);
    println!();
    Ok(())
}
