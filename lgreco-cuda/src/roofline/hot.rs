//! The kernels that go over values, and how their values are counted. A new one is one entry.

use crate::kernels::Module;

/// A kernel whose speed matters, or a way through one.
pub(super) struct Hot {
    pub(super) module: Module,
    pub(super) entry: &'static str,
    /// Which way is counted, where it is not the usual one of f32 gradients.
    pub(super) way: &'static str,
    /// Threads of a block.
    pub(super) block: u32,
    /// Kinds of instructions that hardly any values of a large gradient come by on this way where there is another one.
    pub(super) cold: &'static [&'static str],
    /// Loops (or all of the kernel, where none is). Loops inside that are not listed are gone through once.
    pub(super) loops: &'static [Loop],
}

/// A loop.
pub(super) struct Loop {
    /// The kind of instruction that tells it, and how many values one of them is for.
    pub(super) anchor: &'static str,
    pub(super) of_one: f64,
    /// How many of them there are at most on the way: where there are more, it is another one.
    pub(super) most: usize,
}

impl Hot {
    /// What `bounds.txt` calls it.
    pub(super) fn name(&self) -> String {
        let way = if self.way.is_empty() { String::new() } else { format!(",{}", self.way) };
        format!("{}/{}{way}", self.module.name().trim_end_matches(".cu"), self.entry)
    }

    const fn way(self, way: &'static str) -> Self {
        Hot { way, ..self }
    }
}

pub(super) const fn each(anchor: &'static str, of_one: f64) -> Loop {
    Loop { anchor, of_one, most: usize::MAX }
}

pub(super) const fn no_more(most: usize, anchor: &'static str, of_one: f64) -> Loop {
    Loop { anchor, of_one, most }
}

/// Loads of single elements and of other types than f32, and what is told of values that are not finite.
const NARROW: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED"];
/// The same where what is stored is narrow, too.
const NARROW_STORES: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED", "STG1", "STG2"];
/// The same for TopK: subnormal numbers and those outside of the window.
const RARE: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "RED", "FLO"];
/// Codes of a byte or of single elements, and slow divisions.
const BYTES: &[&str] = &["LDG1", "LDG4", "LDG8", "STG1", "STG4"];
/// What [`NARROW_STORES`] are of f32, of gradients of 16 bits, of which four are loaded as eight bytes.
const WIDE: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG16", "RED", "STG1", "STG2"];
/// Of means: single elements, and divisions by a number of ranks that is no power of two.
const MEANS: &[&str] = &["LDG1", "LDG2", "STG2", "RED", "MUFU"];
/// What is summed: single elements, numbers that become bf16, and what stays of what was remembered; and the same of bf16.
const SENT: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "STG2", "STG4", "RED", "FMUL", "SHF"];
const NARROW_SENT: &[&str] = &["LDG1", "LDG2", "LDG4", "STG2", "STG4", "RED", "FMUL"];
/// Of means of sums: single elements, other types, and divisions by a number of ranks that is no power of two; and the same of bf16.
const SUMMED: &[&str] = &["LDG1", "LDG2", "LDG4", "LDG8", "STG2", "STG4", "RED", "MUFU"];
const NARROW_SUMMED: &[&str] = &["LDG1", "LDG2", "LDG4", "STG2", "STG4", "RED", "MUFU"];
/// Of tiles of the matrix that factors make: other types, and what stays of what was remembered. That leaves loops without sums.
const TILES: &[&str] = &["LDG2", "STG2", "RED", "LDS4", "FMUL"];
const NARROW_TILES: &[&str] = &["STG4", "RED", "LDS4", "FMUL"];
/// Of what TopK gathers of 16 bits.
const PARTED: &[&str] = &["LDG1", "LDG2", "LDG4", "RED", "STG1", "STG2", "BSSY"];
/// Of TopK's means: values of other types.
const KEPT: &[&str] = &["LDG2", "STG2", "RED", "MUFU"];

/// Of a tile's eight values of a thread: four columns; two barriers for these; and two turns, in which the block fetches them.
const COLUMNS: Loop = each("LDS4", 8.0 / 9.0 / 4.0);
const SLABS: Loop = each("BAR", 8.0 / 2.0);
const FETCHED: Loop = each("STS4", 8.0 / 2.0);
/// The same of 64 columns, sixteen of which are fetched in six turns, and of seven ranks.
const RANKS: &[Loop] = &[
    each("FMUL", 8.0 / 16.0),
    each("LDS4", 8.0 / 9.0 / 64.0),
    each("BAR", 1.0),
    each("STS4", 8.0 / 6.0 / 4.0),
    each("DMUL", 1.0 / 7.0),
];

const fn hot(
    module: Module,
    entry: &'static str,
    block: u32,
    cold: &'static [&'static str],
    loops: &'static [Loop],
) -> Hot {
    Hot { module, entry, way: "", block, cold, loops }
}

pub(super) const HOT: &[Hot] = &[
    hot(Module::Magnitude, "largest", 256, NARROW, &[each("LDG16", 4.0)]),
    hot(Module::Magnitude, "largest", 256, WIDE, &[each("LDG8", 4.0)]).way("16-bit"),
    hot(Module::Qsgd, "usual_row", 256, NARROW, &[each("LDG16", 4.0)]),
    hot(Module::Qsgd, "usual_row", 256, WIDE, &[each("LDG8", 4.0)]).way("16-bit"),
    hot(Module::Qsgd, "usual_encode", 256, NARROW_STORES, &[each("LDG16", 4.0)]),
    hot(Module::Qsgd, "usual_encode", 256, WIDE, &[each("LDG8", 4.0)]).way("16-bit"),
    hot(Module::Qsgd, "decode", 256, BYTES, &[each("STG16", 4.0)]),
    hot(Module::Feedback, "offer", 256, &["LDG1", "LDG2"], &[each("STG4", 1.0)]),
    hot(Module::Feedback, "remember", 256, &["LDG1", "LDG2"], &[each("STG4", 1.0)]),
    // Two loads for four values; then codes, which are remembered.
    hot(Module::Exchange, "encode", 256, NARROW_STORES, &[each("LDG16", 2.0), each("STG4", 1.0)]),
    // Residuals are f32, of which there are the fewest loads.
    hot(Module::Exchange, "encode", 256, WIDE, &[each("STS16", 4.0), each("STG4", 1.0)]).way("16-bit"),
    // What a rank's code is part of its scale, of eight ranks, four of them at once, each code with a sign; then means.
    hot(Module::Exchange, "average", 256, MEANS, &[each("LDS4", 1.0 / 8.0), each("STG16", 4.0)]),
    hot(Module::Exchange, "average", 256, MEANS, &[each("LDS4", 1.0 / 8.0), no_more(1, "STG16", 8.0)]).way("16-bit"),
    // Of codes of more than 4 bits two ranks at once, and of an interval each by itself.
    hot(Module::Exchange, "average", 256, MEANS, &[no_more(16, "LDS4", 1.0 / 8.0), each("STG16", 4.0)]).way("bytes"),
    hot(Module::Exchange, "average", 256, MEANS, &[no_more(8, "LDS4", 1.0 / 8.0), each("STG16", 4.0)]).way("interval"),
    // What goes by sums, of four values, of which nothing is remembered but what bf16 leaves; and means of eight.
    hot(Module::ExchangeSums, "prepare", 256, SENT, &[each("STG16", 2.0)]),
    hot(Module::ExchangeSums, "prepare", 256, NARROW_SENT, &[each("STG8", 4.0)]).way("16-bit"),
    hot(Module::ExchangeSums, "means", 256, SUMMED, &[each("STG16", 4.0)]),
    hot(Module::ExchangeSums, "means", 256, NARROW_SUMMED, &[no_more(1, "STG16", 8.0)]).way("16-bit"),
    hot(Module::ExchangeSums, "project", 256, &["LDG2", "STG2", "RED", "ATOMG"], &[each("FFMA", 1.0 / 4.0)]),
    hot(Module::ExchangeSums, "project", 256, &["LDG4", "STG2", "RED", "ATOMG"], &[each("FFMA", 1.0 / 4.0)])
        .way("16-bit"),
    hot(Module::ExchangeSums, "back_project", 256, &["LDG2", "STG2", "RED", "ATOMG"], &[each("FFMA", 1.0 / 4.0)]),
    // A tile, eight values of which are a thread's; each column; what is done for up to sixteen; and what is fetched of these.
    hot(Module::ExchangeSums, "take_off", 256, TILES, &[each("STG4", 1.0), COLUMNS, SLABS, FETCHED]).way("rank_4"),
    hot(Module::ExchangeSums, "means", 256, TILES, &[each("STG4", 1.0), COLUMNS, SLABS, FETCHED]).way("rank_4"),
    hot(Module::ExchangeSums, "means", 256, NARROW_TILES, &[each("STG2", 1.0), COLUMNS, SLABS, FETCHED])
        .way("rank_4,16-bit"),
    hot(Module::TopK, "count_exact", 1024, RARE, &[each("LDG16", 4.0)]),
    // Four bins of an exponent, by five loads with those of rounding errors; and they are emptied.
    hot(Module::TopK, "choose", 256, &[], &[each("LDG16", 4.0 / 5.0), each("STG16", 4.0 / 5.0)]),
    // Single values at random.
    hot(Module::Selection, "sample", 256, &["LDG2"], &[each("ATOMS", 1.0)]),
    hot(Module::Selection, "sample", 256, &[], &[each("ATOMS", 1.0)]).way("16-bit"),
    // Two loads for four values; then what is gathered, of which a thread has two of its sixteen values at most, where it is 1.5 %.
    hot(Module::Selection, "offer", 256, NARROW_STORES, &[each("LDG16", 2.0), each("ATOMS", 8.0)]),
    // Threads that part have values of a layer's end. Four values of 16 bits are a load.
    hot(Module::Selection, "offer", 256, PARTED, &[each("LDG8", 4.0), each("ATOMS", 8.0)]).way("16-bit"),
    // A window of four of eight ranks, 32 values for a lane, of which no rank keeps more than its first 32 bits tell; then means.
    // The way of codes of few bits is the longer one, so it is that of all.
    hot(Module::Selection, "average_kept", 256, KEPT, &[each("LDS4", 4.0), each("STG16", 4.0)]),
    hot(Module::Selection, "average_kept", 256, KEPT, &[each("LDS4", 4.0), no_more(1, "STG16", 8.0)]).way("16-bit"),
    // Values that rows in few bits keep: each adds to its bin a count, and three numbers in loops until no other lane comes between.
    // Around that is what is done once for a span.
    hot(Module::Selection, "measure_kept", 256, &["ATOMG", "RED", "DADD"], &[each("LDG4", 1.0)]),
    // Every element meets the four columns of a warp. Of ranks above 4 other warps have the rest, and fetch it again.
    hot(Module::PowerSgd, "project", 256, &["LDG2"], &[each("FFMA", 1.0 / 4.0)]),
    hot(Module::PowerSgd, "project", 256, &["LDG4"], &[each("FFMA", 1.0 / 4.0)]).way("16-bit"),
    hot(Module::PowerSgd, "back_project", 256, &["LDG2"], &[each("FFMA", 1.0 / 4.0)]),
    hot(Module::PowerSgd, "back_project", 256, &["LDG4"], &[each("FFMA", 1.0 / 4.0)]).way("16-bit"),
    hot(Module::PowerSgd, "reconstruct", 256, TILES, &[each("STG4", 1.0), COLUMNS, SLABS, FETCHED]).way("rank_4"),
    // What is scaled in two steps, up to 64 columns, and seven ranks, at which what remains is squared.
    hot(Module::PowerSgd, "residuals", 256, &["LDG2", "SHFL", "LDS4"], RANKS).way("rank_64"),
    hot(Module::PowerSgd, "residuals", 256, &["LDG4", "SHFL", "LDS4"], RANKS).way("rank_64,16-bit"),
];
