//! How many requests the model serves in a second, octets of every WQE and CQE included, software's arming of the slots
//! too: `cargo bench -p kbtp-nic-model`. Blocks of 4 KiB, one session, as many requests in flight as it has credits.
#![forbid(unsafe_code)]

use kbtp_chain::{Template, full, load};
use kbtp_device::{
    Device, Master, Peer, PeerAccess, PoolPlace, Route, Session, SessionPlan, SetUpError, Target,
};
use kbtp_fabric::Time;
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::Qpn;
use kbtp_nic_model::{
    Client, ClientKey, Hazards, Kind, Model, ModelError, Outgoing, Schedule, exchange,
};
use kbtp_wire::{BlockOffset, ByteLen, Handle, RingOrder, RingSlot, Ticket};
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
const BLOCKS: u32 = 64;
const KEY: u32 = 7;
const FIRST_BLOCK: u64 = 1 << 40;
const RUN: Duration = Duration::from_secs(2);

type Failure = SetUpError<ModelError>;

struct Bench {
    target: Target,
    model: Model,
    master: Master,
    session: Session,
    client: Client,
    held: Option<Outgoing>,
    served: u64,
    /// The first slot that software has not looked at.
    looked: u64,
}

fn pool() -> Result<PoolPlace, Failure> {
    let options = PageOptions::default();
    let meta = Region::anonymous(3 << 12, &options)?;
    let blocks = Region::anonymous(u64::from(BLOCKS * BLOCK), &options)?;
    let ring = RingOrder::for_blocks(BLOCKS).unwrap_or_default();
    for block in 0..BLOCKS {
        let slot = RingSlot {
            sequence: Ticket(block),
            block: BlockOffset(FIRST_BLOCK + u64::from(block * BLOCK)),
        };
        meta.write(4096 + u64::from(block) * 16, &slot.encode())?;
    }
    meta.write(64, &(u64::from(BLOCKS) << 32).to_le_bytes())?;
    Ok(PoolPlace {
        meta,
        table_at: 8192,
        table_base: Handle(0),
        table_count: 64,
        ring_at: 4096,
        ring,
        counters_at: 0,
        blocks,
        first_block: BlockOffset(FIRST_BLOCK),
        block_size: ByteLen(BLOCK),
    })
}

impl Bench {
    fn new(template: Template, schedule: Schedule) -> Result<Self, Failure> {
        let mut model = Model::new(Hazards::default(), schedule, 1);
        let device = |source| SetUpError::Device {
            what: "connecting",
            source,
        };
        let target = Target::create(&mut model, pool()?)?;
        let mut master = Master::create(&mut model, target.loopback_domain())?;
        let profile = target.profile(&mut model, template)?;
        let plan = SessionPlan {
            id: 0,
            own_base: Handle(0),
            own_count: 64,
            client_access: PeerAccess::default(),
        };
        let mut session = Session::create(&mut model, &target, &profile, &plan)?;
        let route = Route {
            qpn: Qpn::default(),
            gid: [0; 16],
            send_psn: 0,
            receive_psn: 0,
            path: None,
        };
        model
            .connect(session.client_qpn(), &Peer::Remote(route))
            .map_err(device)?;
        session.arm_free(&mut model)?;
        session.start(&mut model, &mut master)?;
        let region = Region::anonymous(u64::from(BLOCK), &PageOptions::default())?;
        let mut client = Client::new(region, 64);
        client.set_key(ClientKey {
            key: KEY,
            start: 0,
            len: u64::from(BLOCK),
            at: 0,
            read: true,
            write: true,
            valid: true,
        });
        // What a session that only reads loads is bound by hand.
        let entry = kbtp_wire::TableEntry {
            flags: kbtp_wire::EntryFlags(3),
            generation: kbtp_wire::Generation::new(1),
            data_len: ByteLen(BLOCK),
            block: BlockOffset(FIRST_BLOCK),
        };
        target.pool().meta.write(8192 + 63 * 16, &entry.encode())?;
        Ok(Self {
            target,
            model,
            master,
            session,
            client,
            held: None,
            served: 0,
            looked: 0,
        })
    }

    /// Software returns what chains freed to the ring; nobody loads it here.
    fn return_freed(&mut self) -> Result<(), Failure> {
        let completed = self.session.completed();
        let pool = self.target.pool();
        for slot in self.looked..completed {
            let Some((_, block)) = self.session.unbinds(slot) else {
                continue;
            };
            let mut counter = [0; 8];
            pool.meta.read(pool.counters_at + 64, &mut counter)?;
            let [.., a, b, c, d] = counter;
            let sequence = Ticket(u32::from_le_bytes([a, b, c, d]));
            let slots = pool.ring.slots();
            let place = u64::from(sequence.0.checked_rem(slots).unwrap_or(0)) * 16;
            let octets = RingSlot { sequence, block }.encode();
            pool.meta.write(pool.ring_at + place, &octets)?;
            let next = sequence.0.wrapping_add(1);
            let offset = u64::from(next.checked_rem(slots).unwrap_or(0)) * 16;
            let tail = u64::from(next) << 32 | offset;
            pool.meta
                .write(pool.counters_at + 64, &tail.to_le_bytes())?;
        }
        self.looked = completed;
        Ok(())
    }

    /// Serves what is in flight until so many completions are there.
    fn until(&mut self, completions: u64) -> Result<bool, Failure> {
        while self.served < completions {
            while self.model.step() {}
            let qpn = self.session.client_qpn();
            let moved = exchange(
                &mut self.model,
                qpn,
                &mut self.client,
                &mut self.held,
                Time(0),
            );
            while let Some(message) = self.client.receive() {
                self.served += u64::from(message.octets.get(22..24) == Some(&[0, 0]));
            }
            self.return_freed()?;
            let armed = self.session.arm_free(&mut self.model)?;
            if !moved && armed == 0 && !self.model.step() {
                return Ok(false);
            }
        }
        // Its queue stays empty: nothing rings.
        Ok(self.master.has_room())
    }

    /// Requests in a second, and in a second of the processor: others may use it too.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark measures time: it is its own driver"
    )]
    fn run(&mut self, requests: &[Vec<u8>]) -> Result<Option<[f64; 2]>, Failure> {
        let (begin, used) = (Instant::now(), used());
        let mut sent = 0_u64;
        while begin.elapsed() < RUN {
            for request in requests {
                self.client.send(request, Kind::Send);
            }
            sent += requests.len() as u64;
            if !self.until(sent)? {
                return Ok(None);
            }
        }
        // Below 2^32 in two seconds.
        let sent = f64::from(u32::try_from(sent).unwrap_or(u32::MAX));
        let times = [begin.elapsed(), self::used().saturating_sub(used)];
        Ok(Some(times.map(|time| sent / time.as_secs_f64())))
    }
}

/// What this process has had of the processor: one thread.
fn used() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn request(opcode: u8, handle: u8, data: bool) -> Vec<u8> {
    let mut octets = vec![0; if data { 40 } else { 24 }];
    octets.splice(0..4, [1, opcode, 0, 0]);
    octets.splice(19..20, [handle]);
    if data {
        octets.splice(24..28, KEY.to_be_bytes());
        octets.splice(36..40, BLOCK.to_be_bytes());
    }
    octets
}

#[expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loads: Vec<Vec<u8>> = (0..16).map(|_| request(3, 63, true)).collect();
    let stores: Vec<Vec<u8>> = (0..8)
        .flat_map(|handle| [request(5, handle, true), request(6, handle, false)])
        .collect();
    println!(
        "requests a second, and a second of the processor; blocks of 4 KiB, one session, 16 in flight"
    );
    for schedule in [Schedule::Eager, Schedule::Random, Schedule::Withhold] {
        for (what, template, requests) in [
            ("profile L, LOAD", load(ByteLen(BLOCK)), &loads),
            ("profile F, LOAD", full(ByteLen(BLOCK)), &loads),
            (
                "profile F, ALLOC_STORE and FREE",
                full(ByteLen(BLOCK)),
                &stores,
            ),
        ] {
            let mut bench = Bench::new(template, schedule)?;
            match bench.run(requests)? {
                Some([wall, own]) => {
                    let schedule = format!("{schedule:?}");
                    println!("{schedule:<10} {what:<34} {wall:>9.0} {own:>9.0}");
                }
                None => return Err(format!("{what}: it came to rest").into()),
            }
        }
    }
    Ok(())
}
