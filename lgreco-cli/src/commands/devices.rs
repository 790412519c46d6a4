//! `lgreco devices`: what can measure and compress here.

use std::thread::available_parallelism;

pub fn report() -> String {
    let cores =
        available_parallelism().map_or_else(|error| format!("cores unknown ({error})"), |n| format!("{n} cores"));
    let instructions = match format!("{:?}", pulp::Arch::new()).split('(').next() {
        Some("V4") => "AVX-512",
        Some("V3") => "AVX2",
        Some("Neon") => "NEON",
        _ => "the target's baseline",
    };
    format!(
        "cpu    available: {cores}, {}, vector instructions: {instructions}\n\
         wgpu   not available: not part of this build\n\
         cuda   not available: not part of this build\n",
        std::env::consts::ARCH
    )
}
