//! Two stages of a network and the cut between them.

use crate::batch::Batch;
use crate::convnet::{Early, Late};
use crate::digits::Digits;
use crate::optimiser::{Kind, Optimiser};
use crate::parameters::Parameters;
use candle_core::{D, Device, Tensor, Var};
use lgreco_pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
use lgreco_train::gradient::Values;

/// Any error.
pub type Failure = Box<dyn std::error::Error>;

/// Images per step; a divisor of the 360 validation images.
pub const BATCH: usize = 40;
/// Number of values per image at the cut: the features of [`Early::features`].
pub const FEATURES: usize = 32 * 4 * 4;

/// The training images.
#[derive(Clone, Copy, PartialEq)]
pub enum Images {
    /// Every step adds new noise, so no sample recurs.
    New,
    /// Each image always has the same noise.
    Recurring,
}

/// Both stages, which exchange only messages.
pub struct Pipeline {
    digits: Digits,
    above: Stage<Early>,
    below: Stage<Late>,
    up: Upstream,
    down: Downstream,
    workspace: Vec<u64>,
}

/// A network with its parameters and their optimiser.
struct Stage<N> {
    parameters: Parameters,
    network: N,
    optimiser: Optimiser,
}

impl<N> Stage<N> {
    fn new(seed: u64, network: impl Fn(&mut Parameters) -> candle_core::Result<N>) -> Result<Self, Failure> {
        let mut parameters = Parameters::new(seed);
        let network = network(&mut parameters)?;
        let lens = parameters.all().iter().map(|parameter| parameter.dims.iter().product());
        let optimiser = Optimiser::new(Kind::Sgd, lens);
        Ok(Stage { parameters, network, optimiser })
    }

    fn step(&mut self, gradients: &[Vec<f32>], rate: f32) -> Result<(), Failure> {
        let mut values = self.parameters.values()?;
        self.optimiser.step(&mut values, gradients, rate);
        Ok(self.parameters.set(&values)?)
    }
}

impl Pipeline {
    /// Makes both stages before the first step.
    pub fn new(setting: CutSetting, seed: u64) -> Result<Self, Failure> {
        let (up, down) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
        Ok(Pipeline {
            digits: Digits::load(),
            above: Stage::new(seed, Early::new)?,
            below: Stage::new(seed + 1, Late::new)?,
            workspace: vec![0; up.workspace_len().max(down.workspace_len())],
            up,
            down,
        })
    }

    /// Makes one step on images drawn by `seed` and `step`. The noise in an image is new at every step, or always the
    /// same, as `images` requires.
    pub fn train(&mut self, images: Images, seed: u64, step: u32, rate: f32) -> Result<(), Failure> {
        let (Batch { inputs, targets }, samples) = match images {
            Images::New => (self.digits.training(BATCH, seed, step, 0, 1)?, vec![]),
            Images::Recurring => self.digits.recurring(BATCH, seed, step)?,
        };
        let workspace = &mut self.workspace;

        // Above the cut: compute features and send them.
        let features = self.above.network.features(&inputs)?;
        let values: Vec<f32> = features.flatten_all()?.to_vec1()?;
        let mut message = vec![0; self.up.message_len()];
        let sent = self.up.send(Values::F32(&values), &samples, workspace, &mut message)?;

        // Below the cut: run the rest of the network on the received features, and send back the gradient with respect
        // to these features.
        let mut received = vec![0.0; values.len()];
        let ticket = self.down.receive(&message[..sent.len], workspace, &mut received)?;
        let received = Var::from_vec(received, features.dims(), &Device::Cpu)?;
        let batch = Batch { inputs: received.as_tensor().clone(), targets };
        let gradients = batch.loss(&self.below.network.scores(&batch.inputs)?)?.backward()?;
        let derivative = gradients.get(&received).ok_or("the loss does not depend on the features")?;
        let derivative: Vec<f32> = derivative.flatten_all()?.to_vec1()?;
        let mut message = vec![0; self.down.message_len()];
        let len = self.down.send(ticket, Values::F32(&derivative), workspace, &mut message)?;
        self.below.step(&self.below.parameters.gradients(&gradients)?, rate)?;

        // Above the cut: run the backward pass from the received gradient.
        let mut derivative = vec![0.0; derivative.len()];
        self.up.receive(&message[..len], workspace, &mut derivative)?;
        let derivative = Tensor::from_vec(derivative, features.dims(), &Device::Cpu)?;
        let gradients = (features * derivative)?.sum_all()?.backward()?;
        self.above.step(&self.above.parameters.gradients(&gradients)?, rate)?;

        self.up.commit_step()?;
        self.down.commit_step()?;
        Ok(())
    }

    /// Loss and accuracy on the validation images.
    pub fn validate(&mut self, evaluation: Evaluation) -> Result<(f32, f32), Failure> {
        let (mut loss, mut right, mut count) = (0.0, 0.0, 0.0);
        for Batch { inputs, targets } in self.digits.validation(2)? {
            for first in (0..inputs.dim(0)?).step_by(BATCH) {
                let features = self.above.network.features(&inputs.narrow(0, first, BATCH)?)?;
                let values: Vec<f32> = features.flatten_all()?.to_vec1()?;
                let mut message = vec![0; self.up.message_len()];
                let len = self.up.evaluate(evaluation, Values::F32(&values), &mut self.workspace, &mut message)?;
                let mut received = vec![0.0; values.len()];
                self.down.evaluate(&message[..len], &mut received)?;

                let inputs = Tensor::from_vec(received, features.dims(), &Device::Cpu)?;
                let batch = Batch { inputs, targets: targets.narrow(0, first, BATCH)? };
                let scores = self.below.network.scores(&batch.inputs)?;
                loss += batch.loss(&scores)?.to_scalar::<f32>()?;
                right += scores
                    .argmax(D::Minus1)?
                    .eq(&batch.targets)?
                    .to_dtype(scores.dtype())?
                    .mean_all()?
                    .to_scalar::<f32>()?;
                count += 1.0;
            }
        }
        Ok((loss / count, right / count))
    }

    /// Bytes sent forward and backward in training.
    pub fn bytes(&self) -> [u64; 2] {
        [self.up.counters(Direction::Forward).bytes, self.down.counters(Direction::Backward).bytes]
    }
}
