//! When and where in a run a dispatch works.

use super::plan::Plan;
use crate::params::params;
use lgreco_train::exchange::Moment;
use lgreco_train::gradient::Dtype;

params! {
    /// `Moment` of `exchange.wgsl`.
    step, rank, seed_low, seed_high, world, image, layers, feedback, halves, source, kept,
    settles, level,
}

impl Params {
    pub(crate) fn of(moment: &Moment, plan: &Plan, feedback: bool) -> Params {
        Params {
            step: moment.step,
            rank: moment.rank,
            seed_low: moment.seed as u32,
            seed_high: (moment.seed >> 32) as u32,
            world: moment.world_size,
            image: plan.image as u32,
            layers: plan.members.len() as u32,
            feedback: feedback as u32,
            halves: (moment.reduce_dtype == Dtype::Bf16) as u32,
            kept: plan.kept as u32,
            ..Params::default()
        }
    }
}
