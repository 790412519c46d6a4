//! How many warps of a kernel a multiprocessor holds at once.

/// What a multiprocessor has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiprocessor {
    pub(super) warps: u32,
    pub(super) blocks: u32,
    /// Bytes of shared memory, and those that the system keeps of them per block where no cubin counts them.
    pub(super) shared: u32,
    pub(super) reserved: u32,
}

const fn multiprocessor(warps: u32, blocks: u32, kibibytes: u32, reserved: u32) -> Multiprocessor {
    Multiprocessor { warps, blocks, shared: kibibytes << 10, reserved }
}

/// Those of the devices that code is made for; devices of the same major version may have less.
pub(super) const fn of_code(architecture: u32) -> Multiprocessor {
    match architecture {
        70 => multiprocessor(64, 32, 96, 0),
        75 => multiprocessor(32, 16, 64, 0),
        80 => multiprocessor(64, 32, 164, 1 << 10),
        89 => multiprocessor(48, 24, 100, 1 << 10),
        90 | 100 => multiprocessor(64, 32, 228, 0),
        120 => multiprocessor(48, 24, 100, 0),
        _ => panic!("an architecture that there is no code for"),
    }
}

impl Multiprocessor {
    /// Warps that are resident of blocks of `block` threads, which have so many registers each and so many bytes of shared memory
    /// together.
    pub(super) fn resident(&self, block: u32, registers: u32, shared_bytes: u32) -> u32 {
        const REGISTERS: u32 = 1 << 16;
        let warps = block / 32;
        let of_warp = (32 * registers).next_multiple_of(256);
        let by_registers = REGISTERS / of_warp.max(1) / warps;
        let by_shared = self.shared / (shared_bytes + self.reserved).max(1);
        warps * by_registers.min(by_shared).min(self.warps / warps).min(self.blocks)
    }
}
