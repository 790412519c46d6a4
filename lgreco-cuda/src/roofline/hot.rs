//! The kernels that go over values, and how their values are counted. A new one is one entry.

use crate::kernels::Module;

/// A kernel whose speed matters.
pub(super) struct Hot {
    pub(super) module: Module,
    pub(super) entry: &'static str,
    /// Threads of a block.
    pub(super) block: u32,
    /// Kinds of instructions that hardly any values of a large f32 gradient come by where there is another way.
    pub(super) cold: &'static [&'static str],
    /// Loops (or all of the kernel, where none is): a kind of instruction that tells one, and how many values one of them is
    /// for. Loops inside that are not listed are gone through once.
    pub(super) loops: &'static [(&'static str, f64)],
}

impl Hot {
    /// What `bounds.txt` calls it.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.module.name().trim_end_matches(".cu"), self.entry)
    }
}

/// Loads of single elements and of other types than f32, and what is told of values that are not finite.
const NARROW: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED"];
/// The same where what is stored is narrow, too.
const NARROW_STORES: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED", "STG1", "STG2"];
/// The same for TopK: subnormal numbers and those outside of the window.
const RARE: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED", "FLO"];
/// Codes of a byte or of single elements, and slow divisions.
const BYTES: &[&str] = &["LDG1", "LDG4", "LDG8", "STG1", "STG4"];

const fn hot(
    module: Module,
    entry: &'static str,
    block: u32,
    cold: &'static [&'static str],
    loops: &'static [(&'static str, f64)],
) -> Hot {
    Hot { module, entry, block, cold, loops }
}

pub(super) const HOT: &[Hot] = &[
    hot(Module::Magnitude, "largest", 256, NARROW, &[("LDG16", 4.0)]),
    hot(Module::Qsgd, "usual_row", 256, NARROW, &[("LDG16", 4.0)]),
    hot(Module::Qsgd, "usual_encode", 256, NARROW_STORES, &[("LDG16", 4.0)]),
    hot(Module::Qsgd, "decode", 256, BYTES, &[("STG16", 4.0)]),
    hot(Module::Feedback, "offer", 256, &["LDG1", "LDG2"], &[("STG4", 1.0)]),
    hot(Module::Feedback, "remember", 256, &["LDG1", "LDG2"], &[("STG4", 1.0)]),
    // Two loads for four values; then codes, which are remembered.
    hot(Module::Exchange, "encode", 256, NARROW_STORES, &[("LDG16", 2.0), ("STG4", 1.0)]),
    // What a rank's code is part of its scale, of eight ranks, four of them at once, each code with a sign; then means.
    hot(
        Module::Exchange,
        "average",
        256,
        &["LDG1", "LDG2", "STG2", "RED", "MUFU"],
        &[("LDS4", 1.0 / 8.0), ("STG16", 4.0)],
    ),
    hot(Module::TopK, "count_exact", 1024, RARE, &[("LDG16", 4.0)]),
    // Four bins of an exponent, by five loads with those of rounding errors; and they are emptied.
    hot(Module::TopK, "choose", 256, &[], &[("LDG16", 4.0 / 5.0), ("STG16", 4.0 / 5.0)]),
    // Single values at random.
    hot(Module::Selection, "sample", 256, &["LDG2"], &[("ATOMS", 1.0)]),
    // Two loads for four values; then what is gathered, of which a thread has two of its sixteen values at most, where it is 1.5 %.
    hot(Module::Selection, "offer", 256, NARROW_STORES, &[("LDG16", 2.0), ("ATOMS", 8.0)]),
    // A window of four of eight ranks, 32 values for a lane, of which no rank keeps more than its first 32 bits tell; then means.
    hot(Module::Selection, "average_kept", 256, &["LDG2", "STG2", "RED", "MUFU"], &[("LDS4", 4.0), ("STG16", 4.0)]),
    // Values that rows in few bits keep: each adds to its bin a count, and three numbers in loops until no other lane comes between.
    // Around that is what is done once for a span.
    hot(Module::Selection, "measure_kept", 256, &["ATOMG", "RED", "DADD"], &[("LDG4", 1.0)]),
    // Every element meets the four columns of a warp. Of ranks above 4 other warps have the rest, and fetch it again.
    hot(Module::PowerSgd, "project", 256, &["LDG2"], &[("FFMA", 1.0 / 4.0)]),
    hot(Module::PowerSgd, "back_project", 256, &["LDG2"], &[("FFMA", 1.0 / 4.0)]),
];
