//! Every kernel through NVRTC: to PTX, and to machine code for all architectures that matter, without a device.

use super::fences;
use super::simt::entries;
use super::unavailable;
use crate::Error;
use crate::compiler::{Architecture, Compiler, file};
use crate::driver::OLDEST_DEVICE;
use crate::kept;
use crate::kernels::Module;
use crate::libraries::{Library, candidates};
use crate::shipped;
use crate::simt::unavailable_of;
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Python's packages that `tests/run` has put under `target/cuda`.
pub(super) fn venv() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda/venv").canonicalize().unwrap_or_default()
}

/// The compilers there are, one of each version: in `venv`, or the system's.
fn compilers() -> Vec<Compiler> {
    let paths = candidates(Library::Nvrtc, 13, |name| (name == "VIRTUAL_ENV").then(venv));
    let mut all: Vec<Compiler> = paths.iter().filter_map(|path| Compiler::open(path)?.ok()).collect();
    all.sort_by_key(|compiler| compiler.version);
    all.dedup_by_key(|compiler| compiler.version);
    if all.is_empty() {
        unavailable("no NVRTC");
    }
    all
}

pub(super) fn compiler() -> Option<Compiler> {
    compilers().into_iter().next()
}

/// The numbers before `what` in a log.
fn numbers(log: &str, what: &str) -> Vec<u32> {
    let words: Vec<&str> = log.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let of_what: Vec<&str> = what.split(' ').collect();
    let found = words.windows(of_what.len() + 1).filter(|window| window[1..] == of_what[..]);
    found.map(|window| window[0].parse().unwrap_or_else(|_| panic!("{window:?}"))).collect()
}

#[test]
fn kernels_compile_for_every_architecture_and_spill_nowhere() {
    for compiler in compilers() {
        // From CUDA 13 on, 7.5 is the least.
        let supported = compiler.supported.iter().copied().filter(|&number| number >= OLDEST_DEVICE);
        let (oldest, newest) = (supported.clone().min().unwrap(), supported.max().unwrap());
        eprintln!("NVRTC {}.{}, architectures {oldest} to {newest}", compiler.version.0, compiler.version.1);
        for module in Module::ALL {
            for number in [oldest, newest] {
                machine_code(&compiler, module, Architecture::of(number, &compiler.supported).unwrap());
            }
            ptx(&compiler, module, Architecture::Ptx(oldest));
        }
    }
}

/// Byte for byte, by the very compiler, which `tests/run` installs.
#[test]
fn the_crate_ships_what_its_compiler_makes() {
    let own = candidates(Library::Nvrtc, 12, |name| (name == "VIRTUAL_ENV").then(venv));
    let own = own.iter().filter(|path| path.starts_with(venv()) && path.is_absolute());
    let Some(compiler) = own.filter_map(|path| Compiler::open(path)?.ok()).find(|own| own.version == shipped::COMPILER)
    else {
        return unavailable_of("nvrtc-12", "no NVRTC 12.9 in target/cuda, which makes what the crate ships");
    };
    for module in Module::ALL {
        for architecture in shipped::SASS.map(Architecture::Sass) {
            // Without options that only print something, since code from 10.0 on says by which it was made.
            let (code, _) = compiler.compile(module.name(), &module.source(), architecture, &[]).unwrap();
            assert!(shipped::code(module, architecture) == Some(code), "{module:?}, {architecture:?}");
        }
        let architecture = Architecture::Ptx(shipped::PTX);
        assert!(shipped::code(module, architecture) == Some(ptx(&compiler, module, architecture)), "{module:?}");
    }
}

/// Of a module, which must spill nothing.
fn machine_code(compiler: &Compiler, module: Module, architecture: Architecture) -> Vec<u8> {
    let source = module.source();
    let (code, log) = compiler.compile(module.name(), &source, architecture, &["--ptxas-options=-v"]).unwrap();
    assert!(code.starts_with(b"\x7fELF"), "{module:?}, {architecture:?}: machine code");
    let names = log.lines().filter_map(|line| line.split("entry function '").nth(1)?.split('\'').next());
    let registers = numbers(&log, "registers");
    assert_eq!(registers.len(), entries(&source).len(), "{log}");
    for what in ["bytes spill stores", "bytes spill loads", "bytes stack frame"] {
        let spilt = numbers(&log, what);
        assert!(spilt.len() >= registers.len() && spilt.iter().all(|&bytes| bytes == 0), "{module:?}: {log}");
    }
    let each: Vec<String> = names.zip(&registers).map(|(name, count)| format!("{name} {count}")).collect();
    eprintln!("{} {}, registers: {}", module.name(), architecture.name(), each.join(", "));
    assert!(registers.iter().all(|&count| count <= 128), "{log}");
    code
}

/// Of a module, whose arithmetic, fences and accesses are looked at.
fn ptx(compiler: &Compiler, module: Module, architecture: Architecture) -> Vec<u8> {
    let source = module.source();
    let (code, _) = compiler.compile(module.name(), &source, architecture, &[]).unwrap();
    let text = std::str::from_utf8(&code).unwrap();
    let target = architecture.name().replace("compute_", ".target sm_");
    for entry in entries(&source) {
        assert!(text.contains(&format!(".entry {entry}(")) && text.contains(&target), "{entry}: {text}");
    }
    let inexact: Vec<&str> = text.lines().filter(|line| !is_exact(line)).collect();
    assert!(inexact.is_empty(), "{module:?}: arithmetic that is not rounded to nearest: {inexact:?}");
    fences::check(module, text).unwrap();
    for (entry, body) in text.split(".entry ").skip(1).map(|text| text.split_once('(').expect("parameters")) {
        let generic: Vec<&str> = body.lines().map(str::trim).filter(|line| is_generic(line)).collect();
        // Its matrix is in shared memory where it fits there.
        assert!(generic.is_empty() || entry == "cholesky", "{entry}: what kind of memory is unknown: {generic:?}");
    }
    code
}

/// Whether a line of PTX, if it is arithmetic of f32 or f64, rounds to nearest and may not be contracted: it has `.rn` then.
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

/// Without the option that forbids contraction, what is not contracted has no `.rn`, and there is some of it in every module.
#[test]
fn what_may_be_contracted_is_noticed() {
    let Some(compiler) = compiler() else { return };
    let source = "extern \"C\" __global__ void sum(float* a) { a[0] = a[1] * a[2] + a[3]; a[4] = a[5] + a[6]; }";
    let of = |options: &[&str]| {
        let (code, _) = compiler.compile("sum.cu", source, Architecture::Ptx(80), options).unwrap();
        String::from_utf8(code).unwrap().lines().all(is_exact)
    };
    assert_eq!((of(&[]), of(&["--fmad=true"])), (true, false));
}

/// Whether a line of PTX reads or writes memory of any kind, which costs every such access a look at its address.
fn is_generic(line: &str) -> bool {
    let line = if line.starts_with('@') { line.split_once(' ').map_or(line, |(_, rest)| rest.trim()) } else { line };
    let Some((operation, rest)) = line.split_once('.') else { return false };
    let kinds = ["global", "shared", "param", "const", "local"];
    // Qualifiers of order, as of `volatile`, come first.
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

#[test]
fn a_source_that_does_not_compile_is_said_with_its_line() {
    let Some(compiler) = compiler() else { return };
    let source = "int fine;\n__global__ void wrong() { fine = nothing; }";
    let failed = compiler.compile("wrong.cu", source, Architecture::Sass(80), &[]);
    let Err(Error::Compile { module, architecture, log }) = failed else { panic!("{failed:?}") };
    assert_eq!((module, architecture.as_str()), ("wrong.cu", "sm_80"));
    assert!(log.contains("wrong.cu(2)") && log.contains("nothing"), "{log}");
}

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lgreco-cuda-{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn whole(code: &[u8]) -> Result<Vec<u8>, Error> {
    assert!(code.starts_with(b"\x7fELF"), "damaged code");
    Ok(code.to_vec())
}

#[test]
fn compiled_code_is_kept_in_memory_and_on_disk() {
    let Some(compiler) = compiler() else { return };
    let (folder, sass) = (folder("kept"), Architecture::Sass(86));
    let code = compiler.load(Module::Magnitude, sass, None, whole).unwrap();
    assert_eq!(files(&folder).len(), 0);
    // Compiled before there was a folder.
    compiler.keep(Module::Magnitude, sass, &folder);
    let [kept] = &files(&folder)[..] else { panic!("{:?}", files(&folder)) };
    assert_eq!(kept::read(kept).unwrap(), code);
    std::fs::remove_file(kept).unwrap();
    assert_eq!(compiler.load(Module::Magnitude, sass, Some(&folder), whole).unwrap(), code);
    assert!(files(&folder).contains(kept) && files(&folder).len() == 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Another process's, for which other architectures stand.
#[test]
fn kept_code_that_is_damaged_or_does_not_load_is_made_anew() {
    let Some(compiler) = compiler() else { return };
    let folder = folder("damaged");
    let good = compiler.load(Module::Magnitude, Architecture::Sass(86), Some(&folder), whole).unwrap();
    let first = files(&folder)[0].to_str().unwrap().to_owned();
    let file = |number| PathBuf::from(first.replace("sm_86", &format!("sm_{number}")));
    for (number, damage) in [(89, 0), (90, 1), (80, 2)] {
        let path = file(number);
        kept::write(&path, &good);
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[100] ^= 1,
            _ => bytes.clear(),
        }
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(kept::read(&path), None);
        let code = compiler.load(Module::Magnitude, Architecture::Sass(number), Some(&folder), whole).unwrap();
        assert_eq!(kept::read(&path).unwrap(), code);
    }
    // Whole, but nothing that the driver takes.
    let path = file(75);
    kept::write(&path, b"of another driver");
    let calls = Cell::new(0);
    let load = |code: &[u8]| {
        calls.set(calls.get() + 1);
        let refused = Error::Driver { call: "cuModuleLoadData", reason: "invalid image".into() };
        if code == b"of another driver" { Err(refused) } else { whole(code) }
    };
    let code = compiler.load(Module::Magnitude, Architecture::Sass(75), Some(&folder), load).unwrap();
    assert_eq!((kept::read(&path).unwrap(), calls.get()), (code, 2));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_of_different_code_are_never_one() {
    let names = [(Module::Qsgd, 1, 80), (Module::Qsgd, 2, 80), (Module::Qsgd, 1, 90), (Module::TopK, 1, 80)];
    let names = names.map(|(module, hash, number)| file(Path::new("shared"), module, hash, Architecture::Sass(number)));
    let unfinished = names.each_ref().map(|name| kept::unfinished(name));
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name) && !unfinished[..index].contains(&unfinished[index]), "{name:?}");
        assert!(unfinished[index].to_str().unwrap().starts_with(name.to_str().unwrap()));
    }
}

#[test]
fn devices_get_their_own_code_or_what_is_nearest_before() {
    let supported = [70, 80, 90];
    assert_eq!(Architecture::of(80, &supported), Some(Architecture::Sass(80)));
    assert_eq!(Architecture::of(86, &supported), Some(Architecture::Ptx(80)));
    assert_eq!(Architecture::of(120, &supported), Some(Architecture::Ptx(90)));
    assert_eq!(Architecture::of(61, &supported), None);
}
