//! Streams over the RDMA devices of this machine: with itself, at the addresses in `KBTP_TEST_RDMA` (`10.77.0.1,10.0.2.15`). Without
//! that, each test says that it is not run. The guest of `tests/interop` has two such devices.
#![forbid(unsafe_code)]

#[cfg(test)]
mod device {
    mod closing;
    mod data;
    mod many;
    mod pair;
    mod trial;
}
