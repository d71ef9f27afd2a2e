//! Connections one after the other leave nothing behind.

use super::pair::{Deadline, addresses, listener, meet, now, options, wait};
use kbtp_fabric::{CloseReason, Stream};
use std::fs;
use std::os::fd::AsFd;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `KBTP_CONNECTS` says how many; a soak has 10,000.
#[test]
fn connections_leave_nothing_behind() {
    let many: u32 = std::env::var("KBTP_CONNECTS").map_or(30, |n| n.parse().unwrap());
    for address in addresses() {
        let mut listener = listener(address, options());
        let mut once = || {
            let (mut here, mut there) = meet(&mut listener, options());
            here.stream.close(CloseReason::Graceful);
            let deadline = Deadline::new();
            let mut ended = [false; 2];
            while !ended.iter().all(|ended| *ended) {
                deadline.check("the end");
                ended[0] |= here.stream.progress(now()).is_err();
                ended[1] |= there.stream.progress(now()).is_err();
                if !ended.iter().all(|ended| *ended) {
                    wait(&[
                        here.stream.descriptor(),
                        there.stream.descriptor(),
                        listener.as_fd(),
                    ]);
                }
            }
        };
        // The first ones make what is kept: buffers of the libraries, pages of the allocator.
        for _ in 0..10 {
            once();
        }
        let (fds, kib) = (descriptors(), resident_kib());
        for _ in 0..many {
            once();
        }
        let (more, grown) = (descriptors(), resident_kib().saturating_sub(kib));
        println!("{address}: {many} connections, {fds} and {more} descriptors, {grown} KiB more");
        assert_eq!(fds, more);
        // Far less than a connection holds, a thousand times.
        assert!(grown < 2_048, "{grown} KiB");
    }
}
