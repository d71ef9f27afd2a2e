//! Sizes that the device fixes.

/// Octets of a segment: lengths of WQEs count in this unit.
pub const SEGMENT: usize = 16;

/// Octets of a basic block (WQEBB): indices of send queues count in this unit.
pub const BASIC_BLOCK: usize = 64;

/// The longest WQE in basic blocks (Linux, include/linux/mlx5/qp.h: `MLX5_SEND_WQE_MAX_WQEBBS`).
pub const MAX_BASIC_BLOCKS: usize = 16;

/// The longest WQE in segments: what the six bits of the length hold. One less than fills 16 basic blocks.
pub const MAX_SEGMENTS: usize = 63;

/// Octets of the longest WQE.
pub const MAX_WQE_LEN: usize = MAX_SEGMENTS * SEGMENT;

/// The longest RDMA Read in octets that the chains here ask for; a device's own limit is 2^31.
pub const MAX_READ_LEN: u64 = 1 << 24;
