//! Which NVRTC is found and chosen, among stand-ins for several.

use super::nvrtc::{compiler, venv};
use super::simt::target;
use super::unavailable;
use crate::compiler::{Architecture, Compiler};
use crate::kernels::Module;
use crate::libraries::{Library, candidates, look_among_packages};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A library made of a source in `simt/`, with these definitions. `None` where there is no g++.
pub(super) fn library(source: &str, definitions: &[&str], to: &Path) -> Option<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("simt").join(source);
    let unfinished = to.with_extension("unfinished");
    let options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-o"];
    match Command::new("g++").args(options).args([&unfinished, &source]).args(definitions).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            unavailable(&format!("no g++ for {}: {error}", source.display()));
            return None;
        }
    }
    std::fs::rename(&unfinished, to).unwrap();
    Some(())
}

/// Stand-ins for NVRTC 11.8, 12.4 and 13.0, in a folder of this name.
pub(super) fn stand_ins(folder: &str) -> Option<PathBuf> {
    let folder = target().join(format!("{folder}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    library("fake_nvrtc.cpp", &["-DMAJOR=11", "-DMINOR=8", "-DLEAST=35"], &folder.join("libnvrtc.so.11.2"))?;
    library("fake_nvrtc.cpp", &["-DMAJOR=12", "-DMINOR=4", "-DLEAST=50"], &folder.join("libnvrtc.so.12"))?;
    library("fake_nvrtc.cpp", &["-DMAJOR=13", "-DMINOR=0", "-DLEAST=75"], &folder.join("libnvrtc.so.13"))?;
    Some(folder)
}

#[test]
fn a_compiler_suits_a_driver_and_a_device_or_says_why_not() {
    let Some(folder) = stand_ins("suits") else { return };
    let suits = |name: &str, driver, device| {
        let compiler = Compiler::open(&folder.join(name)).expect("an NVRTC").unwrap();
        compiler.suits(driver, device).map(|(_, architecture)| architecture.name()).map_err(|error| error.to_string())
    };
    assert_eq!(suits("libnvrtc.so.13", (13, 0), 90).unwrap(), "sm_90");
    assert_eq!(suits("libnvrtc.so.13", (13, 0), 120).unwrap(), "compute_90");
    assert_eq!(suits("libnvrtc.so.12", (13, 0), 70).unwrap(), "compute_50");
    let old = suits("libnvrtc.so.13", (13, 0), 70).unwrap_err();
    let needed = "at least 7.5 (for NVRTC 13.0, which was found) is needed";
    assert_eq!(old, format!("the device's compute capability is 7.0, {needed}"));
    let old = suits("libnvrtc.so.13", (12, 4), 90).unwrap_err();
    let what = "the CUDA version of the NVIDIA driver is 12.4";
    assert_eq!(old, format!("{what}, at least 13.0 (for the NVRTC that was found) is needed"));
    assert!(Compiler::open(Path::new("libnvrtc.so.9")).is_none());
    let junk = folder.join("junk.so");
    std::fs::write(&junk, "no library").unwrap();
    for (path, reason) in [(&junk, "file too short"), (&folder.join("libnvrtc.so.9"), "No such file")] {
        let refused = Compiler::open(path).expect("what is wrong").unwrap_err().to_string();
        assert!(refused.starts_with(&format!("{} does not load: ", path.display())), "{refused}");
        assert!(refused.contains(reason), "{refused}");
    }
    let oldest = folder.join("oldest.so");
    library("fake_nvrtc.cpp", &["-DMAJOR=11", "-DMINOR=1", "-DLEAST=35"], &oldest).unwrap();
    let old = Compiler::open(&oldest).expect("an NVRTC").unwrap().suits((12, 0), 80).unwrap_err();
    assert_eq!(old.to_string(), "NVRTC is 11.1, at least 11.2 is needed");
    let broken = Compiler::open(&oldest).expect("an NVRTC").unwrap();
    let failed = broken.compile("magnitude.cu", &Module::Magnitude.source(), Architecture::Sass(90), &[]).unwrap_err();
    assert_eq!(failed.to_string(), "magnitude.cu does not compile for sm_90: a stand-in");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn libraries_are_looked_for_in_toolkits_and_among_pythons_packages() {
    let folder = target().join(format!("places-{}", std::process::id()));
    let file = |path: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    };
    let expected = [
        file("toolkit/lib64/libnvrtc.so.13"),
        file("given/site-packages/nvidia/cu13/lib/libnvrtc.so.13"),
        file("env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"),
        file("toolkit/lib64/libnvrtc.so.12"),
        file("conda/lib/libnvrtc.so.12"),
        file("home/.local/lib/python3.10/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
        file("old/lib64/libnvrtc.so.11.2"),
        file("toolkit/lib64/libnvrtc.so"),
        file("toolkit/lib64/libnvrtc.so.14"),
    ];
    let variable = |name: &str| {
        let names = ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME"];
        let at = names.iter().position(|&other| other == name)?;
        Some(folder.join(["old", "toolkit", "env", "conda", "home"][at]))
    };
    look_among_packages(folder.join("given/site-packages"));
    let found = candidates(Library::Nvrtc, 13, variable);
    let own: Vec<&PathBuf> = found.iter().filter(|path| path.starts_with(&folder)).collect();
    assert_eq!(own, expected.iter().collect::<Vec<_>>());
    let bare: Vec<String> =
        found.iter().filter(|path| path.is_relative()).map(|path| path.display().to_string()).collect();
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.14"];
    assert_eq!(bare[..5], names);
    let cublas = candidates(Library::Cublas, 12, |_| None);
    let bare: Vec<&str> = cublas.iter().filter(|path| path.is_relative()).filter_map(|path| path.to_str()).collect();
    assert_eq!(bare, ["libcublas.so.12", "libcublas.so.11", "libcublas.so", "libcublas.so.13", "libcublas.so.14"]);
    assert!(
        candidates(Library::Nvrtc, 13, |_| Some("relative".into())).iter().all(|path| !path.starts_with("relative"))
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_environments_compiler_is_found() {
    let Some(compiler) = compiler() else { return };
    let major = compiler.version.0;
    let variable = |name: &str| (name == "VIRTUAL_ENV").then(venv);
    assert!(candidates(Library::Nvrtc, major, variable).iter().any(|path| Compiler::open(path).is_some()));
}

/// Two devices' first use of two modules.
#[test]
fn modules_are_made_side_by_side() {
    let Some(compiler) = compiler() else { return };
    let architecture = Architecture::Sass(*compiler.supported.iter().max().unwrap());
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    let meet = |module, to: Sender<()>, from: Receiver<()>| {
        let compiler = compiler.clone();
        std::thread::spawn(move || {
            let met = compiler.load(module, architecture, None, |_| {
                to.send(()).unwrap();
                Ok(from.recv_timeout(Duration::from_secs(60)))
            });
            met.unwrap().expect("the other module is made meanwhile");
        })
    };
    let threads = [meet(Module::Positions, to_second, from_second), meet(Module::Magnitude, to_first, from_first)];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
