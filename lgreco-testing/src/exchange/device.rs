//! A device for tests. The host cannot address the device's memory, and the device does nothing before the host waits
//! for it.

use lgreco_train::Error;
use lgreco_train::exchange::{Collective, Host, Layer, Op, Part, Program, Request, RequestOf, Rest, Slip, Space, Spec};
use lgreco_train::gradient::{Dtype, ValuesMut};

/// A part of the device's memory, by name; the name does not reveal its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(Part);

/// One rank's device. Operations and collectives are queued, and are executed in order when the host waits for them.
/// The device's kernels are the host's operations. So comparisons with the host test the calls that an exchange makes
/// to its device, but not arithmetic.
pub struct Device<'c, C> {
    /// Performs the collectives on the device's memory.
    collective: &'c mut C,
    stream: Vec<Enqueued>,
    /// Number of waits so far.
    pub waits: u32,
    specs: Vec<Spec<'c>>,
    memory: Memory,
    /// Lengths of the sent and of the received messages, on the host.
    lens: [Vec<u64>; 2],
}

enum Enqueued {
    Op(Op, Program),
    Collective(Part, Option<Vec<u64>>, Program),
}

/// Memory that the host cannot access.
struct Memory {
    values: Vec<Vec<f32>>,
    rest: Vec<Vec<f32>>,
    factors: Vec<Vec<f32>>,
    workspace: Vec<u64>,
    /// The first error.
    status: Option<Error>,
}

impl Memory {
    /// Calls `work` with a [`Host`] on this memory. The host's operations act as the device's kernels.
    fn with<T>(&mut self, specs: &[Spec<'_>], work: impl FnOnce(&mut Host<'_, '_>) -> T) -> Result<T, Error> {
        let Memory { values, rest, factors, workspace, .. } = self;
        let mut layers = Vec::new();
        for ((spec, values), (rest, factor)) in specs.iter().zip(values).zip(rest.iter_mut().zip(factors)) {
            let &Spec { index, setting, shape, shards, .. } = spec;
            let layer = Layer::new(index, setting, shape, ValuesMut::F32(values), Rest::Beside(rest));
            layers.push(Layer { factor, ..layer.with_shards(shards) });
        }
        Ok(work(&mut Host { layers: &mut layers, workspace, scratch: None }))
    }
}

impl<'c, C: Collective> Device<'c, C> {
    /// A device with these layers, with uploaded gradients and warm-start factors, and `words` words of workspace.
    pub fn new(
        collective: &'c mut C,
        specs: Vec<Spec<'c>>,
        gradients: &[Vec<f32>],
        factors: &[Vec<f32>],
        words: usize,
    ) -> Device<'c, C> {
        let rest = gradients.iter().map(|values| vec![0.0; values.len()]).collect();
        let (values, factors) = (gradients.to_vec(), factors.to_vec());
        let memory = Memory { values, rest, factors, workspace: vec![super::STALE; words], status: None };
        let world = collective.world_size() as usize;
        Device { collective, stream: vec![], waits: 0, specs, memory, lens: [vec![0; world], vec![0; world]] }
    }

    /// Enqueues a collective on the device's memory, with the lengths that ranks send.
    pub fn enqueue(&mut self, Handle(part): Handle, lens: Option<Vec<u64>>, program: &Program) {
        self.stream.push(Enqueued::Collective(part, lens, *program));
    }

    /// Waits until all enqueued work is done.
    fn wait(&mut self) -> Result<Option<Error>, Error> {
        self.waits += 1;
        for enqueued in core::mem::take(&mut self.stream) {
            let memory = &mut self.memory;
            match enqueued {
                Enqueued::Collective(part, lens, program) => {
                    let (specs, collective) = (&self.specs, &mut *self.collective);
                    memory.with(specs, |host| {
                        let request = host.request(part, &program)?;
                        if let Request::AllGatherEach { lens: there, .. }
                        | Request::AllToAll { send_lens: there, .. }
                        | Request::ReduceScatterSum { lens: there, .. }
                        | Request::ReduceScatterSumBf16 { lens: there, .. } = request
                        {
                            assert_eq!(lens.as_deref(), Some(there), "the host was told other lengths");
                        }
                        request.perform(collective).map_err(Error::from)
                    })??;
                }
                Enqueued::Op(op, program) => {
                    let status = memory.status;
                    memory.status = match op {
                        Op::PutSlip { part, slip } => {
                            let code = status.map_or(slip.code, |error| error.code().into());
                            let op = Op::PutSlip { part, slip: Slip { code, ..slip } };
                            memory.with(&self.specs, |host| host.run(op, &program))??;
                            status
                        }
                        Op::Judge { part, own } => {
                            let op = Op::Judge { part, own: status.or(own) };
                            memory.with(&self.specs, |host| host.run(op, &program))?.err()
                        }
                        _ if status.is_some() => status,
                        op => memory.with(&self.specs, |host| host.run(op, &program))?.err(),
                    };
                }
            }
        }
        Ok(self.memory.status)
    }

    /// Waits, and downloads means, compression errors and factors.
    ///
    /// # Errors
    /// Returns the first error on the device.
    #[expect(clippy::type_complexity, reason = "three lists, named where they are taken apart")]
    pub fn finish(&mut self) -> Result<(Vec<Vec<f32>>, Vec<Vec<f32>>, Vec<Vec<f32>>), Error> {
        match self.wait()? {
            Some(error) => Err(error),
            None => Ok((self.memory.values.clone(), self.memory.rest.clone(), self.memory.factors.clone())),
        }
    }
}

impl<C: Collective> Space for Device<'_, C> {
    type Values<'a>
        = Handle
    where
        Self: 'a;
    type Halves<'a>
        = Handle
    where
        Self: 'a;
    type Bytes<'a>
        = Handle
    where
        Self: 'a;

    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone {
        self.specs.iter().copied()
    }

    fn check(&self, _: &Program) -> Result<(), Error> {
        Ok(())
    }

    fn run(&mut self, op: Op, program: &Program) -> Result<(), Error> {
        self.stream.push(Enqueued::Op(op, *program));
        if !matches!(op, Op::Judge { part: Part::Greetings, .. }) {
            return Ok(());
        }
        let status = self.wait()?;
        // The workspace begins with the lengths of messages, which the kernel has read from the first message of every
        // rank.
        let Device { lens: [lens, _], memory, .. } = self;
        lens.iter_mut().zip(&memory.workspace).for_each(|(to, &len)| *to = len);
        status.map_or(Ok(()), Err)
    }

    fn request(&mut self, part: Part, program: &Program) -> Result<RequestOf<'_, Self>, Error> {
        let [lens, received] = &mut self.lens;
        if matches!(part, Part::Pieces | Part::Means | Part::Shards | Part::ShardPayloads) {
            let own = program.moment.rank as usize;
            for (owner, len) in lens.iter_mut().enumerate() {
                *len = program.part_len(part, self.specs.iter().copied(), owner as u32)? as u64;
            }
            if matches!(part, Part::Pieces | Part::ShardPayloads) {
                received.fill(lens[own]);
                (lens[own], received[own]) = (0, 0);
            }
        }
        let (buffer, half) = (Handle(part), program.moment.reduce_dtype == Dtype::Bf16);
        Ok(match part {
            Part::Greetings => Request::AllGather { buffer },
            Part::Dense { .. } => unreachable!("a device's program has no such parts"),
            Part::Positions => Request::Broadcast { root: program.moment.leader(), bytes: buffer },
            Part::Sums | Part::Factors if half => Request::AllReduceSumBf16 { values: buffer },
            Part::Sums | Part::Factors => Request::AllReduceSum { values: buffer },
            Part::Payloads if !program.layout.varies => Request::AllGather { buffer },
            Part::Payloads | Part::Means => Request::AllGatherEach { lens, buffer },
            Part::Shards if half => Request::ReduceScatterSumBf16 { lens, values: buffer },
            Part::Shards => Request::ReduceScatterSum { lens, values: buffer },
            Part::Pieces | Part::ShardPayloads => {
                Request::AllToAll { send: buffer, send_lens: lens, received: buffer, received_lens: received }
            }
        })
    }
}
