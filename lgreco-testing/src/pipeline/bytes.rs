//! Checks arbitrary bytes as messages and as saved ends of a cut.

use super::snapshot;
use crate::reseal;
use lgreco::checksum::LEN as CHECKSUM_LEN;
use lgreco_pipeline::{CutSetting, Direction, Downstream, Header, Link, LinkMemory, Message, RowStorage, Upstream};
use lgreco_train::feedback::Residual;

/// Checks that `bytes` are refused as a message, or decoded to finite values by an end with the setting of their
/// header. An end that refuses them must stay unchanged. If `bytes` are a valid message, `bytes` without the last byte
/// must be refused.
///
/// # Panics
/// Panics if a check fails.
pub fn check_message(bytes: &[u8]) {
    let Ok(Message { header, .. }) = Message::parse(bytes) else { return };
    assert!(Message::parse(&bytes[..bytes.len() - 1]).is_err());
    let Header { shape, codec, .. } = header;
    if shape.elements() > 1 << 14 || header.direction == Direction::Backward {
        return;
    }
    let memory = match header.memory {
        0 => LinkMemory::None,
        1 => LinkMemory::Residual(Residual::CLASSIC),
        2 => LinkMemory::Mixed(Residual::CLASSIC),
        3 => LinkMemory::Ef21,
        _ => LinkMemory::Samples { capacity: 100, storage: RowStorage::F32 },
    };
    let setting = CutSetting {
        forward: Link { codec, memory },
        ..CutSetting::new(header.cut, shape.rows() as u32, shape.cols() as u32)
    };
    let Ok(mut below) = Downstream::new(setting, header.generation) else { return };
    let mut workspace = vec![!0; below.workspace_len()];
    let mut values = vec![f32::NAN; shape.elements()];
    let before = snapshot(&below);
    if below.evaluate(bytes, &mut values).is_ok() || below.receive(bytes, &mut workspace, &mut values).is_ok() {
        assert!(values.iter().all(|x| x.is_finite()));
    } else {
        assert_eq!(snapshot(&below), before);
    }
}

/// Checks `bytes` as a saved end of a cut, twice: unchanged, and with a corrected checksum. Each time, the bytes must
/// be refused, or restore an end that saves to the same bytes.
///
/// # Panics
/// Panics if a check fails.
pub fn check_saved(bytes: &[u8]) {
    check_ends(bytes);
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    check_ends(&sealed);
}

fn check_ends(bytes: &[u8]) {
    // `part` is the cut's setting in a saved end, without a checksum.
    let Some(part) = bytes.get(28..28 + CutSetting::BYTES - CHECKSUM_LEN) else { return };
    let mut sealed = [part, &[0; CHECKSUM_LEN]].concat();
    reseal(&mut sealed);
    let Ok(setting) = CutSetting::from_bytes(&sealed) else { return };
    assert_eq!(setting.to_bytes(), sealed[..]);
    if setting.batch as u64 * setting.features as u64 > 1 << 14 || setting.in_flight > 16 {
        return;
    }
    if let Ok(above) = Upstream::restore(setting, bytes) {
        let mut again = vec![0xa5; above.saved_len()];
        assert_eq!((above.save(&mut again), &again[..]), (Ok(bytes.len()), bytes));
    }
    if let Ok(below) = Downstream::restore(setting, bytes) {
        let mut again = vec![0xa5; below.saved_len()];
        assert_eq!((below.save(&mut again), &again[..]), (Ok(bytes.len()), bytes));
    }
}

/// Checks arbitrary bytes as a message and as saved ends.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    check_message(bytes);
    check_saved(bytes);
}
