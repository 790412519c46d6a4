//! Means and factors must still have the recorded bits. The bits were recorded with an earlier exchange, which sent an
//! additional first message.

use super::*;
use lgreco::checksum::Hash;

/// The checksum of all results of every rank, in four steps of one run.
fn digest(layers: &[(Setting, Shape)], world: u32, route: Route) -> u64 {
    let outcomes = threads::run(world, |mut worker| {
        let mut case = case(layers, world, route);
        let mut hash = Hash::START;
        let mut factors = None;
        for step in 0..4 {
            case.step = step;
            case.gradients.iter_mut().flatten().flatten().for_each(|x| *x = -0.9 * *x + 0.01);
            let outcome = case.exchange(&mut worker, factors).unwrap();
            let values = outcome.mean.iter().chain(&outcome.factors).flatten();
            hash = values.fold(hash, |hash, x| hash.add(x.to_bits().into()));
            factors = Some(outcome.factors);
        }
        hash.0
    });
    outcomes.into_iter().fold(Hash::START, Hash::add).0
}

#[test]
fn bits_are_as_they_were() {
    let all = hybrid();
    let without_products: Vec<_> = all.iter().copied().filter(|(setting, _)| *setting != LOW_RANK).collect();
    let digests = |layers: &[_]| [1, 2, 3, 5].map(|world| ROUTES.map(|route| digest(layers, world, route)));
    assert_eq!(
        digests(&without_products),
        [
            [10803786265650399095, 10803786265650399095],
            [12576235795476117576, 18439854163961011543],
            [2291964653850924868, 16847320760573855339],
            [9265741118105774853, 3725844648040894726]
        ]
    );
    // With `gemm`, the last bits of products differ between processors.
    if !cfg!(feature = "gemm") {
        assert_eq!(
            digests(&all),
            [
                [2006905154283177907, 2006905154283177907],
                [9764051423813674938, 14878093795057397988],
                [17636386869510475651, 6586749698527369669],
                [6939078723258351649, 7270249328421806611]
            ]
        );
    }
}
