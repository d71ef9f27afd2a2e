//! What an mlx5 device and its driver exchange, and the checker of chains on memory that is not as it should be.

use kbtp_chain::key::{Key, Sizes};
use kbtp_chain::{
    Builder, CqPlace, Placement, QueuePlace, Restart, Step, Template, check_armed, full, load,
};
use kbtp_mlx5::{Body, Control, Cqe, Cqn, Mkey, Qpn, Wqe, WqeBuffer};
use kbtp_wire::{ByteLen, RingOrder};
use std::sync::OnceLock;

const BLOCK: ByteLen = ByteLen(4096);

/// A WQE, a CQE and the structures of keys: any octets are a value or a named error, and a value is written as it reads.
pub(super) fn mlx5_wqe(octets: &[u8]) {
    match Wqe::decode(octets) {
        Ok(wqe) => {
            let Ok(written) = WqeBuffer::encode(&wqe.control, &wqe.body) else {
                unreachable!("what was decoded fits");
            };
            // Segments behind what the opcode takes are not written.
            let Ok(again) = Wqe::decode(written.as_octets()) else {
                unreachable!("what was written is read");
            };
            assert!(again.control.segments <= wqe.control.segments);
            let control = Control {
                segments: again.control.segments,
                ..wqe.control
            };
            assert_eq!((again.control, again.body), (control, wqe.body));
            assert!(written.basic_blocks() >= 1);
            if let Body::Read(_, list) = wqe.body {
                assert!(list.is_empty() || list.octets() > 0);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(octets) = octets.first_chunk()
        && let Ok(cqe) = Cqe::decode(octets)
    {
        assert_eq!(Cqe::decode(&cqe.encode()), Ok(cqe));
    }
}

/// Both profiles, where they lie, and what arms a slot of each.
struct Armed {
    template: Template,
    steps: Vec<Step>,
}

fn placement() -> &'static Placement {
    static PLACEMENT: OnceLock<Placement> = OnceLock::new();
    PLACEMENT.get_or_init(|| {
        let cq = |number, address| CqPlace {
            cqn: Cqn::truncate(number),
            address,
            log_size: 9,
        };
        let queue = |number, address, log_size| QueuePlace {
            qpn: Qpn::truncate(number),
            address,
            log_size,
        };
        let mut keys = [Mkey(0); Key::ALL.len()];
        for (number, key) in (1..).zip(&mut keys) {
            *key = Mkey(number << 8 | 0x5a);
        }
        Placement {
            session: 3,
            worker: queue(0x41, 0x10_0000_0000, 11),
            client: queue(0x42, 0x11_0000_0000, 8),
            receive_cq: cq(0x81, 0x13_0000_0000),
            client_cq: cq(0x82, 0x14_0000_0000),
            worker_cq: cq(0x83, 0x15_0000_0000),
            scratch: 0x12_0000_0000,
            sink: 0x16_0000_0000,
            mailbox: 0x17_0000_0000,
            keys,
            sizes: Sizes {
                table_base: 0,
                table_count: 64,
                own_base: 0,
                own_count: 32,
                ring: RingOrder::new(5).unwrap_or_default(),
            },
            restart: Restart::default(),
        }
    })
}

fn armed() -> &'static [Armed; 2] {
    static ARMED: OnceLock<[Armed; 2]> = OnceLock::new();
    ARMED.get_or_init(|| {
        [full(BLOCK), load(BLOCK)].map(|template| {
            let builder = Builder::new(&template, placement(), BLOCK);
            let Ok(steps) = builder.and_then(|builder| builder.arm(SLOT)) else {
                unreachable!("the profiles are built");
            };
            assert_eq!(check_armed(&template, placement(), SLOT, &steps), []);
            Armed { template, steps }
        })
    })
}

const SLOT: u64 = 7;

/// A slot's memory with octets changed: the first octet of the input picks the profile, then four octets a change (step,
/// place, value). The checker never fails, and finds a WQE that says it is elsewhere or is none.
pub(super) fn chain_memory(octets: &[u8]) {
    let Some((&options, changes)) = octets.split_first() else {
        return;
    };
    let [one, other] = armed();
    let armed = if options & 1 == 0 { one } else { other };
    let mut steps = armed.steps.clone();
    if options & 2 != 0 && !steps.is_empty() {
        // In another order.
        let by = usize::from(options >> 2) % steps.len();
        steps.rotate_left(by);
    }
    let (changes, _) = changes.as_chunks::<4>();
    for &[high, low, place, value] in changes.iter().take(256) {
        let at = usize::from(u16::from_be_bytes([high, low])).checked_rem(steps.len());
        let Some(Step::Write { octets, .. }) = at.and_then(|at| steps.get_mut(at)) else {
            continue;
        };
        let at = usize::from(place).checked_rem(octets.len()).unwrap_or(0);
        if let Some(octet) = octets.get_mut(at) {
            *octet = value;
        }
    }
    let findings = check_armed(&armed.template, placement(), SLOT, &steps);
    for finding in &findings {
        assert!(!finding.to_string().is_empty());
    }
    if findings.is_empty() {
        // What the checker lets through still says where it lies, and how long it is.
        for (old, new) in armed.steps.iter().zip(&steps) {
            let (Step::Write { octets: old, .. }, Step::Write { octets: new, .. }) = (old, new)
            else {
                continue;
            };
            if let (Ok(old), Ok(new)) = (Wqe::decode(old), Wqe::decode(new)) {
                assert_eq!(old.control.index, new.control.index);
                assert_eq!(old.control.qpn, new.control.qpn);
                assert_eq!(old.control.segments, new.control.segments);
            }
        }
    }
}

/// A slot's steps as a file may have them that `kbtp wqe check` is given: other addresses, octets cut off or too many, steps
/// left out, twice or in another order. Four octets a change: what, which step, two operands; a new address is eight more.
/// The checker has its findings, whatever it is; where it has none, no octet is other than it saw.
pub(super) fn chain_steps(octets: &[u8]) {
    let Some((&options, mut rest)) = octets.split_first() else {
        return;
    };
    let [one, other] = armed();
    let armed = if options & 1 == 0 { one } else { other };
    let mut steps = armed.steps.clone();
    while let Some(([what, at, one, other], more)) = rest.split_first_chunk::<4>() {
        rest = more;
        let Some(at) = usize::from(*at).checked_rem(steps.len()) else {
            break;
        };
        match what % 7 {
            0 => {
                let (address, more) = rest.split_first_chunk().unwrap_or((&[u8::MAX; 8], &[]));
                rest = more;
                write_at(&mut steps, at, |to, _| *to = u64::from_be_bytes(*address));
            }
            1 => {
                let by = i64::from(i16::from_be_bytes([*one, *other]));
                write_at(&mut steps, at, |to, _| *to = to.wrapping_add_signed(by));
            }
            2 => write_at(&mut steps, at, |_, octets| octets.truncate((*one).into())),
            3 => write_at(&mut steps, at, |_, octets| {
                octets.resize(octets.len() + usize::from(*one), *other);
            }),
            4 => drop(steps.remove(at)),
            5 if steps.len() < 2 * armed.steps.len() => {
                let again = steps.get(at).cloned();
                let to = usize::from(*other) % (steps.len() + 1);
                steps.splice(to..to, again);
            }
            _ => {
                let other = usize::from(*other) % steps.len();
                steps.swap(at, other);
            }
        }
    }
    let findings = check_armed(&armed.template, placement(), SLOT, &steps);
    for finding in &findings {
        assert!(!finding.to_string().is_empty());
    }
    if findings.is_empty() {
        // What was last written at an address is what lies there in the end.
        for step in &steps {
            let Step::Write { address, .. } = step else {
                continue;
            };
            let last = steps.iter().rev().find_map(|step| match step {
                Step::Write {
                    address: at,
                    octets,
                } if at == address => Some(octets),
                _ => None,
            });
            let Some(last) = last else { continue };
            assert_eq!(&left_at(&steps, *address, last.len()), last);
        }
    }
}

/// What all steps leave in `len` octets from `address` on.
fn left_at(steps: &[Step], address: u64, len: usize) -> Vec<u8> {
    let mut left = vec![0; len];
    for step in steps {
        let Step::Write {
            address: at,
            octets,
        } = step
        else {
            continue;
        };
        for (place, to) in (0..).zip(&mut left) {
            let here = address
                .checked_add(place)
                .and_then(|here| here.checked_sub(*at));
            let here = here.and_then(|here| usize::try_from(here).ok());
            if let Some(octet) = here.and_then(|here| octets.get(here)) {
                *to = *octet;
            }
        }
    }
    left
}

/// Changes a step that writes.
fn write_at(steps: &mut [Step], at: usize, change: impl FnOnce(&mut u64, &mut Vec<u8>)) {
    if let Some(Step::Write { address, octets }) = steps.get_mut(at) {
        change(address, octets);
    }
}
