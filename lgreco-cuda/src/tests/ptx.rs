//! Checks the PTX of every shipped kernel: rounding, contraction, fences, and memory accesses.

use super::fences;
use super::simt::entries;
use crate::kernels::Module;
use crate::shipped::{self, Architecture};

/// Returns a module's PTX.
pub(super) fn ptx(module: Module) -> &'static str {
    let code = shipped::code(module, Architecture::Ptx(shipped::PTX)).unwrap_or_else(|error| panic!("{error}"));
    str::from_utf8(code).unwrap()
}

#[test]
fn arithmetic_fences_and_accesses_are_as_written() {
    for module in Module::ALL {
        let text = ptx(module);
        for entry in entries(&module.source()) {
            assert!(text.contains(&format!(".entry {entry}(")), "{entry}");
        }
        let inexact: Vec<&str> = text.lines().filter(|line| !is_exact(line)).collect();
        assert!(inexact.is_empty(), "{module:?}: arithmetic that is not rounded to nearest: {inexact:?}");
        fences::check(module, text).unwrap();
        for (entry, body) in text.split(".entry ").skip(1).map(|text| text.split_once('(').expect("parameters")) {
            let generic: Vec<&str> = body.lines().map(str::trim).filter(|line| is_generic(line)).collect();
            assert!(generic.is_empty(), "{entry}: what kind of memory is unknown: {generic:?}");
        }
    }
}

/// Whether the arithmetic of a line of PTX is exact up to correct rounding. Lines without f32 or f64 arithmetic are
/// exact, and so are lines with `.rn`, which rounds to nearest and prevents contraction.
fn is_exact(line: &str) -> bool {
    let line = line.trim();
    let line = if line.starts_with('@') { line.split_once(' ').map_or("", |(_, rest)| rest.trim()) } else { line };
    let operation = line.split([' ', '\t', ';']).next().unwrap_or_default();
    let mut parts = operation.split('.');
    let rounds = ["add", "sub", "mul", "mad", "fma", "div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"];
    let is_float = operation.ends_with(".f32") || operation.ends_with(".f64");
    let rounded = !is_float || !parts.next().is_some_and(|name| rounds.contains(&name)) || parts.next() == Some("rn");
    rounded && !line.contains(".ftz") && !line.contains(".approx") && !line.contains(".full")
}

#[test]
fn arithmetic_that_is_not_rounded_once_is_noticed() {
    for line in ["add.f32 \t%f1, %f2, %f3;", "@%p1 mul.f64 %fd1, %fd2, %fd3;", "div.full.f32 %f1, %f2, %f3;"] {
        assert!(!is_exact(line), "{line}");
    }
    for line in ["fma.rn.ftz.f32 %f1, %f2, %f3, %f4;", "sqrt.approx.f32 %f1, %f2;", "cvt.ftz.f32.f16 %f1, %rs1;"] {
        assert!(!is_exact(line), "{line}");
    }
    for line in ["add.rn.f32 %f1, %f2, %f3;", "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;", "add.s32 %r1, %r2, 1;", "ret;"] {
        assert!(is_exact(line), "{line}");
    }
}

/// Whether a line of PTX accesses memory by a generic address. For a generic address, the hardware must first find out
/// the kind of memory, which takes time.
fn is_generic(line: &str) -> bool {
    let line = if line.starts_with('@') { line.split_once(' ').map_or(line, |(_, rest)| rest.trim()) } else { line };
    let Some((operation, rest)) = line.split_once('.') else { return false };
    let kinds = ["global", "shared", "param", "const", "local"];
    // Qualifiers such as `volatile` or `relaxed` come before the kind of memory.
    let of = rest.split(['.', ' ', '\t', ':']).find(|part| !["volatile", "relaxed", "gpu", "cta"].contains(part));
    ["ld", "st", "atom", "red"].contains(&operation) && !of.is_some_and(|of| kinds.contains(&of))
}

#[test]
fn accesses_of_memory_of_any_kind_are_noticed() {
    for line in ["ld.u32 \t%r1, [%rd2];", "@%p3 st.v4.f32 [%rd1], {%f1};", "atom.add.u32 %r1, [%rd1], 1;"] {
        assert!(is_generic(line), "{line}");
    }
    for line in ["ld.global.v2.u32 %r1, [%rd2];", "@%p3 st.volatile.shared.u32 [%r1], %r2;", "add.u32 %r1, %r2, 1;"] {
        assert!(!is_generic(line), "{line}");
    }
}
