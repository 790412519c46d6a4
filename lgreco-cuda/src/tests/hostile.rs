//! Tests damaged payloads with the kernels on the CPU.
#![allow(unsafe_code)]

use super::backend;
use super::simt::flavour;
use lgreco::rng::Stream;
use lgreco_testing::hostile::{Choices, Products, check_decoding, payload};
use std::io::Write as _;
use std::path::Path;

fn random(step: u32) -> Vec<u8> {
    let stream = Stream { seed: 19, step, ..Stream::default() };
    (0..40).map(|i| (stream.word(i) >> 24) as u8).collect()
}

#[test]
fn damaged_payloads_are_decoded_or_refused_as_by_the_core() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let good = (0..2000).filter(|&step| check_decoding(&random(step), &mut backend, Products::Exact)).count();
    assert!((200..1800).contains(&good), "{good} of 2000 payloads were decoded");
    let decoded = backend.gpu_mut().decoded;
    assert!(decoded > 200, "only {decoded} of them by the kernels");
}

/// Decodes payloads with arbitrary bodies. The kernels may decode any values, or the check may report an error. The
/// sanitizers would find accesses outside the memory.
#[test]
fn damaged_payloads_on_the_device_stay_where_they_are() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (mut good, mut refused, mut method) = (0, 0, 0);
    for step in 0..1000 {
        let bytes = random(step);
        let mut choices = Choices::new(&bytes);
        let (setting, shape, mut payload) = payload(&mut choices);
        for _ in 0..choices.byte() % 4 {
            choices.damage(&mut payload);
        }
        // The memory has exactly the payload's length, rounded up to words.
        let mut words: Vec<u32> = vec![0; payload.len().div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..payload.len()].copy_from_slice(&payload);
        let mut values = vec![0u32; shape.elements()];
        let (from, to) = (words.as_ptr().expose_provenance() as u64, values.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the simulated device uses the CPU's memory. Both memories have these lengths and live until the
        // check.
        let enqueued = unsafe { backend.decode_on_device(&setting, shape, from, to) };
        match enqueued.map(|()| backend.check()) {
            Ok(Ok(())) => good += 1,
            Ok(Err(_)) => refused += 1,
            Err(_) => method += 1,
        }
    }
    assert!(good > 100 && refused > 10 && method > 10, "{good} decoded, {refused} refused, {method} of other methods");
}

/// Decodes the seeds of this backend's fuzz test, which include inputs that failed in the past.
#[test]
fn seeds_of_fuzzing_are_decoded_or_refused_as_by_the_core() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/gpu/seeds/gpu_cuda");
    if !seeds.try_exists().unwrap() {
        let reason = format!("{} is not there: packages do not hold it", seeds.display());
        return writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
    }
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let mut checked = 0;
    for entry in seeds.read_dir().unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display()); // printed if the check fails
        check_decoding(&std::fs::read(&path).unwrap(), &mut backend, Products::Exact);
        checked += 1;
    }
    assert!(checked >= 20, "{checked} seeds in {}", seeds.display());
    assert!(backend.gpu_mut().decoded > 0, "the device has decoded none of them");
}
