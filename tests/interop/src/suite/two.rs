//! Two guests with a wire between them, rxe at both its ends: what one machine alone does not show.

use super::{COMMAND, Outcome, PEER, PROGRAM};
use crate::driver::free_port;
use crate::guest::{Guest, Setup};
use crate::image::Image;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FIRST: &str = "10.9.0.1";
const SECOND: &str = "10.9.0.2";
/// All operations at all sizes between two emulated machines.
const LONG: Duration = Duration::from_mins(3);
/// A connection that is lost is found to be so, by retries and by signs of life that do not come.
const LOST: Duration = Duration::from_mins(2);

/// Both guests.
#[derive(Debug)]
pub(super) struct Two {
    first: Guest,
    second: Guest,
}

/// A test with both.
pub(super) type Test = (&'static str, fn(&mut Two) -> Outcome<()>);

/// In this order: the last one ends a guest.
pub(super) const TESTS: &[Test] = &[
    ("two guests: rping over rxe", rping),
    ("two guests: ibv_rc_pingpong over rxe", pingpong),
    (
        "two guests: kbtp-verbs over rxe, all operations",
        operations,
    ),
    (
        "two guests: kbtp-verbs over rxe, every 200th packet is lost",
        loss,
    ),
    ("two guests: the wire is cut, and both ends find out", cut),
    (
        "two guests: one loses power, and the other finds out",
        power,
    ),
];

impl Two {
    pub(super) fn new(image: &Image, folder: &Path, files: &[PathBuf]) -> Outcome<Self> {
        let port = free_port()?;
        let setup = |name: &str, mac, net: String| Setup {
            files: files.to_vec(),
            net,
            mac,
            processors: 1,
            memory_mib: 512,
            ..Setup::new(name)
        };
        let listen = format!("socket,id=n0,listen=127.0.0.1:{port}");
        let connect = format!("socket,id=n0,connect=127.0.0.1:{port}");
        let mut first = Guest::boot(image, folder, &setup("first", 1, listen))?;
        let mut second = Guest::boot(image, folder, &setup("second", 2, connect))?;
        for (guest, address) in [(&mut first, FIRST), (&mut second, SECOND)] {
            for command in [
                &format!("ip addr add {address}/24 dev eth0"),
                "ip link set eth0 up",
                "rdma link add rxe_eth0 type rxe netdev eth0",
            ] {
                guest.must(command, COMMAND)?;
            }
        }
        second.must(&format!("ping -c 1 -w 60 {FIRST}"), LONG)?;
        Ok(Self { first, second })
    }

    pub(super) fn consoles(&self) -> String {
        self.first.console() + &self.second.console()
    }

    /// Starts the end that answers, on the first guest, once one that is still there from before has ended: a device takes
    /// its time to let go of a connection whose peer is gone.
    fn serve(&mut self, streams: u32) -> Outcome<()> {
        let start = format!(
            "killall {PROGRAM} 2>/dev/null; for i in $(seq 400); do pidof {PROGRAM} >/dev/null || break; usleep 100000; done; setsid ./{PROGRAM} serve {FIRST}:{PEER} {streams} >/tmp/peer.log 2>&1 &"
        );
        self.first.must(&start, COMMAND)?;
        self.says("listening on")
    }

    /// Waits until the first guest's end has said something.
    fn says(&mut self, what: &str) -> Outcome<()> {
        super::says(&mut self.first, what, "/tmp/peer.log", LOST)
    }

    fn drive(&mut self) -> Outcome<()> {
        let said = self
            .second
            .must(&format!("./{PROGRAM} drive {FIRST}:{PEER} 1"), LONG)?;
        if said.contains("rxe_eth0") && said.contains("Immediate Data, atomics") {
            return Ok(());
        }
        Err(format!("not everything was done: {said}").into())
    }
}

fn rping(two: &mut Two) -> Outcome<()> {
    two.first
        .begin(&format!("timeout 100 rping -s -a {FIRST} -C 10 -S 4000 -V"))?;
    // The server may not be there yet.
    let client = format!(
        "for i in $(seq 20); do timeout 60 rping -c -a {FIRST} -C 10 -S 4000 -V && exit 0; usleep 500000; done; exit 1"
    );
    let client = two.second.must(&client, LONG);
    let server = two.first.end(LONG)?;
    client?;
    if server.status == 0 {
        return Ok(());
    }
    Err(format!("the server: {server:?}").into())
}

fn pingpong(two: &mut Two) -> Outcome<()> {
    let of = |peer: &str| {
        format!("timeout 100 ibv_rc_pingpong -e -d rxe_eth0 -g 1 -n 100 -s 1024 {peer}")
    };
    two.first.begin(&of(""))?;
    let client = format!(
        "for i in $(seq 20); do {} && exit 0; usleep 500000; done; exit 1",
        of(FIRST)
    );
    let client = two.second.must(&client, LONG);
    let server = two.first.end(LONG)?;
    client?;
    if server.status == 0 {
        return Ok(());
    }
    Err(format!("the server: {server:?}").into())
}

fn operations(two: &mut Two) -> Outcome<()> {
    two.serve(1)?;
    two.drive()?;
    two.says("closed after")
}

fn loss(two: &mut Two) -> Outcome<()> {
    two.serve(1)?;
    two.second.must(
        "/usr/bin/tc qdisc replace dev eth0 root netem loss 0.5%",
        COMMAND,
    )?;
    let driven = two.drive();
    two.second
        .must("/usr/bin/tc qdisc del dev eth0 root", COMMAND)?;
    driven?;
    two.says("closed after")
}

/// Begins to work without an end.
fn begin(two: &mut Two) -> Outcome<()> {
    two.second.must(
        &format!("setsid ./{PROGRAM} drive {FIRST}:{PEER} 1000000 >/tmp/drive.log 2>&1 &"),
        COMMAND,
    )?;
    super::says(&mut two.second, "done:", "/tmp/drive.log", LONG)
}

/// Waits until the second guest's program has ended, with an error.
fn given_up(two: &mut Two) -> Outcome<()> {
    let wait = format!(
        "for i in $(seq 400); do pidof {PROGRAM} >/dev/null || break; usleep 250000; done; pidof {PROGRAM} && exit 1; tail -n 1 /tmp/drive.log"
    );
    let said = two.second.must(&wait, LOST)?;
    if said.contains("done:") {
        return Err(format!("it ended without an error: {said}").into());
    }
    Ok(())
}

fn cut(two: &mut Two) -> Outcome<()> {
    two.serve(1)?;
    begin(two)?;
    two.second.must(
        "/usr/bin/tc qdisc replace dev eth0 root netem loss 100%",
        COMMAND,
    )?;
    let found = given_up(two).and_then(|()| two.says("ended:"));
    two.second
        .must("/usr/bin/tc qdisc del dev eth0 root", COMMAND)?;
    found
}

fn power(two: &mut Two) -> Outcome<()> {
    two.serve(1)?;
    begin(two)?;
    two.first.kill()?;
    given_up(two)
}
