//! Tests of the number of bytes through a node's link.

use super::*;
use lgreco_testing::exchange::Through;
use lgreco_train::compress::Compressor;
use lgreco_train::exchange::{Request, Round, Slip};
use lgreco_train::gradient::Shape;

/// Bytes of the message in which a rank agrees with its peers on a blocking step.
const AGREEMENT: usize = 32;

/// A node sends each shard's payload once to each other node, with a status record. The earlier messages of the ranks'
/// agreement are not counted.
#[test]
fn each_shards_payload_goes_to_each_other_node_once() {
    let tensors = || vec![Tensor::new("fc1", &[64, 48], Dtype::F32).unwrap()];
    let setting: Setting = "eden 3".parse().unwrap();
    for size in [(2, 2), (2, 4), (4, 2), (3, 3)] {
        let sent = on_nodes(size, |place, node, peers| {
            let mut config = config(Method::Eden, Policy::Fixed(vec![setting]));
            config.schedule.warmup = 2;
            let mut training = TwoLevel::new(config, tensors(), place).unwrap();
            let mut sent = 0;
            for step in 0..5 {
                let mut gradient = noise(0, place.rank(), step, 64 * 48);
                let mut gradients = [ValuesMut::F32(&mut gradient)];
                match step {
                    // Two uncompressed steps, and a decision.
                    0..=2 => drop(training.step(node, peers, &mut gradients, 1.0).unwrap()),
                    _ => {
                        let others = place.nodes as usize - 1;
                        sent = 0;
                        let mut counting = Through::new(peers, |peers, request| match request {
                            Request::AllGather { buffer } => {
                                sent += buffer.len() / (others + 1) * others;
                                peers.all_gather(buffer)
                            }
                            _ => Err(CollectiveError { code: 1 }),
                        });
                        let report = training.step(node, &mut counting, &mut gradients, 1.0).unwrap();
                        sent -= AGREEMENT * others;
                        assert_eq!(sent, (report.bytes_out as usize + Slip::LEN) * others);
                    }
                }
            }
            sent
        });
        let through_link: usize = sent[..size.1 as usize].iter().sum();
        let payload = |rows: usize| setting.payload_len(Shape::new(rows, 48).unwrap(), Dtype::F32).unwrap();
        let rows = |local: usize| 64 / size.1 as usize + usize::from(local < 64 % size.1 as usize);
        let of_shards: usize = (0..size.1 as usize).map(|local| payload(rows(local)) + Slip::LEN).sum();
        assert_eq!(through_link, of_shards * (size.0 as usize - 1));
        // If every rank sent whole payloads to all ranks on other nodes, a node would send about `per_node` squared
        // times as many bytes.
        let others = (size.1 * (size.0 - 1)) as usize;
        let flat = size.1 as usize * others * (payload(64) + Slip::LEN);
        let times = flat as f64 / through_link as f64;
        let expected = f64::from(size.1 * size.1);
        assert!(
            times > 0.8 * expected && times < 1.01 * expected,
            "{size:?}: {times} times fewer, expected {expected}"
        );
    }
}

/// As bf16, gradients take half the bytes inside a node. In addition, each rank's part has at most 31 bytes: its status
/// record, a byte per layer and padding.
#[test]
fn gradients_take_half_the_bytes_inside_a_node_as_bf16() {
    for size in [(2, 2), (2, 3)] {
        let [whole, halves] = SENT.map(|sent| {
            on_nodes(size, |place, node, peers| {
                let mut config = config(Method::Eden, Policy::Uniform);
                config.search.reduce_dtype = sent;
                let mut training =
                    TwoLevel::new(config, vec![Tensor::new("fc1", &[66, 48], Dtype::F32).unwrap()], place);
                let training = training.as_mut().unwrap();
                agree_on_nodes(training, node, peers, 1.0).unwrap();
                let bucket = training.open(&[0]).unwrap();
                bucket.rounds().unwrap()[1]
            })
        });
        let others = size.1 as usize - 1;
        for (whole, halves) in whole.into_iter().zip(halves) {
            let (Group::Node, Round::ReduceScatterSum { values, own }) = whole else { panic!("{whole:?}") };
            let (Group::Node, Round::AllToAll { send, received }) = halves else { panic!("{halves:?}") };
            // Each rank's part of the reduce-scatter has the values of the shard, a count, and one status value per
            // rank.
            let shard = own - 1 - size.1 as usize;
            assert!(send >= 2 * (values - own - others * (1 + size.1 as usize)), "{send} bytes beside {values} f32");
            assert!(send <= 2 * (values - own) + 31 * others, "{send} bytes beside {values} f32");
            assert!(
                (2 * shard * others..=(2 * shard + 31) * others).contains(&received),
                "{received}, of {shard} values"
            );
        }
    }
}
