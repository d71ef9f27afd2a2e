//! `infiniband/mlx5dv.h`: what a device of this family offers beside verbs.
#![expect(
    missing_docs,
    reason = "each name and member is that of mlx5dv.h, whose manual pages describe it"
)]

use super::{IbvAh, IbvPd};
use nix::libc::off_t;
use std::ffi::{c_int, c_void};
use std::ptr;

/// An object whose insides are the library's own.
#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvDevxObj {
    inside: [u8; 0],
}

#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvDevxUmem {
    pub umem_id: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mlx5dvDevxUmemIn {
    pub addr: *mut c_void,
    pub size: usize,
    pub access: u32,
    pub pgsz_bitmap: u64,
    pub comp_mask: u64,
    pub dmabuf_fd: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvDevxUar {
    pub reg_addr: *mut c_void,
    pub base_addr: *mut c_void,
    pub page_id: u32,
    pub mmap_off: off_t,
    pub comp_mask: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvDevxEventChannel {
    pub fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx5dvContextAttr {
    pub flags: u32,
    pub comp_mask: u64,
}

pub const MLX5DV_CONTEXT_FLAGS_DEVX: u32 = 1;
pub const MLX5DV_UAR_ALLOC_TYPE_NC: u32 = 1;
pub const MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA: u32 = 1;
pub const MLX5DV_OBJ_AH: u64 = 1 << 5;
pub const MLX5DV_OBJ_PD: u64 = 1 << 6;

/// An event; the device's own octets follow it in a channel that does not leave them out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx5dvDevxAsyncEventHdr {
    pub cookie: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx5dvPd {
    pub pdn: u32,
    pub comp_mask: u64,
}

/// Where packets to a peer go, as the device reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx5WqeAv {
    pub key: u64,
    pub dqp_dct: u32,
    pub stat_rate_sl: u8,
    pub fl_mlid: u8,
    pub rlid: u16,
    pub reserved0: [u8; 4],
    pub rmac: [u8; 6],
    pub tclass: u8,
    pub hop_limit: u8,
    pub grh_gid_fl: u32,
    pub rgid: [u8; 16],
}

#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvAh {
    pub av: *mut Mlx5WqeAv,
    pub comp_mask: u64,
}

/// A verbs object, and where what the device knows of it is to be written.
#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvPart<In, Out> {
    pub r#in: *mut In,
    pub out: *mut Out,
}

impl<In, Out> Mlx5dvPart<In, Out> {
    /// Nothing is asked.
    pub const NONE: Self = Self {
        r#in: ptr::null_mut(),
        out: ptr::null_mut(),
    };
}

/// What [`Mlx5::mlx5dv_init_obj`](crate::Mlx5) is asked. Of the first five nothing is asked here.
#[repr(C)]
#[derive(Debug)]
pub struct Mlx5dvObj {
    pub qp: Mlx5dvPart<c_void, c_void>,
    pub cq: Mlx5dvPart<c_void, c_void>,
    pub srq: Mlx5dvPart<c_void, c_void>,
    pub rwq: Mlx5dvPart<c_void, c_void>,
    pub dm: Mlx5dvPart<c_void, c_void>,
    pub ah: Mlx5dvPart<IbvAh, Mlx5dvAh>,
    pub pd: Mlx5dvPart<IbvPd, Mlx5dvPd>,
}

impl Mlx5dvObj {
    /// Nothing is asked.
    pub const NONE: Self = Self {
        qp: Mlx5dvPart::NONE,
        cq: Mlx5dvPart::NONE,
        srq: Mlx5dvPart::NONE,
        rwq: Mlx5dvPart::NONE,
        dm: Mlx5dvPart::NONE,
        ah: Mlx5dvPart::NONE,
        pd: Mlx5dvPart::NONE,
    };
}
