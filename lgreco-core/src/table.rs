//! Error tables: for each layer a list of options with size and error. Lists may differ in length.

use crate::{Error, Result};

/// One option of one layer.
///
/// ```
/// use lgreco_core::table::Choice;
/// let four_bits = Choice { size: 8 * 22, error: 0.31 };
/// assert!(four_bits.size < 32 * 16); // 16 elements as f32
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Choice {
    /// Bits that one worker puts on the wire for this layer with this option.
    pub size: u64,
    /// Error of the option in the caller's metric: finite and not negative.
    pub error: f64,
}

/// A validated error table that borrows its options. The layers are in the model's order. Each layer has at least one
/// option.
///
/// Invariants: every error is finite and not negative. The sum over layers of each layer's largest size is below 2^64.
///
/// ```
/// use lgreco_core::table::{Choice, Table};
/// let choices = [
///     Choice { size: 800, error: 0.1 }, Choice { size: 400, error: 0.5 }, // layer 0
///     Choice { size: 100, error: 0.2 },                                  // layer 1
/// ];
/// let table = Table::new(&choices, &[2, 3])?;
/// assert_eq!(table.layers(), 2);
/// assert_eq!(table.layer(1), &choices[2..]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    choices: &'a [Choice],
    ends: &'a [usize],
}

impl<'a> Table<'a> {
    /// Validates a table. Layer `l` owns `choices[ends[l - 1]..ends[l]]`; the first layer starts at 0.
    ///
    /// ```
    /// use lgreco_core::{Error, table::{Choice, Table}};
    /// let choices = [(8, 0.5), (4, 1.5), (9, -0.5)].map(|(size, error)| Choice { size, error });
    /// assert!(Table::new(&choices[..2], &[2]).is_ok());
    /// assert_eq!(Table::new(&choices, &[2, 3]).unwrap_err(), Error::OptionError { layer: 1, option: 0, value: -0.5 });
    /// ```
    ///
    /// # Errors
    /// [`Error::EmptyTable`] without layers. [`Error::EmptyLayer`], [`Error::OptionError`] and [`Error::SizeOverflow`] name
    /// the faulty layer and option. [`Error::Length`] when `ends` does not increase up to `choices.len()`.
    ///
    /// # Complexity
    /// O(choices).
    pub fn new(choices: &'a [Choice], ends: &'a [usize]) -> Result<Self> {
        let (mut start, mut total) = (0, 0u64);
        for (layer, &end) in ends.iter().enumerate() {
            if end == start {
                return Err(Error::EmptyLayer { layer });
            }
            let options = choices.get(start..end).ok_or(Error::Length {
                what: "end of a layer's options",
                expected: choices.len(),
                found: end,
            })?;
            let (mut largest, mut at) = (0, 0);
            for (option, choice) in options.iter().enumerate() {
                if !(choice.error.is_finite() && choice.error >= 0.0) {
                    return Err(Error::OptionError { layer, option, value: choice.error });
                }
                if choice.size > largest {
                    (largest, at) = (choice.size, option);
                }
            }
            total = total.checked_add(largest).ok_or(Error::SizeOverflow { layer, option: at, size: largest })?;
            start = end;
        }
        if ends.is_empty() {
            return Err(Error::EmptyTable);
        }
        crate::error::expect_len("choices", start, choices.len())?;
        Ok(Table { choices, ends })
    }

    /// Builds the table again from slices that [`new`](Table::new) accepted before. Planners may panic on slices that
    /// were never validated. O(1).
    pub fn of_checked(choices: &'a [Choice], ends: &'a [usize]) -> Self {
        debug_assert!(Table::new(choices, ends).is_ok());
        Table { choices, ends }
    }

    /// Number of layers, at least 1.
    pub fn layers(&self) -> usize {
        self.ends.len()
    }

    /// The options of layer `layer`, at least one.
    ///
    /// # Panics
    /// When `layer >= self.layers()`.
    pub fn layer(&self, layer: usize) -> &'a [Choice] {
        let start = if layer == 0 { 0 } else { self.ends[layer - 1] };
        &self.choices[start..self.ends[layer]]
    }

    /// All options, layer after layer.
    pub fn choices(&self) -> &'a [Choice] {
        self.choices
    }

    /// The layers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [Choice]> + Clone + use<'a> {
        let table = *self;
        (0..table.layers()).map(move |layer| table.layer(layer))
    }

    /// The chosen option of each layer. `options` holds their indices.
    ///
    /// ```
    /// # use lgreco_core::table::{Choice, Table};
    /// let choices = [(8, 0.5), (4, 1.5), (9, 0.25)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2, 3])?;
    /// assert_eq!(table.chosen(&[1, 0])?.map(|choice| choice.size).sum::<u64>(), 13);
    /// assert!(table.chosen(&[1, 1]).is_err());
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] when there is not one choice per layer. [`Error::NoSuchOption`] for the first layer that lacks the
    /// chosen option.
    pub fn chosen<'b>(
        &self,
        options: &'b [u32],
    ) -> Result<impl ExactSizeIterator<Item = Choice> + Clone + use<'a, 'b>> {
        crate::error::expect_len("choices, one per layer", self.layers(), options.len())?;
        for (layer, (choices, &option)) in self.iter().zip(options).enumerate() {
            if option as usize >= choices.len() {
                return Err(Error::NoSuchOption { layer, option: option as usize, options: choices.len() });
            }
        }
        Ok(self.iter().zip(options).map(|(choices, &option)| choices[option as usize]))
    }
}
