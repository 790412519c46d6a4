//! Compares exchange memories with the host's. Every [`Space`](lgreco_train::exchange::Space) that must give the core's
//! results must pass these checks.

use super::STALE;
use super::members::{Member, damaged_members, factor_lens, is_near};
use super::near::{near, near_contents, near_sent, widened};
use super::network::{Content, Damage, Forger, Network, Place, Sent};
use super::shards::{parts, shards};
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::compress::wire::HEADER_LEN;
use lgreco_train::compress::{Compressor, Setting, powersgd::PowerSgd, topk::TopK};
use lgreco_train::exchange::threads;
use lgreco_train::exchange::{
    Agreement, Collective, Flight, Host, Layer, Moment, Rest, Route, Slip, Spec, workspace_len,
};
use lgreco_train::gradient::{Bf16, Dtype, Element, F16, Shape, ValuesMut};
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};

/// The interface of one rank's memory of one bucket. Residuals stay in the memory from step to step.
pub trait Bucket {
    /// The route of payloads: [`Route::AllGather`], or [`Route::Sharded`] with [`shards`](super::shards()).
    const ROUTE: Route = Route::AllGather;
    /// Whether the memory can work without residuals.
    const FORGETS: bool = true;
    /// Whether the memory sends the same bytes as the host, including the greeting, the first message of a new bucket.
    /// In buckets with layers under PowerSGD, fingerprints and the status records after sums may differ, because they
    /// include the factors. A memory that sends other bytes than the host sends no greeting, and its status records
    /// have other fingerprints. [`message`](Bucket::message) reads its messages.
    const SENDS_AS_HOST: bool = true;
    /// Whether all ranks fail if one rank's new residual leaves the range of f32. On the host, only that rank fails.
    const TELLS_OF_REST: bool = false;
    /// Returns whether the header of a gathered message reports success, and the payloads in the message, in the order
    /// of the layers and without gaps.
    fn message(&self, message: &[u8]) -> (bool, Vec<u8>) {
        (Slip::read(message).code == 0, message[Slip::LEN..].to_vec())
    }

    /// Like [`message`](Bucket::message), for a message to a single rank.
    fn message_for(&self, _owner: u32, message: &[u8]) -> (bool, Vec<u8>) {
        self.message(message)
    }

    /// Converts the position of a payload byte in the host's message to the position in this memory's message. With
    /// shards, both are the messages for rank 0.
    fn place_of(&self, byte: usize) -> usize {
        byte
    }

    /// The text of the error that this memory reports if the host's exchange ends with `error`. If this memory cannot
    /// distinguish two errors, their texts must be the same.
    fn tells(error: &Error) -> String {
        format!("{error:?}")
    }

    /// Whether the memory averages payloads whose sum leaves the range of f32, as the host does.
    const AVERAGES_LARGE_PAYLOADS: bool = false;

    /// Runs one exchange. Copies the gradients, little-endian bytes of each layer's type, into the memory. Performs the
    /// requested collectives in host memory, by `collective`. Afterwards, the means have replaced the gradients, and
    /// the residuals are updated. A failure changes no residual.
    ///
    /// # Errors
    /// Returns the errors of the exchange and of the memory's status, for which the call waits.
    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error>;

    /// The means, as bytes like the gradients. With shards, only the means of this rank's shards.
    fn means(&mut self) -> Vec<Vec<u8>>;

    /// The residuals, by layer; `None` without feedback.
    fn residuals(&mut self) -> Option<Vec<Vec<f32>>>;
}

/// The host's memory, which is the oracle.
pub struct OnHost {
    members: Vec<Member>,
    means: Vec<Vec<u8>>,
    /// Residuals by layer; `None` without feedback.
    pub residuals: Option<Vec<Vec<f32>>>,
    /// PowerSGD's factors of the last step.
    factors: Vec<Vec<f32>>,
}

/// Values of a type, in memory that is aligned for them.
enum Typed {
    F32(Vec<f32>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
}

impl Typed {
    fn new(dtype: Dtype, bytes: &[u8]) -> Typed {
        let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes));
        match dtype {
            Dtype::F32 => Typed::F32(bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()),
            Dtype::F16 => Typed::F16(halves().map(F16).collect()),
            Dtype::Bf16 => Typed::Bf16(halves().map(Bf16).collect()),
        }
    }

    fn values_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Typed::F32(v) => ValuesMut::F32(v),
            Typed::F16(v) => ValuesMut::F16(v),
            Typed::Bf16(v) => ValuesMut::Bf16(v),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Typed::F32(v) => bytemuck::cast_slice(v).to_vec(),
            Typed::F16(v) => bytemuck::cast_slice(v).to_vec(),
            Typed::Bf16(v) => bytemuck::cast_slice(v).to_vec(),
        }
    }
}

impl Bucket for OnHost {
    const AVERAGES_LARGE_PAYLOADS: bool = true;

    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error> {
        let mut offered: Option<Vec<Vec<f32>>> = self.residuals.as_ref().map(|residuals| {
            let sum = |((residual, member), bytes): ((&Vec<f32>, &Member), &Vec<u8>)| {
                residual.iter().zip(widened(member.dtype, bytes)).map(|(r, x)| r + x).collect()
            };
            residuals.iter().zip(&self.members).zip(gradients).map(sum).collect()
        });
        let mut values: Vec<Typed> =
            self.members.iter().zip(gradients).map(|(member, bytes)| Typed::new(member.dtype, bytes)).collect();
        let shards = shards(&self.members, moment.route, moment.world_size);
        let specs = self.members.iter().zip(&shards).map(|(m, shards)| Spec {
            index: m.index,
            shards,
            ..Spec::from((m.setting, m.shape, m.dtype))
        });
        let mut left = offered.iter_mut().flatten();
        let mut layers = Vec::new();
        for ((member, values), (shards, factor)) in
            self.members.iter().zip(&mut values).zip(shards.iter().zip(&mut self.factors))
        {
            let &Member { index, setting, shape, .. } = member;
            let rest = left.next().map_or(Rest::Dropped, |values| Rest::Instead(values));
            let layer = Layer::new(index, setting, shape, values.values_mut(), rest);
            layers.push(Layer { factor, ..layer.with_shards(shards) });
        }
        let mut workspace = vec![STALE; workspace_len(specs.clone(), moment.route, moment.world_size)?];
        let mut host = Host { layers: &mut layers, workspace: &mut workspace, scratch: None };
        let mut flight = Flight::begin(&mut host, moment, agreement, None)?;
        while let Some(request) = flight.next(&mut host)? {
            request.perform(collective)?;
        }
        if let Some(late) = layers.iter().find_map(|layer| layer.late) {
            return Err(late);
        }
        drop(layers);
        let mean = |(spec, values): (Spec<'_>, &Typed)| {
            let (all, bytes) = (0..spec.shape.elements(), spec.dtype.bytes());
            let wanted = if moment.route == Route::Sharded { spec.shard(moment.rank) } else { all };
            values.bytes()[wanted.start * bytes..wanted.end * bytes].to_vec()
        };
        self.means = specs.zip(&values).map(mean).collect();
        if offered.is_some() {
            self.residuals = offered;
        }
        Ok(())
    }

    fn means(&mut self) -> Vec<Vec<u8>> {
        self.means.clone()
    }

    fn residuals(&mut self) -> Option<Vec<Vec<f32>>> {
        self.residuals.clone()
    }
}

/// One step of all ranks.
#[derive(Clone, Debug)]
struct Step {
    /// Gradients by rank and layer.
    gradients: Vec<Vec<Vec<u8>>>,
    agreement: Agreement,
    /// Seeds of the run, one per rank.
    seeds: Vec<u64>,
    /// Damage by the network to gathered bytes, on every rank.
    damage: Option<Damage>,
}

/// A rank's state after a step.
#[derive(Clone, Debug)]
struct Outcome {
    result: Result<(), Error>,
    sent: Vec<Sent>,
    contents: Vec<Content>,
    means: Option<Vec<Vec<u8>>>,
    residuals: Option<Vec<Vec<u32>>>,
}

fn run<B: Bucket>(
    open: impl Fn() -> B + Sync,
    steps: &[Step],
    (route, reduce_dtype): (Route, Dtype),
) -> Vec<Vec<Outcome>> {
    let world_size = steps[0].gradients.len() as u32;
    threads::run(world_size, |worker| {
        let rank = worker.rank();
        let (mut bucket, mut network) = (open(), Network::new(worker));
        let step = |(number, step): (u32, &Step)| {
            let seed = step.seeds[rank as usize];
            let moment = Moment { rank, world_size, route, reduce_dtype, seed, step: number, terms: 0 };
            network.damage = step.damage.map(|damage| Damage { at: bucket.place_of(damage.at), ..damage });
            let result = bucket.exchange(&step.gradients[rank as usize], moment, step.agreement, &mut network);
            let bits = |values: Vec<f32>| values.iter().map(|x| x.to_bits()).collect();
            let residuals = bucket.residuals().map(|residuals| residuals.into_iter().map(bits).collect());
            // After a failed exchange the means are undefined.
            let means = result.is_ok().then(|| bucket.means());
            let (sent, place) = (network.sent(), Place { rank: rank as usize, world: world_size as usize });
            let message = |owner: Option<u32>, message: &[u8]| match owner {
                Some(owner) => bucket.message_for(owner, message),
                None => bucket.message(message),
            };
            let contents = sent.iter().map(|sent| sent.content(place, message)).collect();
            Outcome { result, sent, contents, means, residuals }
        };
        (0..).zip(steps).map(step).collect()
    })
}

/// Gradients of a step, by rank and layer: of different magnitudes, including subnormal numbers.
fn gradients(members: &[Member], world: u32, step: u32, scale: f32) -> Vec<Vec<Vec<u8>>> {
    let layer = |rank: u32, member: &Member| {
        let stream = Stream { seed: 11, step, layer: member.index, rank };
        let value = |i: usize| {
            let x = (stream.word(i as u64) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let magnitude = [1.0, 1e-3, 30.0, 1e-38][i / 300 % 4];
            // Ties, and zeros of both signs.
            if i % 50 == 7 {
                x.signum() * 0.0
            } else if i % 50 == 9 {
                0.25 * scale
            } else {
                x * magnitude * scale
            }
        };
        let values: Vec<f32> = (0..member.shape.elements()).map(value).collect();
        match member.dtype {
            Dtype::F32 => bytemuck::cast_slice(&values).to_vec(),
            Dtype::F16 => bytemuck::cast_slice(&values.iter().map(|&x| F16::from_f32(x)).collect::<Vec<_>>()).to_vec(),
            Dtype::Bf16 => {
                bytemuck::cast_slice(&values.iter().map(|&x| Bf16::from_f32(x)).collect::<Vec<_>>()).to_vec()
            }
        }
    };
    (0..world).map(|rank| members.iter().map(|member| layer(rank, member)).collect()).collect()
}

/// The agreement state with which a bucket's first step begins.
fn first_agreement<B: Bucket>() -> Agreement {
    if B::SENDS_AS_HOST { Agreement::Needed } else { Agreement::Reached }
}

fn sound(members: &[Member], world: u32, number: u32, agreement: Agreement) -> Step {
    let gradients = gradients(members, world, number, 1.0);
    Step { gradients, agreement, seeds: vec![5; world as usize], damage: None }
}

/// Compares the memory's outcomes with the host's. Unless a rank has failed, also compares the bytes that the two
/// memories have sent.
fn compare<B: Bucket>(members: &[Member], found: &[Vec<Outcome>], expected: &[Vec<Outcome>], reduce_dtype: Dtype) {
    for (rank, (of_space, expected)) in found.iter().zip(expected).enumerate() {
        for (step, (found, expected)) in of_space.iter().zip(expected).enumerate() {
            let what = format!("rank {rank}, step {step}");
            let [result, as_expected] = [found, expected].map(|outcome| outcome.result.as_ref().map_err(B::tells));
            assert_eq!(result, as_expected, "{what}");
            if expected.result.is_err() && step > 0 {
                assert!(found.residuals == of_space[step - 1].residuals, "{what}: residuals have changed");
            }
            for (layer, member) in members.iter().enumerate() {
                compare_layer(member, layer, found, expected, reduce_dtype, &what);
            }
            if expected.result.is_ok() {
                assert_eq!(found.sent.len(), expected.sent.len(), "{what}: collectives");
                let has_factors = members.iter().any(|member| factor_lens(member) != [0; 2]);
                if !B::SENDS_AS_HOST {
                    match has_factors {
                        true => near_contents(members, &found.contents, &expected.contents, reduce_dtype, &what),
                        false => assert!(found.contents == expected.contents, "{what}: other content"),
                    }
                    continue;
                }
                if has_factors {
                    near_sent(members, &found.sent, &expected.sent, reduce_dtype, &what);
                    continue;
                }
                for (found, expected) in found.sent.iter().zip(&expected.sent) {
                    let (call, at) = expected.differs(found);
                    assert_eq!(at, None, "{what}: other bytes, {call}");
                }
            }
        }
    }
}

/// Compares a layer's mean and residual.
fn compare_layer(member: &Member, layer: usize, found: &Outcome, expected: &Outcome, reduce_dtype: Dtype, what: &str) {
    let [mean, as_expected] = [found, expected].map(|outcome| outcome.means.as_ref().map(|means| &means[layer]));
    let residual = |outcome: &Outcome| outcome.residuals.as_ref().map(|residuals| residuals[layer].clone());
    let [left, to_be_left] = [found, expected].map(residual);
    if !is_near(member) {
        assert!(left == to_be_left, "{what}, layer {layer}: another residual");
        assert!(mean == as_expected, "{what}, layer {layer}: another mean");
        return;
    }
    let (Some(mean), Some(as_expected)) = (mean, as_expected) else { return };
    let [mean, as_expected] = [mean, as_expected].map(|bytes| widened(member.dtype, bytes));
    near(&mean, &as_expected, &[], [member.dtype, reduce_dtype], &format!("{what}, mean of layer {layer}"));
    assert_eq!(left.is_some(), to_be_left.is_some(), "{what}, layer {layer}: residuals");
    let floats = |bits: Option<Vec<u32>>| bits.into_iter().flatten().map(f32::from_bits).collect::<Vec<f32>>();
    let [left, to_be_left] = [left, to_be_left].map(floats);
    // If the residual has only rounding errors, its own norm is too small for a comparison.
    near(&left, &to_be_left, &as_expected, [Dtype::F32, reduce_dtype], &format!("{what}, residual of layer {layer}"));
}

/// A bucket of these layers on the host, with or without residuals.
pub fn on_host(members: &[Member], feedback: bool, _: u32) -> OnHost {
    let zeros = |member: &Member| vec![0.0; member.shape.elements()];
    let residuals = feedback.then(|| members.iter().map(zeros).collect());
    let factors = members.iter().map(|member| vec![0.0; factor_lens(member)[1]]).collect();
    OnHost { members: members.to_vec(), means: vec![], residuals, factors }
}

/// Asserts that means, residuals and messages of several steps equal the host's bit for bit. Runs two and three ranks,
/// with and without residuals. Sums are f32 and, if `halves`, also bf16. Layers under PowerSGD must agree within 1e-4
/// of their norm, or within 2^-8 if they have 16 bits. `open` makes a rank's bucket for a number of ranks, with zero
/// residuals or without residuals.
///
/// # Panics
/// Panics if a check fails.
pub fn check_space<B: Bucket>(members: &[Member], halves: bool, open: impl Fn(&[Member], bool, u32) -> B + Sync) {
    for (world, feedback, reduce_dtype) in [(2, true, Dtype::F32), (3, false, Dtype::F32), (3, true, Dtype::Bf16)] {
        if reduce_dtype == Dtype::Bf16 && !halves {
            continue;
        }
        let feedback = feedback || !B::FORGETS;
        let agreement = |number| if number == 0 { first_agreement::<B>() } else { Agreement::Reached };
        let steps: Vec<Step> = (0..3).map(|number| sound(members, world, number, agreement(number))).collect();
        let expected = run(|| on_host(members, feedback, world), &steps, (B::ROUTE, reduce_dtype));
        assert!(expected.iter().flatten().all(|outcome| outcome.result == Ok(())));
        let found = run(|| open(members, feedback, world), &steps, (B::ROUTE, reduce_dtype));
        compare::<B>(members, &found, &expected, reduce_dtype);
    }
}

/// Asserts that failures have the same results as on the host, on all ranks, and change no residual, so that the next
/// step succeeds. The failures are values that are not finite, values too large for the type they are sent in, sums
/// beyond f32, and ranks that disagree. The layers are [`members`](super::members()). Their types and bucket sizes may
/// differ, and layers under PowerSGD may be missing.
///
/// # Panics
/// Panics if a check fails.
pub fn check_space_failures<B: Bucket>(members: &[Member], open: impl Fn(&[Member], bool, u32) -> B + Sync) {
    let sums = (B::ROUTE, Dtype::F32);
    let spoil = |layer: usize, element: usize, value: f32| {
        let mut step = sound(members, 2, 1, Agreement::Reached);
        assert_eq!(members[layer].dtype, Dtype::F32);
        step.gradients[1][layer][4 * element..][..4].copy_from_slice(&value.to_ne_bytes());
        step
    };
    let disagreeing = |agreement| Step { seeds: vec![5, 6], ..sound(members, 2, 1, agreement) };
    let large = [
        Setting::Dense,
        Setting::TopK(TopK { keep: 60, values: Dtype::F32 }),
        Setting::Qsgd(Qsgd::default()),
        Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 }),
    ];
    let large = large.map(|setting| {
        let shape = Shape::new(60, 1).expect("a small shape");
        [Member { index: 2, setting, shape, dtype: Dtype::F32 }]
    });
    let overflowing = |members: &[Member], scale| {
        let gradients = gradients(members, 2, 1, scale);
        Step { gradients, ..sound(members, 2, 1, Agreement::Reached) }
    };
    // With one bit, random rounding may choose the farther end of the grid. Then the residuals of the largest numbers
    // exceed f32.
    let mut late = spoil(9, 0, f32::MAX);
    for element in 1..60 {
        late.gradients[1][9][4 * element..][..4].copy_from_slice(&1e38f32.to_ne_bytes());
    }
    if B::TELLS_OF_REST {
        let steps =
            |second| [sound(members, 2, 0, first_agreement::<B>()), second, sound(members, 2, 2, Agreement::Reached)];
        let mut expected = run(|| on_host(members, true, 2), &steps(spoil(9, 0, f32::NAN)), sums);
        expected[1][1].result = Err(Error::Core(CoreError::Overflow { what: "" }));
        let found = run(|| open(members, true, 2), &steps(late.clone()), sums);
        compare::<B>(members, &found, &expected, Dtype::F32);
    }
    let mut codes = Vec::new();
    let mut check = |members: &[Member], failing: Step| {
        let steps = [sound(members, 2, 0, first_agreement::<B>()), failing, sound(members, 2, 2, Agreement::Reached)];
        for feedback in [true, false].into_iter().filter(|feedback| *feedback || B::FORGETS) {
            let expected = run(|| on_host(members, feedback, 2), &steps, sums);
            assert!(expected.iter().all(|rank| rank[2].result.is_ok()));
            codes.extend(expected.iter().filter_map(|rank| rank[1].result.err()).map(|error| error.code()));
            let found = run(|| open(members, feedback, 2), &steps, sums);
            compare::<B>(members, &found, &expected, Dtype::F32);
        }
    };
    let (dense, topk) = (1, 7);
    for (layer, element, value) in [(0, 4099, f32::NAN), (dense, 2, f32::INFINITY), (topk, 3000, f32::NEG_INFINITY)] {
        check(members, spoil(layer, element, value));
    }
    // The value 65520 is too large for f16.
    check(members, spoil(7, 1111, 65520.0));
    for agreement in [first_agreement::<B>(), Agreement::Reached] {
        check(members, disagreeing(agreement));
    }
    let factors = members.iter().position(is_near);
    // The host averages payloads whose sum exceeds f32. Another memory may refuse such payloads.
    let averages = |one: &Member| one.setting == Setting::Dense || is_near(one) || B::AVERAGES_LARGE_PAYLOADS;
    let mut refused = false;
    for one in large.iter().filter(|[one]| factors.is_some() || !is_near(one)) {
        let step = overflowing(one, 3.3e38);
        if averages(&one[0]) {
            check(one, step);
            continue;
        }
        let steps = [sound(one, 2, 0, first_agreement::<B>()), step, sound(one, 2, 2, Agreement::Reached)];
        refused = true;
        for of_rank in run(|| open(one, true, 2), &steps, sums) {
            let overflow = Error::Core(CoreError::Overflow { what: "" });
            assert_eq!(of_rank[1].result.as_ref().map_err(B::tells), Err(B::tells(&overflow)));
            assert!(of_rank[1].residuals == of_rank[0].residuals && of_rank[2].result.is_ok());
        }
    }
    if let Some(layer) = factors {
        check(members, spoil(layer, members[layer].shape.elements() - 1, f32::NAN));
        // Each rank's factor is in range, but their sum is not.
        check(&large[3], overflowing(&large[3], 1.7e38));
        // A mean of another layer overflows after factors have been exchanged. The next step shows which factors were
        // kept.
        let mut beyond = sound(members, 2, 1, Agreement::Reached);
        for gradients in &mut beyond.gradients {
            gradients[dense][8..12].copy_from_slice(&3e38f32.to_ne_bytes());
        }
        check(members, beyond);
    }
    if !B::TELLS_OF_REST {
        check(members, late);
    }
    for code in [
        Error::NonFiniteGradient { layer: 0, index: 0, value: 0.0 }.code(),
        CoreError::ElementOverflow { index: 0, value: 0.0 }.code(),
        CoreError::Overflow { what: "" }.code(),
        Error::PeerPlan { rank: 0 }.code(),
    ] {
        let met = codes.contains(&code) || refused && code == CoreError::Overflow { what: "" }.code();
        assert!(met, "no case ends with {code}");
    }
}

/// Asserts that damaged messages have the same results as on the host: an error, or the same means. Changes every
/// `stride`-th byte of the payloads' bodies, from `first` on, and of their headers. With shards, changes the messages
/// for rank 0, so only rank 0 detects the damage. If a damaged header describes another payload of the same length, the
/// host decodes the payload; another memory may report the header.
///
/// # Panics
/// Panics if a check fails.
pub fn check_space_damage<B: Bucket>(
    members: &[Member],
    first: usize,
    stride: usize,
    open: impl Fn(&[Member], bool, u32) -> B + Sync,
) {
    let (mut headers, mut bodies, mut at) = (vec![], vec![], Slip::LEN);
    let sums = (B::ROUTE, Dtype::F32);
    // The layers or, with shards, the parts of layers that rank 0 receives.
    let of_first = parts(members, B::ROUTE, 2, 0);
    for member in &of_first {
        let len = member.setting.payload_len(member.shape, member.dtype).expect("a setting for the shape");
        headers.extend((at..at + HEADER_LEN).map(|byte| (byte, at)));
        bodies.extend((at + HEADER_LEN..at + len).map(|byte| (byte, at)));
        at += len;
    }
    // Each of `places` is the position of a byte, and the position at which the header of its payload begins.
    let steps = |places: &[(usize, usize)]| -> (Vec<Step>, Vec<usize>) {
        let places = places.iter().skip(first).step_by(stride);
        let places = places.flat_map(|&(at, header)| [0x01, 0x40, 0xff].map(|change| (at, change, header)));
        let damaged = (0..).zip(places).map(|(number, (at, change, header))| {
            let damage = Some(Damage { rank: 1, at, change });
            // The largest values are between 1 and 2, where one changed bit makes them infinite.
            let gradients = gradients(members, 2, number, 1.9);
            (Step { gradients, damage, ..sound(members, 2, number, Agreement::Reached) }, header)
        });
        let (mut steps, headers): (Vec<Step>, Vec<usize>) = damaged.unzip();
        steps.push(sound(members, 2, steps.len() as u32, Agreement::Reached));
        (steps, headers)
    };
    let host = |feedback| on_host(members, feedback, 2);
    let (of_bodies, _) = steps(&bodies);
    let expected = run(|| host(true), &of_bodies, sums);
    let failed = expected[0].iter().filter(|outcome| outcome.result.is_err()).count();
    assert!(failed > 0 && failed + 1 < of_bodies.len(), "{failed} of {} fail", of_bodies.len());
    compare::<B>(members, &run(|| open(members, true, 2), &of_bodies, sums), &expected, Dtype::F32);

    let (mut of_headers, begin) = steps(&headers);
    let feedback = !B::FORGETS;
    let mut found = run(|| open(members, feedback, 2), &of_headers, sums);
    let decoded = run(|| host(feedback), &of_headers, sums);
    // The memory under test may refuse a header that the host decodes. Then the message is damaged in a way that the
    // host refuses, too, so that both memories keep the same residuals.
    let mut refused = vec![];
    for ((number, step), at) in of_headers.iter_mut().enumerate().zip(begin) {
        let is_refused = |rank: &Vec<Outcome>| matches!(rank[number].result, Err(Error::PeerMessage { rank: 1, .. }));
        let hearing = if B::ROUTE == Route::Sharded { &found[..1] } else { &found[..] };
        if hearing.iter().all(is_refused) && decoded[0][number].result.is_ok() {
            step.damage = Some(Damage { rank: 1, at, change: 0xff });
            refused.push(number);
        }
    }
    let expected = run(|| host(feedback), &of_headers, sums);
    for (found, expected) in found.iter_mut().zip(&expected) {
        refused.iter().for_each(|&number| found[number].result = expected[number].result);
    }
    compare::<B>(members, &found, &expected, Dtype::F32);
}

/// Asserts that an arbitrary message has the same result as on the host. `bytes` are the bits in which the message
/// differs from a valid one. The memory may refuse a payload of another setting than the layer's. Returns whether the
/// message was decoded. The bucket has the layers of [`damaged_members`], a single rank and no residuals.
///
/// # Panics
/// Panics if a check fails.
pub fn check_message(bytes: &[u8], bucket: &mut impl Bucket) -> bool {
    let members = damaged_members();
    let gradients = gradients(&members, 1, 0, 1.9).swap_remove(0);
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let moment = Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 5, step: 0, terms: 0 };
    let mut host = on_host(&members, false, 1);
    let expected = host.exchange(&gradients, moment, Agreement::Reached, &mut Forger(bytes));
    let found = bucket.exchange(&gradients, moment, Agreement::Reached, &mut Forger(bytes));
    match (found, expected) {
        (Ok(()), Ok(())) => assert!(bucket.means() == host.means(), "other means"),
        (Err(Error::PeerMessage { .. }), Ok(())) => {}
        (found, expected) => assert_eq!(found, expected),
    }
    found.is_ok()
}
