//! Buckets without TopK, whose layers under QSGD are encoded when they are offered.

use super::exchange::{OFFSET, fly, is_there, open, open_on};
use super::poison::filled;
use super::{backend, planted};
use crate::kernels::Shader;
use lgreco_core::compress::Setting;
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_testing::exchange::{Member, damaged_members, members};
use lgreco_testing::exchange::{check_space, check_space_damage};
use lgreco_train::exchange::threads::ThreadCollective;

/// The suite's layers under QSGD and those that are not compressed, and some more: of buckets as long as a workgroup's values, of as
/// many as it has grids for, of one more, and of such that only a short layer has in one workgroup.
fn layers() -> Vec<Member> {
    let of = |index, bits, bucket, elements, dtype| Member {
        index,
        setting: Setting::Qsgd(Qsgd { bits, bucket, ..Qsgd::default() }),
        shape: Shape::new(elements, 1).expect("a small shape"),
        dtype,
    };
    let wide = Qsgd { bits: 6, bucket: 2048, scale: Scale::MinMax, rounding: Rounding::Nearest };
    let uncompressed = |setting: &Setting| matches!(setting, Setting::Qsgd(_) | Setting::Dense);
    let more = [
        Member { setting: Setting::Qsgd(wide), ..of(200, 6, 2048, 5001, Dtype::Bf16) },
        of(201, 4, 32, 4999, Dtype::F16),
        of(202, 2, 16, 1024, Dtype::F32),
        of(203, 2, 16, 1025, Dtype::F32),
        of(204, 3, 700, 2048, Dtype::F32),
        of(205, 3, 700, 2049, Dtype::F32),
        of(206, 8, 5000, 33, Dtype::F32),
    ];
    members().into_iter().filter(|member| uncompressed(&member.setting)).chain(more).collect()
}

#[test]
fn means_residuals_and_messages_are_the_hosts() {
    if is_there() {
        check_space(&layers(), true, open);
    }
}

#[test]
fn damage_is_found_as_by_the_host() {
    if is_there() {
        check_space_damage(&damaged_members()[2..3], 0, 3, open);
    }
}

#[test]
fn the_value_at_fault_is_named() {
    if !is_there() {
        return;
    }
    let mut on = open(&layers(), true, 1);
    let buffer = on.buffers[0].clone();
    on.backend().queue().write_buffer(&buffer, OFFSET + 4 * 5000, &f32::NAN.to_le_bytes());
    let result = fly(&mut on, &mut ThreadCollective::group(1).remove(0), 0, None);
    assert_eq!(on.bucket.faulty_layer(), Some(0));
    let said = result.unwrap_err().to_string();
    assert!(said.contains("5000"), "{said}");
}

#[test]
fn no_workgroup_memory_is_read_before_it_is_written() {
    if is_there() {
        check_space(&layers(), false, |members, feedback, world| {
            open_on(filled(wgpu::Features::empty()).expect("the device there was before"), members, feedback, world)
        });
    }
}

#[test]
fn faults_in_the_shader_are_found() {
    if !is_there() {
        return;
    }
    for (text, fault) in planted([
        ("residual[params.start + i]", "(residual[params.start + i] & SIGN)"),
        ("let x = offered_value(first + i);", "let x = offered_value(i);"),
        (
            "offered[params.start + first + i] = x;\n    }\n    workgroupBarrier();\n    if (end",
            "offered[params.start + i] = x;\n    }\n    workgroupBarrier();\n    if (end",
        ),
        ("send_scales(tile_buckets.x + lane, grid);", ""),
        ("held_grids[lane] = grid;", "held_grids[0] = grid;"),
        ("atomicLoad(&tops[at + 2u]));\n                send", "0u);\n                send"),
        ("select(0u, min(PER_GROUP, params.count - first), is_offered)", "0u"),
    ]) {
        let open = |members: &[Member], feedback, world| {
            let mut backend = backend().expect("the device there was before");
            backend.gpu().kernels.edits.push((Shader::Exchange, text, fault));
            open_on(backend, members, feedback, world)
        };
        let found = std::panic::catch_unwind(|| check_space(&layers(), false, open));
        let message = found.expect_err(&format!("not found: {text}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(!message.contains("Device") && !message.contains("nothing to edit"), "{text}: {message}");
    }
}
