//! Measured seconds of exchanges that the caller [does](super::External::note_exchanged) itself, for instance in a device's memory.
//! The host only enqueues work for a device, so the controller's clock cannot time this work. The caller measures on the device
//! instead: the seconds of each step, of a probe of the link that carries the buckets, and of trials of methods. The controller
//! uses these numbers like its own measurements, and decides in the same way.
//!
//! The caller hands in all numbers between two steps. The caller may read a step's clocks when the next step begins, so the caller
//! need not wait for the device. Results of trials must be handed in before the decision's task is taken, because the task may run
//! on any thread and does not use the device.

use super::compute::{DENSE, work};
use super::costs::Costs;
use super::meter::Sample;
use super::probe::seconds_per_byte;
use super::{External, Policy};
use crate::compress::{Candidates, Compressor, Cost, Setting};
use crate::exchange::share_of_others;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use core::mem::take;

impl External<'_> {
    /// Sets whether the caller measures the seconds from the next step on. All ranks must call this method between the same two
    /// steps. This method has an effect only under [`Objective::MeasuredSeconds`](super::Objective).
    ///
    /// ```
    /// # use lgreco_train::controller::{Config, Controller, Objective, Tensor};
    /// # use lgreco_train::{exchange::{Collective, threads}, gradient::{Dtype, Values}, search::{Method, Search}};
    /// let compressed = threads::run(2, |mut worker| {
    ///     let mut config = Config::new(Search::new(Method::Qsgd));
    ///     (config.schedule.warmup, config.schedule.window) = (4, 1);
    ///     config.objective = Objective::MeasuredSeconds;
    ///     config.clock = Some(|| 0.0);
    ///     let layers = vec![Tensor::new("fc1", &[64, 64], Dtype::F32)?];
    ///     let mut controller = Controller::new(config, layers, worker.rank(), worker.world_size())?;
    ///     controller.external().meter_elsewhere(true)?;
    ///     for _ in 0..5 {
    ///         controller.begin_step(0.1)?;
    ///         while let Some(request) = controller.control()? {
    ///             request.perform(&mut worker)?;
    ///         }
    ///         let probed = controller.external().probe_bytes().is_some();
    ///         controller.external().observe(0, Values::F32(&[0.5; 4096]))?;
    ///         controller.external().note_exchanged(&[0])?; // 2 ms, of which .1 compressing, on a link of 10 MB/s
    ///         controller.finish_step()?;
    ///         controller.external().record_exchange(16384.0, 2e-3, 1e-4)?;
    ///         if probed {
    ///             controller.external().record_probe([1e-4, 1e-4 + 4096.0 * 1e-7])?;
    ///             for settings in controller.external().trials(&[0])? {
    ///                 controller.external().record_trial(&[0], &settings, 2e-4)?;
    ///             }
    ///         }
    ///     }
    ///     Ok::<_, lgreco_train::Error>(controller.decision().and_then(|decision| decision.timing).unwrap().compressed)
    /// });
    /// assert_eq!(compressed, [Ok(1), Ok(1)]);
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way.
    pub fn meter_elsewhere(&mut self, elsewhere: bool) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        if let Some(meter) = &mut self.0.scheduler.meter {
            meter.elsewhere = elsewhere;
        }
        Ok(())
    }

    /// Number of bytes that a probe of the link gathers from all ranks together, the same on all ranks. `None` in a step in which
    /// the caller need not probe the link and time methods. Call this method after the step's control requests.
    pub fn probe_bytes(&self) -> Option<usize> {
        let elsewhere = self.0.scheduler.meter.as_ref().is_some_and(|meter| meter.elsewhere);
        (elsewhere && self.0.control.expect_open().is_ok() && self.0.scheduler.is_last_before_task())
            .then(|| 8 * self.0.scheduler.probe_words())
    }

    /// Records, between two steps, the cost of the last step, from its first bucket to its last mean. `wire_bytes` counts the bytes
    /// that the caller has put on the wire on this rank. `computing` has the seconds of compression and decompression. The
    /// controller adds the bytes and computing seconds of the buckets that it has lent. A step that was not exchanged is ignored.
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way; [`CoreError::Parameter`] for numbers that are negative or not finite.
    pub fn record_exchange(&mut self, wire_bytes: f64, seconds: f64, computing: f64) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        [wire_bytes, seconds, computing].into_iter().try_for_each(check)?;
        let taken = &mut self.0.totals;
        if let (Some(meter), true) = (&mut self.0.scheduler.meter, take(&mut taken.unmetered)) {
            let sample = Sample { bytes: taken.wire + wire_bytes, seconds, computing: taken.computing + computing };
            meter.record_elsewhere(sample, taken.in_window);
        }
        Ok(())
    }

    /// Records a probe, between two steps. `least` has the shortest seconds of gathering 8 bytes per rank, and of gathering the
    /// [bytes of a probe](External::probe_bytes).
    ///
    /// # Errors
    /// As [`record_exchange`](External::record_exchange).
    pub fn record_probe(&mut self, least: [f64; 2]) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        least.into_iter().try_for_each(check)?;
        let bytes = 8 * (self.0.scheduler.probe_words() - self.0.world as usize);
        if let Some(meter) = &mut self.0.scheduler.meter {
            meter.link.note_probe(seconds_per_byte(least, bytes, share_of_others(self.0.world)));
        }
        Ok(())
    }

    /// The trials that a decision on these layers needs: for each cost family of methods, a setting per layer. `layers` are layers
    /// that the caller exchanges together. A layer is uncompressed in a trial if the search offers it no method of the family.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], and the errors of the search.
    ///
    /// # Complexity
    /// O(candidates). Allocates.
    pub fn trials(&self, layers: &[usize]) -> Result<Vec<Vec<Setting>>, Error> {
        let mut kinds: [_; Cost::FAMILIES] = core::array::from_fn(|_| vec![]);
        for (place, &layer) in layers.iter().enumerate() {
            let (search, tensor) = (&self.0.scheduler.config.search, self.0.expect_layer(layer)?);
            if !search.takes(&tensor.dims)
                || !matches!(self.0.scheduler.config.policy, Policy::LGreco { .. } | Policy::KMeans { .. })
            {
                continue;
            }
            let offer = search.offer([(&*tensor.name, &*tensor.dims, tensor.dtype)]).map_err(|named| named.error)?;
            for row in offer.rows() {
                let (each, middle) = match row.candidates {
                    Candidates::Each(settings) => (settings, None),
                    row => (&[][..], row.setting(row.len() / 2)),
                };
                for setting in each.iter().chain(&middle) {
                    let kind: &mut Vec<Setting> = &mut kinds[setting.traits().cost.family];
                    kind.resize(layers.len(), Setting::Dense);
                    kind[place] = *setting;
                }
            }
        }
        Ok(kinds.into_iter().filter(|settings| settings.iter().any(|&setting| setting != Setting::Dense)).collect())
    }

    /// Records, between two steps, the seconds of a trial. A trial compresses these layers under these settings once, and
    /// decompresses the payloads of all ranks. Uncompressed layers are ignored.
    ///
    /// # Errors
    /// The errors of [`record_exchange`](External::record_exchange) and of [`trials`](External::trials).
    pub fn record_trial(&mut self, layers: &[usize], settings: &[Setting], seconds: f64) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        check(seconds)?;
        let mut works = [0.0; Cost::FAMILIES];
        for (&layer, setting) in layers.iter().zip(settings) {
            let shape = self.0.expect_layer(layer)?.shape;
            let payloads = Costs::payloads(setting, self.0.scheduler.config.route, self.0.world);
            works[setting.traits().cost.family] += work(setting, shape, payloads);
        }
        let tried = (DENSE + 1..Cost::FAMILIES).find(|&family| works[family] > 0.0);
        if let (Some(meter), Some(family)) = (&mut self.0.scheduler.meter, tried) {
            meter.compute.try_out(family, works[family], seconds);
        }
        Ok(())
    }
}

fn check(value: f64) -> Result<(), Error> {
    let what = "measured seconds or bytes";
    Ok(CoreError::require(value.is_finite() && value >= 0.0, what, value, "a finite number >= 0")?)
}
