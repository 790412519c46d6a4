//! Machine code as `nvdisasm -c` prints it: instructions, where they branch to, loops, and the costliest way round one.

use std::collections::BTreeMap;

/// What an instruction is executed by, as far as that limits how fast kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    /// Sums and products in f32.
    Fma,
    /// Products of integers, and moves in their shape.
    Product,
    /// Integers, comparisons, logic and shifts.
    Alu,
    /// Conversions, reciprocals, bit counts.
    Special,
    Double,
    /// Shared memory and exchanges between lanes.
    Shared,
    /// Global memory, barriers, branches and what is the same for a warp.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// With its modifiers: `LDG.E.128`.
    pub(crate) opcode: String,
    /// Whether it is executed in any case, so that nothing comes after a branch that is taken.
    always: bool,
    /// Whether some threads go by without executing it.
    is_guarded: bool,
    targets: Vec<usize>,
}

/// The bytes of an access by its modifiers.
fn width(opcode: &str) -> u32 {
    let has = |wanted: &[&str]| opcode.split('.').any(|part| wanted.contains(&part));
    match () {
        () if has(&["128"]) => 16,
        () if has(&["64"]) => 8,
        () if has(&["U16", "S16", "16"]) => 2,
        () if has(&["U8", "S8", "8"]) => 1,
        () => 4,
    }
}

impl Instruction {
    fn stem(&self) -> &str {
        self.opcode.split('.').next().unwrap_or(&self.opcode)
    }

    /// A short name that is the same on all architectures; of accesses with the bytes, as `LDG16`.
    pub(crate) fn kind(&self) -> String {
        match self.stem() {
            stem @ ("LDG" | "STG" | "LDS" | "STS" | "LDL" | "STL" | "LD" | "ST") => {
                format!("{stem}{}", width(&self.opcode))
            }
            "REDG" => "RED".into(),
            "I2FP" => "I2F".into(),
            // That is how the assembler jumps far.
            "CALL" if !self.targets.is_empty() => "BRA".into(),
            stem => stem.into(),
        }
    }

    /// Bytes of device memory that a thread reads or writes.
    pub(crate) fn global_bytes(&self) -> u32 {
        if matches!(self.stem(), "LDG" | "STG") { width(&self.opcode) } else { 0 }
    }

    /// Whether it is on a way without being executed there: of a kind that is cold, and only for threads that its predicate names.
    pub(crate) fn is_passed_by(&self, cold: &[&str]) -> bool {
        self.is_guarded && cold.contains(&self.kind().as_str())
    }

    /// Whether it tells a loop as an anchor. Where there are `most`, those do not that some threads go by.
    pub(crate) fn is_anchor(&self, (anchor, most): (&str, usize)) -> bool {
        self.kind() == anchor && !(self.is_guarded && most < usize::MAX)
    }

    /// What executes it, and how often as long as its simplest instructions take.
    pub(crate) fn pipe(&self) -> (Pipe, u32) {
        let stem = self.stem();
        match stem {
            "IMAD" if self.opcode.contains(".WIDE") || self.opcode.contains(".HI") => (Pipe::Product, 2),
            "IMAD" => (Pipe::Product, 1),
            "FADD" | "FMUL" | "FFMA" | "HFMA2" | "HADD2" => (Pipe::Fma, 1),
            "MUFU" | "F2F" | "F2I" | "I2F" | "I2FP" | "FRND" | "POPC" | "FLO" | "BREV" | "S2R" => (Pipe::Special, 1),
            "DADD" | "DMUL" | "DFMA" | "DSETP" => (Pipe::Double, 1),
            "LDS" | "STS" => (Pipe::Shared, width(&self.opcode).div_ceil(4)),
            "SHFL" | "ATOMS" | "REDUX" => (Pipe::Shared, 1),
            "LDG" | "STG" | "RED" | "REDG" | "ATOMG" | "ATOM" | "LDC" | "BAR" | "WARPSYNC" => (Pipe::Other, 1),
            "BRA" | "BSSY" | "BSYNC" | "BREAK" | "EXIT" | "RET" | "CALL" | "NOP" | "VOTE" | "VOTEU" => (Pipe::Other, 1),
            _ if stem.starts_with('U') || stem.starts_with("R2UR") => (Pipe::Other, 1),
            _ => (Pipe::Alu, 1),
        }
    }
}

/// The kernels of a cubin's text, by name.
pub(crate) fn kernels(text: &str) -> BTreeMap<String, Vec<Instruction>> {
    let mut kernels = BTreeMap::new();
    let mut functions: Vec<(String, Vec<&str>, BTreeMap<&str, usize>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            functions.push((name.into(), Vec::new(), BTreeMap::new()));
            continue;
        }
        let Some((_, lines, labels)) = functions.last_mut() else { continue };
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
            labels.insert(label, lines.len());
        } else if let Some((_, rest)) = line.trim_start().strip_prefix("/*").and_then(|rest| rest.split_once("*/"))
            && let Some((instruction, _)) = rest.split_once(';')
        {
            lines.push(instruction.trim());
        }
    }
    for (name, lines, labels) in functions {
        kernels.insert(name, lines.iter().map(|line| instruction(line, &labels)).collect());
    }
    kernels
}

fn instruction(line: &str, labels: &BTreeMap<&str, usize>) -> Instruction {
    let (predicate, rest) = match line.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
        None => ("", line),
    };
    let rest = rest.trim_start();
    let (opcode, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let between = |from: &str, to: char| operands.split(from).nth(1).and_then(|rest| rest.split(to).next());
    let is = |wanted: &str| opcode.split('.').next() == Some(wanted);
    let named = match () {
        () if is("BRA") || is("CALL") => between("`(", ')'),
        // A jump by a table.
        () if is("BRX") => between("BRANCH_TARGETS ", '"'),
        () => None,
    };
    let targets = named.into_iter().flat_map(|named| named.split(',')).filter_map(|label| labels.get(label).copied());
    // A branch with a predicate among its operands is taken by some.
    let always = predicate.is_empty() && (operands.starts_with('`') || operands.is_empty() || is("BRX"));
    Instruction { opcode: opcode.into(), always, is_guarded: !predicate.is_empty(), targets: targets.collect() }
}

/// Of two ways through code, the greater is followed: that with more of the instructions that tell the loop, then that with
/// fewer that are cold, then the longer.
type Weight = (usize, isize, usize);
/// The greatest weight from an instruction to the end, and what comes next on that way; `None` where no way ends.
type Best = Option<(Weight, Option<usize>)>;

/// The code that may be reached, and its loops.
pub(crate) struct Code<'k> {
    all: &'k [Instruction],
    cold: Vec<bool>,
    reached: Vec<bool>,
    /// By their first instruction: what belongs to it.
    loops: BTreeMap<usize, Vec<bool>>,
    /// Where a loop begins anew: (from, to).
    back: Vec<(usize, usize)>,
}

impl<'k> Code<'k> {
    /// `cold` are kinds of instructions that hardly any thread comes by where it need not. So are calls everywhere, and what
    /// exchanges need when a warp's threads have parted.
    pub(crate) fn new(all: &'k [Instruction], cold: &[&str]) -> Self {
        let is_cold = |instruction: &Instruction| {
            let (kind, opcode) = (instruction.kind(), instruction.opcode.as_str());
            cold.contains(&kind.as_str()) || kind == "CALL" || opcode.starts_with("WARPSYNC.COLLECTIVE")
        };
        let (cold, reached) = (all.iter().map(is_cold).collect(), vec![false; all.len()]);
        let mut code = Code { all, cold, reached, loops: BTreeMap::new(), back: Vec::new() };
        code.visit();
        for (from, to) in code.back.clone() {
            let members = code.members(from, to);
            let all = code.loops.entry(to).or_insert_with(|| vec![false; members.len()]);
            all.iter_mut().zip(members).for_each(|(is, too)| *is |= too);
        }
        code
    }

    fn successors(&self, at: usize) -> Vec<usize> {
        let instruction = &self.all[at];
        let falls_through = match instruction.opcode.split('.').next() {
            Some("EXIT" | "RET" | "BRA" | "BRX") => !instruction.always,
            _ => true,
        };
        let next = Some(at + 1).filter(|&next| falls_through && next < self.all.len());
        next.into_iter().chain(instruction.targets.iter().copied()).collect()
    }

    /// From the first instruction on, depth first: finds what is reached and which branches go back.
    fn visit(&mut self) {
        let mut open = vec![false; self.all.len()];
        let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut next = Some(0).filter(|&first| first < self.all.len());
        loop {
            if let Some(at) = next.take() {
                (self.reached[at], open[at]) = (true, true);
                path.push((at, self.successors(at)));
            }
            let Some((at, rest)) = path.last_mut() else { return };
            match rest.pop() {
                Some(to) if open[to] => self.back.push((*at, to)),
                Some(to) => next = Some(to).filter(|&to| !self.reached[to]),
                None => {
                    open[*at] = false;
                    path.pop();
                }
            }
        }
    }

    /// What comes before `from` without coming before `to`: the loop that is closed there.
    fn members(&self, from: usize, to: usize) -> Vec<bool> {
        let mut before = vec![Vec::new(); self.all.len()];
        for at in (0..self.all.len()).filter(|&at| self.reached[at]) {
            self.successors(at).into_iter().for_each(|next| before[next].push(at));
        }
        let mut is = vec![false; self.all.len()];
        is[to] = true;
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut is[at], true) {
                open.extend(&before[at]);
            }
        }
        is
    }

    /// The costliest way round the innermost loop with instructions of the kind `anchor`, or through all of the kernel where
    /// none is in a loop, that has `most` of them at most; without the loops of the `others`, but once through those that nobody
    /// names. Of several loops the one with the fewest cold instructions.
    pub(crate) fn way(&self, (anchor, most): (&str, usize), others: &[&str]) -> Vec<usize> {
        let apart = self.loops_of(others);
        let ways = self.innermost(anchor).into_iter().map(|head| self.costliest(Some(head), (anchor, most), &apart));
        let least_cold = |&((anchors, cold, length), _): &(Weight, Vec<usize>)| (cold, anchors, length);
        let way = ways.filter(|&((anchors, ..), _)| anchors > 0).max_by_key(least_cold);
        way.unwrap_or_else(|| self.costliest(None, (anchor, most), &apart)).1
    }

    /// Instructions on the costliest way through all of the kernel, without the loops that have these kinds; 0 where there are no
    /// such loops.
    pub(crate) fn once(&self, anchors: &[&str]) -> usize {
        let apart = self.loops_of(anchors);
        if apart.is_empty() { 0 } else { self.costliest(None, ("", 0), &apart).1.len() }
    }

    fn loops_of(&self, kinds: &[&str]) -> Vec<usize> {
        kinds.iter().flat_map(|kind| self.innermost(kind)).collect()
    }

    /// The heads of the loops that have the kind and no loop with it inside.
    fn innermost(&self, kind: &str) -> Vec<usize> {
        let of_kind = (0..self.all.len()).filter(|&at| self.reached[at] && self.all[at].kind() == kind);
        let size = |head: &usize| self.loops[head].iter().filter(|&&is| is).count();
        let innermost = |at: usize| self.loops.keys().copied().filter(|head| self.loops[head][at]).min_by_key(size);
        let mut heads: Vec<usize> = of_kind.filter_map(innermost).collect();
        heads.sort_unstable();
        heads.dedup();
        heads
    }

    /// Round a loop, by its head, or through the kernel, with `most` anchors at most; without the loops `apart` inside.
    fn costliest(&self, head: Option<usize>, (anchor, most): (&str, usize), apart: &[usize]) -> (Weight, Vec<usize>) {
        let is_inside = |at: usize| head.is_none_or(|head| self.loops[&head][at]);
        let inner: Vec<&Vec<bool>> = apart
            .iter()
            .filter(|&&other| head != Some(other) && is_inside(other))
            .map(|other| &self.loops[other])
            .collect();
        let counts = |at: usize| !inner.iter().any(|members| members[at]);
        let mut best: Vec<Option<Best>> = vec![None; self.all.len()];
        let start = head.unwrap_or(0);
        let mut open = vec![(start, false)];
        while let Some((at, is_known_behind)) = open.pop() {
            if best[at].is_some() {
                continue;
            }
            let forward = self.successors(at).into_iter().filter(|&next| !self.back.contains(&(at, next)));
            let forward: Vec<usize> = forward.filter(|&next| is_inside(next)).collect();
            if !is_known_behind {
                open.push((at, true));
                open.extend(forward.into_iter().map(|next| (next, false)));
                continue;
            }
            let ends = head.map_or(self.successors(at).is_empty(), |head| self.back.contains(&(at, head)));
            let ways =
                forward.into_iter().filter_map(|next| best[next].flatten().map(|(weight, _)| (weight, Some(next))));
            let way = ways.max_by_key(|&(weight, _)| weight).or(ends.then_some(((0, 0, 0), None)));
            let way = way.map(|((anchors, cold, length), next)| {
                let own = usize::from(counts(at));
                let is_anchor = own * usize::from(self.all[at].is_anchor((anchor, most)));
                ((anchors + is_anchor, cold - (own * usize::from(self.cold[at])) as isize, length + own), next)
            });
            best[at] = Some(way.filter(|&((anchors, ..), _)| anchors <= most));
        }
        let weight = best[start].flatten().map_or((0, 0, 0), |(weight, _)| weight);
        let ways = std::iter::successors(Some(start), |&at| best[at].flatten().and_then(|(_, next)| next));
        (weight, ways.filter(|&at| counts(at)).collect())
    }
}
