//! `infiniband/mlx5dv.h`: what a device of this family offers beside verbs.
#![expect(
    missing_docs,
    reason = "each name and member is that of mlx5dv.h, whose manual pages describe it"
)]

use nix::libc::off_t;
use std::ffi::{c_int, c_void};

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
