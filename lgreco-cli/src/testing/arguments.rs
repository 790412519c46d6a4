//! Checks the handling of arbitrary command lines, for tests and fuzzing.

use crate::args::{Cli, Command, Output, Solving, Target};
use crate::failure::printable;
use crate::{commands, usage};
use clap::Parser;
use clap::error::ErrorKind;
use lgreco::file::{PlanFile, TableFile};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Outcome of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The parser rejected the command line with a reason, or the command line asked for help.
    Refused,
    /// The check did not run the command, because it names files that the check must not touch, or would take too long.
    Left,
    /// The command ran, and reported why it has no result.
    Failed,
    /// The command ran successfully.
    Done,
}

/// Parts of command lines: commands, options and values. `{}` is replaced by the path of [`folder`].
const WORDS: [&str; 108] = [
    "plan",
    "measure",
    "solve",
    "compare",
    "devices",
    "help",
    "--help",
    "-h",
    "--version",
    "-V",
    "--",
    "-",
    "",
    "--method",
    "--default",
    "--range",
    "--metric",
    "--min-elements",
    "--backend",
    "--solver",
    "--levels",
    "--budget",
    "--size",
    "--alpha",
    "--json",
    "--plot",
    "qsgd",
    "topk",
    "powersgd",
    "hybrid",
    "l2",
    "squared-l2",
    "exact",
    "dp",
    "uniform",
    "cpu",
    "cuda",
    "wgpu",
    "gpu",
    "{}/gradients.safetensors",
    "{}/one.safetensors",
    "{}/nan.safetensors",
    "{}/broken.safetensors",
    "{}/table.json",
    "{}/plan.json",
    "{}/missing",
    "{}/missing/file",
    "{}",
    "{}/out.json",
    "{}/out.svg",
    "0",
    "1",
    "2",
    "4",
    "8",
    "9",
    "16",
    "64",
    "1000",
    "1024",
    "10000",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.5",
    "0.01",
    "1%",
    "100%",
    "101%",
    "1e-300",
    "1e300",
    "1e400",
    "-0",
    "nan",
    "inf",
    "-inf",
    "2..8",
    "1..8",
    "8..2",
    "2..8:2",
    "2..8:0",
    "2..8:-1",
    "2..8:1e-300",
    "1..1e300",
    "0..1",
    "0.1%..10%:0.1%",
    "0.1%..10%",
    "1%..1%",
    "..",
    ":",
    "2..",
    "nan..nan:nan",
    "1..2..3:4:5",
    "plans",
    "--jsno",
    "--group",
    "--fix",
    "--frontier",
    "fc1,fc2",
    "fc1=qsgd 8",
    "--html",
    "watch",
    "--once",
    "--every",
    "{}/steps.jsonl",
    "{}/out.html",
];

/// Makes a safetensors file from a header and data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A folder with small inputs. Each process has a separate folder.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("lgreco-arguments-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        let values: Vec<u8> = (0..64).flat_map(|i| (((i * 37 % 64) as f32 - 30.0) / 8.0).to_le_bytes()).collect();
        let halves: Vec<u8> = values.chunks_exact(4).flat_map(|x| [x[2], x[3]]).collect();
        let all = [&values[..], &halves, &values[..20]].concat();
        let header = r#"{"fc1":{"dtype":"F32","shape":[8,8],"data_offsets":[0,256]},
            "fc2":{"dtype":"BF16","shape":[4,16],"data_offsets":[256,384]},
            "bias":{"dtype":"F32","shape":[5],"data_offsets":[384,404]}}"#;
        let one = r#"{"fc1":{"dtype":"F32","shape":[8,8],"data_offsets":[0,256]}}"#;
        let mut nan = safetensors(one, &values);
        nan.iter_mut().rev().take(4).for_each(|byte| *byte = 0xff);
        let table = r#"{"version":1,"metric":"l2","layers":[{"name":"fc1","elements":64,"default":0,"options":[
            {"label":"qsgd 4","size":300,"error":0.5},{"label":"qsgd 8","size":600,"error":0.1}]}]}"#;
        let step = r#"{"version":1,"step":0,"outcome":"exchanged","switched":false,"bytes_in":32,"bytes_out":8,
            "layers":[{"name":"fc1","setting":"topk 2","steps":1,"bytes_in":32,"bytes_out":8}]}"#;
        let steps = step.replace('\n', " ") + "\n";
        let files: [(&str, &[u8]); 7] = [
            ("gradients.safetensors", &safetensors(header, &all)),
            ("one.safetensors", &safetensors(one, &values)),
            ("nan.safetensors", &nan),
            ("broken.safetensors", &safetensors(header, &values)),
            ("table.json", table.as_bytes()),
            ("plan.json", b"{\"version\":1}"),
            ("steps.jsonl", steps.as_bytes()),
        ];
        for (name, bytes) in files {
            fs::write(folder.join(name), bytes).expect("a temporary file");
        }
        folder
    })
}

/// Makes a command line from `bytes`. Most words are known, some are joined by `=`, and some are arbitrary bytes.
pub fn words(bytes: &[u8]) -> Vec<OsString> {
    let (mut rest, mut words) = (bytes, vec![OsString::from("lgreco")]);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            // Joins the last word and the next word with `=`, as in `--json=FILE`.
            254 => {
                if let Some((&next, after)) = rest.split_first()
                    && let Some(word) = words.last_mut().filter(|word| *word != "lgreco")
                {
                    rest = after;
                    word.push("=");
                    word.push(known(next));
                }
            }
            255 => {
                let (&len, after) = rest.split_first().unwrap_or((&0, &[]));
                let (word, after) = after.split_at(usize::from(len % 16).min(after.len()));
                rest = after;
                words.push(any(word));
            }
            byte => words.push(known(byte)),
        }
    }
    words
}

fn known(byte: u8) -> OsString {
    WORDS[usize::from(byte) % WORDS.len()].replace("{}", &folder().to_string_lossy()).into()
}

#[cfg(unix)]
fn any(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn any(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// Runs the command line that `bytes` encode; see `run`.
///
/// # Panics
/// Panics if the command violates a property that `run` checks.
pub fn check_arguments(bytes: &[u8]) {
    run(words(bytes));
}

/// Parses a command line. Runs the command if it stays within the temporary folder and takes little time.
///
/// The command must be rejected or fail with one line of text, or succeed with the requested JSON.
///
/// # Panics
/// Panics if the command does neither.
pub fn run(words: Vec<OsString>) -> End {
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            assert_eq!(error.exit_code(), if asked { 0 } else { 2 }, "{words:?}");
            if !asked && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                check_line(&usage(&error), &words);
            }
            return End::Refused;
        }
    };
    if !is_small(&cli.command) {
        return End::Left;
    }
    // All threads use the same folder.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = vec![];
    match commands::run(&cli.command, &mut out) {
        Ok(()) => {
            let text = String::from_utf8(out).expect("text");
            assert!(!text.is_empty(), "{words:?}: says nothing");
            check_json(&cli.command, &text);
            End::Done
        }
        Err(failure) => {
            check_line(&failure.message, &words);
            End::Failed
        }
    }
}

/// Asserts that a message is one printable line that is not empty.
fn check_line(message: &str, words: &[OsString]) {
    assert!(!message.trim().is_empty(), "{words:?}: refused without a reason");
    assert!(!message.contains('\n') && printable(message) == message, "{words:?}: {message:?}");
}

/// Whether a command uses only files of the temporary folder, and takes little time.
fn is_small(command: &Command) -> bool {
    let small = |solving: &Solving| solving.levels.is_none_or(|levels| levels <= 10_000);
    // Measuring without a file uses the sample, which takes too long.
    let read = |path: Option<&Path>| path.is_some_and(is_inside);
    let written = |output: &Output| output.files().all(|(_, path)| is_inside(path));
    match command {
        Command::Plan { source, solving, output, .. } => {
            read(source.gradients.as_deref()) && small(solving) && written(output)
        }
        Command::Measure { source, json } => read(source.gradients.as_deref()) && is_written_inside(json.as_ref()),
        Command::Solve { table, solving, output, .. } => is_inside(table) && small(solving) && written(output),
        Command::Compare(compare) => {
            read(compare.gradients.as_deref()) && compare.levels <= 10_000 && is_written_inside(compare.json.as_ref())
        }
        Command::Watch(watch) => watch.once && is_inside(&watch.steps) && watch.html.as_deref().is_none_or(is_inside),
        Command::Devices => true,
    }
}

fn is_written_inside(target: Option<&Target>) -> bool {
    match target {
        Some(Target::File(path)) => is_inside(path),
        Some(Target::Stdout) | None => true,
    }
}

/// Whether a path is one of the paths in [`WORDS`].
fn is_inside(path: &Path) -> bool {
    let name = path.strip_prefix(folder());
    name.is_ok_and(|name| {
        WORDS
            .iter()
            .any(|word| word.strip_prefix("{}").is_some_and(|word| Path::new(word.trim_start_matches('/')) == name))
    })
}

/// Asserts that JSON on standard output can be parsed as the right kind of file.
fn check_json(command: &Command, text: &str) {
    match command {
        Command::Solve { output, frontier: Some(_), .. } if output.json == Some(Target::Stdout) => {
            serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        }
        Command::Plan { output, .. } | Command::Solve { output, .. } if output.json == Some(Target::Stdout) => {
            PlanFile::parse(text.as_bytes()).expect("a plan file");
        }
        Command::Measure { json: Some(Target::Stdout), .. } => {
            drop(TableFile::parse(text.as_bytes()).expect("a table file"))
        }
        Command::Compare(compare) if compare.json == Some(Target::Stdout) => {
            serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> End {
        let line = line.replace("{}", &folder().to_string_lossy());
        run(["lgreco"].into_iter().chain(line.split_whitespace()).map(OsString::from).collect())
    }

    #[test]
    fn command_lines_end_as_they_should() {
        for line in [
            "plan {}/gradients.safetensors --min-elements 8 --json -",
            "plan {}/one.safetensors --min-elements 1 --method hybrid --plot {}/out.svg",
            "measure {}/gradients.safetensors --min-elements 8 --method topk --json -",
            "solve {}/table.json --json {}/out.json",
            "solve {}/table.json --solver dp --levels 100 --alpha 2",
            "solve {}/table.json --size 400 --json -",
            "solve {}/table.json --frontier --json -",
            "solve {}/table.json --frontier=2",
            "plan {}/gradients.safetensors --min-elements 8 --group fc1,fc2 --json -",
            "plan {}/one.safetensors --min-elements 1 --size uniform --alpha 1.5 --plot {}/out.svg",
            "compare {}/one.safetensors --min-elements 1 --size 1000 --method qsgd",
            "compare {}/gradients.safetensors --min-elements 8 --levels 100 --json -",
            "devices",
            "plan {}/gradients.safetensors --min-elements 8 --html {}/out.html --json -",
            "solve {}/table.json --html {}/out.html",
            "watch {}/steps.jsonl --once --html {}/out.html --every 0.5",
        ] {
            assert_eq!(of(line), End::Done, "{line}");
        }
        for line in [
            "plan {}/nan.safetensors",
            "solve {}/plan.json",
            "measure {}/missing",
            "plan {}/broken.safetensors",
            "watch {}/table.json --once",
            "watch {}/missing --once",
        ] {
            assert_eq!(of(line), End::Failed, "{line}");
        }
        for line in [
            "",
            "plan --jsno",
            "solve",
            "plan --levels 0",
            "--help",
            "plan --backend gpu",
            "watch --every 0",
            "plan --html -",
        ] {
            assert_eq!(of(line), End::Refused, "{line}");
        }
        for line in
            ["plan", "solve -", "plan /etc/passwd", "solve {}/table.json --json /elsewhere", "watch {}/steps.jsonl"]
        {
            assert_eq!(of(line), End::Left, "{line}");
        }
    }

    #[test]
    fn any_words_are_parsed_or_refused_and_small_commands_end() {
        let (mut state, mut ran) = (3u64, 0);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for _ in 0..2000 {
            // Starts with a command and its file, so that most command lines run.
            let mut bytes = vec![next() % 4, 39 + next() % 6];
            for _ in 0..next() % 4 {
                bytes.extend([13 + next() % 13, 26 + next() % 76]);
            }
            if next().is_multiple_of(4) {
                bytes.extend([255, 3, next(), next(), next()]);
            }
            ran += usize::from(matches!(run(words(&bytes)), End::Done | End::Failed));
        }
        assert!(ran > 200, "only {ran} of 2000 command lines ran");
    }
}
