//! Waiting for sockets, a wake-up from another thread, or a time: a bounded look for work, then epoll.

use crate::driver::Clock;
use crate::limits::{EPOLL_EVENTS, LOOKS_PER_YIELD};
use crate::spin::{Policy, Spin};
use kbtp_fabric::Time;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{UsageWho, getrusage};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The token of the poller's own wake-up.
const WAKE: u64 = u64::MAX;

/// What a descriptor is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// Report it when it can be read, or its peer has ended.
    pub read: bool,
    /// Report it when it can be written.
    pub write: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };

    pub(crate) fn event(self, token: u64) -> EpollEvent {
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, self.read);
        flags.set(EpollFlags::EPOLLOUT, self.write);
        EpollEvent::new(flags, token)
    }
}

impl From<kbtp_fabric::Readiness> for Interest {
    fn from(readiness: kbtp_fabric::Readiness) -> Self {
        Self {
            read: readiness.read,
            write: readiness.write,
        }
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// The token it was added with.
    pub token: u64,
    /// It can be read, its peer has ended, or it failed.
    pub read: bool,
    /// It can be written, or it failed.
    pub write: bool,
}

/// Wakes a [`Poller`] from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Ends the poller's present or next [`wait`](Poller::wait). One system call.
    pub fn wake(&self) {
        // The only failure is a counter at its limit, and then the poller is woken anyway.
        let woken = self.0.write(1);
        debug_assert!(matches!(woken, Ok(_) | Err(Errno::EAGAIN)));
    }
}

/// One thread's wait for many descriptors, level-triggered.
///
/// A wait first looks, then looks on for a bounded time that it learns from recent gaps (see [`Spin`]), then sleeps in
/// epoll: an idle poller costs no CPU. Nothing is allocated after [`new`](Self::new).
pub struct Poller {
    epoll: Epoll,
    wake: Arc<EventFd>,
    clock: Clock,
    policy: Policy,
    switches: Switches,
    events: Box<[EpollEvent; EPOLL_EVENTS]>,
    found: usize,
    woken: bool,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("policy", &self.policy)
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// What the system says: descriptors are short.
    pub fn new(spin: Spin) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        epoll.add(&*wake, Interest::READ.event(WAKE))?;
        Ok(Self {
            epoll,
            wake,
            clock: Clock::new(),
            policy: Policy::new(spin),
            switches: Switches::default(),
            events: Box::new([EpollEvent::empty(); EPOLL_EVENTS]),
            found: 0,
            woken: false,
        })
    }

    /// A handle to wake this poller with.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// The clock that `until` of [`wait`](Self::wait) is read on.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Watches `fd` under `token`, which is not `u64::MAX`. Take it off with [`remove`](Self::remove) before it is
    /// closed.
    ///
    /// # Errors
    /// What the system says: it is watched already, or watches are short.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        if token == WAKE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(self.epoll.add(fd, interest.event(token))?)
    }

    /// Changes what `fd` is watched for. One system call: skip it where nothing changes.
    ///
    /// # Errors
    /// What the system says: it is not watched.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        if token == WAKE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(self.epoll.modify(fd, &mut interest.event(token))?)
    }

    /// Stops watching `fd`.
    ///
    /// # Errors
    /// What the system says: it is not watched.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.delete(fd)?)
    }

    /// Waits until a descriptor is ready, [`Waker::wake`] was called, or `until` has come; gives the time then. What
    /// is ready stands in [`ready`](Self::ready). A time that has come makes this a look without a wait.
    ///
    /// # Errors
    /// What the system says; a signal is not an error but an early end.
    pub fn wait(&mut self, until: Option<Time>) -> io::Result<Time> {
        self.wait_or(until, |_| false)
    }

    /// As [`wait`](Self::wait). While it looks on, it also tries `attempt`, and ends when that gives `true`: for the
    /// one stream that most likely has something next. Reading it right away costs hardly more than a look, and
    /// the look that would find it ready is saved.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_or(
        &mut self,
        until: Option<Time>,
        attempt: impl FnMut(Time) -> bool,
    ) -> io::Result<Time> {
        let start = self.clock.now();
        self.woken = false;
        if self.look(EpollTimeout::ZERO)? {
            return Ok(start);
        }
        if until.is_some_and(|at| at <= start) {
            return Ok(start);
        }
        let mut now = start;
        let mut found = self.look_on(until, &mut now, attempt)?;
        if !found && until.is_none_or(|at| at > now) {
            found = self.look(timeout(now, until))?;
            now = self.clock.now();
        }
        if found {
            self.policy.observe_gap(now.since_ns(start));
        }
        Ok(now)
    }

    /// Looks for work from `now` on as long as the policy says; whether there is some.
    fn look_on(
        &mut self,
        until: Option<Time>,
        now: &mut Time,
        mut attempt: impl FnMut(Time) -> bool,
    ) -> io::Result<bool> {
        let mut end = now.after_ns(self.policy.budget_ns(*now));
        if let Some(at) = until {
            end = end.min(at);
        }
        while *now < end {
            for _ in 0..LOOKS_PER_YIELD {
                if attempt(*now) || self.look(EpollTimeout::ZERO)? {
                    *now = self.clock.now();
                    return Ok(true);
                }
            }
            // A yield is a system call that costs less than a microsecond while this thread is alone on its core.
            let before = self.clock.now();
            let yielded = nix::sched::sched_yield();
            debug_assert_eq!(yielded, Ok(()));
            *now = self.clock.now();
            let took = now.since_ns(before);
            let alone = self
                .policy
                .observe_yield(*now, took, || self.switches.changed());
            if !alone {
                return self.look(EpollTimeout::ZERO);
            }
        }
        Ok(false)
    }

    /// One `epoll_wait`; whether it found something.
    fn look(&mut self, timeout: EpollTimeout) -> io::Result<bool> {
        self.found = 0;
        match self.epoll.wait(&mut *self.events, timeout) {
            Ok(found) => self.found = found,
            Err(Errno::EINTR) => return Ok(timeout != EpollTimeout::ZERO),
            Err(errno) => return Err(errno.into()),
        }
        let found = self.events.get_mut(..self.found).unwrap_or_default();
        if let Some(wake) = found.iter().position(|event| event.data() == WAKE) {
            // Its place goes to the last, so that `ready` gives sockets only.
            let last = found.len().saturating_sub(1);
            found.swap(wake, last);
            self.found = last;
            self.woken = true;
            // Empty already is as good as emptied now.
            let emptied = self.wake.read();
            debug_assert!(matches!(emptied, Ok(_) | Err(Errno::EAGAIN)));
        }
        Ok(self.found > 0 || self.woken)
    }

    /// What the last [`wait`](Self::wait) found: at most 64, the rest at the next wait.
    #[must_use]
    pub fn ready(&self) -> impl ExactSizeIterator<Item = Ready> + '_ {
        let failed = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        let read = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | failed;
        let write = EpollFlags::EPOLLOUT | failed;
        let found = self.events.get(..self.found).unwrap_or_default();
        found.iter().map(move |event| Ready {
            token: event.data(),
            read: event.events().intersects(read),
            write: event.events().intersects(write),
        })
    }

    /// Whether a [`Waker`] ended the last wait.
    #[must_use]
    pub const fn woken(&self) -> bool {
        self.woken
    }
}

impl AsFd for Poller {
    /// The epoll descriptor itself, to be watched by another loop: readable when something is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// How often this thread gave its core to another though it could have gone on.
#[derive(Clone, Copy, Debug, Default)]
struct Switches(i64);

impl Switches {
    /// Whether it happened since this was last asked. One system call.
    fn changed(&mut self) -> bool {
        // It cannot fail: the structure is ours, and the kernel knows the word.
        let usage = getrusage(UsageWho::RUSAGE_THREAD);
        let count = usage.map_or(self.0, |usage| usage.involuntary_context_switches());
        std::mem::replace(&mut self.0, count) != count
    }
}

/// The time from `now` until `until` as epoll takes it: whole milliseconds, rounded up so as not to come early.
fn timeout(now: Time, until: Option<Time>) -> EpollTimeout {
    let Some(at) = until else {
        return EpollTimeout::NONE;
    };
    let ms = at.since_ns(now).div_ceil(1_000_000);
    i32::try_from(ms)
        .ok()
        .and_then(|ms| EpollTimeout::try_from(ms).ok())
        .unwrap_or(EpollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn in_ms(poller: &Poller, ms: u64) -> Time {
        poller.clock().now().after_ms(ms)
    }

    #[test]
    fn a_ready_descriptor_is_found_by_its_token() {
        for spin in [Spin::Off, Spin::Auto, Spin::For(Duration::from_millis(1))] {
            let mut poller = Poller::new(spin).unwrap();
            let (mut a, b) = UnixStream::pair().unwrap();
            poller.add(b.as_fd(), 7, Interest::READ).unwrap();
            poller.wait(Some(in_ms(&poller, 0))).unwrap();
            assert_eq!(poller.ready().len(), 0);
            a.write_all(b"x").unwrap();
            poller.wait(Some(in_ms(&poller, 10_000))).unwrap();
            let found: Vec<_> = poller.ready().collect();
            assert_eq!(found.len(), 1);
            assert_eq!(
                (found[0].token, found[0].read, found[0].write),
                (7, true, false)
            );
            assert!(!poller.woken());
            let both = Interest {
                read: true,
                write: true,
            };
            poller.modify(b.as_fd(), 8, both).unwrap();
            poller.wait(None).unwrap();
            let found: Vec<_> = poller.ready().collect();
            assert_eq!(
                (found[0].token, found[0].read, found[0].write),
                (8, true, true)
            );
            poller.remove(b.as_fd()).unwrap();
            poller.wait(Some(in_ms(&poller, 0))).unwrap();
            assert_eq!(poller.ready().len(), 0);
            assert!(poller.remove(b.as_fd()).is_err());
        }
    }

    #[test]
    fn another_thread_wakes_it_whether_it_looks_or_sleeps() {
        for spin in [Spin::Off, Spin::For(Duration::from_secs(1000))] {
            let mut poller = Poller::new(spin).unwrap();
            let waker = poller.waker();
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake());
                poller.wait(None).unwrap();
            });
            assert!(poller.woken());
            assert_eq!(poller.ready().len(), 0);
            // Once is once.
            poller.wait(Some(in_ms(&poller, 0))).unwrap();
            assert!(!poller.woken());
        }
    }

    #[test]
    fn an_attempt_that_finds_something_ends_the_wait() {
        let mut poller = Poller::new(Spin::For(Duration::from_secs(1000))).unwrap();
        let mut attempts = 0;
        // Before the first yield: after one this thread may find its core wanted, and sleep.
        poller
            .wait_or(None, |_| {
                attempts += 1;
                attempts == LOOKS_PER_YIELD
            })
            .unwrap();
        assert_eq!(
            (attempts, poller.ready().len(), poller.woken()),
            (LOOKS_PER_YIELD, 0, false)
        );
        // What is ready already goes before any attempt, and one that finds nothing hides nothing.
        poller.waker().wake();
        poller.wait_or(None, |_| panic!("attempted")).unwrap();
        let waker = poller.waker();
        poller
            .wait_or(None, |_| {
                waker.wake();
                false
            })
            .unwrap();
        assert!(poller.woken());
    }

    #[test]
    fn switches_are_noticed_once() {
        let mut switches = Switches::default();
        let counted = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        let counted = counted.involuntary_context_switches();
        switches.changed();
        assert!(switches.0 >= counted);
        // As if others had run since.
        switches.0 -= 1;
        assert!(switches.changed());
    }

    #[test]
    fn a_wake_hides_no_descriptor() {
        let mut poller = Poller::new(Spin::Off).unwrap();
        let pairs: Vec<_> = (0..5).map(|_| UnixStream::pair().unwrap()).collect();
        for (token, (a, b)) in (0..).zip(&pairs) {
            poller.add(b.as_fd(), token, Interest::READ).unwrap();
            (&*a).write_all(b"x").unwrap();
            poller.waker().wake();
        }
        poller.wait(None).unwrap();
        assert!(poller.woken());
        let mut tokens: Vec<_> = poller.ready().map(|ready| ready.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn it_waits_no_less_than_it_was_told() {
        for spin in [Spin::Off, Spin::Auto, Spin::For(Duration::from_secs(1000))] {
            let mut poller = Poller::new(spin).unwrap();
            let until = poller.clock().now().after_ns(1_500_000);
            let mut now = Time(0);
            // A signal may end a wait early.
            while now < until {
                now = poller.wait(Some(until)).unwrap();
                assert_eq!(poller.ready().len(), 0);
            }
        }
    }

    #[test]
    fn the_wake_token_is_not_for_others() {
        let poller = Poller::new(Spin::Off).unwrap();
        let (_a, b) = UnixStream::pair().unwrap();
        assert!(poller.add(b.as_fd(), u64::MAX, Interest::READ).is_err());
    }

    #[test]
    fn timeouts_round_up_and_saturate() {
        assert_eq!(timeout(Time(5), Some(Time(6))), EpollTimeout::from(1_u8));
        assert_eq!(timeout(Time(5), Some(Time(5))), EpollTimeout::ZERO);
        assert_eq!(timeout(Time(0), Some(Time(u64::MAX))), EpollTimeout::MAX);
        assert_eq!(timeout(Time(0), None), EpollTimeout::NONE);
    }
}
