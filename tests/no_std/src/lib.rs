//! Uses lgreco without features, on buffers of the stack: budgets, both solvers, the verifier and compressors. The
//! results are digests, which a program can compare even if it can only return an exit code. [`EXPECTED`] holds the
//! digests for all little-endian machines.
#![no_std]
#![forbid(unsafe_code)]

mod compressors;
mod planner;

use lgreco::Error;

/// The name of every digest and its value.
pub const EXPECTED: [(&str, u64); 10] = [
    ("plans within errors", 0x895b_7a36_9e00_bdef),
    ("plans within sizes", 0x9fdc_8aca_6573_51c6),
    ("dense", 0xf10f_394c_a14e_caba),
    ("qsgd max-norm", 0x9329_1a49_021f_ddc2),
    ("qsgd min-max", 0xdd5b_1b35_ab1f_709f),
    ("topk", 0x39e5_2e46_de42_b0bc),
    ("quantised topk", 0xa89d_964f_af18_f344),
    ("powersgd", 0x41e3_5261_f655_588d),
    ("rows", 0xd837_5b07_5538_ed5a),
    ("hostile payloads", 0x86e5_398c_8b9c_9cc6),
];

/// Computes the digests, in the order of [`EXPECTED`].
///
/// # Errors
/// Returns the first error of any call that must succeed.
pub fn run() -> Result<[u64; EXPECTED.len()], Error> {
    Ok([
        planner::within_errors()?,
        planner::within_sizes()?,
        compressors::dense()?,
        compressors::max_norm()?,
        compressors::min_max()?,
        compressors::topk()?,
        compressors::quantised_topk()?,
        compressors::powersgd()?,
        compressors::rows()?,
        compressors::hostile()?,
    ])
}

/// A 64-bit FNV-1a hash.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn f32s(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.bytes(&value.to_bits().to_le_bytes()));
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}
