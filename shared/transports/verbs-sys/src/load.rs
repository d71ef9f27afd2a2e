//! The libraries: opened once, when first asked for, and never closed.
//!
//! A program built without them, or for a machine without them, runs there and says what is missing. Each table below
//! is a list of functions; a function that an older library may lack is in the table's second part and is an `Option`.

use crate::raw::{
    IbvAh, IbvAhAttr, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr,
    IbvGid, IbvGidEntry, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq,
    IbvSrqInitAttr, Mlx5dvContextAttr, Mlx5dvDevxAsyncEventHdr, Mlx5dvDevxEventChannel,
    Mlx5dvDevxObj, Mlx5dvDevxUar, Mlx5dvDevxUmem, Mlx5dvDevxUmemIn, Mlx5dvObj, RdmaCmEvent,
    RdmaCmId, RdmaConnParam, RdmaEventChannel,
};
use nix::libc::{self, sockaddr};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Why a library cannot be used. iWARP over TCP needs none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{library} cannot be used: {reason}")]
pub struct Missing {
    /// Name of the library's file.
    pub library: &'static str,
    /// What the dynamic linker said, or which function is not in it.
    pub reason: String,
}

/// A library that is open.
#[derive(Clone, Copy, Debug)]
struct Library {
    name: &'static str,
    handle: NonNull<c_void>,
}

impl Library {
    fn open(name: &'static str) -> Result<Self, Missing> {
        let missing = |reason| Missing {
            library: name,
            reason,
        };
        let file = CString::new(name).map_err(|error| missing(error.to_string()))?;
        // SAFETY: `file` is a string that ends with a zero. The initialisers of these libraries do nothing that this
        // process must prepare for; the library stays open, so that what it gives stays valid.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle)
            .map(|handle| Self { name, handle })
            .ok_or_else(|| missing(last_error()))
    }

    /// Address of a function, in the newest version that the library offers.
    fn symbol(self, name: &str) -> Result<NonNull<c_void>, Missing> {
        let missing = |reason| Missing {
            library: self.name,
            reason,
        };
        let symbol = CString::new(name).map_err(|error| missing(error.to_string()))?;
        // SAFETY: the handle is of an open library, and `symbol` a string that ends with a zero.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) };
        NonNull::new(address).ok_or_else(|| missing(format!("it has no {name}")))
    }
}

/// What the dynamic linker said last on this thread.
fn last_error() -> String {
    // SAFETY: no precondition; the result is null or a string.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: it is not null, ends with a zero, and stays until this thread's next call of the linker.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// A function of a library, as it is called here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prototype {
    /// Its name.
    pub name: &'static str,
    /// Types of its arguments.
    pub takes: &'static [&'static str],
    /// Type of its result.
    pub gives: &'static str,
}

macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident of $library:literal {
            $($function:ident: ($($argument:ty),*) $(-> $result:ty)?;)*
        } or less {
            $($maybe:ident $(as $symbol:literal)?: ($($maybe_argument:ty),*) $(-> $maybe_result:ty)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[expect(missing_docs, reason = "the functions of C, by their names; manual pages describe them")]
        pub struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) $(-> $maybe_result)?>,)*
        }

        impl $name {
            /// The library's file.
            pub const LIBRARY: &'static str = $library;

            /// Each function, what it takes and what it gives, in the words of this file: to be held against headers.
            pub const PROTOTYPES: &'static [Prototype] = &[
                $(Prototype {
                    name: stringify!($function),
                    takes: &[$(stringify!($argument)),*],
                    gives: [$(stringify!($result),)? "()"][0],
                },)*
                $(Prototype {
                    name: [$($symbol,)? stringify!($maybe)][0],
                    takes: &[$(stringify!($maybe_argument)),*],
                    gives: [$(stringify!($maybe_result),)? "()"][0],
                },)*
            ];

            /// The library's functions; it is opened when this is first called.
            ///
            /// # Errors
            /// [`Missing`]: it is not installed, or too old.
            pub fn get() -> Result<&'static Self, Missing> {
                static TABLE: OnceLock<Result<$name, Missing>> = OnceLock::new();
                TABLE.get_or_init(|| Self::open($library)).as_ref().map_err(Clone::clone)
            }

            fn open(library: &'static str) -> Result<Self, Missing> {
                let library = Library::open(library)?;
                Ok(Self {
                    $($function: {
                        let address = library.symbol(stringify!($function))?;
                        // SAFETY: the library's function of this name has this signature (its header), and is never
                        // unloaded.
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                    $($maybe: library.symbol([$($symbol,)? stringify!($maybe)][0]).ok().map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($maybe_argument),*) $(-> $maybe_result)?,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}

table! {
    /// Functions of libibverbs. Those that verbs.h defines inline are called through the context:
    /// [`IbvContextOps`](crate::raw::IbvContextOps).
    Verbs of "libibverbs.so.1" {
        ibv_get_device_list: (*mut c_int) -> *mut *mut IbvDevice;
        ibv_free_device_list: (*mut *mut IbvDevice);
        ibv_open_device: (*mut IbvDevice) -> *mut IbvContext;
        ibv_close_device: (*mut IbvContext) -> c_int;
        ibv_get_async_event: (*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
        ibv_ack_async_event: (*mut IbvAsyncEvent);
        ibv_query_device: (*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        ibv_query_port: (*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        ibv_query_gid: (*mut IbvContext, u8, c_int, *mut IbvGid) -> c_int;
        ibv_alloc_pd: (*mut IbvContext) -> *mut IbvPd;
        ibv_dealloc_pd: (*mut IbvPd) -> c_int;
        ibv_reg_mr: (*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
        ibv_dereg_mr: (*mut IbvMr) -> c_int;
        ibv_create_comp_channel: (*mut IbvContext) -> *mut IbvCompChannel;
        ibv_destroy_comp_channel: (*mut IbvCompChannel) -> c_int;
        ibv_create_cq: (*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        ibv_destroy_cq: (*mut IbvCq) -> c_int;
        ibv_get_cq_event: (*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: (*mut IbvCq, c_uint);
        ibv_create_srq: (*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
        ibv_destroy_srq: (*mut IbvSrq) -> c_int;
        ibv_modify_qp: (*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        ibv_query_qp: (*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
        ibv_create_ah: (*mut IbvPd, *mut IbvAhAttr) -> *mut IbvAh;
        ibv_destroy_ah: (*mut IbvAh) -> c_int;
        ibv_wc_status_str: (u32) -> *const c_char;
        ibv_fork_init: () -> c_int;
    } or less {
        ibv_reg_mr_iova: (*mut IbvPd, *mut c_void, usize, u64, c_int) -> *mut IbvMr;
        ibv_reg_dmabuf_mr: (*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;
        ibv_query_gid_ex as "_ibv_query_gid_ex": (*mut IbvContext, u32, u32, *mut IbvGidEntry, u32, usize) -> c_int;
    }
}

table! {
    /// Functions of librdmacm.
    Cm of "librdmacm.so.1" {
        rdma_create_event_channel: () -> *mut RdmaEventChannel;
        rdma_destroy_event_channel: (*mut RdmaEventChannel);
        rdma_create_id: (*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, u32) -> c_int;
        rdma_destroy_id: (*mut RdmaCmId) -> c_int;
        rdma_bind_addr: (*mut RdmaCmId, *mut sockaddr) -> c_int;
        rdma_resolve_addr: (*mut RdmaCmId, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route: (*mut RdmaCmId, c_int) -> c_int;
        rdma_create_qp: (*mut RdmaCmId, *mut IbvPd, *mut IbvQpInitAttr) -> c_int;
        rdma_destroy_qp: (*mut RdmaCmId);
        rdma_connect: (*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_listen: (*mut RdmaCmId, c_int) -> c_int;
        rdma_accept: (*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_reject: (*mut RdmaCmId, *const c_void, u8) -> c_int;
        rdma_disconnect: (*mut RdmaCmId) -> c_int;
        rdma_get_cm_event: (*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event: (*mut RdmaCmEvent) -> c_int;
        rdma_event_str: (u32) -> *const c_char;
        rdma_set_option: (*mut RdmaCmId, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_init_qp_attr: (*mut RdmaCmId, *mut IbvQpAttr, *mut c_int) -> c_int;
        rdma_migrate_id: (*mut RdmaCmId, *mut RdmaEventChannel) -> c_int;
    } or less {
    }
}

table! {
    /// Functions of libmlx5. Each may be missing: DEVX came late, and a device may be of another family.
    Mlx5 of "libmlx5.so.1" {
        mlx5dv_is_supported: (*mut IbvDevice) -> bool;
    } or less {
        mlx5dv_open_device: (*mut IbvDevice, *mut Mlx5dvContextAttr) -> *mut IbvContext;
        mlx5dv_devx_general_cmd: (*mut IbvContext, *const c_void, usize, *mut c_void, usize) -> c_int;
        mlx5dv_devx_obj_create: (*mut IbvContext, *const c_void, usize, *mut c_void, usize) -> *mut Mlx5dvDevxObj;
        mlx5dv_devx_obj_query: (*mut Mlx5dvDevxObj, *const c_void, usize, *mut c_void, usize) -> c_int;
        mlx5dv_devx_obj_modify: (*mut Mlx5dvDevxObj, *const c_void, usize, *mut c_void, usize) -> c_int;
        mlx5dv_devx_obj_destroy: (*mut Mlx5dvDevxObj) -> c_int;
        mlx5dv_devx_umem_reg: (*mut IbvContext, *mut c_void, usize, u32) -> *mut Mlx5dvDevxUmem;
        mlx5dv_devx_umem_reg_ex: (*mut IbvContext, *mut Mlx5dvDevxUmemIn) -> *mut Mlx5dvDevxUmem;
        mlx5dv_devx_umem_dereg: (*mut Mlx5dvDevxUmem) -> c_int;
        mlx5dv_devx_alloc_uar: (*mut IbvContext, u32) -> *mut Mlx5dvDevxUar;
        mlx5dv_devx_free_uar: (*mut Mlx5dvDevxUar);
        mlx5dv_devx_query_eqn: (*mut IbvContext, u32, *mut u32) -> c_int;
        mlx5dv_devx_qp_query: (*mut IbvQp, *const c_void, usize, *mut c_void, usize) -> c_int;
        mlx5dv_devx_create_event_channel: (*mut IbvContext, u32) -> *mut Mlx5dvDevxEventChannel;
        mlx5dv_devx_destroy_event_channel: (*mut Mlx5dvDevxEventChannel);
        mlx5dv_devx_subscribe_devx_event: (*mut Mlx5dvDevxEventChannel, *mut Mlx5dvDevxObj, u16, *mut u16, u64) -> c_int;
        mlx5dv_devx_get_event: (*mut Mlx5dvDevxEventChannel, *mut Mlx5dvDevxAsyncEventHdr, usize) -> isize;
        mlx5dv_init_obj: (*mut Mlx5dvObj, u64) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let missing = Verbs::open("libibverbs-of-nowhere.so.1").unwrap_err();
        assert_eq!(missing.library, "libibverbs-of-nowhere.so.1");
        let text = missing.to_string();
        assert!(text.starts_with("libibverbs-of-nowhere.so.1 cannot be used: "));
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_named_with_the_first_of_them() {
        let missing = Cm::open("libc.so.6").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "libc.so.6 cannot be used: it has no rdma_create_event_channel"
        );
    }

    #[test]
    fn what_is_asked_twice_is_opened_once() {
        match (Verbs::get(), Verbs::get()) {
            (Ok(one), Ok(other)) => assert!(std::ptr::eq(one, other)),
            (one, other) => assert_eq!(one.unwrap_err(), other.unwrap_err()),
        }
    }
}
