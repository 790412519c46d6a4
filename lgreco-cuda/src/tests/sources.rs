//! Checks every kernel's source without a device.

use super::simt::entries;
use crate::kernels::Module;
use crate::{eden, eden_rows, exchange, factors, magnitude, positions, powersgd, qsgd, selection, topk, tops, window};

/// Returns the fields of a struct in the source, with their offsets, and the size of the struct.
fn fields<'s>(source: &'s str, name: &str) -> (Vec<(&'s str, usize)>, usize) {
    let body = source.split(&format!("struct {name} {{")).nth(1).and_then(|text| text.split('}').next());
    let fields = body.expect("the struct").lines().filter_map(|line| line.split_once(';'));
    let mut size: usize = 0;
    let fields = fields.map(|(field, _)| {
        let (kind, name) = field.trim().split_once(' ').expect("a type and a name");
        let bytes = match kind {
            "u32" | "float" => 4,
            "u64" | "double" => 8,
            _ => panic!("{kind} {name}"),
        };
        assert!(size.is_multiple_of(bytes), "{name} is padded");
        size += bytes;
        (name, size - bytes)
    });
    (fields.collect(), size)
}

#[test]
fn parameters_are_laid_out_as_in_the_sources() {
    let of_module = |module| match module {
        Module::Magnitude => (magnitude::Params::FIELDS, size_of::<magnitude::Params>()),
        Module::Qsgd => (qsgd::Params::FIELDS, size_of::<qsgd::Params>()),
        Module::Exchange => (qsgd::Params::FIELDS, size_of::<qsgd::Params>()),
        Module::ExchangeSums => (exchange::SumsParams::FIELDS, size_of::<exchange::SumsParams>()),
        Module::Selection => (tops::Params::FIELDS, size_of::<tops::Params>()),
        Module::TopK => (topk::Params::FIELDS, size_of::<topk::Params>()),
        Module::Positions => (positions::Params::FIELDS, size_of::<positions::Params>()),
        Module::PowerSgd => (powersgd::Params::FIELDS, size_of::<powersgd::Params>()),
        Module::Window => (window::Params::FIELDS, size_of::<window::Params>()),
        Module::Eden => (eden::Params::FIELDS, size_of::<eden::Params>()),
        Module::ExchangeEden => (exchange::RotatedParams::FIELDS, size_of::<exchange::RotatedParams>()),
    };
    for module in Module::ALL {
        let source = module.source();
        assert!(!entries(&source).is_empty());
        let (names, size) = of_module(module);
        let (fields, bytes) = fields(&source, "Params");
        assert_eq!(fields.iter().map(|field| field.0).collect::<Vec<_>>(), names, "{module:?}");
        assert_eq!((size, bytes), (4 * names.len(), size), "{module:?}");
    }
    let source = Module::Exchange.source();
    assert_eq!(fields(&source, "Program"), (exchange::Program::FIELDS.to_vec(), size_of::<exchange::Program>()));
    assert_eq!(fields(&source, "Layer"), (exchange::Layer::FIELDS.to_vec(), size_of::<exchange::Layer>()));
    assert_eq!(size_of::<exchange::Program>() as u64, selection::PROGRAM);
    let source = Module::Selection.source();
    assert_eq!(fields(&source, "Top"), (tops::Top::FIELDS.to_vec(), size_of::<tops::Top>()));
    assert_eq!(fields(&source, "Cut").1, tops::CUT as usize);
    let source = Module::ExchangeSums.source();
    assert_eq!(fields(&source, "Dense"), (exchange::Dense::FIELDS.to_vec(), size_of::<exchange::Dense>()));
    assert_eq!(fields(&source, "Factors"), (factors::Factors::FIELDS.to_vec(), size_of::<factors::Factors>()));
    let source = Module::PowerSgd.source();
    assert_eq!(fields(&source, "Row"), (powersgd::Row::FIELDS.to_vec(), size_of::<powersgd::Row>()));
    let source = Module::Window.source();
    assert_eq!(fields(&source, "Observed"), (window::Observed::FIELDS.to_vec(), size_of::<window::Observed>()));
    assert_eq!(fields(&Module::TopK.source(), "Row"), (topk::Row::FIELDS.to_vec(), size_of::<topk::Row>()));
    let source = Module::Eden.source();
    assert_eq!(fields(&source, "Layer"), (eden_rows::Layer::FIELDS.to_vec(), size_of::<eden_rows::Layer>()));
    assert_eq!(fields(&Module::Qsgd.source(), "Layer"), (qsgd::Layer::FIELDS.to_vec(), size_of::<qsgd::Layer>()));
}
