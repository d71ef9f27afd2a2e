//! siw and the programs of librdmacm in the guest as the initiator, against our user-space stack.

use super::{COMMAND, Outcome, Scene, Test};
use crate::guest::HOST;
use crate::party::Party;
use crate::rping::serve;
use crate::streams::accept;
use kbtp_iwarp_tcp::{Config, ListenOptions, Listener, StreamOptions};

/// The least that `rping` takes, and around segments and FPDUs.
const SIZES: [u32; 6] = [23, 64, 1001, 1460, 16_384, 65_000];
const PINGS: u32 = 10;

/// All tests of this file. The last of them load another siw.
pub(super) fn tests() -> Vec<Test> {
    vec![
        (
            "rping on siw to our target: no CRC".to_owned(),
            Box::new(|scene| pings(scene, "siw", false)),
        ),
        (
            "rdma_client on siw to our target: no CRC".to_owned(),
            Box::new(|scene| sends(scene, "siw", false)),
        ),
        (
            "rping on siw that asks for no CRCs to our target that does: CRC".to_owned(),
            Box::new(|scene| pings(scene, "siw", true)),
        ),
        (
            "rping on siw that asks for CRCs to our target: CRC".to_owned(),
            Box::new(|scene| pings(scene, "siw-crc", true)),
        ),
        (
            "rping on siw that asks for CRCs to our target that does not: CRC".to_owned(),
            Box::new(|scene| pings(scene, "siw-crc", false)),
        ),
        (
            "rdma_client on siw that asks for CRCs to our target: CRC".to_owned(),
            Box::new(|scene| sends(scene, "siw-crc", true)),
        ),
    ]
}

/// The guest's device with a build of siw.
pub(super) fn build(scene: &mut Scene, siw: &str) -> Outcome<()> {
    let load = format!(
        "[ \"$(cat /tmp/siw 2>/dev/null)\" = {siw} ] && exit 0; killall rping 2>/dev/null; \
         rdma link del siw_eth0 && rmmod siw && insmod /lib/siw/{siw}.ko && \
         rdma link add siw_eth0 type siw netdev eth0 && echo {siw} >/tmp/siw"
    );
    scene.guest.must(&load, COMMAND)?;
    Ok(())
}

pub(super) fn listen(crc: bool) -> Outcome<Listener> {
    let stream = StreamOptions {
        rdma: Config {
            crc,
            ..Config::default()
        },
        ..StreamOptions::default()
    };
    let options = ListenOptions {
        stream,
        ..ListenOptions::default()
    };
    Ok(Listener::bind("127.0.0.1:0".parse()?, options)?)
}

fn pings(scene: &mut Scene, siw: &str, crc: bool) -> Outcome<()> {
    build(scene, siw)?;
    let mut listener = listen(crc)?;
    let port = listener.local_addr().port();
    for size in SIZES {
        scene.guest.begin(&format!(
            "timeout 50 rping -c -a {HOST} -p {port} -C {PINGS} -S {size} -V"
        ))?;
        let served = accept(&mut listener)
            .and_then(Party::new)
            .and_then(|mut party| serve(&mut party));
        let ran = scene.guest.end(COMMAND)?;
        let served = served.map_err(|e| format!("{size} octets: {e}; rping: {ran:?}"))?;
        if (served, ran.status) != (PINGS, 0) {
            return Err(format!("{size} octets: {served} pings served; rping: {ran:?}").into());
        }
    }
    Ok(())
}

/// `rdma_client` sends 16 octets and waits for 16.
fn sends(scene: &mut Scene, siw: &str, crc: bool) -> Outcome<()> {
    build(scene, siw)?;
    let mut listener = listen(crc)?;
    let port = listener.local_addr().port();
    scene
        .guest
        .begin(&format!("timeout 50 rdma_client -s {HOST} -p {port}"))?;
    let mut party = Party::new(accept(&mut listener)?)?;
    let message = party.receive()?;
    party.send(&message)?;
    let end = party.ending()?;
    let ran = scene.guest.end(COMMAND)?;
    if message.len() == 16 && ran.said.contains("rdma_client: end 0") {
        return Ok(());
    }
    Err(format!("{} octets came, {end}, and {ran:?}", message.len()).into())
}
