//! Properties of the layers of a measured table.

use lgreco::gradient::{Dtype, Element, Values};
use lgreco::search::{Layer, Measured};
use rayon::prelude::*;

/// Properties of the layers of a table that this command measured.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Dimensions per layer.
    pub shapes: Vec<Vec<usize>>,
    /// L2 norm per layer.
    pub norms: Vec<f64>,
    /// Uncompressed bits per layer.
    pub sizes: Vec<u64>,
    /// The tensors that the table leaves out.
    pub left_alone: LeftAlone,
    /// Bytes of GPU memory for tables, workspace and uploads. `None` without a GPU.
    pub device_memory: Option<u64>,
}

/// The tensors of a model that stay uncompressed.
#[derive(Clone, Copy, Debug)]
pub struct LeftAlone {
    /// Number of tensors.
    pub layers: usize,
    /// Total number of elements.
    pub elements: u64,
    /// Total size in bits.
    pub size: u64,
}

impl Facts {
    /// The facts about a model in memory and about the model's table. Computes the norms on all cores.
    pub fn of_model(model: &[Layer<'_>], measured: &Measured) -> Facts {
        let norms: Vec<f64> = model.par_iter().map(norm).collect();
        let layers: Vec<_> = model.iter().map(|layer| (layer.dims(), layer.gradient().values().dtype())).collect();
        Facts::new(&layers, &norms, measured, None)
    }

    /// The facts about a model. `layers` holds dimensions and element type per layer.
    pub(crate) fn new(
        layers: &[(&[usize], Dtype)],
        norms: &[f64],
        measured: &Measured,
        device_memory: Option<u64>,
    ) -> Facts {
        let elements = |index: usize| layers[index].0.iter().map(|&dim| dim as u64).product::<u64>();
        let size = |index: usize| 8 * elements(index) * layers[index].1.bytes() as u64;
        let (taken, left) = (&measured.layers, &measured.uncompressed);
        Facts {
            shapes: taken.iter().map(|&index| layers[index].0.to_vec()).collect(),
            norms: taken.iter().map(|&index| norms[index]).collect(),
            sizes: taken.iter().map(|&index| size(index)).collect(),
            left_alone: LeftAlone {
                layers: left.len(),
                elements: left.iter().map(|&index| elements(index)).sum(),
                size: left.iter().map(|&index| size(index)).sum(),
            },
            device_memory,
        }
    }
}

/// The L2 norm. Eight partial sums let the compiler use vector instructions.
pub(crate) fn norm(layer: &Layer<'_>) -> f64 {
    fn squared<T: Element>(values: &[T]) -> f64 {
        let mut sums = [0.0; 8];
        for values in values.chunks(8) {
            sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(v.to_f32()).powi(2));
        }
        sums.iter().sum()
    }
    match layer.gradient().values() {
        Values::F32(v) => squared(v),
        Values::F16(v) => squared(v),
        Values::Bf16(v) => squared(v),
    }
    .sqrt()
}
