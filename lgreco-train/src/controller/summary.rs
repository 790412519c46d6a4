//! Summary of a controller's present settings, as one line for a log.

use super::decision::LayerSetting;
use super::layer_plan::LayerPlan;
use super::{Controller, Uncompressed};
use crate::exchange::Route;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

/// Largest number of layer names that are written for each reason.
const NAMES: usize = 3;

/// The present settings in one line, for a log: the compressed layers and their bytes, the route, and the uncompressed layers by
/// reason.
///
/// The bytes are those of the payloads that this rank sends in a step by all-gather. If the length of a payload depends on the
/// gradients, the largest possible length is used.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// # use lgreco_train::controller::Summary;
/// let text = Summary::of(&controller).to_string();
/// assert!(text.starts_with("step 3: 1 of 2 layers compressed (1 topk), 16640 bytes of gradients as "), "{text}");
/// assert!(text.ends_with("; all-gather over 1 rank; uncompressed: 1 small (bias; 256 bytes)"), "{text}");
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Summary<'a>(&'a Controller);

impl<'a> Summary<'a> {
    /// The summary of a controller. Writing the summary takes O(n log n) in the number of layers.
    pub fn of(controller: &'a Controller) -> Self {
        Summary(controller)
    }
}

/// Uncompressed layers with the same reason.
#[derive(Default)]
struct Left<'a> {
    layers: usize,
    bytes: u64,
    names: Vec<&'a str>,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let controller = self.0;
        let (config, tensors) = (&controller.scheduler.config, controller.tensors());
        let (mut given, mut sent) = (0, 0);
        let mut methods = BTreeMap::<&str, usize>::new();
        let mut left = BTreeMap::<u8, Left<'_>>::new();
        for (layer, tensor) in tensors.iter().enumerate() {
            let LayerPlan { choice: LayerSetting { setting, uncompressed }, sent_len: bytes, .. } =
                controller.states[layer].plan;
            given += (tensor.shape().elements() * tensor.dtype().bytes()) as u64;
            sent += bytes;
            match uncompressed {
                None => *methods.entry(setting.name()).or_default() += 1,
                Some(reason) => {
                    let left = left.entry(reason as u8).or_default();
                    left.layers += 1;
                    left.bytes += bytes;
                    if left.names.len() < NAMES {
                        left.names.push(tensor.name());
                    }
                }
            }
        }
        let compressed: usize = methods.values().sum();
        write!(f, "step {}: {compressed} of {} layers compressed", controller.steps(), tensors.len())?;
        for (at, (method, layers)) in methods.iter().enumerate() {
            write!(f, "{}{layers} {method}", if at == 0 { " (" } else { ", " })?;
        }
        f.write_str(if compressed > 0 { ")" } else { "" })?;
        write!(f, ", {given} bytes of gradients as {sent}")?;
        if sent > 0 {
            write!(f, " ({:.1} times fewer)", given as f64 / sent as f64)?;
        }
        let route = match config.route {
            Route::AllGather => "all-gather",
            Route::ScatterReduce => "scatter-reduce",
            Route::Sharded => "sharded",
        };
        let world = controller.world;
        write!(f, "; {route} over {world} {}", if world == 1 { "rank" } else { "ranks" })?;
        for (at, (&reason, Left { layers, bytes, names })) in left.iter().enumerate() {
            let reason = Uncompressed::ALL.get(reason as usize).map_or("", |reason| reason.name());
            write!(f, "{}{layers} {reason} ({}", if at == 0 { "; uncompressed: " } else { ", " }, names.join(", "))?;
            write!(f, "{}; {bytes} bytes)", if *layers > names.len() { ", …" } else { "" })?;
        }
        Ok(())
    }
}
