//! A device on the processor: the kernels' own sources, compiled by g++ against `simt/cuda_shim.h`.

use crate::Error;
use crate::device::{Device, Gemm, Launch, Part};
use crate::driver::Arguments;
use crate::kernels::{Kernel, Module};
use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Says that something cannot be checked here, and fails when `LGRECO_REQUIRE` names cuda.
pub(crate) fn unavailable(reason: &str) {
    unavailable_of("cuda", reason);
}

/// The same of another kind.
pub(crate) fn unavailable_of(kind: &str, reason: &str) {
    let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == kind), "{reason}, but LGRECO_REQUIRE");
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(reason.into()) {
        // Not by `eprintln!`, which libtest keeps to itself.
        writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
    }
}

/// What the kernels are compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Optimised.
    Plain,
    /// With the check for data races.
    Races,
    /// With the address and undefined-behaviour sanitizers; the process runs under their library.
    Sanitized,
}

/// The flavour that the environment asks for.
pub(crate) fn flavour() -> Flavour {
    match std::env::var("LGRECO_SIMT").as_deref() {
        Ok("sanitized") => Flavour::Sanitized,
        _ => Flavour::Plain,
    }
}

/// An edit of a module's source: a text that occurs in it, and what it becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    pub(crate) module: Module,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

pub(crate) struct Simt {
    flavour: Flavour,
    order: c_int,
    edit: Option<Edit>,
    libraries: HashMap<Module, Library>,
}

/// The shim has one scheduler per library.
static RUNNING: Mutex<()> = Mutex::new(());

/// `cuda_shim_launch` of the shim.
#[repr(C)]
struct ShimLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: usize,
    params: *mut *mut c_void,
    size: usize,
    count: usize,
    order: c_int,
    error: *mut c_char,
    room: usize,
}

impl Simt {
    /// Threads of a block, and blocks of a grid, run forwards (`order` 0), backwards (1) or at random, some blocks at a time (from 2
    /// on, so that block `order - 2` comes last). An edited module is compiled at once, so that no test takes an edit that cannot
    /// be made for a fault found. `None`, said aloud, where there is no g++.
    pub(crate) fn new(flavour: Flavour, order: c_int, edit: Option<Edit>) -> Option<Self> {
        if let Err(error) = Command::new("g++").arg("--version").output() {
            unavailable(&format!("no g++ to run kernels on the processor: {error}"));
            return None;
        }
        let mut device = Simt { flavour, order, edit, libraries: HashMap::new() };
        if let Some(edit) = edit {
            device.library(edit.module);
        }
        Some(device)
    }

    fn library(&mut self, module: Module) -> &Library {
        let (flavour, edit) = (self.flavour, self.edit);
        self.libraries.entry(module).or_insert_with(|| {
            let mut source = module.source();
            if let Some(edit) = edit.filter(|edit| edit.module == module) {
                assert!(source.contains(edit.from), "{edit:?}");
                source = source.replacen(edit.from, edit.to, 1);
            }
            let path = build(module, &source, flavour);
            // SAFETY: built just now from the project's own sources; its initialisers only make tables.
            unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
    }

    fn driver(kernel: Kernel, reason: &str) -> Error {
        Error::Driver { call: kernel.entry, reason: reason.into() }
    }
}

/// The names of a source's kernels.
pub(crate) fn entries(source: &str) -> Vec<&str> {
    let after = source.split("__global__ ").skip(1);
    after
        .map(|text| text.split("(Params").next().and_then(|text| text.split(' ').next_back()).expect("a name"))
        .collect()
}

/// A folder for what tests compile.
pub(crate) fn target() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("../target"), PathBuf::from).join("simt");
    std::fs::create_dir_all(&target).expect("a folder for compiled kernels");
    target
}

/// Compiles a module to a library, unless that is done.
pub(crate) fn build(module: Module, source: &str, flavour: Flavour) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (shim, check) = (folder.join("simt/cuda_shim.h"), folder.join("simt/cuda_racecheck.cpp"));
    let target = target();
    let exports: String = entries(source).iter().map(|entry| format!("SHIM_EXPORT({entry})\n")).collect();
    let text = format!("#define CUDA_SHIM\n#include {shim:?}\n{source}\n#line 1 \"exports\"\n{exports}");
    let common = "-std=c++17 -O1 -fPIC -fvisibility=hidden -fno-gnu-unique -fno-strict-aliasing -ffp-contract=off \
                  -Wno-unknown-pragmas";
    let own = match flavour {
        Flavour::Plain => "-g0",
        Flavour::Races => "-g1 -fsanitize=thread",
        Flavour::Sanitized => {
            "-g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fsanitize-sections=cuda_shared"
        }
    };
    let all =
        [std::fs::read(&shim).unwrap(), std::fs::read(&check).unwrap(), text.clone().into(), common.into(), own.into()];
    let hash = all
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let path = target.join(format!("{}-{hash:016x}.so", module.name()));
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if path.exists() {
        return path;
    }
    let unfinished = |ending: &str| target.join(format!("{hash:016x}-{}{ending}", std::process::id()));
    let (cpp, object, library) = (unfinished(".cpp"), unfinished(".o"), unfinished(".so"));
    std::fs::write(&cpp, text).unwrap();
    let run = |arguments: &[&str], files: &[&Path]| {
        let output = Command::new("g++").args(arguments).args(files).output().expect("g++");
        assert!(output.status.success(), "{}: {}", module.name(), String::from_utf8_lossy(&output.stderr));
    };
    let split = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    run(&[split(common), split(own), vec!["-c", "-o"]].concat(), &[&object, &cpp]);
    match flavour {
        Flavour::Races => run(&[split(common), vec!["-O2", "-shared", "-o"]].concat(), &[&library, &object, &check]),
        _ => run(&[split(common), split(own), vec!["-shared", "-o"]].concat(), &[&library, &object]),
    }
    std::fs::remove_file(&cpp).unwrap();
    std::fs::remove_file(&object).unwrap();
    std::fs::rename(&library, &path).unwrap();
    path
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, 256).expect("a size that fits memory")
}

impl Device for Simt {
    fn allocate(&mut self, bytes: u64) -> Result<Part, Error> {
        // SAFETY: not of size 0, which no memory has; filled with what a mistake would show in.
        let address = unsafe {
            let start = alloc(layout(bytes));
            assert!(!start.is_null());
            start.write_bytes(0xa5, bytes as usize);
            start.expose_provenance() as u64
        };
        Ok(Part { address, bytes })
    }

    fn free(&mut self, part: Part) {
        // SAFETY: `allocate` gave it, with this layout.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(part.address as usize), layout(part.bytes)) }
    }

    /// All memory is of exactly its size and starts out undefined.
    fn prepare(&mut self, _: Kernel) -> Result<(), Error> {
        Ok(())
    }

    fn reuses(&self) -> bool {
        false
    }

    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, to.bytes);
        // SAFETY: a part is memory that is there.
        unsafe { pointer(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn set(&mut self, word_at: Part, word: u32) -> Result<(), Error> {
        self.upload(&word.to_ne_bytes(), word_at)
    }

    fn clear(&mut self, part: Part) -> Result<(), Error> {
        // SAFETY: a part is memory that is there.
        unsafe { pointer(part).write_bytes(0, part.bytes as usize) };
        Ok(())
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<(), Error> {
        assert_eq!(from.bytes, to.bytes);
        // SAFETY: parts are memory that is there.
        unsafe { pointer(to).copy_from_nonoverlapping(pointer(from), from.bytes as usize) };
        Ok(())
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), Error> {
        let kernel = launch.kernel;
        let order = self.order;
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let library = self.library(kernel.module);
        // SAFETY: the shim's entry points have this type.
        let entry = unsafe {
            library.get::<unsafe extern "C" fn(*const ShimLaunch) -> c_int>(format!("shim_{}", kernel.entry))
        };
        let entry = entry.map_err(|error| Simt::driver(kernel, &error.to_string()))?;
        let mut arguments = Arguments::new(&launch);
        let mut pointers = arguments.pointers();
        let mut error = [0u8; 512];
        let shim = ShimLaunch {
            grid: launch.grid,
            block: [launch.block, 1, 1],
            dynamic: launch.shared as usize,
            params: pointers.as_mut_ptr(),
            size: launch.params.len(),
            count: pointers.len(),
            order,
            error: error.as_mut_ptr().cast(),
            room: error.len(),
        };
        // SAFETY: all of it lives through the call; the shim compares the number of arguments and the parameters' size.
        if unsafe { entry(&shim) } == 0 {
            return Ok(());
        }
        Err(Simt::driver(kernel, &CStr::from_bytes_until_nul(&error).unwrap_or_default().to_string_lossy()))
    }

    fn use_cublas(&mut self, _: Part) -> Result<(), Error> {
        Ok(())
    }

    fn multiply(&mut self, gemm: &Gemm) -> Result<(), Error> {
        // SAFETY: parts are memory that is there; all hold f32, and the product overlaps none.
        let [left, right, product] = [gemm.left, gemm.right, gemm.product].map(|part| unsafe {
            std::slice::from_raw_parts_mut(pointer(part).cast::<f32>(), part.bytes as usize / 4)
        });
        let [rows, terms] = [gemm.rows, gemm.terms].map(|size| size as usize);
        for (i, value) in product.iter_mut().enumerate() {
            let (row, col) = (i % rows, i / rows);
            let of_left = |term| if gemm.transposed { left[row * terms + term] } else { left[term * rows + row] };
            *value = (0..terms).map(|term| of_left(term) * right[col * terms + term]).sum();
        }
        Ok(())
    }

    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, from.bytes);
        // SAFETY: a part is memory that is there.
        unsafe { pointer(from).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn pointer(part: Part) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(part.address as usize)
}
