//! Parameters for schemes that change during training, so that they send the same number of bytes as a uniform setting.

use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::controller::{Legacy, RampUp, Tensor};
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error};

/// The uniform setting whose bytes the schemes must match.
pub struct EqualBytes<'a> {
    /// The model's tensors.
    pub tensors: &'a [Tensor],
    /// The search whose default is the uniform setting.
    pub search: Search,
    /// The method of the search.
    pub method: Method,
    /// The parameter of the uniform setting.
    pub default: f64,
}

impl EqualBytes<'_> {
    /// The nearest parameter that the method supports.
    fn parameter(&self, level: f64) -> f64 {
        match self.method {
            Method::Qsgd => level.round().clamp(1.0, 8.0),
            Method::PowerSgd => level.round().max(1.0),
            _ => level.clamp(1e-4, 1.0),
        }
    }

    /// Bytes of all layers under uniform settings. `search` takes a layer's number of elements, and returns the search
    /// whose default is the layer's setting.
    fn bytes(&self, search: impl Fn(usize) -> Result<Search, CoreError>) -> Result<usize, Error> {
        let of = |tensor: &Tensor| -> Result<usize, Error> {
            let setting = search(tensor.shape().elements())?.uniform(tensor.dims(), tensor.dtype())?;
            Ok(setting.payload_len(tensor.shape(), tensor.dtype())?)
        };
        self.tensors.iter().map(of).sum()
    }

    /// Bytes of uncompressed gradients divided by those of the uniform setting.
    pub fn ratio(&self) -> Result<f64, Error> {
        let dense = self.tensors.iter().map(|tensor| Setting::Dense.payload_len(tensor.shape(), tensor.dtype()));
        let dense = dense.sum::<Result<usize, CoreError>>()?;
        Ok(dense as f64 / self.bytes(|_| Ok(self.search.clone()))? as f64)
    }

    /// Approximately the largest parameter with which `bytes` stays within the bytes of `times` steps under the uniform
    /// setting. The parameter is at most 8 times the default.
    fn largest(&self, times: usize, bytes: impl Fn(f64) -> Result<usize, Error>) -> Result<f64, Error> {
        let most = times * self.bytes(|_| Ok(self.search.clone()))?;
        let (mut low, mut high) = (0.0, 8.0 * self.default);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            *if bytes(middle)? <= most { &mut low } else { &mut high } = middle;
        }
        Ok(self.parameter(low))
    }

    /// LEGACY's parameters. Layers of fewer than 10,000 elements get twice the uniform parameter, as in the authors'
    /// code. The first half of training gets twice the parameter of the second half. The remaining bytes go to large
    /// layers.
    pub fn legacy(&self, steps: u32) -> Result<Legacy, Error> {
        const BOUND: usize = 10_000;
        let phases = |large: f64| {
            let level = |level| self.parameter(level);
            [4.0 / 3.0, 2.0 / 3.0].map(|phase| [level(phase * 2.0 * self.default), level(phase * large)])
        };
        let large = self.largest(2, |large| {
            let search = |level| self.search.clone().with_default(level);
            let of =
                |[small, large]: [f64; 2]| self.bytes(|elements| search(if elements < BOUND { small } else { large }));
            phases(large).into_iter().map(of).sum()
        })?;
        let levels = phases(large).map(|levels| levels.to_vec()).to_vec();
        Ok(Legacy { sizes: vec![BOUND as u64], levels, steps: steps.into() })
    }

    /// Returns a ramp-up over all `steps`, and its last parameter, which is half of the uniform one.
    pub fn ramp(&self, steps: u64, period: u64) -> Result<(RampUp, f64), Error> {
        let last = self.parameter(self.default / 2.0);
        let search = self.search.clone().with_default(last)?;
        let decisions: Vec<u64> = (0..steps).step_by(period as usize).collect();
        let first = self.largest(steps as usize, |first| {
            let first = self.parameter(first.max(last));
            let of = |&since: &u64| -> Result<usize, Error> {
                let bytes = self.bytes(|_| search.ramped(first, since as f64 / steps as f64))?;
                Ok(bytes * period.min(steps - since) as usize)
            };
            decisions.iter().map(of).sum()
        })?;
        Ok((RampUp { first: first.max(last), steps }, last))
    }
}
