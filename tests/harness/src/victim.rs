//! A session that only wants to work, while others attack.

use crate::patience::eventually;
use crate::session::{Session, Who};
use crate::subject::{Audit, Setup, Subject, start};
use crate::{Patience, pattern};
use kbtp_wire::Status;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Number of the victim's Initiator ID.
const VICTIM: u64 = 0x7669_6374_696d;
/// Blocks it has at most.
const BLOCKS: u64 = 4;

#[derive(Debug, Default)]
struct Progress {
    rounds: AtomicU64,
    stop: AtomicBool,
}

/// A thread with a session that stores, loads, compares and frees its own blocks without end.
#[derive(Debug)]
pub struct Victim {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Victim {
    /// Starts one.
    #[must_use]
    pub fn start(address: SocketAddr, who: Who) -> Self {
        let progress = Arc::new(Progress::default());
        let shown = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("victim".to_owned())
            .spawn(move || work(address, &who, &shown))
            .unwrap();
        Self {
            progress,
            thread: Some(thread),
        }
    }

    /// Waits until it has done `more` rounds from now on: it works, whatever was done to the target.
    pub fn works(&self, more: u64) {
        let until = self.progress.rounds.load(Ordering::Relaxed) + more;
        let patience = Patience::new();
        while self.progress.rounds.load(Ordering::Relaxed) < until {
            let gone = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!gone, "the victim noticed");
            let _now = patience.now("the victim's next rounds");
            std::thread::yield_now();
        }
    }

    /// Ends it; it must not have noticed anything.
    pub fn finish(mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        assert!(thread.join().is_ok(), "the victim noticed");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
    }
}

fn work(address: SocketAddr, who: &Who, progress: &Progress) {
    let mut session = Session::at(address, who);
    let mut round = 0_u64;
    while !progress.stop.load(Ordering::Relaxed) {
        for n in 0..BLOCKS {
            let seed = round * BLOCKS + n;
            let len = usize::try_from(seed * 37 % 4097).unwrap();
            let data = pattern(seed, len);
            let handle = session.h(n);
            let stored = session.alloc(handle, &data[..len.min(64)], false);
            assert_eq!(stored.status, Status::Ok, "round {round}");
            let buffer = session.raw.filled(&data);
            let source = kbtp_wire::Source::Remote {
                buffer: buffer.descriptor(),
                invalidate: false,
            };
            let operation = kbtp_wire::Operation::Store { source, seal: true };
            let request = session.request(handle, operation);
            assert_eq!(session.ask(&request).status, Status::Ok, "round {round}");
            session.raw.release(buffer);
            let (loaded, octets) = session.load(handle);
            assert_eq!(loaded.status, Status::Ok, "round {round}");
            assert!(
                octets == data,
                "round {round}: the block is not what was stored"
            );
        }
        for n in 0..BLOCKS {
            let handle = session.h(n);
            assert_eq!(session.free(handle).status, Status::Ok, "round {round}");
        }
        round += 1;
        progress.rounds.store(round, Ordering::Relaxed);
    }
    session.close();
}

/// Where an attack takes place.
#[derive(Debug)]
pub struct Ground {
    /// The target.
    pub subject: Box<dyn Subject>,
    /// The one who must not notice.
    pub victim: Victim,
}

impl Ground {
    /// Address of the target.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.subject.address()
    }

    /// Waits until the attackers are gone from the target's books: what they say then.
    #[must_use]
    pub fn alone(&self) -> Audit {
        eventually("the attackers are gone", || {
            let audit = self.subject.audit();
            (audit.sessions == 1 && audit.half_open == 0 && audit.leases == 0).then_some(audit)
        })
    }
}

/// Runs an attack on a target with a victim. The victim must not notice; afterwards nothing may be left of the attack,
/// every block must be in its place, the target must serve and end well, and none of its threads may have panicked or logged
/// an error of its own.
pub fn against(setup: &Setup, attack: impl FnOnce(&Ground)) {
    let subject = start(setup);
    let mut who = Who::new(VICTIM).quota(u32::try_from(BLOCKS).unwrap());
    if let Some(tenant) = setup.tenants.first() {
        who = who.of(tenant);
    }
    let victim = Victim::start(subject.address(), who.clone());
    victim.works(1);
    let quota = subject.audit().quota;
    let ground = Ground { subject, victim };
    attack(&ground);
    ground.victim.works(2);
    assert_eq!(ground.alone().quota, quota, "quota is given back");
    let Ground { subject, victim } = ground;
    victim.finish();
    let audit = eventually("the victim is gone", || {
        let audit = subject.audit();
        (audit.sessions == 0 && audit.quota == 0 && audit.leases == 0).then_some(audit)
    });
    assert_eq!(audit.free + audit.deferred, audit.blocks, "{audit:?}");
    let count = subject.count();
    assert_eq!(count.faults, Vec::<String>::new());
    assert_eq!(count.bound + count.elsewhere, 0, "{count:?}");
    assert_eq!(count.in_rings + count.deferred, count.blocks, "{count:?}");
    let mut session = Session::open(&*subject, &who);
    session.put(0, b"it still serves");
    assert_eq!(session.content(session.h(0)).unwrap().1, b"it still serves");
    session.close();
    subject.end();
    assert_eq!(crate::faults(), Vec::<String>::new());
}
