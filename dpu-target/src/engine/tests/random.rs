//! Whatever initiators do, and in whatever order things end: no panic, no block lost, nothing left behind.

use super::*;

/// A generator of reproducible choices (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(u64::try_from(len).unwrap())).unwrap()
    }
}

/// Some request, mostly well-formed, on a handle that is mostly the initiator's.
fn any_request(dice: &mut Dice, id: u64, base: Handle) -> Vec<u8> {
    let handle = match dice.roll(12) {
        0 => Handle(dice.roll(u64::MAX)),
        1 => Handle(dice.roll(1100)),
        _ => Handle(base.0 + dice.roll(5)),
    };
    let mut message = match dice.roll(7) {
        0 => inline_store(id, handle, dice.one_in(2)),
        1 => read_store(id, handle),
        2 | 3 => load_of(id, handle, dice.one_in(2)),
        4 => request(id, handle, Operation::Free),
        5 => {
            let source = Source::Inline {
                declared: ByteLen(3),
                octets: b"new",
            };
            let seal = dice.one_in(3);
            request(id, handle, Operation::Store { source, seal })
        }
        _ => hello(1),
    };
    if dice.one_in(25) {
        let at = dice.index(message.len());
        message[at] ^= 1 << dice.roll(8);
    }
    if dice.one_in(60) {
        message.truncate(dice.index(message.len()));
    }
    message
}

struct Stream {
    script: Rc<Script>,
    base: Handle,
    next: u64,
    /// Requests sent and not answered, as an initiator counts its credits.
    sent: usize,
}

impl Stream {
    fn answered(&self) -> usize {
        self.script.statuses().len()
    }
}

/// One thing happens.
fn step(rig: &mut Rig, streams: &mut Vec<Stream>, dice: &mut Dice) {
    if streams.is_empty() || dice.one_in(12) {
        let script = rig.accept(dice.index(2));
        let initiator = u8::try_from(1 + dice.roll(4)).unwrap();
        script.arrive(hello(initiator));
        rig.settle();
        let base = match (script.dropped.get(), script.sent.borrow().is_empty()) {
            (false, false) => match script.ack() {
                Ack::Granted(base) => base,
                Ack::Refused(_) => Handle(0),
            },
            _ => Handle(0),
        };
        streams.push(Stream {
            script,
            base,
            next: 10,
            sent: 0,
        });
        return;
    }
    let at = dice.index(streams.len());
    let stream = &mut streams[at];
    match dice.roll(20) {
        0 => stream.script.peer_closed.set(true),
        1 => stream.script.room.set(dice.index(3)),
        2 | 3 => stream.script.room.set(1000),
        4 => {
            let hang = !stream.script.reads_hang.get();
            stream.script.reads_hang.set(hang);
        }
        5..=7 => {
            if let Some(read) = stream.script.hanging.borrow_mut().pop() {
                let mut done = stream.script.done.borrow_mut();
                done.push_back((read, WorkOutcome::Read));
            }
        }
        8 => rig.now.set(rig.now.get() + dice.roll(30) * MS),
        _ => {
            // Mostly within the credits.
            if stream.sent < stream.answered() + 8 || dice.one_in(50) {
                let message = any_request(dice, stream.next, stream.base);
                stream.next += 1;
                stream.sent += 1;
                stream.script.arrive(message);
            }
        }
    }
    rig.settle();
    streams.retain(|stream| !stream.script.dropped.get());
}

fn run(seed: u64) -> Tally {
    let mut rig = Rig::new(2);
    let mut streams = Vec::new();
    let mut dice = Dice(seed);
    for _ in 0..600 {
        step(&mut rig, &mut streams, &mut dice);
    }
    for (engine, world) in &mut rig.engines {
        engine.kill(world);
        assert!(engine.is_finished(), "seed {seed}");
    }
    assert!(
        streams.iter().all(|s| s.script.dropped.get()),
        "seed {seed}"
    );
    for worker in &rig.workers {
        let m = &worker.metrics;
        let gauges = [&m.sessions, &m.half_open, &m.in_flight, &m.pins, &m.tickets];
        assert_eq!(
            gauges.map(crate::metrics::Counter::get),
            [0; 5],
            "seed {seed}"
        );
    }
    // Every lease ends, and then every block is free.
    let pool = Arc::clone(&rig.workers[0].shared.pool);
    let shared = rig.workers[0].shared.view();
    let end = Time(rig.now.get()).after_ms(2_000);
    rig.plane.with(|directory| directory.poll(end, &shared));
    let audit = pool.audit();
    assert_eq!(audit.faults, Vec::<String>::new(), "seed {seed}");
    assert_eq!(
        (audit.in_rings, audit.bound),
        (16, 0),
        "seed {seed}: {audit:?}"
    );
    assert_eq!(rig.plane.with(|d| d.summary()).committed, 0, "seed {seed}");
    let sum = |of: fn(&Worker) -> u64| rig.workers.iter().map(|w| of(w)).sum();
    Tally([
        sum(|w| w.shared.stats.get(3, 0)),
        sum(|w| w.shared.stats.get(4, 0)),
        sum(|w| w.shared.stats.get(5, 0)),
        sum(|w| w.shared.stats.get(6, 0)),
        sum(|w| w.shared.stats.sessions_broken.load(Ordering::Relaxed)),
        sum(|w| w.metrics.send_queue_full.get()),
        sum(|w| w.metrics.gone.get()),
    ])
}

/// How often what was done: loads, stores, allocations, frees, broken rules, full queues, ended streams.
struct Tally([u64; 7]);

#[test]
fn nothing_is_left_behind_whatever_happens() {
    let mut total = [0; 7];
    for seed in 0..60 {
        for (sum, n) in total.iter_mut().zip(run(seed).0) {
            *sum += n;
        }
    }
    // The dice showed everything.
    assert!(total.iter().all(|n| *n > 20), "{total:?}");
}
