use super::bounds::{Counts, bound, counts, measured, of_cubins, written};
use super::cubin::{self, Facts};
use super::gpus::Gpu;
use super::hot::{HOT, Hot, Loop, each, no_more};
use super::occupancy;
use super::operations::Operation;
use super::sass::{Code, kernels};
use super::table::{OF_MODELS, OPERATIONS};
use crate::compiler::Architecture;
use crate::gpu::MOST;
use crate::kernels::Module;
use crate::shipped;
use lgreco_core::gradient::Shape;
use lgreco_testing::models::resnet_50;

/// A loop over two values a turn, in which values that are not finite take a way of their own, and an inner loop.
const LOOP: &str = "
.text.sample:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @P0 EXIT ;
.L_x_1:
        /*0020*/                   LDG.E.64 R2, desc[UR4][R4.64] ;
        /*0030*/              @P1 BRA `(.L_x_2) ;
        /*0040*/                   FADD R2, R2, R3 ;
        /*0050*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0060*/                   RED.E.MAX.STRONG.GPU desc[UR4][R4.64], R2 ;
        /*0070*/                   FADD R2, R2, R3 ;
        /*0080*/                   FADD R2, R2, R3 ;
.L_x_3:
        /*0090*/                   SHFL.BFLY PT, R6, R2, R6, 0x1f ;
        /*00a0*/              @P2 BRA `(.L_x_3) ;
        /*00b0*/                   IMAD.WIDE R4, R6, R7, R4 ;
        /*00c0*/              @!P3 BRA `(.L_x_1) ;
        /*00d0*/                   STG.E desc[UR4][R8.64], R2 ;
        /*00e0*/                   EXIT ;
.L_x_4:
        /*00f0*/                   BRA `(.L_x_4) ;
";

const PAIRS: &[Loop] = &[each("LDG8", 2.0)];
const WITH_INNER: &[Loop] = &[each("LDG8", 2.0), each("SHFL", 2.0 / 3.0)];
const FEW_SUMS: &[Loop] = &[no_more(1, "FADD", 2.0)];

fn sample(cold: &'static [&'static str], loops: &'static [Loop]) -> Hot {
    Hot { module: Module::Magnitude, entry: "sample", way: "", block: 256, cold, loops }
}

fn of_sample(text: &str, hot: &Hot) -> Result<Counts, String> {
    counts(hot, &kernels(text)["sample"], Facts { registers: 40, shared: 512, frame: 0 }, 90)
}

#[test]
fn the_costliest_way_round_a_loop_is_counted() {
    let found = of_sample(LOOP, &sample(&["RED"], PAIRS)).unwrap();
    // LDG, BRA, FADD, BRA, SHFL, BRA, IMAD, BRA; the atomic's way only where it is not cold.
    assert_eq!((found.instructions, found.fma, found.product, found.shared), (4.0, 0.5, 1.0, 0.5));
    assert_eq!((found.bytes, found.turn, found.once), (4.0, 2.0, 4.0));
    assert_eq!(of_sample(LOOP, &sample(&[], PAIRS)).unwrap().instructions, 4.5);
    // What a predicate lets threads go by is no access of theirs, if it is cold; elsewhere it is.
    let guarded = LOOP.replace("              @P1 BRA `(.L_x_2)", "              @P1 STG.E [R8.64], R2");
    let bytes = |cold| of_sample(&guarded, &sample(cold, PAIRS)).unwrap().bytes;
    assert_eq!((bytes(&["RED", "STG4"]), bytes(&["RED"])), (4.0, 6.0));
    // With one sum at most, a value that is not finite is not on the way, cold or not.
    let found = of_sample(LOOP, &sample(&[], FEW_SUMS)).unwrap();
    assert_eq!((found.instructions, found.fma), (4.0, 0.5));
    // What some go by does not count as one.
    let guarded = LOOP.replace(
        "                  FADD R2, R2, R3 ;\n        /*0050*/",
        "              @P1 FADD R2, R2, R3 ;\n        /*0050*/",
    );
    assert!(of_sample(&guarded, &sample(&[], FEW_SUMS)).is_err());
    // The inner loop apart: three turns of it for every two values.
    let found = of_sample(LOOP, &sample(&["RED"], WITH_INNER)).unwrap();
    assert_eq!((found.instructions, found.shared), (3.0 + 3.0, 1.5));
}

#[test]
fn ways_by_a_table_of_jumps_are_followed() {
    let table = r#"BRX R2 -0x30 (*"BRANCH_TARGETS .L_x_2,.L_x_3"*)"#;
    let text = LOOP.replace("              @P1 BRA `(.L_x_2)", &format!("                  {table}"));
    // LDG, BRX, RED and two sums, SHFL, BRA, IMAD, BRA; or none of the sums.
    assert_eq!(of_sample(&text, &sample(&[], PAIRS)).unwrap().instructions, 4.5);
    assert_eq!(of_sample(&text, &sample(&["RED"], PAIRS)).unwrap().instructions, 3.0);
}

#[test]
fn code_without_a_loop_is_counted_whole() {
    let text = LOOP.replace("@!P3 BRA", "@!P3 NOP");
    let all = kernels(&text);
    let code = Code::new(&all["sample"], &["RED"]);
    assert_eq!((code.way(("LDG8", usize::MAX), &["LDG8"]).len(), code.once(&["LDG8"])), (12, 0));
}

#[test]
fn what_must_not_be_is_said() {
    let hot = sample(&["RED"], PAIRS);
    let said = |from: &str, to: &str| of_sample(&LOOP.replace(from, to), &hot).unwrap_err();
    assert_eq!(said("FADD R2, R2, R3", "LDL R2, [R1]"), "magnitude/sample: local memory");
    assert_eq!(said("LDG.E.64", "LDG.E"), "magnitude/sample: no LDG8 on the costliest way");
    let spilt = Facts { frame: 8, ..Facts::default() };
    assert_eq!(counts(&hot, &kernels(LOOP)["sample"], spilt, 90).unwrap_err(), "magnitude/sample: local memory");
}

#[test]
fn registers_and_warps_are_within_their_bounds_where_nothing_disassembles() {
    let all = of_cubins();
    assert_eq!(all.len(), 6 * HOT.len());
    for (hot, architecture, found) in all {
        let bound = bound(&hot.name(), architecture).expect("a line of bounds.txt");
        let beyond = bound.exceeded_by(found.unwrap());
        assert!(beyond.is_empty() && bound.warps > 0.0, "{}, sm_{architecture}: {}", hot.name(), beyond.join(", "));
    }
}

/// Of all kernels, also those that no bound is held for.
#[test]
fn no_code_that_is_shipped_has_local_memory() {
    for (module, architecture) in
        Module::ALL.into_iter().flat_map(|module| shipped::SASS.map(|number| (module, number)))
    {
        let cubin = shipped::code(module, Architecture::Sass(architecture)).expect("code of these sources");
        let kernels = cubin::facts(&cubin).expect("a cubin");
        assert!(!kernels.is_empty());
        for (kernel, facts) in kernels {
            assert!(facts.frame == 0 && (1..=128).contains(&facts.registers), "{kernel}, sm_{architecture}: {facts:?}");
        }
    }
}

#[test]
fn what_is_beyond_a_bound_is_said() {
    let bound = Counts { instructions: 40.0, turn: 16.0, registers: 64.0, warps: 32.0, ..Counts::default() };
    let better = Counts { instructions: 40.004, turn: 32.0, registers: 63.0, warps: 40.0, ..bound };
    assert!(bound.exceeded_by(better).is_empty());
    let found = Counts { instructions: 41.5, turn: 8.0, registers: 65.0, warps: 24.0, ..bound };
    let expected = [
        "instructions 41.50, not 40.00",
        "turn 8.00, not 16.00",
        "registers 65.00, not 64.00",
        "warps 24.00, not 32.00",
    ];
    assert_eq!(bound.exceeded_by(found), expected);
}

#[test]
fn warps_of_a_multiprocessor_are_limited_by_what_runs_out_first() {
    let warps = |registers, shared_bytes, block| occupancy::of_code(90).resident(block, registers, shared_bytes);
    assert_eq!(warps(32, 0, 256), 64);
    assert_eq!(warps(33, 0, 256), 48);
    assert_eq!(warps(64, 0, 1024), 32);
    assert_eq!(warps(32, 40000, 256), 40);
    assert_eq!(warps(16, 0, 32), 32); // of 32 blocks
    // What the system keeps: without it there would be room for five.
    assert_eq!(occupancy::of_code(80).resident(256, 32, 32 << 10), 32);
    assert_eq!(occupancy::of_code(75).resident(256, 32, 0), 32);
}

/// The gate: no hot kernel needs more than `bounds.txt` says.
#[test]
fn machine_code_stays_within_its_bounds() {
    let Some(all) = measured() else { return };
    let (mut wrong, mut found) = (Vec::new(), Vec::new());
    for (hot, architecture, outcome) in all {
        match outcome {
            Ok(counts) => found.push((hot.name(), architecture, counts)),
            Err(reason) => wrong.push(format!("sm_{architecture}: {reason}")),
        }
    }
    if std::env::var_os("LGRECO_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/roofline/bounds.txt");
        std::fs::write(path, written(found.into_iter())).unwrap();
    } else {
        for (name, architecture, counts) in found {
            let beyond = bound(&name, architecture).map(|bound| bound.exceeded_by(counts));
            for what in beyond.unwrap_or_else(|| vec!["not in bounds.txt".into()]) {
                wrong.push(format!("sm_{architecture}: {name}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Blocks as many as outside of tests, so that as many layers share launches.
fn commands(of: &Operation, shapes: &[Shape]) -> f64 {
    let before = MOST.replace(2048);
    let commands = of.commands(shapes).unwrap();
    MOST.set(before);
    commands
}

/// What the targets are made of; `bounds.txt` and a device that counts decide, so this needs no tool.
#[test]
fn predictions_reach_their_floors() {
    let (large, model) = ([Shape::new(1 << 14, 1 << 12).unwrap()], resnet_50());
    let mut wrong = Vec::new();
    for (operations, shapes) in [(OPERATIONS, &large[..]), (OF_MODELS, &model)] {
        for of in operations {
            let commands = commands(of, shapes);
            for (gpu, floor) in Gpu::ALL.iter().zip(of.floors) {
                let found = of.predict(gpu, shapes, commands).of_copy;
                // Nothing is faster than memory.
                if found < floor || found > 1.0 {
                    wrong.push(format!("{}, {}: {found:.3} in {commands} commands, not {floor}", gpu.name, of.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is blessed may get worse; this may not.
#[test]
fn hot_kernels_hold_a_quarter_of_the_warps_that_there_is_room_for() {
    for hot in HOT {
        for architecture in [70, 75, 80, 90, 100, 120] {
            let bound = bound(&hot.name(), architecture).expect("a line of bounds.txt");
            let most = f64::from(occupancy::of_code(architecture).warps);
            assert!(bound.warps >= most / 4.0, "{}, sm_{architecture}: {} of {most} warps", hot.name(), bound.warps);
        }
    }
}

#[test]
fn devices_of_like_names_have_no_predictions() {
    let named = |device| Gpu::named(device).map(|gpu| gpu.name);
    assert_eq!(named("NVIDIA H200"), Some("H200"));
    assert_eq!(named("NVIDIA H100 80GB HBM3"), Some("H100"));
    assert_eq!(named("NVIDIA GeForce RTX 4090"), Some("RTX 4090"));
    for other in ["NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", ""] {
        assert_eq!(named(other), None, "{other}");
    }
}

#[test]
fn every_kernel_of_the_table_is_there_once() {
    for (index, hot) in HOT.iter().enumerate() {
        assert!(super::super::simt::entries(&hot.module.source()).contains(&hot.entry), "{}", hot.name());
        assert!(HOT[..index].iter().all(|other| other.name() != hot.name()));
    }
    let shapes = resnet_50();
    assert_eq!((shapes.len(), shapes.iter().map(|shape| shape.elements()).sum::<usize>()), (161, 25_557_032));
}
