//! The result of a search: the error table, and the setting of each option.

use crate::Error;
use crate::compress::Setting;
use crate::rng::Stream;
use crate::table::NamedTable;
use alloc::vec::Vec;

/// The measured table of a model, with the settings of its options.
///
/// ```
/// use lgreco::{backend::Portable, gradient::Values};
/// use lgreco::search::{Layer, Method, Search};
/// let (weight, bias): (Vec<f32>, _) = ((0..4096).map(|i| (i as f32).sin()).collect(), [0.5; 64]);
/// let model =
///     [Layer::new("bias", &[64], Values::F32(&bias))?, Layer::new("weight", &[64, 64], Values::F32(&weight))?];
/// let measured = Search::new(Method::Qsgd).measure(&model, &mut Portable)?;
/// assert_eq!((measured.layers, measured.uncompressed), (vec![1], vec![0]));
/// assert_eq!(measured.table.label(0, measured.defaults[0] as usize), "qsgd 4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Measured {
    /// The error table. Labels of options look like parameters of the command line (`topk 1%`, `qsgd 4`, `dense`).
    pub table: NamedTable,
    /// The default option of each layer of the table.
    pub defaults: Vec<u32>,
    /// For each layer of the table, its index in the model.
    pub layers: Vec<usize>,
    /// Indices of the model's layers that stay uncompressed and are not in the table.
    pub uncompressed: Vec<usize>,
    pub(super) seed: u64,
}

impl Measured {
    /// The setting of an option.
    ///
    /// ```
    /// # use lgreco::{backend::Portable, compress::Setting, gradient::Values};
    /// # use lgreco::search::{Layer, Method, Search};
    /// # let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
    /// # let model = [Layer::new("weight", &[64, 64], Values::F32(&weight))?];
    /// let measured = Search::new(Method::TopK).measure(&model, &mut Portable)?;
    /// let default = measured.setting(0, measured.defaults[0] as usize)?;
    /// assert!(matches!(default, Setting::TopK(top) if top.keep == 41)); // 1 % of 4096
    /// assert!(measured.setting(0, 1000).is_err() && measured.setting(1, 0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchOption`] when the table lacks the layer or option, or was replaced by a table without settings.
    pub fn setting(&self, layer: usize, option: usize) -> Result<Setting, Error> {
        let table = self.table.view();
        let options = if layer < table.layers() { table.layer(layer).len() } else { 0 };
        let setting = if option < options { self.table.setting(layer, option) } else { None };
        setting.ok_or(Error::NoSuchOption { layer, option, options })
    }

    /// The random stream with which a layer of the table was measured.
    ///
    /// The stream has the search's seed, the layer's index in the model, and step and rank 0. An encoder with this seed
    /// and layer starts PowerSGD from the same matrix at any step and on any rank. So payloads of such an encoder have
    /// the errors in the table.
    ///
    /// ```
    /// # use lgreco::{backend::Portable, gradient::Values};
    /// # use lgreco::search::{Layer, Method, Search};
    /// # let (weight, bias): (Vec<f32>, _) = ((0..4096).map(|i| (i as f32).sin()).collect(), [0.5; 64]);
    /// # let model =
    /// #     [Layer::new("bias", &[64], Values::F32(&bias))?, Layer::new("weight", &[64, 64], Values::F32(&weight))?];
    /// let mut search = Search::new(Method::PowerSgd);
    /// search.seed = 7;
    /// let measured = search.measure(&model, &mut Portable)?;
    /// assert_eq!((measured.stream(0).seed, measured.stream(0).layer), (7, 1)); // `bias` is the model's layer 0
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the table has no such layer.
    pub fn stream(&self, layer: usize) -> Stream {
        stream(self.seed, self.layers[layer])
    }
}

/// The random stream of the layer with this index in the model.
pub(super) fn stream(seed: u64, index: usize) -> Stream {
    Stream { seed, layer: index as u32, ..Stream::default() }
}
