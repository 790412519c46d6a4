//! Buckets on the device in the suite of all spaces.
#![allow(unsafe_code)]

use super::backend;
use super::exchange::Memory;
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::CudaBackend;
use crate::kernels::Module;
use crate::testing::memory;
use crate::testing::space::{OnDevice, all_members_of, damaged, damaged_qsgd, members_of};
use lgreco_core::compress::Setting;
use lgreco_core::gradient::Dtype;
use lgreco_train::testing::exchange::{Member, check_space, check_space_damage, check_space_failures};

/// The imitated device's, which is the processor's.
impl memory::Memory for Memory {
    fn new(bytes: u64) -> Self {
        Memory::new(bytes)
    }

    fn address(&mut self) -> u64 {
        self.address()
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.fill(bytes);
    }

    unsafe fn read(address: u64, bytes: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: as the caller says.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    unsafe fn write(address: u64, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: as the caller says.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Whether kernels can be run.
fn is_there() -> bool {
    backend(flavour(), 0).is_some()
}

fn open<const SHARDED: bool>(members: &[Member], _: bool, world: u32) -> OnDevice<Memory, SHARDED> {
    // Threads of a block run in another order where there are more ranks.
    OnDevice::new(backend(flavour(), world as i32 - 1).expect("g++, as before"), members)
}

#[test]
fn means_residuals_and_messages_are_the_hosts() {
    if is_there() {
        let open = open::<false>;
        [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().for_each(|dtype| check_space(&members_of(dtype), true, open));
    }
}

#[test]
fn powersgds_are_nearly() {
    if is_there() {
        let powersgd = |member: &Member| matches!(member.setting, Setting::PowerSgd(_) | Setting::Dense);
        for dtype in [Dtype::F32, Dtype::F16] {
            let members: Vec<Member> = all_members_of(dtype).into_iter().filter(powersgd).collect();
            check_space(&members, true, open::<false>);
        }
    }
}

#[test]
fn so_they_are_by_shards() {
    if is_there() {
        let open = open::<true>;
        [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().for_each(|dtype| check_space(&members_of(dtype), true, open));
    }
}

/// Shards of all kinds of layers, without the largest ones.
#[test]
fn no_race_is_found() {
    if is_there() {
        let members: Vec<Member> =
            members_of(Dtype::F32).into_iter().filter(|member| member.shape.elements() < 3000).collect();
        let open = |members: &[Member], _, _| {
            OnDevice::<Memory, true>::new(backend(Flavour::Races, 2).expect("g++, as before"), members)
        };
        check_space(&members, false, open);
    }
}

#[test]
fn failures_are_the_hosts() {
    if is_there() {
        check_space_failures(&members_of(Dtype::F32), open::<false>);
        check_space_failures(&members_of(Dtype::F32), open::<true>);
    }
}

#[test]
fn damage_is_found_as_by_the_host() {
    if is_there() {
        check_space_damage(&damaged_qsgd(), 1, 2, open::<false>);
        check_space_damage(&damaged(), 1, 11, open::<false>);
        check_space_damage(&damaged_qsgd(), 1, 2, open::<true>);
        let sharded: Vec<Member> =
            damaged().into_iter().filter(|member| !matches!(member.setting, Setting::PowerSgd(_))).collect();
        check_space_damage(&sharded, 1, 5, open::<true>);
    }
}

/// Which check finds it.
#[derive(Clone, Copy, Debug)]
enum Check {
    Steps,
    Shards,
    Failures,
    Damage,
}

#[test]
fn faults_in_the_kernels_are_found() {
    if !is_there() {
        return;
    }
    for (module, from, to, check) in [
        (Module::Exchange, "float sent = decoded(", "float sent = 0.0f * decoded(", Check::Steps),
        (Module::Selection, "message[0] = atomicMax(&program->fault, 0ull) != 0;", "message[0] = 7;", Check::Steps),
        (
            Module::ExchangeSums,
            "rank ? digit_of(p, code, at % len) : 0.0f",
            "rank ? digit_of(p, code, 0) : 0.0f",
            Check::Steps,
        ),
        (Module::ExchangeSums, "bits : narrow_bf16(bits);", "bits : bits >> 16;", Check::Steps),
        (Module::Exchange, "program->half ^= !failed;", "program->half ^= 1;", Check::Failures),
        (Module::Selection, "low <= high && ", "", Check::Damage),
        (Module::Selection, "payload[used / 8] >> used % 8 == 0", "true", Check::Damage),
        (Module::Selection, "atomicMax(&program->broken, ~rank);", "", Check::Damage),
        (Module::Exchange, "p.rank = layer.rank;", "", Check::Shards),
        (Module::Exchange, "program->sharded ? program->rank : world.ranks", "world.ranks", Check::Shards),
        (Module::Selection, "rank >= program.rank ? later : rank", "false ? later : rank", Check::Shards),
    ] {
        let edited = || {
            let device = Simt::new(Flavour::Plain, 0, Some(Edit { module, from, to })).expect("g++, as before");
            CudaBackend::on(Box::new(device))
        };
        let open = |members: &[Member], _, _| OnDevice::<Memory, false>::new(edited(), members);
        let sharded = |members: &[Member], _, _| OnDevice::<Memory, true>::new(edited(), members);
        let members = members_of(Dtype::F32);
        let found = std::panic::catch_unwind(|| match check {
            Check::Steps => check_space(&members, true, open),
            Check::Shards => check_space(&members, true, sharded),
            Check::Failures => check_space_failures(&members, open),
            Check::Damage => check_space_damage(&damaged_qsgd(), 1, 2, open),
        });
        assert!(found.is_err(), "not found: {to}");
    }
}
