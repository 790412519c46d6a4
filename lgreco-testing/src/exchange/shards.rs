//! The parts of layers that each rank averages in exchange tests.

use super::members::{Member, is_near};
use lgreco_train::compress::Setting;
use lgreco_train::exchange::{Agreement, Moment, Program, Route, Spec};
use lgreco_train::gradient::Dtype;

/// The ends of each rank's shard, by layer. Three kinds of shards take turns: rows in equal chunks, as in FSDP; single
/// elements; and the whole layer for the last rank. Empty for routes other than [`Route::Sharded`].
pub fn shards(members: &[Member], route: Route, world: u32) -> Vec<Vec<u64>> {
    let world = u64::from(world);
    let ends = members.iter().enumerate().map(|(place, member)| {
        let [elements, rows, cols] =
            [member.shape.elements(), member.shape.rows(), member.shape.cols()].map(|x| x as u64);
        let end = |rank: u64| match place % 3 {
            _ if rank + 1 == world => elements,
            0 => (rows.div_ceil(world) * (rank + 1)).min(rows) * cols,
            1 => elements * (rank + 1) / world,
            _ => elements / 7 * rank,
        };
        if route == Route::Sharded { (0..world).map(end).collect() } else { vec![] }
    });
    ends.collect()
}

/// The parts of the layers in the messages for a rank, in order, each as a separate layer.
///
/// # Panics
/// Panics if a setting does not fit its layer.
pub fn parts(members: &[Member], route: Route, world_size: u32, owner: u32) -> Vec<Member> {
    if route != Route::Sharded {
        return members.iter().copied().filter(is_gathered).collect();
    }
    let shards = shards(members, route, world_size);
    let specs = members.iter().zip(&shards).map(|(member, shards)| {
        let &Member { index, setting, shape, dtype } = member;
        Spec { index, shards, ..Spec::from((setting, shape, dtype)) }
    });
    let moment = Moment { rank: 0, world_size, route, reduce_dtype: Dtype::F32, seed: 0, step: 0, terms: 0 };
    let program = Program::new(specs.clone(), moment, Agreement::Reached, 0).expect("settings that fit");
    let part = |piece| {
        let (place, piece): (usize, lgreco_train::exchange::Piece) = Result::expect(piece, "settings that fit");
        Member { setting: piece.setting, shape: piece.shape, ..members[place] }
    };
    program.pieces(specs, owner).map(part).collect()
}

/// Whether a layer's payload is sent in messages. Other layers are summed.
pub(super) fn is_gathered(member: &Member) -> bool {
    member.setting != Setting::Dense && !is_near(member)
}
