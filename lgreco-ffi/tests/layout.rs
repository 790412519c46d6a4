//! The structs of the header have the layout of the Rust structs, and their INIT macros have the Rust defaults. The
//! test writes and compiles a C program with these assertions.

use lgreco_c::*;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Appends assertions about one struct. The pattern has no `..`, so the compiler reports missing fields.
macro_rules! struct_of {
    ($program:ident, $name:ident, $init:literal, $($field:ident),+) => {{
        $program.layout(stringify!($name), size_of::<$name>(), align_of::<$name>());
        let defaults = $name::default();
        let $name { $($field: _),+ } = defaults;
        $(
            let bytes = bytes_of(&defaults.$field);
            $program.field(stringify!($name), stringify!($field), std::mem::offset_of!($name, $field), &bytes, $init);
        )+
    }};
}

fn bytes_of<T>(value: &T) -> Vec<u8> {
    // SAFETY: fields are numbers and pointers, without padding.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }.to_vec()
}

#[derive(Default)]
struct Program {
    asserts: String,
    checks: String,
}

impl Program {
    fn layout(&mut self, name: &str, size: usize, align: usize) {
        writeln!(self.asserts, "_Static_assert(sizeof({name}) == {size} && _Alignof({name}) == {align}, \"{name}\");")
            .unwrap();
    }

    fn field(&mut self, name: &str, field: &str, offset: usize, default: &[u8], init: &str) {
        let size = default.len();
        writeln!(
            self.asserts,
            "_Static_assert(offsetof({name}, {field}) == {offset} && sizeof((({name} *)0)->{field}) == {size}, \
             \"{name}.{field}\");"
        )
        .unwrap();
        if !init.is_empty() {
            let bytes: Vec<String> = default.iter().map(u8::to_string).collect();
            writeln!(
                self.checks,
                "    {{ const {name} x = {init}; const unsigned char rust[] = {{{}}}; if (memcmp(&x.{field}, rust, \
                 sizeof rust) != 0) {{ puts(\"{init}: {field}\"); failures++; }} }}",
                bytes.join(", ")
            )
            .unwrap();
        }
    }
}

#[test]
fn c_and_rust_agree_on_structs_and_their_defaults() {
    let mut p = Program::default();
    struct_of!(p, lgreco_layer, "LGRECO_LAYER_INIT", struct_size, name, dims, dims_len, values, dtype);
    struct_of!(
        p,
        lgreco_cuda_outcome,
        "LGRECO_CUDA_OUTCOME_INIT",
        struct_size,
        step,
        failed,
        rank,
        fault,
        layer,
        element,
        has_failed
    );
    struct_of!(
        p,
        lgreco_table_view,
        "LGRECO_TABLE_VIEW_INIT",
        struct_size,
        layers,
        ends,
        choices,
        defaults,
        budget,
        names,
        labels,
        elements,
        uncompressed_sizes,
        metric,
        model_layers,
        groups,
        fixed
    );
    struct_of!(
        p,
        lgreco_plan_view,
        "LGRECO_PLAN_VIEW_INIT",
        struct_size,
        layers,
        options,
        size,
        lower_bound,
        error,
        budget,
        solver,
        proven,
        limit,
        size_limit,
        error_lower_bound
    );
    struct_of!(p, lgreco_collective, "LGRECO_COLLECTIVE_INIT", struct_size, rank, world_size, user, perform);
    struct_of!(p, lgreco_memory_use, "LGRECO_MEMORY_USE_INIT", struct_size, residuals, undo, factors, exchange, window);
    struct_of!(
        p,
        lgreco_report,
        "LGRECO_REPORT_INIT",
        struct_size,
        step,
        outcome,
        switched,
        bytes_in,
        bytes_out,
        planning_seconds,
        exchange_seconds
    );
    struct_of!(
        p,
        lgreco_request,
        "LGRECO_REQUEST_INIT",
        struct_size,
        kind,
        memory,
        root,
        group,
        buffer,
        count,
        length,
        lens,
        send,
        send_lens,
        received,
        received_lens
    );
    struct_of!(
        p,
        lgreco_metrics,
        "LGRECO_METRICS_INIT",
        struct_size,
        steps,
        bytes_in,
        bytes_out,
        relative_error,
        residual_norm,
        bucket_seconds,
        not_contractive,
        uncompressed
    );
    struct_of!(
        p,
        lgreco_decision,
        "LGRECO_DECISION_INIT",
        struct_size,
        step,
        cause,
        in_picoseconds,
        planned,
        proven,
        size,
        lower_bound,
        default_size,
        uncompressed_size,
        error,
        budget,
        slower,
        not_contractive,
        limit,
        compressed,
        size_limit,
        error_lower_bound,
        measured_seconds,
        computing_seconds,
        seconds_per_byte,
        plan_seconds,
        plan_computing_seconds,
        default_seconds,
        uncompressed_seconds
    );
    struct_of!(
        p,
        lgreco_loaded,
        "LGRECO_LOADED_INIT",
        struct_size,
        missing,
        missing_len,
        extra,
        extra_len,
        misshaped,
        misshaped_len,
        rank,
        world_size,
        step,
        oldest_residual
    );
    struct_of!(p, lgreco_setting, "", text);
    struct_of!(p, lgreco_cut_setting, "", bytes);
    struct_of!(p, lgreco_choice, "", size, error);
    struct_of!(p, lgreco_rng_stream, "", seed, step, layer, rank);
    let headers = ["lgreco.h", "lgreco_train.h", "lgreco_cuda.h", "lgreco_pipeline.h"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let headers = headers.map(|name| std::fs::read_to_string(folder.join(name)).unwrap()).concat();
    for line in headers.lines() {
        if let Some(name) = line.strip_prefix("typedef struct ").and_then(|line| line.strip_suffix(" {")) {
            assert!(p.asserts.contains(&format!("sizeof({name})")), "{name} is not looked at");
        }
        if let Some((name, _)) = line.strip_prefix("#define ").and_then(|line| line.split_once("_INIT")) {
            assert!(p.checks.contains(&format!("{name}_INIT")), "{name}_INIT is not looked at");
        }
    }

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let text = format!(
        "#include <lgreco_cuda.h>\n#include <lgreco_pipeline.h>\n#include <lgreco_train.h>\n#include <stdio.h>\n#include <string.h>\n\n{}\nint main(void) {{\n    int failures = 0;\n{}    \
         return failures;\n}}\n",
        p.asserts, p.checks
    );
    std::fs::write(&source, text).unwrap();
    let cc = std::env::var("CC").unwrap_or("cc".into());
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let mut compiler = Command::new(cc);
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", include, "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success(), "{}", source.display());
    let run = Command::new(&program).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
