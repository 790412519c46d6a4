//! The roofline table.

use super::gpus::Gpu;
use super::hot::HOT;
use super::operations::{Operation, known};
use super::table::{OF_MODELS, OPERATIONS};
use crate::Error;
use lgreco_core::gradient::Shape;

/// The code that there is a floor of warps for.
const CODES: [u32; 6] = [70, 75, 80, 90, 100, 120];

/// Every operation on 2^26 values, and on the layers of ResNet-50, on every [`Gpu`]; then what kernels hold.
///
/// # Errors
/// [`Error`] as of [`Operation::commands`].
pub fn report(model: Vec<Shape>) -> Result<String, Error> {
    let large = [Shape::new(1 << 14, 1 << 12)?];
    let mut lines = Vec::new();
    for gpu in Gpu::ALL {
        lines.push(format!("{}: a copy moves {:.0} GB/s", gpu.name, gpu.copy / 1e9));
        operations(&mut lines, &gpu, "2^26 values in one layer", OPERATIONS, &large)?;
        operations(&mut lines, &gpu, &format!("{} layers of ResNet-50", model.len()), OF_MODELS, &model)?;
        lines.push(format!("\n{:<34} {:>12} {:>9} {:>6}", "", "instructions", "registers", "warps"));
        for hot in HOT {
            let (block, counts) = known(&hot.name(), gpu.code);
            let (warps, instructions, registers) =
                (gpu.resident(block, &counts), counts.instructions, counts.registers);
            lines.push(format!("{:<34} {instructions:>12.1} {registers:>9} {warps:>6}", hot.name()));
        }
        lines.push(String::new());
    }
    let codes = CODES.map(|code| format!("{:>7}", format!("sm_{code}"))).concat();
    lines.push(format!("{:<34}{codes}", "warps at least, code for"));
    for hot in HOT {
        let warps = CODES.map(|code| format!("{:>7}", known(&hot.name(), code).1.warps)).concat();
        lines.push(format!("{:<34}{warps}", hot.name()));
    }
    Ok(lines.join("\n"))
}

fn operations(
    lines: &mut Vec<String>,
    gpu: &Gpu,
    what: &str,
    operations: &[Operation],
    shapes: &[Shape],
) -> Result<(), Error> {
    lines.push(format!("{what:<48} {:>8} {:>9} {:>9} {:>9}", "commands", "ms", "of copy", "to reach"));
    for of in operations {
        let commands = of.commands(shapes)?;
        let found = of.predict(gpu, shapes, commands);
        let target = of.target.map_or(String::new(), |target| {
            format!("{:>7.0} %{}", 100.0 * target, if found.of_copy < target { ", missed" } else { "" })
        });
        lines.push(format!(
            "{:<48} {commands:>8} {:>9.3} {:>7.0} % {target}",
            of.name,
            1e3 * found.seconds,
            100.0 * found.of_copy
        ));
    }
    Ok(())
}
