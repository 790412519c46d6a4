//! Operations on 32-bit lanes: making masks, and moving lanes together or apart. Compilers emit no vector code for
//! these operations.
//!
//! AVX-512 has an instruction for each operation. Other instruction sets use loops with the same results.

/// Number of lanes per call of `mask`.
pub(crate) const LANES: usize = 16;

/// The 64 lanes of one mask word, which `squeeze` and `expand` move.
pub(crate) type Block = [u32; 64];

/// The operations of one instruction set.
pub(crate) trait Lanes: Copy {
    /// Returns a mask: bit i is set if lane i is not 0.
    fn mask(self, lanes: [u32; LANES]) -> u16;

    /// Moves the lanes whose bits in `mask` are set to the front of `places`, in order. Returns the number of these
    /// lanes. The content of `places` after these lanes is unspecified.
    fn squeeze(self, lanes: &Block, mask: u64, places: &mut Block) -> usize;

    /// The inverse of `squeeze`: moves the first lanes to the indices of the set bits, in order. All other lanes of the
    /// result are 0.
    fn expand(self, lanes: &Block, mask: u64) -> Block;
}

/// Portable implementation by loops.
#[derive(Clone, Copy)]
struct Portable;

impl Lanes for Portable {
    #[inline(always)]
    fn mask(self, lanes: [u32; LANES]) -> u16 {
        let mut mask = 0;
        for (i, &lane) in lanes.iter().enumerate() {
            mask |= ((lane != 0) as u32) << i;
        }
        mask as u16
    }

    #[inline(always)]
    fn squeeze(self, lanes: &Block, mut mask: u64, places: &mut Block) -> usize {
        let count = mask.count_ones() as usize;
        // Works in rounds of four lanes, because the branch predictor predicts the number of rounds more reliably than
        // the number of lanes.
        for four in places.as_chunks_mut::<4>().0.iter_mut().take(count.div_ceil(4)) {
            for place in four {
                *place = lanes[mask.trailing_zeros() as usize % lanes.len()];
                mask &= mask.wrapping_sub(1);
            }
        }
        count
    }

    #[inline(always)]
    fn expand(self, lanes: &Block, mut mask: u64) -> Block {
        let mut expanded = [0; 64];
        for &lane in lanes.iter().take(mask.count_ones() as usize) {
            expanded[mask.trailing_zeros() as usize % lanes.len()] = lane;
            mask &= mask.wrapping_sub(1);
        }
        expanded
    }
}

#[cfg(all(feature = "avx512", target_arch = "x86_64"))]
impl Lanes for pulp::x86::V4 {
    #[inline(always)]
    fn mask(self, lanes: [u32; LANES]) -> u16 {
        let lanes = bytemuck::cast(lanes);
        self.avx512f._mm512_test_epi32_mask(lanes, lanes)
    }

    #[inline(always)]
    fn squeeze(self, lanes: &Block, mask: u64, places: &mut Block) -> usize {
        let mut count = 0;
        for (part, &lanes) in lanes.as_chunks::<LANES>().0.iter().enumerate() {
            let mask = (mask >> (LANES * part)) as u16;
            if let Some(places) = places[count..].first_chunk_mut::<LANES>() {
                *places = bytemuck::cast(self.avx512f._mm512_maskz_compress_epi32(mask, bytemuck::cast(lanes)));
            }
            count += mask.count_ones() as usize;
        }
        count
    }

    #[inline(always)]
    fn expand(self, lanes: &Block, mask: u64) -> Block {
        let (mut expanded, mut count) = ([0; 64], 0);
        for (part, places) in expanded.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mask = (mask >> (LANES * part)) as u16;
            if let Some(&lanes) = lanes[count..].first_chunk::<LANES>() {
                *places = bytemuck::cast(self.avx512f._mm512_maskz_expand_epi32(mask, bytemuck::cast(lanes)));
            }
            count += mask.count_ones() as usize;
        }
        expanded
    }
}

/// A loop that needs [`Lanes`]. All other loops implement [`Kernel`](crate::simd::Kernel).
pub(crate) trait LaneKernel {
    /// Result of the loop.
    type Output;
    /// Runs the loop. This function and the functions that it calls must be `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel with the best instructions of this processor, like [`dispatch`](crate::simd::dispatch).
pub(crate) fn dispatch_lanes<K: LaneKernel>(kernel: K) -> K::Output {
    struct Loops<K>(K);
    impl<K: LaneKernel> crate::simd::Kernel for Loops<K> {
        type Output = K::Output;
        #[inline(always)]
        fn run(self) -> K::Output {
            self.0.run(Portable)
        }
    }
    #[cfg(all(feature = "avx512", target_arch = "x86_64"))]
    if let Some(lanes) = pulp::x86::V4::try_new() {
        struct Adapter<K>(K, pulp::x86::V4);
        impl<K: LaneKernel> pulp::WithSimd for Adapter<K> {
            type Output = K::Output;
            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, _: S) -> K::Output {
                self.0.run(self.1)
            }
        }
        return pulp::Simd::vectorize(lanes, Adapter(kernel, lanes));
    }
    crate::simd::dispatch(Loops(kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks `mask` with every mask of 16 lanes. Checks `squeeze` and `expand` with random and one-sided masks of 64
    /// lanes.
    struct All;

    impl LaneKernel for All {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            for mask in 0..=u16::MAX {
                assert_eq!(lanes.mask(core::array::from_fn(|i| ((mask >> i & 1) as u32) << (2 * i))), mask);
            }
            let numbers: Block = core::array::from_fn(|i| 1 + i as u32);
            let stream = crate::rng::Stream::default();
            for i in 0..4000 {
                let [a, b, c, d] = stream.block(i).map(|word| word as u64);
                let (random, other) = (a << 32 | b, c << 32 | d);
                let mask = [random, random & other, random | other, !0 << (a % 64), !0 >> (a % 64), 0][i as usize % 6];
                let is_set = |i: &u32| mask >> i & 1 == 1;
                let mut moved = [77; 64];
                let count = lanes.squeeze(&numbers, mask, &mut moved);
                assert!((0..64).filter(is_set).map(|i| i + 1).eq(moved[..count].iter().copied()), "{mask:x}");
                moved[count..].fill(99);
                let back = core::array::from_fn(|i| if is_set(&(i as u32)) { numbers[i] } else { 0 });
                assert_eq!(lanes.expand(&moved, mask), back, "{mask:x}");
            }
        }
    }

    #[test]
    fn lanes_go_where_the_bits_are() {
        dispatch_lanes(All);
        All.run(Portable);
    }
}
