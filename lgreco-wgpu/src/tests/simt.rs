//! Runs shaders on the CPU. The crate naga translates a shader to Metal's language. The compiler g++ compiles the
//! result as C++ against the shim for CUDA's kernels, with the shim's check for data races or with sanitizers. The
//! inputs of the shaders are recorded from dispatches on a device.

use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A dispatch, and the content of its bindings before and after it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) kernel: Kernel,
    parameters: Vec<u8>,
    groups: [usize; 3],
    bindings: Vec<(u32, Vec<u8>)>,
    pub(crate) after: Vec<Vec<u8>>,
}

/// Whether an entry point leaves the same bits on every device. The bits of rows, norms and PowerSGD's products may
/// differ, because drivers may round f32 sums differently. `gather_values` may write the gathered values in any order.
fn has_bits(kernel: Kernel) -> bool {
    match kernel.shader {
        Shader::PowerSgd | Shader::Sums => false,
        _ => !["row", "rotated_row", "squares", "prefixes", "total", "few_bits_errors", "gather_values"]
            .contains(&kernel.entry),
    }
}

impl Recorded {
    /// Returns the first difference from the bytes that the device left, if any.
    fn differs(&self, after: &[Vec<u8>]) -> Option<String> {
        let mut bindings = self.bindings.iter().zip(after.iter().zip(&self.after));
        let ((binding, _), _) = bindings.find(|(_, (found, expected))| found != expected)?;
        has_bits(self.kernel).then(|| format!("other bytes at binding {binding}"))
    }
}

impl Batch<'_> {
    /// Returns the content of these bindings after all recorded work. `None` unless dispatches are being recorded.
    pub(crate) fn contents(&mut self, bindings: &[(u32, Part)]) -> Option<Vec<Vec<u8>>> {
        self.gpu.recorded.as_ref()?;
        self.submit();
        let (device, queue) = (self.gpu.device.clone(), self.gpu.queue.clone());
        let content = |(_, part): &(u32, Part)| {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let (size, mapped_at_creation) = (part.size, false);
            let staged = device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation });
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&part.buffer, part.offset, &staged, 0, Some(size));
            queue.submit([encoder.finish()]);
            staged.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
            device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
            staged.get_mapped_range(..).unwrap().to_vec()
        };
        Some(bindings.iter().map(content).collect())
    }

    /// Records a dispatch, if `before` has the content of its bindings before it.
    pub(crate) fn remember(
        &mut self,
        kernel: Kernel,
        parameters: &[u8],
        bindings: &[(u32, Part)],
        groups: [usize; 3],
        before: Option<Vec<Vec<u8>>>,
    ) {
        let (Some(before), Some(after)) = (before, self.contents(bindings)) else { return };
        let bindings = bindings.iter().map(|&(binding, _)| binding).zip(before).collect();
        let recorded = Recorded { kernel, parameters: parameters.to_vec(), groups, bindings, after };
        self.gpu.recorded.iter_mut().for_each(|all| all.push(recorded.clone()));
    }
}

/// The check with which a shader is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The check for data races between invocations whose accesses no barrier separates, and between workgroups.
    Races,
    /// The address and undefined-behaviour sanitizers, which find accesses outside a binding or an array.
    Sanitizers,
}

/// Number of the binding with the lengths of arrays that have no fixed length.
const LENGTHS: u32 = 31;

/// A shader as a program that runs dispatches.
pub(crate) struct Program {
    path: PathBuf,
    entries: Vec<String>,
}

/// Returns the folder of the shim that runs kernels on the CPU.
fn cuda_simt() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lgreco-cuda/simt")
}

/// Whether shaders can be compiled on this machine. Reports the reason if not.
pub(crate) fn can_compile() -> bool {
    let found = Command::new("g++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = match found {
        _ if !cfg!(all(target_arch = "x86_64", target_os = "linux")) => {
            Some("kernels run on the processor on x86-64 Linux alone".to_owned())
        }
        Err(error) => Some(format!("no g++: {error}")),
        // A published crate does not have the other crate next to it.
        Ok(_) => (!cuda_simt().is_dir()).then(|| "lgreco-cuda is not beside this crate".to_owned()),
    };
    let Some(missing) = missing else { return true };
    let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "cuda"), "{missing}, but LGRECO_REQUIRE");
    super::skipped(&missing);
    false
}

/// Calls g++. If g++ fails, returns its messages as `Err`.
fn gcc(options: &[&str], files: &[&Path]) -> Result<(), String> {
    let options = options.iter().flat_map(|text| text.split(' '));
    let output = Command::new("g++")
        .args("-std=c++17 -fno-strict-aliasing -ffp-contract=off -Wno-attributes -I".split(' '))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("simt"))
        .arg("-I")
        .arg(cuda_simt())
        .args(options)
        .args(files)
        .output()
        .unwrap();
    output.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the object file of the check for races, which is linked to all shaders in place of the sanitizer's library.
fn race_check(folder: &Path) -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let (object, own) = (folder.join("race-check.o"), folder.join(format!("race-check-{}.o", std::process::id())));
        gcc(&["-O2 -c -o"], &[&own, &cuda_simt().join("cuda_racecheck.cpp")]).unwrap_or_else(|said| panic!("{said}"));
        std::fs::rename(own, &object).unwrap();
        object
    })
}

impl Program {
    /// Compiles a shader's source.
    pub(crate) fn new(source: &str, subgroups: bool, check: Check) -> Program {
        let (text, entries) = translated(source, subgroups);
        let own = match check {
            Check::Races => "-fsanitize=thread",
            Check::Sanitizers => {
                "-fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-sections=cuda_shared"
            }
        };
        let target = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(target, PathBuf::from);
        let folder = folder.join("simt");
        std::fs::create_dir_all(&folder).unwrap();
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.join(format!("shader-{}-{number}", std::process::id()));
        let (cpp, object) = (path.with_extension("cpp"), path.with_extension("o"));
        std::fs::write(&cpp, text).unwrap();
        let made = gcc(&["-O1 -g1", own, "-c -o"], &[&object, &cpp]).and_then(|()| match check {
            Check::Races => gcc(&["-o"], &[&path, &object, race_check(&folder)]),
            Check::Sanitizers => gcc(&[own, "-o"], &[&path, &object]),
        });
        for file in [&cpp, &object] {
            // A failed compilation leaves no object file.
            let _ = std::fs::remove_file(file);
        }
        made.unwrap_or_else(|said| panic!("{said}"));
        Program { path, entries }
    }

    /// Runs dispatches one by one, each on its recorded input. `order` says whether invocations and workgroups run
    /// forwards (0), backwards (1) or at random (other numbers). Returns the first error, or the first difference from
    /// the device's bytes.
    pub(crate) fn first_fault(&self, dispatches: &[&Recorded], order: u32) -> Option<String> {
        let (input, output, errors) = (Stdio::piped(), Stdio::piped(), Stdio::piped());
        let mut child = Command::new(&self.path).stdin(input).stdout(output).stderr(errors).spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut ask = |recorded: &Recorded| {
            stdin.write_all(&self.request(recorded, order))?;
            let mut take = |len: usize| {
                let mut bytes = vec![0; len];
                stdout.read_exact(&mut bytes).map(|()| bytes)
            };
            let len: u32 = bytemuck::pod_read_unaligned(&take(4)?);
            let error = String::from_utf8_lossy(&take(len as usize)?).into_owned();
            take(recorded.parameters.len())?;
            let after: Vec<Vec<u8>> =
                recorded.after.iter().map(|bytes| take(bytes.len())).collect::<std::io::Result<_>>()?;
            Ok::<_, std::io::Error>(if error.is_empty() { recorded.differs(&after) } else { Some(error) })
        };
        let fault = dispatches.iter().find_map(|recorded| {
            // If the program has ended itself, its error output has the reason.
            let fault = ask(recorded).unwrap_or_else(|_| {
                let mut said = String::new();
                child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
                Some(said)
            });
            fault.map(|fault| format!("{}: {fault}", recorded.kernel.entry))
        });
        drop((stdin, stdout));
        child.wait().unwrap();
        fault
    }

    /// Returns a dispatch in the format that the header's function `serve` reads.
    fn request(&self, recorded: &Recorded, order: u32) -> Vec<u8> {
        let entry = self.entries.iter().position(|entry| entry == recorded.kernel.entry).expect("an entry point");
        let uniform = (0, recorded.parameters.clone());
        let [x, y, z] = recorded.groups.map(|groups| groups as u32);
        let head = [entry as u32, order, x, y, z, 1 + recorded.bindings.len() as u32];
        let mut request: Vec<u8> = bytemuck::cast_slice(&head).to_vec();
        for (binding, bytes) in std::iter::once(&uniform).chain(&recorded.bindings) {
            request.extend_from_slice(bytemuck::cast_slice(&[*binding, bytes.len() as u32]));
            request.extend_from_slice(bytes);
        }
        request
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // No other code uses the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns a program in C++, and the names of its entry points.
fn translated(source: &str, subgroups: bool) -> (String, Vec<String>) {
    let (module, info) = super::shaders::valid(source, subgroups);
    let bindings: Vec<(usize, u32)> = module
        .global_variables
        .iter()
        .filter_map(|(handle, variable)| Some((handle.index(), variable.binding?.binding)))
        .collect();
    let slot = |binding: u32| msl::BindTarget { buffer: Some(binding as u8), mutable: true, ..Default::default() };
    let resources: BTreeMap<_, _> =
        bindings.iter().map(|&(_, binding)| (naga::ResourceBinding { group: 0, binding }, slot(binding))).collect();
    let of_entry = msl::EntryPointResources { resources, sizes_buffer: Some(LENGTHS as u8), ..Default::default() };
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = msl::Options {
        lang_version: if subgroups { (2, 1) } else { (1, 2) },
        per_entry_point_map: module.entry_points.iter().map(|entry| (entry.name.clone(), of_entry.clone())).collect(),
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let (text, named) = msl::write_string(&module, &info, &options, &Default::default()).unwrap();
    let names: Vec<String> = named.entry_point_names.into_iter().map(|name| name.unwrap()).collect();
    // naga declares arrays without a length with length 1, which the C++ compiler might use for optimisations.
    let lines = text.lines().filter(|line| !line.starts_with("#include")).map(|line| {
        let unsized_array = line.starts_with("typedef ") && line.ends_with("[1];");
        if unsized_array { line.replace("[1];", "[1 << 28];") } else { line.to_owned() }
    });
    let mut lines: Vec<String> = lines.collect();
    // naga writes this function once per kind of memory. In C++, there is only one kind, so one of these functions is
    // removed.
    if let Some(at) = lines.iter().position(|line| line.ends_with("threadgroup A *atomic_ptr,")) {
        let end = lines[at..].iter().position(|line| line == "}").expect("the function's end");
        lines.drain(at - 2..=at + end);
    }
    let mut program =
        format!("#include \"metal_shim.h\"\nnamespace shader {{\n{}\n}}\nusing namespace shader;\n", lines.join("\n"));
    let mut shared = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let head = format!("kernel void {name}(");
        let first = lines.iter().position(|line| line.ends_with(&head)).expect("an entry point") + 1;
        let arguments = lines[first..].iter().take_while(|line| *line != ") {");
        let arguments: Vec<String> =
            arguments.map(|line| argument(line.trim_start_matches([',', ' ']), &mut shared)).collect();
        writeln!(program, "static void run_{number}(void*) {{ shader::{name}({}); }}", arguments.join(", ")).unwrap();
    }
    let declared: String = shared
        .iter()
        .map(|(of, name)| format!("static __attribute__((section(\"cuda_shared\"))) shader::{of} shared_{name};\n"))
        .collect();
    program = program.replacen("using namespace shader;\n", &declared, 1);
    program += "static void measure() {\n    static shader::_mslBufferSizes lengths;\n";
    for &(index, binding) in &bindings {
        if text.contains(&format!("    uint size{index};\n")) {
            writeln!(program, "    lengths.size{index} = bound_bytes[{binding}];").unwrap();
        }
    }
    writeln!(program, "    bound[{LENGTHS}].bytes = reinterpret_cast<char*>(&lengths);\n}}").unwrap();
    program += "static const EntryPoint entries[] = {\n";
    for (number, entry) in module.entry_points.iter().enumerate() {
        let [x, y, z] = entry.workgroup_size;
        writeln!(program, "    {{run_{number}, {{{x}, {y}, {z}}}}},").unwrap();
    }
    program += "};\nint main() { return serve(entries, measure); }\n";
    (program, module.entry_points.into_iter().map(|entry| entry.name).collect())
}

/// Returns the argument for a parameter of an entry point. All entry points share the workgroup variables.
fn argument(parameter: &str, shared: &mut Vec<(String, String)>) -> String {
    if let Some(attribute) = parameter.split_once("[[").map(|(_, attribute)| attribute.trim_end_matches("]]")) {
        let number = attribute.strip_prefix("buffer(").map(|number| number.trim_end_matches(')'));
        return match (attribute, number) {
            (_, Some(number)) => format!("bound[{number}]"),
            ("threadgroup_position_in_grid", _) => "{blockIdx.x, blockIdx.y, blockIdx.z}".into(),
            ("threadgroups_per_grid", _) => "{gridDim.x, gridDim.y, gridDim.z}".into(),
            ("thread_index_in_threadgroup", _) => "threadIdx.x".into(),
            ("simdgroup_index_in_threadgroup", _) => "threadIdx.x / 32".into(),
            ("simdgroups_per_threadgroup", _) => "blockDim.x / 32".into(),
            other => panic!("nothing is known of {other:?}"),
        };
    }
    let variable = parameter.strip_prefix("threadgroup ").and_then(|variable| variable.split_once("& "));
    let (of, name) = variable.unwrap_or_else(|| panic!("nothing is known of {parameter:?}"));
    let of = of.trim_end_matches(" const").to_owned();
    if !shared.iter().any(|(_, other)| other == name) {
        shared.push((of, name.to_owned()));
    }
    format!("shared_{name}")
}
