//! Runs the common suite for implementations of `Space`, on buckets in simulated device memory.
#![allow(unsafe_code)]

use super::exchange::Memory;
use super::exchange_sums::power;
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, is_full, planted, some};
use crate::CudaBackend;
use crate::checks::memory;
use crate::checks::space::{OnDevice, all_members_of, damaged, damaged_qsgd, members_of};
use crate::kernels::Module;
use lgreco::compress::Setting;
use lgreco::gradient::{Dtype, Shape};
use lgreco_testing::exchange::{Member, check_space, check_space_damage, check_space_failures};

/// Reads and writes the simulated device's memory directly, because the simulated memory is the CPU's memory.
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
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    unsafe fn write(address: u64, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Whether kernels can run on this machine.
fn is_there() -> bool {
    backend(flavour(), 0).is_some()
}

fn open<const SHARDED: bool>(members: &[Member], _: bool, world: u32) -> OnDevice<Memory, SHARDED> {
    // For each number of ranks, threads run in a different order.
    OnDevice::new(backend(flavour(), world as i32 - 1).expect("g++, as before"), members)
}

/// Returns the suite's members (layers) with few elements.
fn small(mut members: Vec<Member>) -> Vec<Member> {
    members.retain(|member| member.shape.elements() < 3000);
    members
}

/// Returns all members or, under the sanitizers, only those with few elements.
fn bearable(members: Vec<Member>) -> Vec<Member> {
    if flavour() == Flavour::Plain { members } else { small(members) }
}

/// Returns the suite's members that are under PowerSGD or uncompressed.
fn powersgds(dtype: Dtype) -> Vec<Member> {
    let mut members = all_members_of(dtype);
    members.retain(|member| matches!(member.setting, Setting::PowerSgd(_) | Setting::Dense));
    members
}

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

#[test]
fn means_residuals_and_messages_are_the_hosts() {
    if is_there() {
        some(DTYPES).into_iter().for_each(|dtype| check_space(&bearable(members_of(dtype)), true, open::<false>));
    }
}

#[test]
fn powersgds_are_nearly() {
    if is_there() {
        for dtype in some(DTYPES) {
            check_space(&bearable(powersgds(dtype)), dtype != Dtype::Bf16, open::<false>);
        }
    }
}

#[test]
fn so_they_are_by_shards() {
    if is_there() {
        some(DTYPES).into_iter().for_each(|dtype| check_space(&bearable(members_of(dtype)), true, open::<true>));
    }
}

/// Runs shards of all kinds of layers, without the largest ones.
#[test]
fn no_race_is_found() {
    if is_there() {
        let open = |members: &[Member], _, _| {
            OnDevice::<Memory, true>::new(backend(Flavour::Races, 2).expect("g++, as before"), members)
        };
        check_space(&small(members_of(Dtype::F32)), false, open);
    }
}

/// Runs uncompressed layers and several layers under PowerSGD, which share launches, on two and three ranks. If
/// `halves` is true, sums are bf16. If `halves` is false, there is one more layer, in which a block makes some columns
/// one after another. In bf16, the sums of this layer's columns may differ by more than the suite allows.
fn powersgds_under_the_race_check(halves: bool, edit: Option<Edit>) {
    let mut members = small(powersgds(Dtype::F32));
    if !halves {
        let (setting, shape) = (power(20), Shape::new(130, 40).unwrap());
        members.push(Member { index: 1000, setting, shape, dtype: Dtype::F32 });
    }
    let open = |members: &[Member], _, _| {
        let device = Simt::new(Flavour::Races, 2, edit).expect("g++, as before");
        OnDevice::<Memory, false>::new(CudaBackend::on(Box::new(device)), members)
    };
    check_space(&members, halves, open);
}

#[test]
fn no_race_is_found_in_powersgds_until_one_is_planted() {
    if !is_there() {
        return;
    }
    powersgds_under_the_race_check(true, None);
    powersgds_under_the_race_check(false, None);
    for (from, to) in planted([
        ("    // The next piece needs the room.\n    __syncthreads();\n", ""),
        ("u32(first && row + k / STEPS < f.rows && ", "u32(first && "),
    ]) {
        let edit = Edit { module: Module::ExchangeSums, from, to };
        let found = std::panic::catch_unwind(|| powersgds_under_the_race_check(false, Some(edit)));
        let said = found.expect_err("the planted race").downcast::<String>().expect("words");
        assert!(said.contains("race ("), "{from}: {said}");
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
        let apart = if is_full() { 1 } else { 3 };
        check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<false>);
        check_space_damage(&damaged(), 1, 11 * apart, open::<false>);
        check_space_damage(&damaged_qsgd(), 1, 2 * apart, open::<true>);
        let sharded: Vec<Member> =
            damaged().into_iter().filter(|member| !matches!(member.setting, Setting::PowerSgd(_))).collect();
        check_space_damage(&sharded, 1, 5 * apart, open::<true>);
    }
}

/// The check that must find a planted fault.
#[derive(Clone, Copy, Debug)]
enum Check {
    Steps,
    Shards,
    Failures,
    Damage,
    Narrow,
}

#[test]
#[ignore = "slow"]
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
        (
            Module::ExchangeSums,
            "gradients) + f.values * (p.dtype == 0 ? 4 : 2);",
            "gradients) + f.values * (p.dtype == 0 ? 4 : p.dtype == 1 ? 2 : 0);",
            Check::Narrow,
        ),
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
            Check::Narrow => check_space(&small(powersgds(Dtype::Bf16)), false, open),
        });
        assert!(found.is_err(), "not found: {to}");
    }
}
