//! Every kernel's source, without a device.

use super::simt::entries;
use crate::kernels::Module;
use crate::{feedback, magnitude, positions, powersgd, qsgd, sums, topk};

/// The fields of the source's `Params`, all of which take four bytes.
fn fields(source: &str) -> Vec<&str> {
    let body = source.split("struct Params {").nth(1).and_then(|text| text.split('}').next()).expect("a struct Params");
    let fields = body.lines().filter_map(|line| line.split(';').next().filter(|_| line.contains(';')));
    fields.map(|field| field.split_whitespace().last().expect("a name")).collect()
}

#[test]
fn parameters_are_laid_out_as_in_the_sources() {
    let of_module = |module| match module {
        Module::Magnitude => (magnitude::Params::FIELDS, size_of::<magnitude::Params>()),
        Module::Sums => (sums::Params::FIELDS, size_of::<sums::Params>()),
        Module::Qsgd => (qsgd::Params::FIELDS, size_of::<qsgd::Params>()),
        Module::Feedback => (feedback::Params::FIELDS, size_of::<feedback::Params>()),
        Module::TopK => (topk::Params::FIELDS, size_of::<topk::Params>()),
        Module::Positions => (positions::Params::FIELDS, size_of::<positions::Params>()),
        Module::PowerSgd => (powersgd::Params::FIELDS, size_of::<powersgd::Params>()),
    };
    for module in Module::ALL {
        let source = module.source();
        assert!(!entries(&source).is_empty());
        let (names, size) = of_module(module);
        assert_eq!(fields(&source), names, "{module:?}");
        assert_eq!(size, 4 * names.len(), "{module:?}");
    }
}
