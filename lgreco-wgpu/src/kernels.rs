//! The kernels: WGSL compiled once per device, and on first use.
//!
//! Subgroups add whole numbers only, so that the width of a device, or its lack of subgroups, changes no bit: they
//! find maxima, counts, and scans whose order of lanes is itself the result of a scan. Float sums keep their tree in
//! shared memory.

use std::collections::HashMap;

/// A WGSL module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shader {
    Magnitude,
    Sums,
    Qsgd,
    TopK,
    PowerSgd,
    #[cfg(feature = "train")]
    Feedback,
    #[cfg(feature = "train")]
    Exchange,
    #[cfg(feature = "train")]
    ExchangeFactors,
}

impl Shader {
    /// The module's text: what it is made of, then its own. With `subgroups` it needs a device that has them.
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
        #[cfg(feature = "train")]
        const FAULTS: &str = include_str!("shaders/faults.wgsl");
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
            #[cfg(feature = "train")]
            Shader::Feedback => [FLOAT, VALUES, PHILOX, lanes, include_str!("shaders/feedback.wgsl")].concat(),
            #[cfg(feature = "train")]
            Shader::Exchange => {
                let (bucket, topk) =
                    (include_str!("shaders/exchange.wgsl"), include_str!("shaders/exchange_topk.wgsl"));
                let (select, end) =
                    (include_str!("shaders/exchange_select.wgsl"), include_str!("shaders/exchange_end.wgsl"));
                [FLOAT, VALUES, TILE, PHILOX, QSGD, TOPK_WRITE, FAULTS, lanes, bucket, select, topk, end].concat()
            }
            #[cfg(feature = "train")]
            Shader::ExchangeFactors => {
                let bucket = include_str!("shaders/exchange_factors.wgsl");
                [FLOAT, PHILOX, FACTORS, ORTHONORMAL, FAULTS, lanes, bucket].concat()
            }
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
    pub(crate) const ALL: [Shader; 8] = [
        Shader::Magnitude,
        Shader::Sums,
        Shader::Qsgd,
        Shader::TopK,
        Shader::PowerSgd,
        Shader::Feedback,
        Shader::Exchange,
        Shader::ExchangeFactors,
    ];
}

/// An entry point of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) shader: Shader,
    pub(crate) entry: &'static str,
}

/// What has been compiled.
#[derive(Default)]
pub(crate) struct Kernels {
    modules: HashMap<Shader, wgpu::ShaderModule>,
    pipelines: HashMap<Kernel, wgpu::ComputePipeline>,
    /// Whether workgroup memory is filled with rubbish first.
    #[cfg(test)]
    pub(crate) poisoned: bool,
    /// Text of a shader, and what takes its place: faults that tests have to find.
    #[cfg(test)]
    pub(crate) edits: Vec<(Shader, &'static str, &'static str)>,
}

/// Whether shaders use subgroups: naga numbers them on DirectX as HLSL does not promise (gpuweb#4368).
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
                let source = self.edits.iter().filter(|edit| edit.0 == kernel.shader).fold(source, |source, edit| {
                    assert!(source.contains(edit.1), "nothing to edit: {}", edit.1);
                    source.replace(edit.1, edit.2)
                });
                #[cfg(test)]
                let source = if self.poisoned { crate::tests::poisoned(&source) } else { source };
                device.create_shader_module(wgpu::ShaderModuleDescriptor {
                    label: None,
                    source: wgpu::ShaderSource::Wgsl(source.into()),
                })
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(kernel.entry),
                layout: None,
                module,
                entry_point: Some(kernel.entry),
                // Every shader writes what it reads of it; on Metal one lane would do it all.
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            })
        })
    }
}
