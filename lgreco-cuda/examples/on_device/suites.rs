//! The suites of what trainers do on the device: exchanges of several ranks, which have a stream each, residuals, and steps that are
//! captured into graphs.

use super::Outcome;
use crate::checks::graphs::check_graphs;
use crate::checks::memory::{Driven, Memory, enter};
use crate::checks::space::{OnDevice, all_members_of, damaged, damaged_qsgd, members_of};
use crate::checks::window::check_window;
use lgreco_core::backend::Backend as _;
use lgreco_core::compress::Setting;
use lgreco_core::gradient::{Dtype, Gradient, with_elements};
use lgreco_core::rng::Stream;
use lgreco_cuda::{CudaBackend, DeviceGradient, DeviceResidual, Error};
use lgreco_testing::exchange::{Member, check_space, check_space_damage, check_space_failures};
use lgreco_testing::residual::{self, ResidualDevice};
use lgreco_train::feedback::Storage;
use std::time::Instant;

/// A rank's bucket, on a thread of its own.
fn open<const SHARDED: bool>(members: &[Member], _: bool, _: u32) -> OnDevice<Driven, SHARDED> {
    enter(0).expect("the device's context");
    OnDevice::new(CudaBackend::new(0).expect("the device, as before"), members)
}

/// Of gradients and their means.
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// A backend that has residuals on the device.
struct Residuals(CudaBackend);

struct Kept {
    memory: Driven,
    storage: Storage,
}

impl ResidualDevice for Residuals {
    type Kept = Kept;

    fn zeros(&mut self, storage: Storage, elements: usize) -> Kept {
        let bytes = storage.bytes(elements);
        let mut memory = Driven::new(bytes);
        memory.fill(&vec![0; bytes as usize]);
        Kept { memory, storage }
    }

    fn bytes(&mut self, kept: &Kept) -> Vec<u8> {
        kept.memory.bytes()
    }

    fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        kept: &mut Kept,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, lgreco_train::Error> {
        let bytes: &[u8] = with_elements!(gradient.values(), values => bytemuck::cast_slice(values));
        let mut memory = Driven::new(bytes.len() as u64);
        memory.fill(bytes);
        let residual = DeviceResidual { address: kept.memory.address(), storage: kept.storage };
        // SAFETY: as many values as the gradient's, and a residual of as many, until the call has returned.
        let sent = unsafe {
            let gradient = DeviceGradient::new(memory.address(), gradient.values().dtype(), gradient.shape());
            gradient
                .and_then(|gradient| self.0.encode_with_feedback(setting, &gradient, residual, gain, stream, payload))
        };
        sent.map_err(|error| match error {
            Error::Core(error) => error.into(),
            other => panic!("{other}"),
        })
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) {
        self.0.decode(payload, values).expect("a payload");
    }
}

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
    passes("residuals", || {
        let mut device = Residuals(CudaBackend::new(0).expect("the device, as before"));
        residual::check_all(&mut device);
        residual::check_powersgd(&mut device, (61, 47), 2);
        residual::check_limits(&mut device);
    });
    passes("gradients of plans", || check_window::<Driven>(&mut CudaBackend::new(0).expect("the device, as before")));
    passes("steps that are captured into graphs", check_graphs);
    println!();
    Ok(())
}
