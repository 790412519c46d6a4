//! How fast the kernels should be on three GPUs, from their machine code: `cargo run --release -p lgreco-cuda --features
//! testing --example roofline`. The model of time stands in `src/roofline/mod.rs`; `on_device` sets it against a GPU.

fn main() -> Result<(), lgreco_cuda::Error> {
    print!("{}", lgreco_cuda::testing::report(lgreco_testing::models::resnet_50())?);
    Ok(())
}
