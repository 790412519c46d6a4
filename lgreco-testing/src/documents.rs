//! Tables and plans as JSON, with some tokens changed. Most tokens are valid, so readers get past the first brace.

use super::files::check_files;
use lgreco::file::{PlanFile, TableFile};
use lgreco::plan::{self, Limit, Solver, budget::Budget, exact::Limits};

/// A table with every field.
pub const TABLE: &str = r#"{"version":1,"metric":"l2","budget":12.5,"x-note":[1,{"a":null}],"layers":[
    {"name":"fc1","elements":9,"default":0,"uncompressed_size":288,"group":"tied","fixed":1,
     "options":[{"label":"qsgd 4","setting":"qsgd 4 bucket 128 nearest","size":200,"error":0.5},
     {"label":"qsgd 8","size":300,"error":0.125}]},
    {"name":"fc\u00e92","elements":64,"default":1,"options":[{"label":"a","size":0,"error":0},
     {"label":"b","size":9007199254740993,"error":1e-3},{"label":"c","size":70,"error":2.5}]}]}"#;

/// A plan within a size limit.
pub const SIZED_PLAN: &str = r#"{"version":1,"solver":"dp","size":500,"lower_bound":0.49,"proven":false,"error":0.5,
    "size_limit":512,"uncompressed_size":4096,"layers":[{"name":"fc1","option":1,"label":"a","size":500,"error":0.5}]}"#;

/// A table with only the required fields.
pub const BARE_TABLE: &str = r#"{"version":1.0,"metric":"","layers":[{"name":"a","elements":1e3,"options":[
    {"label":"","size":3.0,"error":1}]}]}"#;

/// A plan with every field.
pub const PLAN: &str = r#"{"version":1,"solver":"exact","size":500,"lower_bound":499.0,"proven":false,"error":0.5,"budget":1,
    "uncompressed_size":4096,"default_size":600,"seconds":{"measure":0.25,"solve":1e-6},"layers":[
    {"name":"fc1","option":1,"label":"topk 1%","setting":"topk 5 bf16","size":300,"error":0.125},
    {"name":"fc2","option":0,"label":"a","size":200,"error":0.375}]}"#;

/// Replacements for tokens: numbers at the limits of their types and just beyond them, literals, keys of both kinds of
/// files, text with escapes, text that is not JSON, and settings.
const TOKENS: [&str; 63] = [
    "0",
    "1",
    "-1",
    "-0",
    "-0.0",
    "2",
    "0.5",
    "3.0",
    "1e3",
    "1e-400",
    "5e-324",
    "1e308",
    "1.7976931348623157e308",
    "1e309",
    "-1e309",
    "9007199254740992",
    "9007199254740992.0",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "4294967295",
    "4294967296",
    "123456789012345678901234567890123456789012345678901234567890",
    "0.30000000000000000000000000000000000000000000001",
    "01",
    "1.",
    ".5",
    "+1",
    "NaN",
    "Infinity",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[[[[[[[[]]]]]]]]",
    "\"\"",
    "\"fc1\"",
    "\"\\u0000\\n\\\"\\\\\"",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\u{202e}\u{feff}\"",
    "\"unended",
    "\"version\"",
    "\"layers\"",
    "\"name\"",
    "\"options\"",
    "\"size\"",
    "\"error\"",
    "\"default\"",
    "\"budget\"",
    "\"bugdet\"",
    "\"size_limit\"",
    "{",
    "}",
    "]",
    ",",
    "\"setting\"",
    "\"dense\"",
    "\"qsgd 9\"",
    "\"topk 4294967295\"",
    "\"sidco 5e-324 pareto stages 3 f16\"",
    "\"hard-threshold \\u0031e-40 f32\"",
];

/// The tokens of `json`, with the white space before them.
pub fn tokens(json: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), json);
    while !rest.is_empty() {
        let start = rest.len() - rest.trim_start().len();
        let token = &rest[start..];
        let len = match token.bytes().next() {
            None => 0,
            Some(b'"') => 2 + token[1..].find('"').unwrap_or(token.len() - 2),
            Some(b'{' | b'}' | b'[' | b']' | b',' | b':') => 1,
            Some(_) => token.find(|c: char| c.is_whitespace() || "{}[],:".contains(c)).unwrap_or(token.len()),
        };
        tokens.push(&rest[..start + len]);
        rest = &rest[start + len..];
    }
    tokens
}

/// A table or a plan with some tokens replaced, left out, added, repeated or swapped. Each change takes three of
/// `bytes`. Without changes the file is valid.
///
/// ```
/// use lgreco::file::TableFile;
/// use lgreco_testing::documents::document;
/// assert!(TableFile::parse(document(&[0]).as_bytes()).is_ok());
/// assert!(TableFile::parse(document(&[0, 0, 3, 5]).as_bytes()).is_err()); // version 2
/// ```
pub fn document(bytes: &[u8]) -> String {
    let (&which, changes) = bytes.split_first().unwrap_or((&0, &[]));
    let mut tokens = tokens([TABLE, PLAN, BARE_TABLE, SIZED_PLAN][usize::from(which) % 4]);
    for &[kind, at, with] in changes.as_chunks::<3>().0.iter().take(16) {
        let (at, new) = (usize::from(at) % tokens.len().max(1), TOKENS[usize::from(with) % TOKENS.len()]);
        let other = usize::from(with) % tokens.len().max(1);
        match kind % 5 {
            _ if tokens.is_empty() => tokens.push(new),
            0 => tokens[at] = new,
            1 => drop(tokens.remove(at)),
            2 => tokens.insert(at, new),
            3 => tokens.swap(at, other),
            _ => {
                // Repeats a member, an element or a whole object.
                let range = at.min(other)..at.max(other).min(at.min(other) + 12);
                let copied: Vec<&str> = tokens[range.clone()].to_vec();
                tokens.splice(range.end..range.end, copied);
            }
        }
    }
    tokens.concat()
}

/// Reads a changed table or plan. The reader must refuse the file with a reason, or the file must be written and read
/// back unchanged. For a table, the solver's plan must be within the table's budget. A second plan, with the first
/// plan's size as its limit, must not be larger than the first. Both plans must be written and read back unchanged.
///
/// # Panics
/// Panics if a check fails.
pub fn check_documents(bytes: &[u8]) {
    let json = document(bytes);
    check_files(json.as_bytes());
    if let Err(error) = PlanFile::parse(json.as_bytes()) {
        assert!(!error.to_string().is_empty());
    }
    let file = match TableFile::parse(json.as_bytes()) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let view = file.table.view();
    let Ok(Some(limit)) = file.limit() else { return };
    let solver = Solver::Exact(Limits { states: 1 << 8 });
    if let Ok(first) = plan::solve(&view, limit.into(), solver) {
        let found = *first.summary();
        let within = match limit {
            Limit::Error(budget) => found.error <= budget,
            Limit::Size(bits) => found.size <= bits,
        };
        assert!(within, "{json}: a plan over its budget");
        let most_exact = plan::solve(&view, Budget::Size(found.size), solver).expect("there is a plan as small");
        assert!(most_exact.summary().size <= found.size, "{json}: a plan over its size limit");
        for plan in [first, most_exact] {
            let plan = PlanFile::new(&file.table, &plan);
            assert_eq!(PlanFile::parse(plan.to_json().as_bytes()), Ok(plan), "{json}");
        }
    }
}
