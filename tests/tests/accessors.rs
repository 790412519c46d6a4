//! Compares getters, lengths and constants with values worked out by hand. These functions are too simple for examples
//! in the docs.

use lgreco::compress::powersgd::{self, PowerSgd};
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::compress::topk::{self, Coding, TopK};
use lgreco::compress::wire::{HEADER_LEN, Header, MAGIC, Method, Payload, VERSION};
use lgreco::compress::{Candidates, Compressor, dense::Dense};
use lgreco::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values};
use lgreco::plan::{Limit, Plan, Proof, Solver, Summary, baseline, dp, exact};
use lgreco::search::{self, Layer, Metric, Search};
use lgreco::table::{Choice, NamedTable, Table};
use lgreco::{Error, Word, backend::Backend, backend::Job, backend::Portable, plan::budget::Budget, rng::Stream};
use lgreco_pipeline::{Codec, Counters, CutSetting, LinkMemory, Scope, Tile};
use lgreco_train::feedback::{Memory, Residual, SavedState, Storage, contraction_workspace_len};
use lgreco_train::{CoreError, compress::Setting, gradient::ValuesMut};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn shapes_values_and_types() -> Outcome {
    let shape = Shape::from_dims(&[64, 3, 3, 3])?;
    assert_eq!((shape.rows(), shape.cols(), shape.elements()), (64, 27, 1728));
    assert_eq!(Shape::new(1 << 16, 1 << 16), Err(Error::TooManyElements { rows: 1 << 16, cols: 1 << 16 }));
    assert_eq!(
        (Values::F32(&[1.0, 2.0]).len(), Values::F32(&[]).is_empty(), Values::F16(&[]).dtype()),
        (2, true, Dtype::F16)
    );
    let gradient = Gradient::new(Values::F32(&[1.0; 6]), Shape::new(2, 3)?)?;
    assert_eq!(
        (gradient.values().len(), gradient.values().dtype(), gradient.shape()),
        (6, Dtype::F32, Shape::new(2, 3)?)
    );
    assert!(Gradient::new(Values::F32(&[1.0; 5]), Shape::new(2, 3)?).is_err());
    assert!(matches!(ValuesMut::F32(&mut [1.0, 2.0]).values(), Values::F32([1.0, 2.0])));
    assert_eq!((Bf16(0xc049).to_f32(), Bf16::from_f32(-std::f32::consts::PI)), (-3.140625, Bf16(0xc049)));
    let mut bytes = [0; 3];
    Bf16(0x3f80).write_le(&mut bytes);
    assert_eq!((bytes, Bf16::read_le(&bytes)), ([0x80, 0x3f, 0], Bf16(0x3f80)));
    assert_eq!([Dtype::F32, Dtype::F16, Dtype::Bf16].map(Dtype::bytes), [4, 2, 2]);
    assert!(Dtype::from_code(2)? == Dtype::Bf16 && Dtype::from_code(3).is_err());
    Ok(())
}

#[test]
fn payload_headers_and_lengths() -> Outcome {
    let (square, long) = (Shape::new(10, 10)?, Shape::new(3, 100)?);
    let of = |header: Header| (header.variant, header.parameter);
    assert_eq!(of(PowerSgd { rank: 4, iterations: 1 }.header(long)?), (0, 3));
    assert_eq!(of(Qsgd { bits: 8, scale: Scale::MinMax, ..Qsgd::default() }.header(square)?), (7 | 1 << 3, 512));
    assert_eq!(of(TopK { keep: 3, values: Dtype::Bf16 }.header(square)?), (2 | 2 << 2, 3)); // bf16, Elias–Fano
    let layout = |keep, elements| TopK { keep, values: Dtype::F32 }.layout(elements);
    let coding = |keep| layout(keep, 64).map(|layout| layout.coding);
    assert_eq!([coding(2)?, coding(32)?, coding(64)?], [Coding::EliasFano, Coding::Bitmap, Coding::All]);
    assert!(coding(65).is_err());
    let bytes = |keep| layout(keep, 1000).map(|layout| layout.bytes());
    assert_eq!([bytes(1)?, bytes(10)?, bytes(500)?, bytes(1000)?], [2, 12, 125, 0]);

    assert_eq!(Dense.payload_len(Shape::new(3, 1)?, Dtype::F32)?, HEADER_LEN + 3 * 4);
    let qsgd = Qsgd { bits: 4, bucket: 512, ..Qsgd::default() };
    // The payload has a header, one scale per bucket and half a byte per element.
    assert_eq!(qsgd.payload_len(Shape::new(1024, 1024)?, Dtype::F32)?, 16 + 2048 * 4 + 524_288);
    assert!(PowerSgd { rank: 4, iterations: 1 }.has_fixed_len());
    let mut payload = [0; 16];
    Header { method: Method::Qsgd, variant: 3, parameter: 512, shape: Shape::new(7, 5)? }.write(&mut payload)?;
    assert_eq!(payload, [b'L', 1, 1, 3, 0, 2, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0]);
    let bytes = |version| [MAGIC, version, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0x00, 0x3c];
    let bytes = [bytes(VERSION), bytes(VERSION + 1)];
    let parsed = Payload::parse(&bytes[0])?;
    assert!(parsed.body_of_len(2)? == [0x00, 0x3c] && parsed.body_of_len(4).is_err());
    let newer = Error::PayloadHeader { what: "version", expected: 1, found: 2 };
    assert_eq!(Payload::parse(&bytes[1]).err(), Some(newer));
    assert!(Payload::parse(b"GIF89a..........").is_err());
    Ok(())
}

#[test]
fn workspaces_of_compressors() -> Outcome {
    let (small, flat, large) = (Shape::new(10, 10)?, Shape::new(256, 64)?, Shape::new(4096, 4096)?);
    assert_eq!(Qsgd::default().encode_workspace_len(small, Dtype::F32), 0);
    assert_eq!(TopK { keep: 5, values: Dtype::F32 }.encode_workspace_len(small, Dtype::F32), 50);
    // Ranks are reduced to the smaller side of the matrix, so larger ranks need no more workspace.
    assert_eq!(powersgd::steps_workspace_len(flat, 64), powersgd::steps_workspace_len(flat, 1000));
    let words = |rank| powersgd::measure_workspace_len(flat, Dtype::F32, rank);
    assert_eq!(words(64), words(1000));
    let ranks = Candidates::PowerSgd { iterations: 5, ranks: &[2, 8, 4] };
    assert_eq!((ranks.len(), ranks.is_empty(), ranks.measure_workspace_len(flat, Dtype::F32)), (3, false, words(8)));
    assert!(Candidates::PowerSgd { iterations: 5, ranks: &[] }.is_empty());
    assert!(ranks.check(flat, Dtype::F32).is_ok());
    let refused = Candidates::TopK { values: Dtype::F32, keeps: &[1, 101] }.check(small, Dtype::F32);
    assert!(matches!(refused, Err(Error::Parameter { .. })));
    // The workspace has half a word per element, and a little more.
    assert!(topk::measure_workspace_len(large, 100) < large.elements() / 2 + 25_000);
    let sidco: Setting = "sidco 0.01".parse()?;
    assert!(sidco.measure_workspace_len(Shape::new(1000, 1000)?, Dtype::F32) < 525_000);
    let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), Shape::new(2, 1)?)?;
    let job = |candidates| Job { gradient, candidates, stream: Stream::default() };
    let qsgd = job(Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] });
    let topk = job(Candidates::TopK { values: Dtype::F32, keeps: &[1] });
    assert_eq!(Portable.workspace_len(&[qsgd]), 0);
    assert_eq!(Portable.workspace_len(&[qsgd, topk]), Portable.workspace_len(&[topk])); // reused by each job
    Ok(())
}

#[test]
fn errors_tables_and_plans() -> Outcome {
    assert_eq!(Error::Infeasible { budget: 1.0, smallest: 1.5, size: 8 }.code(), 26);
    let option = Error::OptionError { layer: 3, option: 1, value: f64::NAN };
    assert_eq!((option.layer(), option.option()), (Some(3), Some(1)));
    assert_eq!((Error::EmptyLayer { layer: 3 }.layer(), Error::Budget { value: -1.0 }.layer()), (Some(3), None));
    assert_eq!(Word::new(&"é".repeat(12)).to_string(), "é".repeat(11) + "…");

    let choices = [(8, 0.5), (4, 1.5), (9, 0.25)].map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 3])?;
    assert_eq!((table.layers(), table.layer(0), table.choices()), (2, &choices[..2], &choices[..]));
    assert_eq!(table.iter().map(|layer| layer[0].size).sum::<u64>(), 17);
    let plan = Plan::from_options(&table, Budget::Absolute(2.0), "uniform", vec![1, 0])?;
    assert_eq!((plan.options(), plan.solver()), (&[1, 0][..], "uniform"));
    assert_eq!((plan.summary().error, plan.summary().limit()), (1.75, Limit::Error(2.0)));
    let summary = Summary { size: 1250, error: 0.9, proof: Proof::Size { lower_bound: 1000, budget: 1.0 } };
    assert_eq!((summary.gap(), summary.proven(), Summary { size: 1000, ..summary }.proven()), (0.25, false, true));
    let of_error = |lower_bound| Summary { proof: Proof::Error { lower_bound, size_limit: 1250 }, ..summary };
    assert_eq!((of_error(0.45).gap(), of_error(0.45).proven(), of_error(0.0).gap()), (1.0, false, f64::INFINITY));
    assert!(of_error(0.9).proven() && of_error(0.9 - 1e-13).proven() && !of_error(0.9 - 1e-12).proven());
    assert_eq!((of_error(0.9).gap(), of_error(0.9).limit()), (0.0, Limit::Size(1250)));
    assert_eq!(Error::SizeInfeasible { limit: 1, smallest: 2, error: 0.5 }.code(), 30);
    assert_eq!(Budget::from(Limit::Size(9)).reference(), None);
    assert_eq!((Solver::default().name(), Solver::Dp { levels: 100 }.name()), ("exact", "dp"));

    let choices = [Choice { size: 8, error: 0.1 }; 40];
    let table = Table::new(&choices, &[10, 20, 30, 40])?;
    // The workspace has two rows of f64, and one byte per layer and cell.
    assert!((200_000..220_000).contains(&(8 * dp::workspace_len(&table, dp::LEVELS))));
    let words = |limits| exact::workspace_len(&table, limits);
    assert!(words(exact::Limits { states: 0 }) < words(exact::Limits::default()));
    assert_eq!(baseline::kmeans_workspace_len(&table, 3), 5 * 4 + 3 * 3 + 20);
    assert_eq!(baseline::global_topk_workspace_len(&Table::new(&choices, &[20, 40])?), 100);

    let option = |label: &str, size| (label.to_string(), Choice { size, error: 0.5 });
    let mut builder = NamedTable::builder("perplexity");
    builder.layer("fc1", u64::MAX, Some(1), [option("qsgd 4", 4192), option("dense", 32128)]);
    let mut table = builder.clone().build()?;
    assert_eq!((table.metric(), table.layers(), table.name(0), table.elements(0)), ("perplexity", 1, "fc1", u64::MAX));
    assert_eq!((table.labels(0), table.label(0, 1)), (&["qsgd 4".to_string(), "dense".to_string()][..], "dense"));
    assert_eq!((table.default_option(0), table.defaults()), (Some(1), Some(vec![1])));
    assert_eq!(table.view().choices()[1], Choice { size: 32128, error: 0.5 });
    assert_eq!((table.uncompressed_size(0), table.setting(0, 0)), (None, None));
    table.set_uncompressed_size(0, 16000);
    table.set_setting(0, 0, "qsgd 4 min-max".parse()?);
    assert_eq!((table.uncompressed_size(0), table.setting(0, 0)), (Some(16000), "qsgd 4 min-max".parse().ok()));
    let table = builder.layer("fc2", 1, None, [option("dense", 32)]).clone().build()?;
    assert_eq!(table.defaults(), None);
    Ok(())
}

#[test]
fn what_is_offered() -> Outcome {
    let layer = Layer::new("conv1.weight", &[2, 2, 1], Values::F32(&[0.5; 4]))?;
    assert_eq!((layer.name(), layer.dims(), layer.gradient().shape().elements()), ("conv1.weight", &[2, 2, 1][..], 4));
    let qsgd = Search::new(search::Method::Qsgd);
    assert_eq!([&[64, 64][..], &[4096], &[31, 33]].map(|dims| qsgd.takes(dims)), [true, false, false]);
    let ranks = Search::new(search::Method::PowerSgd); // 2 to 8
    assert_eq!([2.0, 8.0, 9.0, 2.5].map(|rank| ranks.offers(rank)), [true, true, false, false]);
    assert_eq!(search::Method::COMPARED.map(search::Method::name), ["qsgd", "eden", "topk", "powersgd", "hybrid"]);
    assert!(search::Method::ALL.iter().all(|method| method.name().parse() == Ok(*method)));
    assert_eq!(search::Method::TopK.label(0.003).to_string(), "topk 0.3%");
    assert_eq!((Metric::L2.name(), Metric::L2.error(9.0), Metric::SquaredL2.error(9.0)), ("l2", 3.0, 9.0));
    Ok(())
}

#[test]
fn errors_of_training_and_memories() -> Outcome {
    type Error = lgreco_train::Error;
    let collective = Error::Collective { code: -1 };
    assert_eq!((collective.code(), collective.layer(), collective.option()), (80, None, None));
    assert_eq!(Error::LayerMismatch { layer: 3, what: "rows", expected: 2, found: 1 }.layer(), Some(3));
    let option = Error::from(CoreError::OptionError { layer: 3, option: 1, value: f64::NAN });
    assert_eq!((option.layer(), option.option()), (Some(3), Some(1)));

    assert_eq!(
        (Residual::default(), Residual::LOCO.gain, Residual::LOCO.storage),
        (Residual::CLASSIC, 0.2, Storage::Int8)
    );
    assert_eq!([Storage::F32, Storage::Bf16, Storage::Int8].map(|storage| storage.bytes(1000)), [4000, 2000, 1002]);
    let largest = [f32::MAX, 255.0 * 2f32.powi(120), 127.0 * 2f32.powi(121)]; // the second is the limit of bfloat16
    assert_eq!([Storage::F32, Storage::Bf16, Storage::Int8].map(Storage::largest), largest);
    let (shape, classic) = (Shape::new(2, 1)?, Residual::CLASSIC);
    let mut memory = Memory::new(classic, shape, vec![7; classic.state_len(shape)])?;
    assert_eq!((memory.residual(), memory.shape(), memory.steps(), memory.squared_norm()), (classic, shape, 0, 0.0));
    memory.set(&[3.0, -4.0], Stream::default())?;
    assert!(memory.set(&[f32::NAN, 0.0], Stream::default()).is_err());
    let mut values = [0.0; 2];
    memory.values(&mut values)?;
    assert_eq!((memory.squared_norm(), values), (25.0, [3.0, -4.0]));
    let mut bytes = [0; 48];
    assert_eq!((memory.saved_len(), memory.save(&mut bytes)?), (48, 48));
    let saved = SavedState::parse(&bytes)?;
    assert_eq!(
        (&bytes[..3], saved.residual(), saved.shape(), saved.steps()),
        (&[b'L', b'M', 2][..], classic, shape, 0)
    );
    assert!(SavedState::parse(&bytes[1..]).is_err());
    assert_eq!(saved.restore(vec![0; classic.state_len(shape)])?.squared_norm(), 25.0);

    let (shape, top) = (Shape::new(10, 10)?, Setting::TopK(TopK { keep: 5, values: Dtype::F32 }));
    let qsgd = Setting::Qsgd(Qsgd::default());
    let memory = Memory::owned(classic, shape)?;
    assert_eq!(memory.workspace_len(&qsgd, Dtype::F32), 0);
    assert_eq!(memory.workspace_len(&Setting::Dense, Dtype::Bf16), 100 / 4); // the compensated gradient in bf16
    assert_eq!(contraction_workspace_len(&qsgd, shape, Dtype::F32), 0);
    assert!(contraction_workspace_len(&top, shape, Dtype::F32) > 0);
    Ok(())
}

#[test]
fn codecs_and_settings_of_cuts() -> Outcome {
    let dense = Codec::Dense { values: Dtype::F32 };
    let top = Codec::TopK { keep: 3, values: Dtype::Bf16 };
    assert!(top.check(3).is_ok() && top.check(2).is_err());
    let symmetric = Codec::Symmetric { bits: 4, scope: Scope::Sample, scale: Dtype::Bf16 };
    assert_eq!(symmetric.body_len(8, 100)?, 8 * (2 + 50));
    let tenth = Codec::top_k(0.1, 1000, Dtype::Bf16)?;
    assert_eq!((tenth.body_len(8, 1000)?, tenth.indices_len(8, 1000)?), (8 * (200 + 66), 8 * 66));
    assert_eq!((dense.indices_len(8, 1000)?, top.workspace_len(100)), (0, 50));
    let (mut body, mut values) = ([0; 8], [f32::NAN; 2]);
    dense.encode(&[1.0, 2.0], 2, &[], &mut [], &mut body)?;
    dense.decode(&body, 2, &[], &mut values)?;
    assert_eq!((body, values), ([0, 0, 0x80, 0x3f, 0, 0, 0, 0x40], [1.0, 2.0]));
    assert!(dense.decode(&[0xff; 8], 2, &[], &mut values).is_err()); // not a number
    assert_eq!(Codec::MinMax { bits: 4, tile: Tile::Elements(128) }.to_bytes(), [1, 4, 0, 1, 128, 0, 0, 0]);
    assert_eq!(Codec::Eden { bits: 3 }.to_bytes(), [5, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!((top.to_bytes(), Codec::from_bytes(top.to_bytes())), ([3, 0, 2, 0, 3, 0, 0, 0], Some(top)));
    assert_eq!((Codec::from_bytes([9; 8]), Codec::BYTES), (None, 8));

    let setting = CutSetting::new(2, 8, 64);
    assert_eq!((setting.cut, setting.batch, setting.features, setting.forward.memory), (2, 8, 64, LinkMemory::None));
    assert!(setting.check().is_ok() && CutSetting::new(0, 0, 64).check().is_err());
    assert_eq!((&setting.to_bytes()[..4], setting.to_bytes().len()), (&b"LSC\x02"[..], CutSetting::BYTES));
    assert_eq!(CutSetting::from_bytes(&setting.to_bytes())?, setting);
    let counters = Counters { hits: 3, misses: 1, change_energy: 1.0, hit_energy: 4.0, ..Counters::default() };
    assert_eq!(counters.change_ratio(), 0.25);
    Ok(())
}
