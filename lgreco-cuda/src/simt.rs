//! A device that runs kernels on the CPU. g++ compiles the unchanged sources of the kernels against `simt/cuda_shim.h`.

mod library;

use crate::Error;
use crate::device::{Device, Launch, Part};
use crate::driver::Arguments;
use crate::kernels::{Kernel, Module};
use libloading::Library;
pub(crate) use library::{Flavour, build};
#[cfg(test)]
pub(crate) use library::{entries, stand_in, target};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Reports that a check cannot run on this machine. Panics if `LGRECO_REQUIRE` names cuda.
pub(crate) fn unavailable(reason: &str) {
    let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "cuda"), "{reason}, but LGRECO_REQUIRE");
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(reason.into()) {
        // The output of `eprintln!` would not be visible, because libtest captures this output.
        writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
    }
}

/// Returns how kernels are compiled, according to the environment variable `LGRECO_SIMT`.
pub(crate) fn flavour() -> Flavour {
    match std::env::var("LGRECO_SIMT").as_deref() {
        Ok("sanitized") => Flavour::Sanitized,
        _ => Flavour::Plain,
    }
}

/// An edit of a module's source: a text that occurs in the source, and its replacement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    pub(crate) module: Module,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

pub(crate) struct Simt {
    flavour: Flavour,
    order: c_int,
    edits: Vec<Edit>,
    /// If set, only chosen blocks run, and memory is sparse.
    chosen: Option<Chosen>,
    reuses: bool,
    libraries: HashMap<Module, Library>,
}

/// Held during a launch, because the shim can run only one launch per library at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// The struct `cuda_shim_launch` of the shim, with the same layout.
#[repr(C)]
struct ShimLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    params: *mut *mut c_void,
    size: usize,
    count: usize,
    order: c_int,
    error: *mut c_char,
    room: usize,
    chosen: *const u64,
    chosen_count: usize,
}

/// A function that chooses which blocks of a launch run: returns the numbers of these blocks, or `None` if all blocks
/// run.
pub(crate) type Chosen = fn(&Launch<'_>) -> Option<Vec<u64>>;

impl Simt {
    /// A device that runs threads and blocks in a given order: forwards (`order` 0), backwards (1) or at random (2 and
    /// more). In random order, several blocks run at the same time, and block `order - 2` comes last. An edited module
    /// is compiled immediately, so that a test cannot mistake a compile error for a detected fault. If g++ is missing,
    /// reports that the check cannot run, and returns `None`.
    pub(crate) fn new(flavour: Flavour, order: c_int, edit: Option<Edit>) -> Option<Self> {
        Simt::edited(flavour, order, edit.into_iter().collect())
    }

    /// Like [`new`](Simt::new), with any number of edits.
    pub(crate) fn edited(flavour: Flavour, order: c_int, edits: Vec<Edit>) -> Option<Self> {
        if let Err(error) = Command::new("g++").arg("--version").output() {
            unavailable(&format!("no g++ to run kernels on the processor: {error}"));
            return None;
        }
        let (chosen, libraries) = (None, HashMap::new());
        let mut device = Simt { flavour, order, edits: edits.clone(), chosen, reuses: false, libraries };
        for edit in edits {
            device.library(edit.module);
        }
        Some(device)
    }

    /// A device for very large tensors. Only chosen blocks run. Memory begins as zeros, and a page takes no physical
    /// memory until something is written to the page.
    pub(crate) fn sparse(edits: Vec<Edit>, chosen: Chosen) -> Option<Self> {
        Some(Simt { chosen: Some(chosen), ..Simt::edited(Flavour::Plain, 0, edits)? })
    }

    /// A device that may reuse memory for another purpose. Such a device does not detect reads of stale contents.
    #[cfg(test)]
    pub(crate) fn reusing(self) -> Self {
        Simt { reuses: true, ..self }
    }

    fn library(&mut self, module: Module) -> &Library {
        let (flavour, edits) = (self.flavour, &self.edits);
        self.libraries.entry(module).or_insert_with(|| {
            let mut source = module.source();
            for edit in edits.iter().filter(|edit| edit.module == module) {
                assert!(source.contains(edit.from), "{edit:?}");
                source = source.replacen(edit.from, edit.to, 1);
            }
            let path = build(module, &source, flavour);
            // SAFETY: the library was just built from the project's own sources. The library's initialisers only make
            // tables.
            unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
    }

    fn driver(kernel: Kernel, reason: &str) -> Error {
        Error::Driver { call: kernel.entry, reason: reason.into() }
    }
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, 256).expect("a size that fits memory")
}

/// Bytes of a memory page.
const PAGE: u64 = 4096;

/// Memory that begins as zeros. A page takes no physical memory until something is written to the page.
pub(crate) struct Sparse(Part);

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

impl Sparse {
    pub(crate) fn new(bytes: u64) -> Sparse {
        // SAFETY: `mmap` makes new memory, readable and writable (3), private and anonymous without reserve (0x4022 on
        // Linux).
        let start = unsafe { mmap(std::ptr::null_mut(), bytes as usize, 3, 0x4022, -1, 0) };
        assert!(start.addr() as isize != -1, "{bytes} bytes");
        Sparse(Part { address: start.expose_provenance() as u64, bytes })
    }

    pub(crate) fn part(&self) -> Part {
        self.0
    }

    pub(crate) fn values<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        // SAFETY: the memory is valid, begins at a page, and is borrowed as long as `self` is. Any bytes are valid
        // values.
        unsafe {
            let start = pointer(self.0).cast();
            std::slice::from_raw_parts_mut(start, self.0.bytes as usize / size_of::<T>())
        }
    }

    /// Returns the pages of a part that take physical memory. All other pages are zeros.
    pub(crate) fn touched(part: Part) -> impl Iterator<Item = Part> {
        let (start, end) = (part.address / PAGE * PAGE, part.address + part.bytes);
        // The map has a word of 8 bytes per page. A page takes memory if either of the word's two highest bits is set:
        // the page is present, or swapped out.
        let mut pages = vec![0; 8 * (end - start).div_ceil(PAGE) as usize];
        let map = std::fs::File::open("/proc/self/pagemap").expect("Linux");
        std::os::unix::fs::FileExt::read_exact_at(&map, &mut pages, start / PAGE * 8).expect("a map of pages");
        let pages = pages.into_iter().skip(7).step_by(8);
        (start..).step_by(PAGE as usize).zip(pages).filter(|(_, word)| word >> 6 != 0).map(move |(page, _)| {
            let address = page.max(part.address);
            Part { address, bytes: end.min(page + PAGE) - address }
        })
    }

    /// Sets whole pages of a part to zeros. Returns the parts before and after these pages, whose content stays.
    fn forget(part: Part) -> [Part; 2] {
        let start = (part.address.next_multiple_of(PAGE) - part.address).min(part.bytes);
        let pages = (part.bytes - start) / PAGE * PAGE;
        if pages > 0 {
            // SAFETY: these pages are memory from `new`. The advice 4 (on Linux) drops their content.
            assert_eq!(unsafe { madvise(pointer(part.from(start)).cast(), pages as usize, 4) }, 0);
        }
        [part.cut(0, start), part.from(start + pages)]
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: the memory is from `new`.
        unsafe { munmap(pointer(self.0).cast(), self.0.bytes as usize) };
    }
}

impl Device for Simt {
    fn allocate(&mut self, bytes: u64) -> Result<Part, Error> {
        if self.chosen.is_some() {
            let memory = Sparse::new(bytes);
            return Ok(std::mem::ManuallyDrop::new(memory).part());
        }
        // SAFETY: the size is not 0. The code fills the memory with a value that makes reads of undefined memory
        // visible in results.
        let address = unsafe {
            let start = alloc(layout(bytes));
            assert!(!start.is_null());
            start.write_bytes(0xa5, bytes as usize);
            start.expose_provenance() as u64
        };
        Ok(Part { address, bytes })
    }

    fn free(&mut self, part: Part) {
        if self.chosen.is_some() {
            return drop(Sparse(part));
        }
        // SAFETY: `allocate` returned this memory, with this layout.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(part.address as usize), layout(part.bytes)) }
    }

    /// Does nothing, because kernels are compiled at their first launch.
    fn prepare(&mut self, _: Kernel) -> Result<(), Error> {
        Ok(())
    }

    fn reuses(&self) -> bool {
        self.reuses
    }

    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, to.bytes);
        // SAFETY: every part is valid memory.
        unsafe { pointer(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn set(&mut self, word_at: Part, word: u32) -> Result<(), Error> {
        self.upload(&word.to_ne_bytes(), word_at)
    }

    fn clear(&mut self, part: Part) -> Result<(), Error> {
        let written = if self.chosen.is_some() { Sparse::forget(part).to_vec() } else { vec![part] };
        for part in written {
            // SAFETY: every part is valid memory.
            unsafe { pointer(part).write_bytes(0, part.bytes as usize) };
        }
        Ok(())
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<(), Error> {
        assert_eq!(from.bytes, to.bytes);
        let mut copied = vec![from];
        if self.chosen.is_some() {
            self.clear(to)?;
            copied = Sparse::touched(from).collect();
        }
        for part in copied {
            let to = to.cut(part.address - from.address, part.bytes);
            // SAFETY: every part is valid memory.
            unsafe { pointer(to).copy_from_nonoverlapping(pointer(part), part.bytes as usize) };
        }
        Ok(())
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), Error> {
        let kernel = launch.kernel;
        let order = self.order;
        let chosen_by = self.chosen;
        let library = self.library(kernel.module);
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the shim's entry points have this type.
        let entry = unsafe {
            library.get::<unsafe extern "C" fn(*const ShimLaunch) -> c_int>(format!("shim_{}", kernel.entry))
        };
        let entry = entry.map_err(|error| Simt::driver(kernel, &error.to_string()))?;
        let mut arguments = Arguments::new(&launch);
        let mut pointers = arguments.pointers();
        let mut error = [0u8; 512];
        let chosen = chosen_by.and_then(|chosen| chosen(&launch));
        let shim = ShimLaunch {
            grid: [launch.blocks, 1, 1],
            block: [launch.block, 1, 1],
            params: pointers.as_mut_ptr(),
            size: launch.params.len(),
            count: pointers.len(),
            order,
            error: error.as_mut_ptr().cast(),
            room: error.len(),
            chosen: chosen.as_ref().map_or(std::ptr::null(), |blocks| blocks.as_ptr()),
            chosen_count: chosen.as_ref().map_or(0, Vec::len),
        };
        // SAFETY: all pointers outlive the call. The shim checks the number of arguments and the size of the
        // parameters.
        if unsafe { entry(&shim) } == 0 {
            return Ok(());
        }
        Err(Simt::driver(kernel, &CStr::from_bytes_until_nul(&error).unwrap_or_default().to_string_lossy()))
    }

    fn resident(&mut self, _: Kernel, _: u32) -> Result<u64, Error> {
        Ok(if self.chosen.is_some() { u64::MAX } else { 2048 })
    }

    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, from.bytes);
        // SAFETY: every part is valid memory.
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
