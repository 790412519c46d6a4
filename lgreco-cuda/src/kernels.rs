//! The sources of the kernels. The source of a module is a concatenation of files in `kernels/`.

/// A module of CUDA C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Module {
    Magnitude,
    Qsgd,
    Exchange,
    ExchangeSums,
    Selection,
    TopK,
    Positions,
    PowerSgd,
    Window,
    Eden,
    ExchangeEden,
}

/// The text of a file, after a `#line` directive with the file's name for the compiler's messages.
macro_rules! file {
    ($name:literal) => {
        concat!("#line 1 \"", $name, "\"\n", include_str!(concat!("kernels/", $name)))
    };
}

impl Module {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const ALL: [Module; 11] = [
        Module::Magnitude,
        Module::Qsgd,
        Module::Exchange,
        Module::ExchangeSums,
        Module::Selection,
        Module::TopK,
        Module::Positions,
        Module::PowerSgd,
        Module::Window,
        Module::Eden,
        Module::ExchangeEden,
    ];

    /// The name of the module's file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Module::Magnitude => "magnitude.cu",
            Module::Qsgd => "qsgd.cu",
            Module::Exchange => "exchange.cu",
            Module::ExchangeSums => "exchange_sums.cu",
            Module::Selection => "selection.cu",
            Module::TopK => "topk.cu",
            Module::Positions => "positions.cu",
            Module::PowerSgd => "powersgd.cu",
            Module::Window => "window.cu",
            Module::Eden => "eden.cu",
            Module::ExchangeEden => "exchange_eden.cu",
        }
    }

    /// Returns the source of a module: first the files that the module shares with other modules, and then its own
    /// files.
    pub(crate) fn source(self) -> String {
        const DEVICE: &str = file!("device.cu");
        const VALUES: &str = file!("values.cu");
        const MEANINGS: &str = file!("meanings.cu");
        const PHILOX: &str = file!("philox.cu");
        const BUCKETS: &str = file!("buckets.cu");
        const PACKED: &str = file!("packed.cu");
        const CODES: &str = file!("codes.cu");
        const RECORDS: &str = file!("records.cu");
        const BLOCKS: &str = file!("blocks.cu");
        const PROGRAM: &str = file!("program.cu");
        const LAYERS: &str = file!("layers.cu");
        const FACTORS: &str = file!("factors.cu");
        const ORTHONORMAL: &str = file!("orthonormal.cu");
        // Files that all modules for EDEN use.
        let rotated = || [file!("eden_levels.cu"), file!("rotation.cu"), file!("rotated_codes.cu")].concat();
        match self {
            Module::Magnitude => [DEVICE, VALUES, file!("magnitude.cu")].concat(),
            Module::Qsgd => [DEVICE, VALUES, PHILOX, BUCKETS, PACKED, CODES, file!("qsgd.cu"), RECORDS].concat(),
            Module::Exchange => [
                DEVICE,
                VALUES,
                PHILOX,
                BUCKETS,
                PACKED,
                CODES,
                BLOCKS,
                PROGRAM,
                LAYERS,
                file!("code_means.cu"),
                file!("exchange.cu"),
            ]
            .concat(),
            Module::ExchangeSums => {
                let own = [file!("slips.cu"), file!("exchange_sums.cu")].concat();
                [DEVICE, VALUES, PHILOX, FACTORS, ORTHONORMAL, PROGRAM, &own].concat()
            }
            Module::Selection => [
                DEVICE,
                VALUES,
                BLOCKS,
                PROGRAM,
                file!("tops.cu"),
                LAYERS,
                file!("scales.cu"),
                file!("few_bits.cu"),
                MEANINGS,
                file!("counts.cu"),
                file!("sample.cu"),
                file!("strips.cu"),
                file!("selection.cu"),
                file!("kept.cu"),
                file!("kept_means.cu"),
                file!("kept_errors.cu"),
            ]
            .concat(),
            Module::TopK => [DEVICE, VALUES, BLOCKS, file!("bins.cu"), file!("topk.cu")].concat(),
            Module::Positions => [DEVICE, VALUES, MEANINGS, file!("positions.cu")].concat(),
            Module::PowerSgd => [DEVICE, VALUES, PHILOX, FACTORS, ORTHONORMAL, file!("powersgd.cu")].concat(),
            Module::Window => [DEVICE, VALUES, file!("window.cu")].concat(),
            Module::Eden => {
                let own = [file!("eden.cu"), file!("eden_rows.cu")].concat();
                [DEVICE, VALUES, PHILOX, PACKED, &rotated(), &own, RECORDS].concat()
            }
            Module::ExchangeEden => {
                let own = [LAYERS, file!("exchange_eden.cu")].concat();
                [DEVICE, VALUES, PHILOX, PACKED, &rotated(), PROGRAM, &own].concat()
            }
        }
    }
}

/// An entry point of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) module: Module,
    pub(crate) entry: &'static str,
}
