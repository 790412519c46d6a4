//! A small decoder-only transformer over characters: pre-norm blocks of causal attention and a two-layer network.

use crate::parameters::Parameters;
use candle_core::{D, Device, Result, Tensor};

/// The transformer's size.
#[derive(Clone, Copy)]
pub struct Size {
    /// Number of different characters.
    pub vocabulary: usize,
    /// Largest number of characters in a window.
    pub context: usize,
    /// Features per character.
    pub width: usize,
    /// Attention heads per block; a divisor of the width.
    pub heads: usize,
    /// Number of blocks.
    pub depth: usize,
}

/// The transformer.
pub struct Transformer {
    size: Size,
    token: Tensor,
    position: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    head: Tensor,
    /// 0 where a character may attend, −∞ where it may not: context × context.
    mask: Tensor,
}

struct Block {
    attention_norm: Tensor,
    qkv: Tensor,
    projection: Tensor,
    network_norm: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Transformer {
    /// Adds the transformer's parameters to `parameters`.
    pub fn new(size: Size, parameters: &mut Parameters) -> Result<Self> {
        let Size { vocabulary, context, width, depth, .. } = size;
        let token = parameters.uniform("token.weight", &[vocabulary, width], 0.5)?;
        let position = parameters.uniform("position.weight", &[context, width], 0.5)?;
        let block = |index: usize| Block::new(&format!("blocks.{index}"), width, parameters);
        let blocks = (0..depth).map(block).collect::<Result<_>>()?;
        let norm = parameters.constant("norm.weight", width, 1.0)?;
        let head = parameters.matrix("head.weight", vocabulary, width)?;
        let allowed = |i: usize| if i % context <= i / context { 0.0 } else { f32::NEG_INFINITY };
        let mask = Tensor::from_vec((0..context * context).map(allowed).collect(), (context, context), &Device::Cpu)?;
        Ok(Transformer { size, token, position, blocks, norm, head, mask })
    }

    /// Scores of the next character after each of `characters` (batch × context): batch · context × vocabulary.
    pub fn scores(&self, characters: &Tensor) -> Result<Tensor> {
        let (batch, context) = characters.dims2()?;
        let mut x = self.token.index_select(&characters.flatten_all()?, 0)?;
        x = x.reshape((batch, context, ()))?.broadcast_add(&self.position)?.reshape((batch * context, ()))?;
        for block in &self.blocks {
            x = block.forward(&x, batch, self.size.heads, &self.mask)?;
        }
        rms_norm(&x, &self.norm)?.matmul(&self.head.t()?)
    }
}

impl Block {
    fn new(name: &str, width: usize, parameters: &mut Parameters) -> Result<Self> {
        Ok(Block {
            attention_norm: parameters.constant(format!("{name}.attention_norm.weight"), width, 1.0)?,
            qkv: parameters.matrix(format!("{name}.qkv.weight"), 3 * width, width)?,
            projection: parameters.matrix(format!("{name}.projection.weight"), width, width)?,
            network_norm: parameters.constant(format!("{name}.network_norm.weight"), width, 1.0)?,
            up: parameters.matrix(format!("{name}.up.weight"), 4 * width, width)?,
            down: parameters.matrix(format!("{name}.down.weight"), width, 4 * width)?,
        })
    }

    /// `x`: batch · context × width.
    fn forward(&self, x: &Tensor, batch: usize, heads: usize, mask: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let split = (batch, rows / batch, 3, heads, width / heads);
        let qkv = rms_norm(x, &self.attention_norm)?.matmul(&self.qkv.t()?)?.reshape(split)?;
        // Queries, keys and values are each batch × heads × context × width / heads.
        let part = |index| qkv.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let (queries, keys, values) = (part(0)?, part(1)?, part(2)?);
        let scale = 1.0 / (width as f64 / heads as f64).sqrt();
        let weights = (queries.matmul(&keys.t()?)? * scale)?.broadcast_add(mask)?;
        let mixed = softmax(&weights)?.matmul(&values)?.transpose(1, 2)?.reshape((rows, width))?;
        let x = (x + mixed.matmul(&self.projection.t()?)?)?;
        let hidden = rms_norm(&x, &self.network_norm)?.matmul(&self.up.t()?)?.relu()?;
        x + hidden.matmul(&self.down.t()?)?
    }
}

fn rms_norm(x: &Tensor, gain: &Tensor) -> Result<Tensor> {
    let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean_square + 1e-5)?.sqrt()?)?.broadcast_mul(gain)
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let powers = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}
