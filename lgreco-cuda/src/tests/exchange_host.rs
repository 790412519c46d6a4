//! Compares exchanges whose layers are summed with the exchange of `lgreco-train` in host memory. In later steps,
//! PowerSGD starts from the factors of the previous step.

use super::backend;
use super::exchange_sums::{Layers, WORLD, config, floats, layers, near, places, ranks, step};
use super::simt::flavour;
use crate::ExchangeConfig;
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use lgreco_train::exchange::{self, Layer, Rest, Route, threads};
use lgreco_train::gradient::ValuesMut;

/// Runs steps of the host's exchange, and returns each rank's means.
fn on_the_host(layers: &Layers, config: ExchangeConfig, gradients: &[Vec<Vec<f32>>]) -> Vec<Vec<Vec<f32>>> {
    let places = places(layers);
    let (specs, Stream { seed, step, layer: first, .. }) =
        (places.iter().map(|place| (place.setting, place.shape, Dtype::F32)), config.stream);
    let words = exchange::workspace_len(specs, Route::AllGather, WORLD as u32).unwrap();
    threads::run(WORLD as u32, |mut worker| {
        let rank = worker.rank() as usize;
        let mut residual = vec![0.0; gradients[0][rank].len()];
        let mut factors: Vec<Vec<f32>> = places.iter().map(|place| vec![0.0; place.factors.len()]).collect();
        let each = gradients.iter().zip(step..).map(|(gradients, step)| {
            residual.iter_mut().zip(&gradients[rank]).for_each(|(sum, x)| *sum += x);
            let mut means = gradients[rank].clone();
            let (mut values, mut rest) = (&mut residual[..], &mut means[..]);
            let layers = places.iter().zip(&mut factors).zip(first..).map(|((place, factor), index)| {
                let (own, mean);
                (own, values) = std::mem::take(&mut values).split_at_mut(place.values.len());
                (mean, rest) = std::mem::take(&mut rest).split_at_mut(place.values.len());
                let (mean, rest) = (ValuesMut::F32(mean), Rest::Instead(own));
                Layer { factor, ..Layer::new(index, place.setting, place.shape, mean, rest) }
            });
            let mut layers: Vec<_> = layers.collect();
            exchange::aggregate(&mut worker, &mut layers, Route::AllGather, seed, step, &mut vec![0; words]).unwrap();
            means
        });
        each.collect()
    })
}

#[test]
fn means_are_those_of_the_hosts_exchange() {
    let (Some(mut backend), layers, config) = (backend(flavour(), 1), layers(), config(Dtype::F32, 1.0)) else {
        return;
    };
    let mut all = ranks(&mut backend, &layers, config);
    let gradient = |step: u64, rank: usize| uniform(all[rank].elements, 1000 + 10 * step + rank as u64);
    let gradients: Vec<Vec<_>> = (0..3).map(|step| (0..WORLD).map(|rank| gradient(step, rank)).collect()).collect();
    let expected = on_the_host(&layers, config, &gradients);
    for (number, gradients) in gradients.iter().enumerate() {
        for (rank, gradient) in all.iter_mut().zip(gradients) {
            rank.gradients.fill(bytemuck::cast_slice(gradient));
        }
        step(&mut backend, &mut all, |_, _, _| ());
        for (rank, expected) in all.iter().zip(&expected) {
            let means = floats(&rank.gradients);
            for place in places(&layers) {
                let (found, expected) = (&means[place.values.clone()], &expected[number][place.values.clone()]);
                near(&format!("step {number}, {:?}", place.setting), found, expected).unwrap();
            }
        }
    }
}
