//! Syndromes: why a WQE failed.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `MLX5_CQE_SYNDROME_*`.

use core::fmt;

/// The syndrome of an error CQE, as it is on the wire; one that is not named here is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Syndrome(pub u8);

macro_rules! syndromes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Syndrome {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Every syndrome named here.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

syndromes! {
    /// A local list is too short for what came, or a message too long for its queue pair.
    LOCAL_LENGTH = 0x01, "local length error";
    /// The WQE makes no sense to the queue pair.
    LOCAL_QP_OPERATION = 0x02, "local QP operation error";
    /// A local key does not allow it.
    LOCAL_PROTECTION = 0x04, "local protection error";
    /// The queue pair was in error before the WQE's turn.
    FLUSHED = 0x05, "flushed";
    /// A memory window could not be bound.
    WINDOW_BIND = 0x06, "memory window bind error";
    /// The peer answered something else than was asked.
    BAD_RESPONSE = 0x10, "bad response";
    /// A peer's request met a key that does not allow it, here.
    LOCAL_ACCESS = 0x11, "local access error";
    /// The peer found the request invalid.
    REMOTE_INVALID_REQUEST = 0x12, "remote invalid request";
    /// The peer's key does not allow it.
    REMOTE_ACCESS = 0x13, "remote access error";
    /// The peer could not do it.
    REMOTE_OPERATION = 0x14, "remote operation error";
    /// The peer did not answer.
    TRANSPORT_RETRY_EXCEEDED = 0x15, "transport retry exceeded";
    /// The peer had no receive WQE.
    RNR_RETRY_EXCEEDED = 0x16, "RNR retry exceeded";
    /// The peer gave up.
    REMOTE_ABORTED = 0x22, "remote aborted";
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "syndrome {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}: {self})", self.0)
    }
}
