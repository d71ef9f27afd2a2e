//! Memory that a peer, a NIC or another process writes: the only crate with raw memory.
//!
//! A [`Region`] is mapped memory ([`Region::anonymous`], [`Region::memfd`] to hand over, [`Region::from_fd`] to take
//! over), reached by checked copies, CRCs and atomics, never by a slice. [`ReadVec`] and [`WriteVec`] carry octets
//! between sockets and regions. [`crc32c`] is the CRC of MPA (RFC 5044) over both. Above it stand `kbtp-fabric` and
//! every crate that touches blocks; nothing of the project stands below.
//!
//! ```
//! use kbtp_memory::{PageOptions, Region};
//! use std::sync::atomic::Ordering;
//!
//! let pool = Region::memfd("pool", 1 << 16, &PageOptions::default())?;
//! pool.write(4096, b"a block")?;
//! pool.u32_at(0)?.store(7_u32.to_be(), Ordering::Release);
//! assert_eq!(pool.crc32c(4096, 7, 0)?, kbtp_memory::crc32c::crc32c(b"a block"));
//! assert!(pool.write(1 << 16, b"x").is_err());
//! println!("{}", pool.page_report());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod barrier;
pub mod crc32c;
mod error;
pub mod limits;
mod map;
mod pages;
mod region;
mod vec;

pub use error::{AccessError, MapError};
pub use pages::{Got, HUGE_PAGE_LEN, Huge, HugePages, PageOptions, PageReport, Reason};
pub use region::Region;
pub use vec::{ReadVec, WriteVec, raise_receive_window};
