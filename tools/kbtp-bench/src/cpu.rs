//! CPU time of another process, and load that keeps the cores busy.

use kbtp::{Failure, driver};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time the threads that process `pid` has now have run on a CPU, user and kernel, in nanoseconds' resolution.
///
/// # Errors
/// [`Failure`] if the process is gone, or the kernel keeps no such account.
pub(crate) fn time_of(pid: u32) -> Result<Duration, Failure> {
    account(pid).map_err(|e| {
        Failure::operation(
            format_args!("no CPU time of process {pid}: {e}"),
            "it may have died: see what it said before this",
        )
    })
}

fn account(pid: u32) -> io::Result<Duration> {
    let mut ns = 0_u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended in between has no account any more.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        ns += run_time(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("schedstat says {text:?}"),
            )
        })?;
    }
    Ok(Duration::from_nanos(ns))
}

/// The first field: nanoseconds spent on a CPU.
fn run_time(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// One thread a core that computes without end, until it is dropped.
#[derive(Debug)]
pub(crate) struct Burners {
    stop: Arc<AtomicBool>,
}

impl Burners {
    /// Starts them.
    ///
    /// # Errors
    /// [`Failure`] if the system starts no threads.
    pub(crate) fn start() -> Result<Self, Failure> {
        let this = Self {
            stop: Arc::default(),
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..cores {
            let stop = Arc::clone(&this.stop);
            driver::start("burner", move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })?;
        }
        Ok(this)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_of_a_process_grows_when_it_works() {
        let me = std::process::id();
        let before = time_of(me).unwrap();
        let burners = Burners::start().unwrap();
        let deadline = driver::now() + Duration::from_secs(10);
        while time_of(me).unwrap() <= before {
            assert!(driver::now() < deadline, "no CPU time in ten seconds");
            std::thread::yield_now();
        }
        drop(burners);
    }

    #[test]
    fn schedstat_reads() {
        assert_eq!(run_time("123456 7 8\n"), Some(123_456));
        assert_eq!(run_time(""), None);
        assert!(time_of(u32::MAX).is_err());
    }
}
