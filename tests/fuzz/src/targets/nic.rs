//! A device in software that is given anything: WQEs, receive WQEs, doorbells, messages and answers of any octets, in any
//! order, with any hazard.
//!
//! The first four octets of an input are options (see [`hazards`] and [`Nic::new`]), the rest is a list of what happens,
//! each an octet that says what, then what it takes (see [`Nic::happen`]). Whatever it is, the device goes on or stops a
//! queue pair; it writes where a key lets it and where completion queues lie, and nowhere else; and software that reads a
//! completion queue finds every CQE that was written.

use kbtp_device::{
    CqAttributes, CqReader, Device, Domain, KeyAttributes, Layout, MemoryId, Peer, PeerAccess,
    Place, QpAttributes, Roles, Route,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::limits::{BASIC_BLOCK, SEGMENT};
use kbtp_mlx5::{
    AccessRights, CqArm, CqDoorbell, CqeIndex, Cqn, Klm, KsmEntry, Mkey, OpOwn, QpDoorbell, Qpn,
    RepeatEntry, Syndrome, WqeIndex,
};
use kbtp_nic_model::{
    Extent, Fetch, Hazards, Kind, Model, OutgoingWork, Reply, Sampling, Schedule,
};

const LOG_SEND: u8 = 4;
const LOG_RECEIVE: u8 = 3;
const LOG_STRIDE: u8 = 6;
const LOG_CQ: u8 = 4;

/// What a queue pair has in the memory of queues: receive WQEs, its send queue right behind them, then its record.
const PAIR_LEN: u64 = 4096;
const SENDS_AT: u64 = 512;
const RECORD_AT: u64 = 1536;
const PAIRS: u64 = 3;
/// Behind them completion queues, each with its record.
const CQS_AT: u64 = PAIR_LEN * PAIRS;
const CQ_LEN: u64 = 4096;
const CQ_RECORD_AT: u64 = 1024;
const QUEUES_LEN: u64 = CQS_AT + 2 * CQ_LEN;

/// The data, of which keys cover a part.
const DATA_LEN: u64 = 8192;
const KEYED_AT: u64 = 2048;
const KEYED_LEN: u64 = 4096;
/// The address of its first octet that a key covers.
const START: u64 = 0x1_0000;

/// Steps of an input at most.
const STEPS: u32 = 2048;

/// Any program for the device.
pub(super) fn nic_step(octets: &[u8]) {
    let Some((options, program)) = octets.split_first_chunk::<4>() else {
        return;
    };
    let once = Nic::run(*options, program);
    let [_, again, ..] = options;
    if again & 0x80 != 0 {
        assert_eq!(once, Nic::run(*options, program), "the same seed");
    }
}

fn hazards([one, other, ..]: [u8; 4]) -> (Hazards, Schedule) {
    let fetch = match one & 3 {
        0 => Fetch::WhenEnabled,
        1 => Fetch::WhenRun,
        2 => Fetch::Either,
        _ => Fetch::Torn,
    };
    let schedule = match one >> 2 & 3 {
        0 => Schedule::Eager,
        1 => Schedule::Withhold,
        _ => Schedule::Random,
    };
    let sampling = match other >> 5 & 3 {
        0 => Sampling::Early,
        1 => Sampling::Late,
        _ => Sampling::Either,
    };
    let hazards = Hazards {
        fetch,
        sampling,
        reply: if other & 16 == 0 {
            Reply::Memory
        } else {
            Reply::BigEndian
        },
        out_of_order: one & 16 != 0,
        split_atomics: one & 32 != 0,
        scatter_to_cqe: one & 64 != 0,
        quiet_flush: one & 128 != 0,
        lenient_alignment: other & 1 != 0,
        lenient_identity: other & 2 != 0,
        lenient_nop: other & 4 != 0,
        lenient_roles: other & 8 != 0,
        ..Hazards::default()
    };
    (hazards, schedule)
}

/// What is left of an input.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn octet(&mut self) -> Option<u8> {
        let (octet, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*octet)
    }

    fn word(&mut self) -> Option<u16> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*word))
    }

    /// As many octets as there are, at most `most`.
    fn some(&mut self, most: usize) -> &'a [u8] {
        let (octets, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        octets
    }
}

/// What came of a run, as far as it must be the same again.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    queues: Vec<u8>,
    data: Vec<u8>,
    time: u64,
}

struct Nic {
    model: Model,
    queues: Region,
    data: Region,
    memory: MemoryId,
    attributes: Vec<QpAttributes>,
    keys: Vec<Mkey>,
    cqns: [Cqn; 2],
    reader: CqReader,
    /// Software did not write over the reader's queue, nor say that it read what it had not.
    honest: bool,
    /// Requests that the peer outside has.
    outside: Vec<u64>,
    /// What the queues' memory holds but for CQEs.
    shadow: Vec<u8>,
    steps: u32,
}

impl Nic {
    fn run(options: [u8; 4], program: &[u8]) -> Option<Outcome> {
        let made = Self::new(options);
        assert!(made.is_some(), "queues and keys are made for any options");
        let mut nic = made?;
        let mut words = Words(program);
        while nic.happen(&mut words).is_some() {}
        nic.step(64);
        nic.check();
        Some(Outcome {
            queues: all(&nic.queues),
            data: all(&nic.data),
            time: nic.model.time(),
        })
    }

    /// Three queue pairs, the first two connected to each other, the third to a peer outside, and a key of each kind.
    fn new(options: [u8; 4]) -> Option<Self> {
        let [.., seed, roles] = options;
        let (hazards, schedule) = hazards(options);
        let mut model = Model::new(hazards, schedule, seed.into());
        let memory = |len| Region::anonymous(len, &PageOptions::default()).ok();
        let (queues, data) = (memory(QUEUES_LEN)?, memory(DATA_LEN)?);
        for cq in 0..2 {
            let ring = CQS_AT + cq * CQ_LEN;
            queues
                .fill(ring, BASIC_BLOCK as u64 * 16, OpOwn::INITIAL)
                .ok()?;
        }
        let domain = model.create_domain().ok()?;
        let here = model.register(&queues).ok()?;
        let there = model.register(&data).ok()?;
        let place = |offset| Place {
            memory: here,
            offset,
        };
        let cq = |number: u64| CqAttributes {
            ring: place(CQS_AT + number * CQ_LEN),
            log_size: LOG_CQ,
            doorbell: place(CQS_AT + number * CQ_LEN + CQ_RECORD_AT),
            overrun_ignored: number == 1,
        };
        let cqns = [model.create_cq(&cq(0)).ok()?, model.create_cq(&cq(1)).ok()?];
        let [first, second] = cqns;
        let attributes = (0..PAIRS).map(|number| {
            let (send_cq, place) = (if number == 0 { first } else { second }, &place);
            pair(number, roles, (domain, send_cq, second), place)
        });
        let keys = keys(&mut model, domain, there)?;
        let reader = CqReader::new(queues.clone(), CQS_AT, LOG_CQ, Some(CQS_AT + CQ_RECORD_AT));
        let shadow = all(&queues);
        let mut nic = Self {
            model,
            queues,
            data,
            memory: there,
            attributes: attributes.collect(),
            keys,
            cqns,
            reader,
            honest: true,
            outside: Vec::new(),
            shadow,
            steps: 0,
        };
        for number in 0..PAIRS {
            nic.make(number)?;
            if roles & 128 != 0 {
                let set = nic.model.set_indices(qpn(number), 65_530, 65_534);
                assert_eq!(set, Ok(()));
            }
            nic.connect(number, number ^ 1);
        }
        // Whom the first was to be connected to was not there yet.
        nic.connect(0, 1);
        Some(nic)
    }

    fn make(&mut self, number: u64) -> Option<()> {
        let attributes = usize::try_from(number).ok();
        let attributes = attributes.and_then(|at| self.attributes.get(at))?;
        let made = self.model.create_qp(attributes).ok()?;
        assert_eq!(made, qpn(number));
        Some(())
    }

    fn connect(&mut self, number: u64, other: u64) {
        let peer = match other {
            0 | 1 => Peer::Local(qpn(other)),
            _ => Peer::Remote(Route {
                qpn: Qpn::default(),
                gid: [0; 16],
                send_psn: 0,
                receive_psn: 0,
                path: None,
            }),
        };
        // It may be connected, in error, or gone.
        let _refused = self.model.connect(qpn(number), &peer).is_err();
    }

    /// The next thing that happens; `None` if nothing is left.
    fn happen(&mut self, words: &mut Words<'_>) -> Option<()> {
        let what = words.octet()?;
        let number = words.octet()?;
        let pair = u64::from(number) % PAIRS;
        match what % 12 {
            0 => {
                // WQEs into the send queue. With their place in them, or as they are.
                let (block, blocks) = (words.word()?, words.octet()?);
                let len = BASIC_BLOCK * usize::from(blocks % 4);
                let mut wqe = words.some(len).to_vec();
                if number & 128 == 0 {
                    identify(&mut wqe, block, qpn(pair));
                }
                let at = u64::from(block % 16) * BASIC_BLOCK as u64;
                self.put(pair * PAIR_LEN + SENDS_AT + at, &wqe);
            }
            1 => {
                let record = QpDoorbell {
                    send: WqeIndex(words.word()?),
                    receive: words.word()?,
                };
                self.put(pair * PAIR_LEN + RECORD_AT, &record.encode());
                let _gone = self.model.ring_send(qpn(pair), [0; 8]).is_err();
            }
            2 => self.step(u32::from(number) + 1),
            3 => {
                let slot = words.octet()?;
                let at = u64::from(slot % 8) << LOG_STRIDE;
                let wqe = words.some(usize::from(slot >> 6) * SEGMENT);
                self.put(pair * PAIR_LEN + at, wqe);
            }
            4 => self.arm(number, words.octet()?)?,
            5 => {
                let (len, key) = (words.octet()?, words.octet()?);
                let kind = match number >> 6 {
                    0 | 1 => Kind::Send,
                    2 => Kind::Immediate(key.into()),
                    _ => Kind::Invalidate(self.key(key).0),
                };
                let message = words.some(len.into());
                // It may be refused, for many reasons.
                let _refused = self.model.deliver(qpn(pair), message, kind).is_err();
            }
            6 => self.outgoing(pair),
            7 => {
                let (at, how) = (words.octet()?, words.octet()?);
                self.answer(pair, at, how);
            }
            8 => self.live(pair, number, words.octet()?),
            9 => {
                let (at, len) = (words.word()?, words.octet()?);
                let octets = words.some(len.into());
                self.honest = false;
                self.put(u64::from(at) % QUEUES_LEN, octets);
            }
            10 => {
                let (at, len) = (words.word()?, words.octet()?);
                let octets = words.some(len.into());
                let at = KEYED_AT + u64::from(at) % (KEYED_LEN - 255);
                assert!(self.data.write(at, octets).is_ok());
            }
            _ => while self.model.next_event().is_some() {},
        }
        Some(())
    }

    /// Writes to the memory of queues, as software does.
    fn put(&mut self, at: u64, octets: &[u8]) {
        let room = usize::try_from(QUEUES_LEN - at).unwrap_or(0);
        let octets = octets.get(..room).unwrap_or(octets);
        assert!(self.queues.write(at, octets).is_ok());
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let shadow = self.shadow.get_mut(at..).unwrap_or(&mut []);
        for (to, from) in shadow.iter_mut().zip(octets) {
            *to = *from;
        }
    }

    fn step(&mut self, steps: u32) {
        let steps = steps.min(STEPS - self.steps);
        self.steps += steps;
        for _ in 0..steps {
            if !self.model.step() {
                break;
            }
        }
        while self.reader.next().is_some() {}
    }

    fn arm(&mut self, number: u8, consumer: u8) -> Option<()> {
        let at = u64::from(number & 1);
        let consumer = CqeIndex::truncate(consumer.into());
        let how = CqArm {
            sequence: 0,
            solicited_only: number & 2 != 0,
            consumer,
        };
        if number & 4 != 0 {
            self.honest &= at == 1;
            let record = CqDoorbell {
                consumer,
                ..CqDoorbell::default()
            };
            self.put(CQS_AT + at * CQ_LEN + CQ_RECORD_AT, &record.encode());
        }
        let cqn = self.cqns.get(usize::from(number & 1))?;
        assert_eq!(self.model.arm_cq(*cqn, how), Ok(()));
        Some(())
    }

    fn key(&self, number: u8) -> Mkey {
        let key = usize::from(number).checked_rem(self.keys.len());
        let key = key.and_then(|at| self.keys.get(at)).copied();
        key.unwrap_or_else(|| Mkey(number.into()))
    }

    /// What a queue pair has for its peer outside lies where a key lets it.
    fn outgoing(&mut self, pair: u64) {
        let Some(sent) = self.model.outgoing(qpn(pair)) else {
            return;
        };
        self.outside.push(sent.id);
        let (OutgoingWork::Write { local, .. }
        | OutgoingWork::Read { local, .. }
        | OutgoingWork::Atomic { local, .. }) = &sent.work
        else {
            return;
        };
        for Extent { place, len } in local {
            let end = place.offset.saturating_add(*len);
            assert!(place.memory == self.memory && place.offset >= KEYED_AT);
            assert!(end <= KEYED_AT + KEYED_LEN);
        }
    }

    fn answer(&mut self, pair: u64, at: u8, how: u8) {
        let at = usize::from(at).checked_rem(self.outside.len());
        // One that was asked for, or one that was not.
        let id = at.map_or_else(|| how.into(), |at| self.outside.swap_remove(at));
        let answer = match how & 3 {
            0 => Ok(None),
            1 => Ok(Some(0x0102_0304_0506_0708)),
            _ => Err(Syndrome(how | 1)),
        };
        let _gone = self.model.answer(qpn(pair), id, answer).is_err();
    }

    fn live(&mut self, pair: u64, number: u8, how: u8) {
        let key = self.key(how >> 3);
        let done = match how & 7 {
            0 => self.model.stop(qpn(pair)).is_ok(),
            1 => self.model.reset(qpn(pair)).is_ok(),
            2 => self.model.destroy_qp(qpn(pair)).is_ok() && self.make(pair).is_some(),
            3 => self.model.disconnect(qpn(pair)).is_ok(),
            4 => self.model.destroy_key(key).is_ok(),
            5 => self.model.revive_key(key).is_ok(),
            6 => {
                let gone = self.model.unregister(self.memory).is_ok();
                let back = self.model.register(&self.data).ok();
                // Where it was, if it was gone; else there is another name for it, to which no key is made.
                assert!(!gone || back == Some(self.memory));
                gone
            }
            _ => {
                self.connect(pair, u64::from(number >> 2) % PAIRS);
                true
            }
        };
        if done && how & 7 <= 2 {
            self.connect(pair, pair ^ 1);
        }
    }

    /// That nobody wrote where nothing lets it, and no CQE was lost.
    fn check(&self) {
        let data = all(&self.data);
        let outside = |at: &usize| {
            let at = *at as u64;
            !(KEYED_AT..KEYED_AT + KEYED_LEN).contains(&at)
        };
        let changed = data.iter().enumerate().filter(|(at, _)| outside(at));
        for (at, octet) in changed {
            assert_eq!(
                *octet, 0,
                "octet {at} of the data, to which there is no key"
            );
        }
        let queues = all(&self.queues);
        let software = usize::try_from(CQS_AT).unwrap_or(0);
        assert_eq!(
            queues.get(..software),
            self.shadow.get(..software),
            "the device writes no WQE and no record"
        );
        let [first, _] = self.cqns;
        if self.honest {
            assert_eq!(self.model.produced(first), Ok(self.reader.consumed()));
        }
    }
}

/// The attributes of a queue pair.
fn pair(
    number: u64,
    roles: u8,
    (domain, send_cq, receive_cq): (Domain, Cqn, Cqn),
    place: impl Fn(u64) -> Place,
) -> QpAttributes {
    QpAttributes {
        domain,
        send_cq,
        receive_cq,
        send_ring: place(number * PAIR_LEN + SENDS_AT),
        log_send: LOG_SEND,
        receive_ring: place(number * PAIR_LEN),
        log_receive: LOG_RECEIVE,
        log_stride: LOG_STRIDE,
        doorbell: place(number * PAIR_LEN + RECORD_AT),
        roles: Roles {
            master: roles & 1 != 0,
            managed_send: roles & 2 != 0 && number == 1,
            managed_receive: roles & 4 != 0,
        },
        access: PeerAccess {
            read: roles & 8 == 0,
            write: roles & 16 == 0,
            atomic: roles & 32 == 0,
        },
        log_message: 12,
        rnr_retry: if roles & 64 == 0 { 0 } else { 7 },
        max_reads: 4,
    }
}

/// A key of each kind.
fn keys(model: &mut Model, domain: Domain, memory: MemoryId) -> Option<Vec<Mkey>> {
    let rights = [
        AccessRights::UMR,
        AccessRights::ATOMIC,
        AccessRights::REMOTE_WRITE,
        AccessRights::REMOTE_READ,
        AccessRights::LOCAL_WRITE,
        AccessRights::LOCAL_READ,
    ];
    let all = rights.into_iter().fold(AccessRights(0), AccessRights::with);
    let plain = |at, len| {
        let place = Place {
            memory,
            offset: KEYED_AT + at,
        };
        KeyAttributes::new(domain, all, START + at, len, Layout::Plain(place))
    };
    let whole = model.create_key(&plain(0, KEYED_LEN)).ok()?;
    let loose = KeyAttributes {
        relaxed_ordering: true,
        remote_invalidate: true,
        ..plain(1024, 1024)
    };
    let loose = model.create_key(&loose).ok()?;
    let own = KeyAttributes {
        qpn: Some(qpn(1)),
        ..plain(2048, 512)
    };
    let own = model.create_key(&own).ok()?;
    let repeat = RepeatEntry {
        stride: 128,
        len: 64,
        mkey: whole,
        address: START,
    };
    let repeat = Layout::Repeat {
        repetitions: 16,
        entries: &[repeat],
    };
    let repeat = KeyAttributes::new(domain, all, 0, 1024, repeat);
    let repeat = model.create_key(&repeat).ok()?;
    let piece = |len, mkey, address| Klm { len, mkey, address };
    let list = [
        piece(96, whole, START + 512),
        piece(160, repeat, 32),
        piece(64, loose, START + 1024),
    ];
    let list = KeyAttributes::new(domain, all, 0, 320, Layout::List(&list));
    let list = model.create_key(&list).ok()?;
    let entity = |mkey, address| KsmEntry { mkey, address };
    let entries = [entity(list, 0), entity(whole, START), entity(list, 64)];
    let equal = Layout::Equal {
        log_size: 7,
        entries: &entries,
    };
    let equal = KeyAttributes::new(domain, all, 0, 384, equal);
    let equal = model.create_key(&equal).ok()?;
    Some(vec![whole, loose, own, repeat, list, equal])
}

fn qpn(number: u64) -> Qpn {
    Qpn::truncate(0x40 + u32::try_from(number).unwrap_or(0))
}

/// Writes index and queue pair into a WQE, that it be one of its place.
fn identify(wqe: &mut [u8], block: u16, qpn: Qpn) {
    if let [_, high, low, _, a, b, c, ..] = wqe {
        [*high, *low] = block.to_be_bytes();
        [_, *a, *b, *c] = qpn.get().to_be_bytes();
    }
}

fn all(region: &Region) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(region.len()).unwrap_or(0)];
    assert!(region.read(0, &mut octets).is_ok());
    octets
}
