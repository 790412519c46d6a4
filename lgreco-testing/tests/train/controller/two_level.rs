//! Tests of two levels. Each rank's results are compared with those of a controller that has one worker per node and
//! the nodes' mean gradients.

use super::*;
use lgreco_train::compress::clt::CltK;
use lgreco_train::controller::two_level::{Group, Levels, Topology, TwoLevel};
use lgreco_train::exchange::{Request, Route};
use lgreco_train::gradient::{Bf16, Element};

mod failures;
mod non_finite;
mod saved;
mod wire;

/// The types in which the ranks of a node send each other gradients.
const SENT: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];
const PLACES: [(u32, u32); 4] = [(2, 2), (2, 3), (3, 2), (1, 2)];

/// Matrices that are cut between rows, evenly and unevenly, or between elements; vectors; a 16-bit layer; and an empty
/// layer.
fn layers() -> Vec<Tensor> {
    let layers: [(&str, &[usize], Dtype); 6] = [
        ("fc1", &[16, 24], Dtype::F32),
        ("bias", &[25], Dtype::F32),
        ("wide", &[1, 200], Dtype::F32),
        ("half", &[21, 16], Dtype::Bf16),
        ("scalar", &[], Dtype::F32),
        ("none", &[0, 3], Dtype::F32),
    ];
    layers.map(|(name, dims, dtype)| Tensor::new(name, dims, dtype).unwrap()).into()
}

/// One rank's gradients as f32. The gradients of the 16-bit layer are exact in bf16.
fn values(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let layer = |(layer, tensor): (usize, &Tensor)| noise(layer as u32, rank, step, tensor.shape().elements());
    layers().iter().enumerate().map(layer).collect()
}

/// Calls `work` with `values` as gradients of the layers' types, and copies the results back to `values`.
fn as_gradients<T>(values: &mut [Vec<f32>], work: impl FnOnce(&mut [ValuesMut<'_>]) -> T) -> T {
    let mut half: Vec<Bf16> = values[3].iter().map(|&x| Bf16::from_f32(x)).collect();
    let [a, b, c, wide, d, e] = values else { panic!("six layers") };
    let mut gradients = [
        ValuesMut::F32(a),
        ValuesMut::F32(b),
        ValuesMut::F32(c),
        ValuesMut::Bf16(&mut half),
        ValuesMut::F32(d),
        ValuesMut::F32(e),
    ];
    let done = work(&mut gradients);
    wide.iter_mut().zip(&half).for_each(|(to, x)| *to = x.to_f32());
    done
}

fn places(nodes: u32, per_node: u32) -> impl Iterator<Item = Topology> {
    (0..nodes * per_node).map(move |rank| Topology { nodes, node: rank / per_node, per_node, local: rank % per_node })
}

/// Runs `work` on every rank, and returns the results by rank.
fn on_nodes<T: Send>(
    (nodes, per_node): (u32, u32),
    work: impl Fn(Topology, &mut ThreadCollective, &mut ThreadCollective) -> T + Sync,
) -> Vec<T> {
    threads::run_nodes(nodes, per_node, |mut node, mut peers| {
        let place = Topology::of(&node, &peers);
        work(place, &mut node, &mut peers)
    })
}

fn new(config: Config, place: Topology) -> TwoLevel {
    TwoLevel::new(config, layers(), place).unwrap()
}

/// Takes a blocking step on generated gradients. Returns the report and the means.
fn step(
    training: &mut TwoLevel,
    node: &mut ThreadCollective,
    peers: &mut ThreadCollective,
) -> Result<(Report, Vec<Vec<f32>>), Error> {
    let mut values = values(training.topology().rank(), training.controller().steps() as u32);
    let report = as_gradients(&mut values, |gradients| training.step(node, peers, gradients, 1.0))?;
    Ok((report, values))
}

/// The elements of a layer in a rank's shard. Shards are as equal as possible, and the first ranks have the larger
/// shards. A layer is cut between rows if there are enough rows, otherwise between elements.
fn range(tensor: &Tensor, place: &Topology) -> core::ops::Range<usize> {
    let (rows, ranks) = (tensor.shape().rows(), place.per_node as usize);
    let (unit, units) = if rows >= ranks { (tensor.shape().cols(), rows) } else { (1, tensor.shape().elements()) };
    let start = |local: usize| unit * (units / ranks * local + local.min(units % ranks));
    start(place.local as usize)..start(place.local as usize + 1)
}

/// The mean of a node's gradients, rounded to the layer's type. Gradients are sent inside the node as the type `sent`.
/// The sum of an element begins with the gradient of the rank that has the element in its shard. This rank does not
/// send its gradient, so this gradient is not rounded.
fn node_mean(place: &Topology, step: u32, sent: Dtype) -> Vec<Vec<f32>> {
    let all: Vec<_> = (0..place.per_node).map(|local| values(place.node * place.per_node + local, step)).collect();
    let power = 1.0 / place.per_node.next_power_of_two() as f32;
    let rounded = |x: f32| if sent == Dtype::Bf16 { Bf16::from_f32(x).to_f32() } else { x };
    let mut means = all[0].clone();
    for (layer, (tensor, mean)) in layers().iter().zip(&mut means).enumerate() {
        for owner in 0..place.per_node {
            let others: Vec<u32> = (0..place.per_node).filter(|&local| local != owner).collect();
            for i in range(tensor, &Topology { local: owner, ..*place }) {
                let own = all[owner as usize][layer][i] * power;
                let sum = others.iter().fold(own, |sum, &rank| sum + rounded(all[rank as usize][layer][i] * power));
                mean[i] = sum / (place.per_node as f32 * power);
                if layer == 3 {
                    mean[i] = Bf16::from_f32(mean[i]).to_f32();
                }
            }
        }
    }
    means
}

fn with_undo(method: Method, policy: Policy) -> Config {
    let mut config = config(method, policy);
    config.undo = true;
    config.feedback = Feedback::always(Residual::CLASSIC);
    config
}

/// The gradients are multiples of 1/64, so their sums are exact. Means over three ranks or nodes are rounded.
#[test]
fn dense_means_are_exact_and_the_same_on_all_ranks() {
    for place in PLACES {
        let world = place.0 * place.1;
        let means = on_nodes(place, |place, node, peers| {
            let mut training = new(config(Method::TopK, Policy::Uncompressed), place);
            (0..3).map(|_| step(&mut training, node, peers).unwrap().1).collect::<Vec<_>>()
        });
        assert!(means.iter().all(|mean| *mean == means[0]), "{place:?}: ranks differ");
        for (step, mean) in means[0].iter().enumerate() {
            let all: Vec<_> = (0..world).map(|rank| values(rank, step as u32)).collect();
            for (layer, mean) in mean.iter().enumerate() {
                for (i, x) in mean.iter().enumerate() {
                    let exact = all.iter().map(|values| f64::from(values[layer][i])).sum::<f64>() / f64::from(world);
                    // Node means and means of 16 bits are each rounded.
                    let allowed = if layer == 3 {
                        1.0 / 64.0
                    } else if world == 4 {
                        0.0
                    } else {
                        1e-6
                    };
                    assert!((f64::from(*x) - exact).abs() <= allowed, "{place:?}, layer {layer}: {x}, not {exact}");
                }
            }
        }
    }
}

/// Each group of peers has the same results as a controller with one worker per node. The controller's gradients are
/// the group's shards of the nodes' means.
#[test]
fn compressed_means_are_those_of_the_shards_of_node_means() {
    for (method, policy, route, sent) in [
        (Method::TopK, LGRECO, Route::AllGather, Dtype::F32),
        (Method::Eden, Policy::Uniform, Route::AllGather, Dtype::Bf16),
        (Method::PowerSgd, LGRECO, Route::AllGather, Dtype::F32),
        (Method::Qsgd, LGRECO, Route::ScatterReduce, Dtype::F32),
        (Method::Hybrid, LGRECO, Route::AllGather, Dtype::F32),
        (Method::Hybrid, LGRECO, Route::AllGather, Dtype::Bf16),
    ] {
        for size in PLACES {
            let means = on_nodes(size, |place, node, peers| {
                let mut config = with_undo(method, policy.clone());
                config.route = route;
                config.search.reduce_dtype = sent;
                let mut training = new(config.clone(), place);
                config.search.min_elements = config.search.min_elements.div_ceil(place.per_node as usize);
                let shards = training.controller().tensors().to_vec();
                let mut alone = Controller::new(config, shards, place.node, place.nodes).unwrap();
                let mut all = vec![];
                for step in 0..8 {
                    let (report, means) = super::two_level::step(&mut training, node, peers).unwrap();
                    let whole = node_mean(&place, step, sent);
                    let mut own: Vec<Vec<f32>> = layers()
                        .iter()
                        .zip(&whole)
                        .map(|(tensor, mean)| mean[range(tensor, &place)].to_vec())
                        .collect();
                    let expected = as_gradients(&mut own, |gradients| alone.step(peers, gradients, 1.0)).unwrap();
                    assert_eq!((report.step, report.outcome), (expected.step, expected.outcome));
                    assert_eq!((report.bytes_in, report.bytes_out), (expected.bytes_in, expected.bytes_out));
                    for ((tensor, mean), own) in layers().iter().zip(&means).zip(&own) {
                        assert_eq!(&mean[range(tensor, &place)], own, "{method:?}, {place:?}, step {step}");
                    }
                    assert!(training.controller().save() == alone.save(), "{method:?}, {place:?}, step {step}");
                    all.push(means);
                }
                all
            });
            assert!(means.iter().all(|mean| *mean == means[0]), "{method:?}, {size:?}: ranks differ");
        }
    }
}

/// The sum of the means, plus the nodes' mean residual, is the sum of the mean gradients.
#[test]
fn no_gradient_is_lost() {
    for method in [Method::TopK, Method::Eden, Method::PowerSgd] {
        for size in PLACES {
            let logs = on_nodes(size, |place, node, peers| {
                let mut training = new(with_undo(method, LGRECO), place);
                let mut moved: Vec<Vec<f64>> = layers().iter().map(|t| vec![0.0; t.shape().elements()]).collect();
                for _ in 0..9 {
                    let (_, means) = step(&mut training, node, peers).unwrap();
                    for (moved, mean) in moved.iter_mut().zip(&means) {
                        moved.iter_mut().zip(mean).for_each(|(sum, x)| *sum += f64::from(*x));
                    }
                }
                let residuals = (0..layers().len()).map(|layer| residual(training.controller(), layer));
                (place, moved, residuals.collect::<Vec<_>>())
            });
            for (layer, tensor) in layers().iter().enumerate().filter(|(layer, _)| *layer != 3) {
                let mut lost = logs[0].1[layer].clone();
                for step in 0..9 {
                    for place in places(size.0, size.1) {
                        let gradient = &values(place.rank(), step)[layer];
                        lost.iter_mut().zip(gradient).for_each(|(sum, x)| *sum -= f64::from(*x) / logs.len() as f64);
                    }
                }
                for (place, _, residuals) in &logs {
                    let lost = &mut lost[range(tensor, place)];
                    let nodes = f64::from(place.nodes);
                    lost.iter_mut().zip(&residuals[layer]).for_each(|(sum, x)| *sum += f64::from(*x) / nodes);
                }
                let most = lost.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                assert!(most < 1e-4, "{method:?}, {size:?}, {}: {most} is lost", tensor.name());
            }
        }
    }
}

/// Begins a step, and performs the control requests before its buckets.
fn agree_on_nodes(
    training: &mut TwoLevel,
    node: &mut ThreadCollective,
    peers: &mut ThreadCollective,
    rate: f64,
) -> Result<(), Error> {
    training.begin_step(rate)?;
    while let Some((group, request)) = training.control()? {
        perform(group, request, node, peers);
    }
    Ok(())
}

fn perform(group: Group, request: Request<'_>, node: &mut ThreadCollective, peers: &mut ThreadCollective) {
    request.perform(if group == Group::Node { node } else { peers }).unwrap();
}

/// Exchanges three buckets at the same time, the last layers first. Returns the report, and the result of each bucket. In the
/// first bucket, only the first rank of each node has an element, so the other ranks have fewer collectives.
fn overlapped(
    training: &mut TwoLevel,
    node: &mut ThreadCollective,
    peers: &mut ThreadCollective,
    values: &mut [Vec<f32>],
    withheld: Option<usize>,
) -> (Report, Vec<Result<(), Error>>) {
    agree_on_nodes(training, node, peers, 1.0).unwrap();
    let results = as_gradients(values, |gradients| {
        let (first, others) = gradients.split_at_mut(2);
        let (middle, last) = others.split_at_mut(2);
        let mut buckets = [(vec![4, 5], last), (vec![2, 3], middle), (vec![0, 1], first)].map(|(layers, gradients)| {
            let mut bucket = training.open(&layers).unwrap();
            if let Some(layer) = withheld.filter(|layer| layers.contains(layer)) {
                bucket.withhold(layer).unwrap();
            }
            bucket.submit(gradients).unwrap();
            (bucket, gradients, None)
        });
        // The last collectives of the buckets come at the end, in the same order on all ranks.
        while buckets.iter().any(|(bucket, ..)| !bucket.is_last()) {
            for (bucket, gradients, _) in buckets.iter_mut().filter(|(bucket, ..)| !bucket.is_last()) {
                if let Some((group, request)) = bucket.next_but_last(gradients).unwrap() {
                    perform(group, request, node, peers);
                }
            }
        }
        for (bucket, gradients, result) in &mut buckets {
            let (group, request) = bucket.next(gradients).unwrap().unwrap();
            perform(group, request, node, peers);
            *result = Some(bucket.next(gradients).map(|next| assert!(next.is_none())));
        }
        let results = buckets.into_iter().map(|(bucket, _, result)| {
            assert!(bucket.is_last());
            training.close(bucket).unwrap();
            result.unwrap()
        });
        results.collect()
    });
    (training.finish_step().unwrap(), results)
}

#[test]
fn buckets_in_flight_end_as_blocking_steps_do() {
    for size in PLACES {
        on_nodes(size, |place, node, peers| {
            let mut config = with_undo(Method::Hybrid, LGRECO);
            config.bucket_bytes = 4 * (16 * 24 + 25);
            let mut blocking = new(config.clone(), place);
            let mut training = new(config, place);
            for step in 0..8 {
                let (report, means) = super::two_level::step(&mut blocking, node, peers).unwrap();
                let mut values = values(place.rank(), step);
                let (found, results) = overlapped(&mut training, node, peers, &mut values, None);
                assert_eq!((found, values), (report, means), "{place:?}, step {step}");
                assert_eq!(results, [Ok(()); 3]);
                assert!(training.save() == blocking.save(), "{place:?}, step {step}");
            }
        });
    }
}

/// A layer keeps its residual if no rank of the node has a gradient. If only some of these ranks have a gradient, the
/// missing gradients are taken as zeros.
#[test]
fn layers_without_gradients_on_a_node_keep_their_residuals() {
    SENT.into_iter().for_each(layers_without_gradients);
}

fn layers_without_gradients(sent: Dtype) {
    let before_and_after = on_nodes((2, 2), |place, node, peers| {
        let mut config = with_undo(Method::TopK, Policy::Uniform);
        config.search.reduce_dtype = sent;
        let mut training = new(config, place);
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        let before = residual(training.controller(), 0);
        // Both ranks of node 1 and one rank of node 0 have no gradient.
        let withheld = (place.rank() != 0).then_some(0);
        let mut values = values(place.rank(), 4);
        let (_, results) = overlapped(&mut training, node, peers, &mut values, withheld);
        assert_eq!(results, [Ok(()); 3]);
        (before, residual(training.controller(), 0), values)
    });
    for (rank, (before, after, means)) in before_and_after.iter().enumerate() {
        assert_eq!(before == after, rank >= 2, "rank {rank}");
        assert_eq!(*means, before_and_after[0].2);
    }
}

/// CLT-k's k is divided among the shards. LEGACY's size limits are for whole layers.
#[test]
fn settings_and_bounds_are_for_whole_layers() {
    on_nodes((2, 2), |place, node, peers| {
        let mut settings = vec![Setting::Dense; 6];
        settings[0] = Setting::CltK(CltK { keep: 300 });
        let mut training = new(config(Method::TopK, Policy::Fixed(settings)), place);
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        assert_eq!(training.controller().setting(0), Setting::CltK(CltK { keep: 150 }));

        let levels = vec![vec![0.5, 0.25]];
        let legacy = Legacy { sizes: vec![300], levels, steps: 100 };
        let mut training = new(config(Method::TopK, Policy::Legacy(legacy)), place);
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        let kept = [0, 2].map(|layer| match training.controller().setting(layer) {
            Setting::TopK(TopK { keep, .. }) => keep,
            other => panic!("{other}"),
        });
        assert_eq!(kept, [192 / 4, 100 / 2], "384 elements are above the bound, 200 below");
    });
}

/// The summary has the bytes of the next step's report.
#[test]
fn the_summary_is_of_shards() {
    on_nodes((2, 2), |place, node, peers| {
        let config = with_undo(Method::Eden, Policy::Uniform);
        let mut levels = Levels::new(config, layers(), [place.rank(), 4], Some(place)).unwrap();
        let told = levels.summary();
        assert!(
            told.contains("step 0: 0 of 6 layers compressed, ") && told.contains(" 6 warm-up (fc1, bias, wide, …; "),
            "{told}"
        );
        let Levels::Two(training) = &mut levels else { panic!("nodes") };
        let reports = (0..4).map(|_| step(training, node, peers).unwrap().0);
        let sent = reports.last().unwrap().bytes_out;
        let told = levels.summary();
        assert!(told.starts_with("two levels, 2 nodes of 2 ranks, each rank's shards: step 4: "), "{told}");
        assert!(told.contains(&format!(" bytes of gradients as {sent} (")), "{told}, not {sent}");
        assert!(told.contains("; all-gather over 2 ranks; uncompressed: "), "{told}");
    });
}
