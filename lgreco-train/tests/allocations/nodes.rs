//! The memory of two levels is small, and predicted by `TwoLevel::memory`.

use super::held::{COLUMNS, QSGD, TOPK, config, model};
use super::{HELD, REFUSED, Unlimited};
use lgreco_train::controller::two_level::{Bucket, Group, Topology, TwoLevel};
use lgreco_train::controller::{Config, MemoryUse, Tensor};
use lgreco_train::exchange::Request;
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::feedback::Storage;
use lgreco_train::gradient::{Dtype, ValuesMut};
use lgreco_train::{CoreError, Error};

/// This rank's groups.
struct Groups<'a> {
    node: Unlimited<'a>,
    peers: Unlimited<'a>,
}

impl Groups<'_> {
    fn perform(&mut self, (group, request): (Group, Request<'_>)) -> Result<(), Error> {
        Ok(request.perform(if group == Group::Node { &mut self.node } else { &mut self.peers })?)
    }

    /// Performs a bucket's collectives up to the last one.
    fn exchange(&mut self, bucket: &mut Bucket, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        while let Some(request) = bucket.next_but_last(gradients)? {
            self.perform(request)?;
        }
        Ok(())
    }
}

/// Exchanges each layer as a separate bucket. Each bucket's first message inside the node is under way while the bucket
/// before it continues. The last messages of all buckets come at the end, two at the same time.
fn in_flight(training: &mut TwoLevel, groups: &mut Groups<'_>, gradients: &mut [Vec<f32>]) -> Result<(), Error> {
    training.begin_step(0.1)?;
    while let Some(request) = training.control()? {
        groups.perform(request)?;
    }
    let mut buckets: Vec<(Bucket, [ValuesMut<'_>; 1])> = vec![];
    for (layer, values) in gradients.iter_mut().enumerate() {
        let (mut bucket, mut values) = (training.open(&[layer])?, [ValuesMut::F32(values)]);
        bucket.submit(&mut values)?;
        groups.perform(bucket.next(&mut values)?.expect("a first message"))?;
        if let Some((before, values)) = buckets.last_mut() {
            groups.exchange(before, values)?;
        }
        buckets.push((bucket, values));
    }
    if let Some((last, values)) = buckets.last_mut() {
        groups.exchange(last, values)?;
    }
    let mut ending: Option<(Bucket, [ValuesMut<'_>; 1])> = None;
    for (mut bucket, mut values) in buckets {
        groups.perform(bucket.next(&mut values)?.expect("a last message"))?;
        if let Some((mut before, mut values)) = ending.replace((bucket, values)) {
            assert!(before.next(&mut values)?.is_none());
            training.close(before)?;
        }
    }
    if let Some((mut last, mut values)) = ending {
        assert!(last.next(&mut values)?.is_none());
        training.close(last)?;
    }
    training.finish_step().map(drop)
}

/// Runs six steps on two nodes. Returns for each rank the largest memory and the memory at the end, as multiples of the
/// model's f32 gradients, and the prediction.
fn most(config: &Config, rows: &[usize], per_node: u32, flies: bool) -> Vec<([f64; 2], MemoryUse)> {
    let run = |mut node: ThreadCollective, mut peers: ThreadCollective| {
        let layers = rows.iter().enumerate();
        let layers = layers.map(|(layer, &rows)| Tensor::new(&layer.to_string(), &[rows, COLUMNS], Dtype::F32));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let mut gradients: Vec<Vec<f32>> = rows.iter().map(|rows| vec![0.0; rows * COLUMNS]).collect();
        let elements: usize = gradients.iter().map(Vec::len).sum();
        let place = Topology::of(&node, &peers);
        let before = HELD.get()[0];
        HELD.set([before; 2]);
        let mut training = TwoLevel::new(config.clone(), layers, place)?;
        let predicted = training.memory(flies.then_some(1), if flies { usize::MAX } else { 1 })?;
        let mut groups = Groups { node: Unlimited(&mut node), peers: Unlimited(&mut peers) };
        for step in 0..6 {
            for (layer, values) in gradients.iter_mut().enumerate() {
                let wave = |i: usize| ((i * (layer + 2) + step + place.rank() as usize) as f32 * 0.37).sin();
                values.iter_mut().enumerate().for_each(|(i, x)| *x = wave(i));
            }
            if flies {
                in_flight(&mut training, &mut groups, &mut gradients)?;
                continue;
            }
            let mut views: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            training.step(&mut groups.node, &mut groups.peers, &mut views, 0.1)?;
        }
        let multiple = |bytes: usize| (bytes - before) as f64 / (4 * elements) as f64;
        let [held, most] = HELD.get();
        Ok::<_, Error>(([multiple(most), multiple(held)], predicted))
    };
    // Each rank computes on one thread, because memory is counted by thread.
    let found = threads::run_nodes(2, per_node, |node, peers| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        pool.install(|| run(node, peers))
    });
    found.into_iter().map(|found| found.expect("sound steps")).collect()
}

/// The limits are for the largest memory and for the memory between steps, in multiples of the size of the gradients. A
/// rank stores the residuals of its shards. With buckets in flight, a rank also stores the messages between nodes for
/// all buckets, and the messages inside its node for two buckets. The ranks of node 0 also store the window of their
/// shards. The huge layer has 30 % of the elements.
#[test]
fn memory_of_two_levels_is_small_and_known() {
    for (setting, flies, [at_most, between]) in
        [(QSGD, true, [0.5, 0.2]), (TOPK, true, [1.0, 0.6]), (TOPK, false, [1.0, 1.0])]
    {
        let rows = model(2);
        let elements = rows.iter().sum::<usize>() * COLUMNS;
        let mut config = config(setting, &rows, Storage::F32);
        config.bucket_bytes = 1 << 20;
        let what = format!("{}, in flight: {flies}", setting(512));
        for (rank, ([most, held], predicted)) in most(&config, &rows, 2, flies).into_iter().enumerate() {
            let [total, window] =
                [predicted.total(), predicted.window].map(|bytes| bytes as f64 / (4 * elements) as f64);
            assert_eq!(window, if rank < 2 { 0.5 } else { 0.0 });
            assert!(most <= at_most + window, "{what}, rank {rank}: {most} times the gradients, {at_most} allowed");
            assert!(
                held <= between,
                "{what}, rank {rank}: {held} times the gradients between steps, {between} allowed"
            );
            // The prediction is compared on ranks without a window. On ranks with a window, the window is freed before
            // the step with the largest memory.
            assert!(
                window > 0.0 || (0.9..=1.1).contains(&(total / most)),
                "{what}, rank {rank}: {most} times the gradients, {total} predicted: {predicted:?}"
            );
        }
    }
}

/// One rank has no memory for a bucket's last message, because another bucket uses the spare memory. The bucket can
/// continue once there is memory.
#[test]
fn a_bucket_waits_for_memory() {
    let means = threads::run_nodes(2, 2, |mut node, mut peers| {
        let place = Topology::of(&node, &peers);
        let layers = ["a", "b"].map(|name| Tensor::new(name, &[64, 64], Dtype::F32).expect("a layer"));
        let mut training =
            TwoLevel::new(config(TOPK, &[8, 8], Storage::F32), layers.into(), place).expect("sound options");
        let mut groups = Groups { node: Unlimited(&mut node), peers: Unlimited(&mut peers) };
        training.begin_step(0.1).expect("the first step");
        while let Some(request) = training.control().expect("equal options") {
            groups.perform(request).expect("a network");
        }
        let mut values = [[place.rank() as f32; 64 * 64]; 2];
        let [mut gradients, mut others] = values.each_mut().map(|values| [ValuesMut::F32(values)]);
        let mut bucket = training.open(&[0]).expect("memory");
        bucket.submit(&mut gradients).expect("a new bucket");
        groups.exchange(&mut bucket, &mut gradients).expect("sound gradients");
        let mut other = training.open(&[1]).expect("memory");
        other.submit(&mut others).expect("a new bucket");
        if place.rank() == 1 {
            REFUSED.set(4096);
            let refused = bucket.next(&mut gradients).map(drop);
            REFUSED.set(usize::MAX);
            assert!(matches!(refused, Err(Error::Core(CoreError::OutOfMemory { .. }))), "{refused:?}");
        }
        while let Some(request) = bucket.next(&mut gradients).expect("memory") {
            groups.perform(request).expect("a network");
        }
        training.close(bucket).expect("a bucket of this step");
        groups.exchange(&mut other, &mut others).expect("sound gradients");
        while let Some(request) = other.next(&mut others).expect("memory") {
            groups.perform(request).expect("a network");
        }
        training.close(other).expect("a bucket of this step");
        training.finish_step().expect("a complete step");
        values
    });
    assert!(means.iter().all(|values| *values == [[1.5; 64 * 64]; 2]));
}
