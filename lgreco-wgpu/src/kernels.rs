//! The kernels. Each WGSL module is compiled once per device, on first use.
//!
//! Subgroup operations only add integers and find maxima. So results have the same bits with subgroups of any width,
//! and without subgroups. A prefix sum may take the lanes in any order, so the shader function `place` gives each
//! lane's position in this order. Floats are added in shared memory, in the fixed order of a tree.

use std::collections::HashMap;

/// A WGSL module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shader {
    Magnitude,
    Sums,
    Qsgd,
    TopK,
    PowerSgd,
    Eden,
    #[cfg(feature = "train")]
    Feedback,
}

impl Shader {
    /// Returns the module's source: the files that it shares with other modules, and its own files. If `subgroups` is
    /// true, the module requires a device that supports subgroups.
    pub(crate) fn source(self, subgroups: bool) -> String {
        const FLOAT: &str = include_str!("shaders/float.wgsl");
        const VALUES: &str = include_str!("shaders/values.wgsl");
        const TILE: &str = include_str!("shaders/tile.wgsl");
        const TOPK_WRITE: &str = concat!(
            include_str!("shaders/topk_counters.wgsl"),
            include_str!("shaders/topk_sample.wgsl"),
            include_str!("shaders/topk_gather.wgsl"),
            include_str!("shaders/topk_cut.wgsl"),
            include_str!("shaders/topk_write.wgsl"),
            include_str!("shaders/bins.wgsl"),
            include_str!("shaders/few_bits.wgsl")
        );
        const QSGD: &str = include_str!("shaders/qsgd.wgsl");
        const WIDE: &str = include_str!("shaders/wide.wgsl");
        const RECORD: &str = include_str!("shaders/record.wgsl");
        const TASKS: &str = include_str!("shaders/tasks.wgsl");
        const PHILOX: &str = include_str!("shaders/philox.wgsl");
        const FACTORS: &str = include_str!("shaders/factors.wgsl");
        const ORTHONORMAL: &str = include_str!("shaders/orthonormal.wgsl");
        let lanes =
            if subgroups { include_str!("shaders/lanes_subgroups.wgsl") } else { include_str!("shaders/lanes.wgsl") };
        match self {
            Shader::Magnitude => {
                let own = include_str!("shaders/magnitude.wgsl");
                [FLOAT, TASKS, WIDE, RECORD, VALUES, lanes, own].concat()
            }
            Shader::Sums => [FLOAT, TASKS, WIDE, RECORD, include_str!("shaders/sums.wgsl")].concat(),
            Shader::Qsgd => {
                let tensor = include_str!("shaders/qsgd_tensor.wgsl");
                [FLOAT, TASKS, WIDE, RECORD, VALUES, TILE, PHILOX, QSGD, tensor].concat()
            }
            Shader::TopK => {
                let (tables, tally) = (include_str!("shaders/topk.wgsl"), include_str!("shaders/tally.wgsl"));
                let select = include_str!("shaders/topk_select.wgsl");
                let energy =
                    concat!(include_str!("shaders/topk_energy.wgsl"), include_str!("shaders/few_bits_errors.wgsl"));
                let (encode, decode) =
                    (include_str!("shaders/topk_encode.wgsl"), include_str!("shaders/topk_decode.wgsl"));
                [FLOAT, TASKS, WIDE, VALUES, TILE, TOPK_WRITE, lanes, tables, tally, select, energy, encode, decode]
                    .concat()
            }
            Shader::Eden => {
                let (double, rotation) = (include_str!("shaders/double.wgsl"), include_str!("shaders/rotation.wgsl"));
                let (grid, own) = (include_str!("shaders/eden_grid.wgsl"), include_str!("shaders/eden.wgsl"));
                let (rows, payloads) =
                    (include_str!("shaders/eden_rows.wgsl"), include_str!("shaders/eden_payloads.wgsl"));
                [FLOAT, TASKS, WIDE, VALUES, PHILOX, double, rotation, grid, own, rows, payloads].concat()
            }
            #[cfg(feature = "train")]
            Shader::Feedback => [FLOAT, VALUES, PHILOX, lanes, include_str!("shaders/feedback.wgsl")].concat(),
            Shader::PowerSgd => {
                let (factors, multiply) =
                    (include_str!("shaders/powersgd.wgsl"), include_str!("shaders/powersgd_multiply.wgsl"));
                let residual = include_str!("shaders/powersgd_residual.wgsl");
                [FLOAT, TASKS, WIDE, RECORD, VALUES, PHILOX, FACTORS, ORTHONORMAL, lanes, factors, multiply, residual]
                    .concat()
            }
        }
    }

    #[cfg(test)]
    pub(crate) const ALL: [Shader; 7] =
        [Shader::Magnitude, Shader::Sums, Shader::Qsgd, Shader::TopK, Shader::PowerSgd, Shader::Eden, Shader::Feedback];
}

/// An entry point of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) shader: Shader,
    pub(crate) entry: &'static str,
}

/// Compiles a source. Two of wgpu's runtime checks are off: the check of integer divisors, and the forced bound on
/// loops, which would add a counter to each loop. All other checks are on; for example, indices into bindings are
/// clamped.
#[allow(unsafe_code)]
pub(crate) fn module_of(device: &wgpu::Device, source: String) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(source.into()) };
    let checks = wgpu::ShaderRuntimeChecks {
        force_loop_bounding: false,
        int_div_checks: false,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    // SAFETY: The sources are this crate's own. Every loop ends, for any values, payloads and workgroup memory. In each
    // iteration, the loop's counter moves towards the loop's bound, or the loop halves a number until that number is 0.
    // The loop in `tally` ends as soon as some lane has taken the slot in workgroup memory. Divisors are constants, or
    // parameters that the host keeps above 0: buckets, widths of codes, numbers of workgroups, rows and columns. No
    // signed number is divided. Only the checks of loops and divisors are off.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// The compiled modules and pipelines.
#[derive(Default)]
pub(crate) struct Kernels {
    modules: HashMap<Shader, wgpu::ShaderModule>,
    pipelines: HashMap<Kernel, wgpu::ComputePipeline>,
    #[cfg(test)]
    changes: crate::tests::Changes,
}

/// Whether shaders use subgroups. Shaders for DirectX do not use subgroups, because naga numbers subgroups in a way
/// that HLSL does not guarantee (gpuweb#4368).
pub(crate) fn uses_subgroups(features: wgpu::Features, backend: wgpu::Backend) -> bool {
    features.contains(wgpu::Features::SUBGROUP) && backend != wgpu::Backend::Dx12
}

impl Kernels {
    pub(crate) fn get(&mut self, device: &wgpu::Device, kernel: Kernel) -> &wgpu::ComputePipeline {
        let subgroups = uses_subgroups(device.features(), device.adapter_info().backend);
        self.pipelines.entry(kernel).or_insert_with(|| {
            let module = self.modules.entry(kernel.shader).or_insert_with(|| {
                let source = kernel.shader.source(subgroups);
                #[cfg(test)]
                let source = self.changes.applied(kernel.shader, source);
                module_of(device, source)
            });
            pipeline_of(device, module, kernel.entry)
        })
    }
}

/// Lets tests change shaders. Until the changes end, the compiled forms of the original shaders are set aside.
#[cfg(test)]
impl Kernels {
    /// Replaces a part of a shader's source.
    pub(crate) fn edit(&mut self, shader: Shader, text: &'static str, instead: &'static str) {
        self.set_aside(shader);
        self.changes.edits.push((shader, text, instead));
    }

    /// Changes every shader so that it first fills its workgroup memory with arbitrary values.
    pub(crate) fn poison(&mut self) {
        Shader::ALL.into_iter().for_each(|shader| self.set_aside(shader));
        self.changes.poisoned = true;
    }

    fn set_aside(&mut self, shader: Shader) {
        let is_changed = self.changes.concern(shader);
        let modules = self.modules.extract_if(|&of, _| of == shader).filter(|_| !is_changed);
        self.changes.modules.extend(modules);
        let pipelines = self.pipelines.extract_if(|kernel, _| kernel.shader == shader).filter(|_| !is_changed);
        self.changes.pipelines.extend(pipelines);
    }

    /// Ends the changes. Returns the compiled forms of the original shaders.
    pub(crate) fn unchanged(&mut self) -> Kernels {
        let mut kernels = std::mem::take(self);
        let changes = std::mem::take(&mut kernels.changes);
        kernels.modules.retain(|&shader, _| !changes.concern(shader));
        kernels.pipelines.retain(|kernel, _| !changes.concern(kernel.shader));
        kernels.modules.extend(changes.modules);
        kernels.pipelines.extend(changes.pipelines);
        kernels
    }
}

/// Compiles the pipeline of an entry point.
pub(crate) fn pipeline_of(device: &wgpu::Device, module: &wgpu::ShaderModule, entry: &str) -> wgpu::ComputePipeline {
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(entry),
        layout: None,
        module,
        entry_point: Some(entry),
        // Every shader writes workgroup memory before it reads it. So wgpu need not set this memory to zeros, for which
        // it would use a single lane on Metal.
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    })
}
