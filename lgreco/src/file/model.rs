//! Finds the settings of a model's layers in a plan file.

use super::{Error, PlanFile, PlanLayer};
use crate::compress::{Compressor, Setting};
use crate::gradient::{Dtype, Shape};
use crate::table::NamedError;
use alloc::{borrow::ToOwned, collections::BTreeMap, vec::Vec};

impl PlanFile {
    /// The settings of a model's layers. The caller gives name, shape and element type of each layer in the model's order.
    ///
    /// The plan may list layers in another order. A layer that the plan lacks is sent uncompressed, because plans leave out
    /// layers that are not worth compressing.
    ///
    /// ```
    /// use lgreco::{file::PlanFile, gradient::{Dtype, Shape}};
    /// let json = r#"{"version":1, "solver":"exact", "size":4192, "lower_bound":4192, "proven":true, "error":0.5,
    ///     "budget":0.5, "uncompressed_size":32000, "layers":[
    ///     {"name":"fc1.weight", "option":0, "label":"qsgd 4", "setting":"qsgd 4", "size":4192, "error":0.5}]}"#;
    /// let plan = PlanFile::parse(json.as_bytes())?;
    /// let model = [("fc1.bias", Shape::new(20, 1)?, Dtype::F32), ("fc1.weight", Shape::new(20, 50)?, Dtype::F32)];
    /// let settings = plan.settings(model)?;
    /// assert_eq!([settings[0].to_string(), settings[1].to_string()], ["dense", "qsgd 4"]);
    ///
    /// let error = plan.settings(model.into_iter().take(1)).unwrap_err();
    /// assert_eq!(error.to_string(), "layer `fc1.weight`: unknown layer, expected one of the model's");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSetting`] for the first layer of the plan without a setting. Otherwise [`Error::Table`] with the layer's
    /// name and one of these:
    /// * [`DuplicateName`](crate::Error::DuplicateName) when the plan or the model has the layer twice;
    /// * [`UnknownName`](crate::Error::UnknownName) when the model lacks the layer;
    /// * [`Parameter`](crate::Error::Parameter) when the setting does not fit the shape, such as a `topk` of more elements
    ///   than the layer has.
    ///
    /// # Complexity
    /// O(layers · log(layers)).
    pub fn settings<'a>(
        &self,
        model: impl IntoIterator<Item = (&'a str, Shape, Dtype)>,
    ) -> Result<Vec<Setting>, Error> {
        let named = |name: &str| {
            let layer = Some(name.to_owned());
            move |error| Error::Table(NamedError { error, layer, option: None })
        };
        let twice = |name, first, layer| named(name)(crate::Error::DuplicateName { layer, first });
        let mut planned: BTreeMap<&str, (usize, &PlanLayer)> = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some((first, _)) = planned.insert(&layer.name, (index, layer)) {
                return Err(twice(&layer.name, first, index));
            }
        }
        let (mut settings, mut places) = (Vec::new(), BTreeMap::new());
        for (name, shape, dtype) in model {
            if let Some(first) = places.insert(name, settings.len()) {
                return Err(twice(name, first, settings.len()));
            }
            let setting = planned.remove(name).map_or(Ok(Setting::Dense), |(_, layer)| layer.trainable())?;
            setting.payload_len(shape, dtype).map_err(named(name))?;
            settings.push(setting);
        }
        match planned.values().min_by_key(|(index, _)| index) {
            None => Ok(settings),
            Some((_, layer)) => {
                let unknown = crate::Error::UnknownName { what: "layer", expected: "one of the model's" };
                Err(named(&layer.name)(unknown))
            }
        }
    }
}

impl PlanLayer {
    fn trainable(&self) -> Result<Setting, Error> {
        let Some(setting) = self.setting else {
            return Err(Error::NoSetting { layer: self.name.clone(), label: self.label.clone() });
        };
        Ok(setting)
    }
}
