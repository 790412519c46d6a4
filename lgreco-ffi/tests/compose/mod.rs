//! Makes the C headers from their templates, `headers/*.h.in`. A line `@NAME@` becomes the declaration of that name
//! with its comment, as cbindgen writes it from the source. A type with constants becomes a C enum. `@options NAME@`
//! becomes the options in the table NAME. `@version@` becomes the version macros.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

pub const HEADERS: [&str; 4] = ["lgreco.h", "lgreco_train.h", "lgreco_cuda.h", "lgreco_pipeline.h"];

/// Types whose constants are flags, which programs add up. In C++, a sum of enum constants does not have the enum's
/// type. So a flags type stays an integer, with a separate enum for the constants.
const FLAGS: [&str; 1] = ["lgreco_cuda_calls"];
const WIDTH: usize = 128;

/// A comment, and the declaration after it.
struct Item {
    comment: Vec<String>,
    code: String,
}

impl Item {
    fn new(block: &str) -> Item {
        let is_comment = |line: &&str| line.starts_with("//");
        let comment = block.lines().take_while(is_comment).map(String::from).collect();
        Item { comment, code: block.lines().skip_while(is_comment).collect::<Vec<_>>().join("\n") }
    }

    fn name(&self) -> &str {
        let code = &self.code;
        let name = if let Some(rest) = code.strip_prefix("#define ") {
            rest.split(' ').next()
        } else if let Some((_, rest)) = code.split_once("(*") {
            rest.split(')').next()
        } else if code.starts_with("typedef") {
            code.trim_end_matches(';').rsplit(' ').next()
        } else {
            code.split('(').next().and_then(|before| before.rsplit([' ', '*']).next())
        };
        name.unwrap_or_else(|| panic!("a declaration without a name: {code}"))
    }

    fn text(&self) -> String {
        self.comment.iter().chain([&self.code]).map(|line| format!("{line}\n")).collect()
    }
}

/// Returns the declarations that cbindgen makes from the source, by name.
fn items(folder: &Path) -> BTreeMap<String, Item> {
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut header = Vec::new();
    let bindings = cbindgen::Builder::new().with_crate(folder).with_config(config).generate();
    bindings.expect("cbindgen reads the source").write(&mut header);
    let header = String::from_utf8(header).expect("a header is text");
    let blocks = header.split("\n\n").map(|block| block.trim_matches('\n')).filter(|block| !block.is_empty());
    let mut items = BTreeMap::new();
    for item in blocks.map(Item::new) {
        let name = item.name().to_owned();
        assert!(items.insert(name.clone(), item).is_none(), "{name} is declared twice");
    }
    items
}

/// Finds the constants of each type, in the order of the source, because cbindgen's output does not contain their
/// types.
fn constants(folder: &Path, of: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            constants(&path, of);
            continue;
        }
        for line in fs::read_to_string(&path).expect("a source").lines() {
            let typed = line.strip_prefix("pub const ").and_then(|line| line.split_once(" = ")).map(|(typed, _)| typed);
            if let Some((name, kind)) = typed.and_then(|typed| typed.split_once(": lgreco_")) {
                of.entry(format!("lgreco_{kind}")).or_default().push(name.into());
            }
        }
    }
}

/// Returns the type's comment, followed by the type's constants as a C enum.
fn with_constants(item: &Item, constants: &[&Item]) -> String {
    let name = item.name();
    let mut text: String = item.comment.iter().map(|line| format!("{line}\n")).collect();
    text += &match FLAGS.contains(&name) {
        true => format!("{}\nenum {{\n", item.code),
        false => format!("LGRECO_ENUM({name}) {{\n"),
    };
    for constant in constants {
        let code = constant.code.strip_prefix("#define ").expect("constants are macros").replacen(' ', " = ", 1);
        let short = format!("    {code},  {}\n", constant.comment.join(" "));
        if constant.comment.len() == 1 && short.len() <= WIDTH + 1 {
            text += &short;
        } else {
            text.extend(constant.comment.iter().map(|line| format!("    {line}\n")));
            text += &format!("    {code},\n");
        }
    }
    text + "};\n"
}

/// Formats options and their meanings in two columns.
fn options(table: &[(&str, &str)]) -> String {
    const COLUMN: usize = 21;
    let mut text = String::new();
    for (name, means) in table {
        let mut line = format!("//   {name:COLUMN$}");
        for word in means.split_whitespace() {
            if line.len() + 1 + word.len() > WIDTH {
                text += &format!("{}\n", line.trim_end());
                line = format!("//   {:COLUMN$}", "");
            }
            line += &format!(" {word}");
        }
        text += &format!("{line}\n");
    }
    text
}

fn version() -> String {
    let part = |name: &str, number: &str| format!("#define LGRECO_VERSION_{name} {number}\n");
    part("MAJOR", env!("CARGO_PKG_VERSION_MAJOR"))
        + &part("MINOR", env!("CARGO_PKG_VERSION_MINOR"))
        + &part("PATCH", env!("CARGO_PKG_VERSION_PATCH"))
        + &format!("#define LGRECO_VERSION {:?}\n", env!("CARGO_PKG_VERSION"))
}

/// Returns all headers with their names. Each declaration is in exactly one header, and each table of options in at
/// least one header.
pub fn headers(folder: &Path) -> Vec<(&'static str, String)> {
    let items = items(folder);
    let mut of = BTreeMap::new();
    constants(&folder.join("src"), &mut of);
    let tables = BTreeMap::from_iter(lgreco_c::documented());
    let (mut used, mut told) = (BTreeSet::new(), BTreeSet::new());
    let mut take = |name: &str| {
        let item = items.get(name).unwrap_or_else(|| panic!("the source does not declare {name}"));
        assert!(used.insert(name.to_owned()), "{name} is in two headers, or twice in one");
        item
    };
    let mut made = Vec::new();
    for header in HEADERS {
        let template = fs::read_to_string(folder.join(format!("headers/{header}.in"))).expect("a template");
        let mut text = String::new();
        for line in template.lines() {
            match line.strip_prefix('@').and_then(|line| line.strip_suffix('@')) {
                None => text += &format!("{line}\n"),
                Some("version") => text += &version(),
                Some(placeholder) => match placeholder.strip_prefix("options ") {
                    Some(name) => {
                        let table = tables.get(name).unwrap_or_else(|| panic!("there are no options of a {name}"));
                        told.insert(name.to_owned());
                        text += &options(table);
                    }
                    None => {
                        let item = take(placeholder);
                        text += &match of.get(placeholder) {
                            None => item.text(),
                            Some(names) => {
                                with_constants(item, &names.iter().map(|name| take(name)).collect::<Vec<_>>())
                            }
                        };
                    }
                },
            }
        }
        made.push((header, text));
    }
    let missing: Vec<&String> = items.keys().filter(|name| !used.contains(*name)).collect();
    assert!(missing.is_empty(), "no header has {missing:?}");
    let untold: Vec<&&str> = tables.keys().filter(|name| !told.contains(**name)).collect();
    assert!(untold.is_empty(), "no header tells the options of {untold:?}");
    made
}
