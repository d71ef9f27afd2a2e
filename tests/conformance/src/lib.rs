//! Every rule of KBTP against a running target, over TCP. The tests are in `tests/`, one file for each part of the
//! documents; what they stand on is `kbtp-harness`.
#![forbid(unsafe_code)]
