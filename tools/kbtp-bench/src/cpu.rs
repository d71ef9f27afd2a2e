//! CPU time of another process, and load that keeps the cores busy.

use crate::sample::float;
use kbtp::{Failure, driver};
use nix::sched::sched_getaffinity;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::Pid;
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

/// Time that a process like this one, all its threads and those that have ended, has run on a CPU.
fn time_of_this() -> Result<Duration, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)
        .map_err(|e| Failure::operation(format_args!("getrusage: {e}"), "report this"))?;
    let time = |t: TimeVal| {
        let micros = u64::try_from(t.num_microseconds()).unwrap_or(0);
        Duration::from_micros(micros)
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

/// What the cores that this process may use have done since the system started, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ticks {
    /// All of it.
    all: u64,
    /// For some process, or stolen by another machine. Interrupts do not count: most are work for the sockets measured.
    busy: u64,
}

impl Ticks {
    fn now() -> Self {
        let mine = sched_getaffinity(Pid::from_raw(0)).ok();
        let mine = |core: usize| mine.is_none_or(|set| set.is_set(core).unwrap_or(false));
        // A system that keeps no such account has no others to warn of.
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default(), mine)
    }

    /// The lines `cpuN user nice system idle iowait irq softirq steal ...` of the cores that are `mine`.
    fn read(stat: &str, mine: impl Fn(usize) -> bool) -> Self {
        let mut sum = Self::default();
        for line in stat.lines() {
            let mut words = line.split_ascii_whitespace();
            let core = words
                .next()
                .and_then(|w| w.strip_prefix("cpu")?.parse().ok());
            if !core.is_some_and(&mine) {
                continue;
            }
            for (at, ticks) in words.take(8).enumerate() {
                let ticks: u64 = ticks.parse().unwrap_or(0);
                sum.all += ticks;
                if matches!(at, 0 | 1 | 2 | 7) {
                    sum.busy += ticks;
                }
            }
        }
        sum
    }
}

/// An account of who has the cores, begun at some moment.
#[derive(Debug)]
pub(crate) struct Account {
    servers: Vec<u32>,
    ticks: Ticks,
    ours: Duration,
}

impl Account {
    /// Begins one, in which this process and `servers` are no others.
    ///
    /// # Errors
    /// [`Failure`] if a server is gone.
    pub(crate) fn begin(servers: &[u32]) -> Result<Self, Failure> {
        Ok(Self {
            servers: servers.to_vec(),
            ticks: Ticks::now(),
            ours: ours(servers)?,
        })
    }

    /// The part of the cores' time that others have had since: 0 for none, 1 for all of it. Ticks are 10 ms long: less than
    /// a second says little.
    ///
    /// # Errors
    /// [`Failure`] if a server is gone.
    pub(crate) fn of_others(self) -> Result<f64, Failure> {
        let now = Ticks::now();
        let ours = ours(&self.servers)?.saturating_sub(self.ours);
        Ok(part_of_others(
            Ticks {
                all: now.all.saturating_sub(self.ticks.all),
                busy: now.busy.saturating_sub(self.ticks.busy),
            },
            ours,
        ))
    }
}

/// Ticks in a second, as `/proc/stat` counts on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

fn part_of_others(cores: Ticks, ours: Duration) -> f64 {
    let all = float(cores.all);
    if all < 1.0 {
        return 0.0;
    }
    let others = float(cores.busy) - ours.as_secs_f64() * TICKS_PER_SECOND;
    (others / all).clamp(0.0, 1.0)
}

fn ours(servers: &[u32]) -> Result<Duration, Failure> {
    servers
        .iter()
        .try_fold(time_of_this()?, |sum, pid| Ok(sum + time_of(*pid)?))
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
    fn what_others_have_of_the_cores_is_told_apart() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                    cpu0 10 20 30 400 5 6 7 8 0 0\n\
                    cpu1 1 1 1 1 1 1 1 1 0 0\n\
                    intr 5\n";
        let one = Ticks::read(stat, |core| core == 0);
        assert_eq!((one.all, one.busy), (486, 68));
        assert_eq!(Ticks::read(stat, |_| true).busy, 72);
        assert_eq!(Ticks::read("", |_| true), Ticks::default());
        // Of two seconds of cores one and a half were busy, half a second of it ours.
        let cores = Ticks {
            all: 200,
            busy: 150,
        };
        let part = part_of_others(cores, Duration::from_millis(500));
        assert!((part - 0.5).abs() < 1e-9, "{part}");
        assert!(part_of_others(cores, Duration::from_secs(9)) <= 0.0);
        assert!(part_of_others(Ticks::default(), Duration::ZERO) <= 0.0);
    }

    #[test]
    fn what_this_process_does_is_no_others() {
        let before = time_of_this().unwrap();
        let account = Account::begin(&[]).unwrap();
        let deadline = driver::now() + Duration::from_secs(10);
        while time_of_this().unwrap() <= before {
            assert!(driver::now() < deadline, "no CPU time in ten seconds");
        }
        let part = account.of_others().unwrap();
        assert!((0.0..=1.0).contains(&part), "{part}");
        assert!(Account::begin(&[u32::MAX]).is_err());
    }

    #[test]
    fn schedstat_reads() {
        assert_eq!(run_time("123456 7 8\n"), Some(123_456));
        assert_eq!(run_time(""), None);
        assert!(time_of(u32::MAX).is_err());
    }
}
