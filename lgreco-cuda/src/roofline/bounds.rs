//! What the machine code of hot kernels comes to, and the most that it may.

use super::cubin::{self, Facts};
use super::disassembler::disassemble;
use super::hot::{HOT, Hot, Loop};
use super::occupancy;
use super::sass::{self, Code, Instruction, Pipe};
use crate::compiler::Architecture;
use crate::shipped;
use std::fmt::Write as _;

/// The compute capabilities of the code that nvdisasm reads. No nvdisasm on PyPI knows 7.0: the oldest there is that of CUDA 13.2.
pub(super) const READ: [u32; 5] = [75, 80, 90, 100, 120];

/// Those of which only what cubins tell is known: registers, shared memory and, by these, warps.
const UNREAD: [u32; 1] = [70];

const BOUNDS: &str = include_str!("bounds.txt");

/// Of one kernel for one compute capability: per value and thread, but for the last five. What is not known is NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) instructions: f64,
    pub(super) fma: f64,
    pub(super) product: f64,
    pub(super) alu: f64,
    pub(super) special: f64,
    pub(super) double: f64,
    pub(super) shared: f64,
    /// That threads ask device memory for, as if every one did what one of them may have to: also of tables that all of a block read,
    /// which come out of caches.
    pub(super) bytes: f64,
    /// Values of one turn of the first loop.
    pub(super) turn: f64,
    /// Instructions of a thread outside of the loops.
    pub(super) once: f64,
    pub(super) registers: f64,
    pub(super) shared_bytes: f64,
    /// That a multiprocessor holds at once.
    pub(super) warps: f64,
}

const WIDTH: usize = 13;

/// The names of the columns of `bounds.txt`, in the order of [`Counts::columns`].
const COLUMNS: [&str; WIDTH] = [
    "instructions",
    "fma",
    "product",
    "alu",
    "special",
    "double",
    "shared",
    "bytes",
    "turn",
    "once",
    "registers",
    "shared_bytes",
    "warps",
];

impl Counts {
    fn columns(&mut self) -> [&mut f64; WIDTH] {
        let Counts {
            instructions,
            fma,
            product,
            alu,
            special,
            double,
            shared,
            bytes,
            turn,
            once,
            registers,
            shared_bytes,
            warps,
        } = self;
        [instructions, fma, product, alu, special, double, shared, bytes, turn, once, registers, shared_bytes, warps]
    }

    pub(super) fn values(mut self) -> [f64; WIDTH] {
        self.columns().map(|value| *value)
    }

    /// Where `found` is beyond this bound, and by how much.
    pub(super) fn exceeded_by(self, found: Counts) -> Vec<String> {
        let pairs = COLUMNS.iter().zip(self.values().into_iter().zip(found.values()));
        // Fewer bytes asked for at once and fewer warps make a kernel wait; all else is the better the less it is.
        let beyond = |name: &str, bound: f64, found: f64| match name {
            "turn" | "warps" => found < bound,
            _ => found > bound,
        };
        let beyond = pairs.filter(|(name, (bound, found))| beyond(name, *bound, (100.0 * found).round() / 100.0));
        beyond.map(|(name, (bound, found))| format!("{name} {found:.2}, not {bound:.2}")).collect()
    }
}

/// What is known of a kernel without its code. `Err` says that it has local memory.
pub(super) fn resources(hot: &Hot, facts: Facts, architecture: u32) -> Result<Counts, String> {
    if facts.frame != 0 {
        return Err(format!("{}: local memory", hot.name()));
    }
    let warps = occupancy::of_code(architecture).resident(hot.block, facts.registers, facts.shared);
    let mut counts = Counts::default();
    counts.columns().into_iter().for_each(|column| *column = f64::NAN);
    let (registers, shared_bytes) = (facts.registers.into(), facts.shared.into());
    Ok(Counts { registers, shared_bytes, warps: warps.into(), ..counts })
}

/// What a kernel's code comes to. `Err` says what is not as its entry of [`HOT`] says.
pub(super) fn counts(hot: &Hot, code: &[Instruction], facts: Facts, architecture: u32) -> Result<Counts, String> {
    let entry = hot.name();
    let Counts { registers, shared_bytes, warps, .. } = resources(hot, facts, architecture)?;
    if code.iter().any(|instruction| ["LDL", "STL"].iter().any(|&it| instruction.kind().starts_with(it))) {
        return Err(format!("{entry}: local memory"));
    }
    let warm = Code::new(code, hot.cold);
    let mut all = Counts { registers, shared_bytes, warps, ..Counts::default() };
    let anchors: Vec<&str> = hot.loops.iter().map(|of| of.anchor).collect();
    for &Loop { anchor, of_one, most } in hot.loops {
        let way = warm.way((anchor, most), &anchors);
        let on_way = || way.iter().map(|&at| &code[at]);
        let values = of_one * on_way().filter(|instruction| instruction.is_anchor((anchor, most))).count() as f64;
        if values == 0.0 {
            return Err(format!("{entry}: no {anchor} on the costliest way"));
        }
        all.instructions += on_way().count() as f64 / values;
        let executed = on_way().filter(|instruction| !instruction.is_passed_by(hot.cold));
        all.bytes += executed.map(|instruction| f64::from(instruction.global_bytes())).sum::<f64>() / values;
        if all.turn == 0.0 {
            all.turn = values;
        }
        for instruction in on_way() {
            let (pipe, times) = instruction.pipe();
            let sum = match pipe {
                Pipe::Fma => &mut all.fma,
                Pipe::Product => &mut all.product,
                Pipe::Alu => &mut all.alu,
                Pipe::Special => &mut all.special,
                Pipe::Double => &mut all.double,
                Pipe::Shared => &mut all.shared,
                Pipe::Other => continue,
            };
            *sum += f64::from(times) / values;
        }
    }
    all.once = warm.once(&anchors) as f64;
    Ok(all)
}

/// Of a kernel for a compute capability, as `bounds.txt` has it.
pub(super) fn bound(entry: &str, architecture: u32) -> Option<Counts> {
    let mut lines = BOUNDS.lines().filter(|line| !line.starts_with('#'));
    let own = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() == Some(entry) && words.next() == Some(&format!("sm_{architecture}"))
    };
    let line = lines.find(own)?;
    let number = |word: &str| if word == "-" { Ok(f64::NAN) } else { word.parse() };
    let mut numbers = line.split_whitespace().skip(2).map(number);
    let mut counts = Counts::default();
    for column in counts.columns() {
        *column = numbers.next()?.ok()?;
    }
    Some(counts)
}

/// A kernel's counts for a compute capability, or what is wrong with it.
pub(super) type Measured = (&'static Hot, u32, Result<Counts, String>);

/// All hot kernels for all compute capabilities, found anew; `None`, said aloud, where there is no nvdisasm.
pub(super) fn measured() -> Option<Vec<Measured>> {
    let mut all = Vec::new();
    let mut modules: Vec<_> = HOT.iter().map(|hot| hot.module).collect();
    modules.dedup();
    for module in modules {
        for architecture in UNREAD.into_iter().chain(READ) {
            let cubin = shipped::code(module, Architecture::Sass(architecture)).expect("code of these sources");
            let facts = cubin::facts(&cubin).expect("a cubin");
            let of_module = HOT.iter().filter(|hot| hot.module == module);
            if UNREAD.contains(&architecture) {
                all.extend(of_module.map(|hot| (hot, architecture, resources(hot, facts[hot.entry], architecture))));
                continue;
            }
            let text = disassemble(&format!("{}-sm_{architecture}", module.name()), &cubin)?;
            let kernels = sass::kernels(&text);
            for hot in of_module {
                let found = counts(hot, &kernels[hot.entry], facts[hot.entry], architecture);
                all.push((hot, architecture, found));
            }
        }
    }
    Some(all)
}

/// What cubins alone tell of all hot kernels, for all compute capabilities.
pub(super) fn of_cubins() -> Vec<Measured> {
    let of = |architecture| {
        HOT.iter().map(move |hot| {
            let cubin = shipped::code(hot.module, Architecture::Sass(architecture)).expect("code of these sources");
            let facts = cubin::facts(&cubin).expect("a cubin");
            (hot, architecture, resources(hot, facts[hot.entry], architecture))
        })
    };
    UNREAD.into_iter().chain(READ).flat_map(of).collect()
}

/// `bounds.txt` as it should be for these counts.
pub(super) fn written(all: impl Iterator<Item = (String, u32, Counts)>) -> String {
    let mut text =
        String::from("# What hot kernels may need at most (mod.rs says of what); LGRECO_BLESS=1 writes it anew.\n");
    let names = COLUMNS.map(|name| format!("{name:>12}")).concat();
    writeln!(text, "# {:<32} {:<6}{names}", "kernel", "code").expect("memory");
    for (entry, architecture, counts) in all {
        let text_of =
            |number: f64| if number.is_nan() { "-".into() } else { ((100.0 * number).round() / 100.0).to_string() };
        let numbers = counts.values().map(|number| format!("{:>12}", text_of(number))).concat();
        writeln!(text, "{entry:<34} sm_{architecture:<3}{numbers}").expect("memory");
    }
    text
}
