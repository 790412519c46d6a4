//! Checks the handling of arbitrary bytes as a safetensors file, for tests and fuzzing.

use crate::gradients::Gradients;
use lgreco::backend::Portable;
use lgreco::plan::{self, Solver, budget::Budget, exact::Limits};
use lgreco::search::{Method, Search};

/// Reads `bytes` as a safetensors file. If the file is valid, checks that values match their shapes and that names
/// differ.
///
/// For a small model, also measures a table and makes a verified plan with each method, unless measuring returns an
/// error.
///
/// # Panics
/// Panics if one of these checks fails.
pub fn safetensors(bytes: &[u8]) {
    let Ok(gradients) = Gradients::parse(bytes.to_vec()) else { return };
    let layers = gradients.layers();
    let mut names: Vec<&str> = layers.iter().map(|layer| layer.name()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two layers have one name");
    for layer in &layers {
        assert_eq!(layer.dims().iter().product::<usize>(), layer.gradient().shape().elements());
        assert_eq!(layer.gradient().values().len(), layer.gradient().shape().elements());
    }
    if bytes.len() > 1 << 14 {
        return;
    }
    for method in Method::ALL {
        let mut search = Search::new(method);
        search.min_elements = 2;
        let Ok(measured) = search.measure(&layers, &mut Portable) else { continue };
        let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
        let solver = Solver::Exact(Limits { states: 1 << 8 });
        let plan = plan::solve(&measured.table.view(), budget, solver).expect("the default plan is within its budget");
        assert_eq!(plan.options().len(), measured.layers.len());
    }
}
