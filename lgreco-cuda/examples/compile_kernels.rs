//! Compiles all kernels for all devices that the crate has code for, and writes `compiled/kernels`.
//!
//! `cargo run --release -p lgreco-cuda --features testing --example compile_kernels`, with NVRTC 12 where the crate looks for
//! it: `pip install nvidia-cuda-nvrtc-cu12` in a virtual environment that is active, or `tests/run nvrtc-12` and
//! `VIRTUAL_ENV=target/cuda/venv`, and the program xz.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (archive, about) = lgreco_cuda::testing::compiled_kernels()?;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/compiled/kernels");
    std::fs::write(path, &archive)?;
    println!("{path}: {} bytes, {about}", archive.len());
    Ok(())
}
