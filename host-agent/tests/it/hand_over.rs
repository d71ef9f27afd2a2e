//! What a target gets, keeps and loses.

use crate::common::{BLOCK_SIZE, BLOCKS, Running, Scratch, event, name, octets, options};
use kbtp_agent::{AgentConfig, Lock};
use kbtp_control::{
    AgentEvent, AgentLink, ControlError, DrainReason, Mechanism, Mechanisms, Refusal, Role,
    TargetChannel,
};
use std::sync::atomic::Ordering;
use std::time::Duration;

const DRAINING: AgentEvent = AgentEvent::Draining(DrainReason::Stopping);

#[test]
fn a_target_finds_what_the_one_before_it_wrote() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut first = agent.target();
    let pool = first.attach_pool().unwrap();
    assert_eq!(pool.region.len(), u64::from(BLOCK_SIZE) * u64::from(BLOCKS));
    assert_eq!(pool.geometry.block_size, BLOCK_SIZE);
    assert_eq!(pool.geometry.blocks, BLOCKS);
    assert!(pool.fresh, "nobody had it before");
    assert!(pool.grant.base.0 != 0 && pool.grant.base.0.is_multiple_of(u64::from(BLOCK_SIZE)));
    assert!(pool.grant.access.remote_write && pool.grant.access.local_write);
    let table = first.attach_side(&name("table"), 8192).unwrap();
    assert!(table.fresh);
    assert!(
        !table.grant.access.remote_write,
        "peers never write the table"
    );
    assert_ne!(table.grant.stag, pool.grant.stag);
    assert_eq!(octets(&table.region, 0, 8192), vec![0; 8192]);
    pool.region
        .write(5 * u64::from(BLOCK_SIZE), b"a block")
        .unwrap();
    table
        .region
        .u32_at(16)
        .unwrap()
        .store(0xabcd, Ordering::Release);
    let (pool_grant, table_grant) = (pool.grant, table.grant);
    drop((first, pool, table));

    let mut second = agent.target();
    let pool = second.attach_pool().unwrap();
    let table = second.attach_side(&name("table"), 8192).unwrap();
    assert!(!pool.fresh && !table.fresh);
    assert_eq!((pool.grant, table.grant), (pool_grant, table_grant));
    assert_eq!(
        octets(&pool.region, 5 * u64::from(BLOCK_SIZE), 7),
        b"a block"
    );
    let word = table.region.u32_at(16).unwrap().load(Ordering::Acquire);
    assert_eq!(word, 0xabcd);
}

#[test]
fn two_attachments_of_one_region_are_the_same_memory() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    let one = target.attach_side(&name("ring"), 4096).unwrap();
    let two = target.attach_side(&name("ring"), 4096).unwrap();
    one.region.write(100, b"seen").unwrap();
    assert_eq!(octets(&two.region, 100, 4), b"seen");
}

#[test]
fn a_second_target_is_refused_until_the_first_lets_go() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let first = agent.target();
    let refusal = agent.connect(Role::Target).unwrap_err();
    let pid = std::process::id();
    assert!(
        matches!(refusal, ControlError::Refused(Refusal::Busy { pid: p }) if p == pid),
        "{refusal}"
    );
    drop(first);
    let mut second = agent.target();
    second.attach_pool().unwrap();
    second.detach().unwrap();
    // It has let go and stays connected, as one who looks.
    second.ping().unwrap();
    let refusal = second.attach_pool().unwrap_err();
    assert!(
        matches!(refusal, ControlError::Refused(Refusal::NotTarget { .. })),
        "{refusal}"
    );
    agent.target().attach_pool().unwrap();
}

#[test]
fn an_observer_sees_the_target_and_takes_nothing() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    target.attach_side(&name("ring"), 4096).unwrap();
    let mut observer = agent.connect(Role::Observer).unwrap();
    observer.ping().unwrap();
    let report = observer.status().unwrap();
    assert_eq!(report.incarnation, target.welcome().incarnation);
    assert_eq!(report.target_pid, Some(std::process::id()));
    assert_eq!((report.targets, report.clients), (1, 2));
    assert!(!report.draining);
    let names: Vec<_> = report.regions.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["pool", "ring"]);
    for refusal in [
        observer.attach_pool().unwrap_err(),
        observer.attach_side(&name("ring"), 4096).unwrap_err(),
        observer.drop_side(&name("ring")).unwrap_err(),
        observer.detach().unwrap_err(),
    ] {
        assert!(
            matches!(refusal, ControlError::Refused(Refusal::NotTarget { .. })),
            "{refusal}"
        );
    }
    // None of it has disturbed the target.
    assert!(!target.attach_side(&name("ring"), 4096).unwrap().fresh);
}

#[test]
fn a_side_region_of_another_length_is_refused_and_can_be_dropped() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    let old = target.attach_side(&name("table"), 4096).unwrap();
    old.region.write(0, b"old").unwrap();
    let refusal = target.attach_side(&name("table"), 8192).unwrap_err();
    assert!(
        matches!(
            &refusal,
            ControlError::Refused(Refusal::SideLength {
                have: 4096,
                asked: 8192,
                ..
            })
        ),
        "{refusal}"
    );
    assert!(target.drop_side(&name("table")).unwrap());
    assert!(!target.drop_side(&name("table")).unwrap());
    let new = target.attach_side(&name("table"), 8192).unwrap();
    assert!(new.fresh);
    assert_eq!(octets(&new.region, 0, 3), [0; 3]);
    // What is still mapped stays what it was.
    assert_eq!(octets(&old.region, 0, 3), b"old");
}

#[test]
fn a_stopping_agent_lets_its_target_drain() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    let pool = target.attach_pool().unwrap();
    agent.stop.request();
    assert_eq!(event(&mut target), DRAINING);
    assert_eq!(target.next_event().unwrap(), None);
    for refusal in [
        agent.connect(Role::Target).unwrap_err(),
        target.attach_side(&name("new"), 4096).unwrap_err(),
    ] {
        assert!(
            matches!(refusal, ControlError::Refused(Refusal::Draining)),
            "{refusal}"
        );
    }
    assert!(
        agent
            .connect(Role::Observer)
            .unwrap()
            .status()
            .unwrap()
            .draining
    );
    // It may work on while it drains.
    pool.region.write(0, b"last").unwrap();
    target.ping().unwrap();
    target.detach().unwrap();
    assert_eq!(event(&mut target), AgentEvent::Gone);
    agent.ended();
    assert!(!scratch.socket().exists());
    let error = TargetChannel::connect(&options(&scratch.socket()), Role::Target).unwrap_err();
    assert!(matches!(error, ControlError::NoAgent { .. }), "{error}");
}

#[test]
fn a_drain_notice_that_meets_a_call_is_not_lost() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    agent.stop.request();
    // Once it drains, the notice is on its way before the answers that follow.
    while !target.status().unwrap().draining {}
    assert_eq!(target.next_event().unwrap(), Some(DRAINING));
}

#[test]
fn an_agent_waits_for_its_target_only_so_long() {
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.drain_timeout = Duration::from_millis(20);
    let agent = Running::start(&config);
    let mut target = agent.target();
    let pool = target.attach_pool().unwrap();
    agent.stop.request();
    agent.ended();
    assert_eq!(event(&mut target), DRAINING);
    assert_eq!(event(&mut target), AgentEvent::Gone);
    assert_eq!(event(&mut target), AgentEvent::Gone);
    assert!(matches!(target.ping(), Err(ControlError::Gone)));
    // The memory is there as long as it is mapped: loads in flight end in order.
    pool.region.write(0, b"mapped").unwrap();
    assert_eq!(octets(&pool.region, 0, 6), b"mapped");
}

/// The pool for another function of the device, with the memory itself where there is no device: taken, used, taken back.
#[test]
fn an_exported_pool_is_taken_back_before_the_agent_ends() {
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.drain_timeout = Duration::from_hours(1);
    let agent = Running::start(&config);
    let mut target = agent.target();
    let refused = target.attach_exported(Mechanisms::ALIAS.with(Mechanisms::CROSSING));
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("emulated") && said.contains("alias, crossing"),
        "{said}"
    );
    let all = Mechanisms::ALIAS.with(Mechanisms::EMULATED);
    let exported = target.attach_exported(all).unwrap();
    assert_eq!(exported.grant.mechanism, Mechanism::Emulated);
    let pool = target.attach_pool().unwrap();
    assert_eq!(exported.grant.iova, pool.grant.base.0);
    assert_eq!(exported.grant.len, pool.grant.len);
    let region = exported.region.unwrap();
    region.write(0, b"the same").unwrap();
    assert_eq!(octets(&pool.region, 0, 8), b"the same");
    let again = target.attach_exported(all).unwrap();
    assert_eq!(again.grant, exported.grant);

    agent.stop.request();
    assert_eq!(event(&mut target), DRAINING);
    let epoch = exported.grant.epoch;
    assert_eq!(event(&mut target), AgentEvent::Revoked { epoch });
    assert!(matches!(
        target.attach_exported(all),
        Err(ControlError::Refused(Refusal::Draining))
    ));
    drop((region, again.region));
    target.released(exported.grant).unwrap();
    assert!(matches!(
        target.released(again.grant),
        Err(ControlError::Refused(Refusal::NoGrant { .. }))
    ));
    target.detach().unwrap();
    agent.ended();
}

#[test]
fn told_twice_an_agent_does_not_wait() {
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.drain_timeout = Duration::from_hours(1);
    let agent = Running::start(&config);
    let mut target = agent.target();
    agent.stop.request();
    assert_eq!(event(&mut target), DRAINING);
    agent.stop.request();
    agent.ended();
    assert_eq!(event(&mut target), AgentEvent::Gone);
}

#[test]
fn without_a_target_an_agent_stops_at_once() {
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.drain_timeout = Duration::from_hours(1);
    let agent = Running::start(&config);
    let observer = agent.connect(Role::Observer).unwrap();
    agent.stop.request();
    agent.ended();
    drop(observer);
}

#[test]
fn the_next_incarnation_has_other_memory() {
    let scratch = Scratch::new();
    let one = Running::start(&scratch.config());
    let before = one.target().welcome().incarnation;
    drop(one);
    let two = Running::start(&scratch.config());
    let mut target = two.target();
    assert_ne!(target.welcome().incarnation, before);
    assert!(target.attach_side(&name("table"), 4096).unwrap().fresh);
}

#[test]
fn the_page_report_reaches_the_target() {
    let scratch = Scratch::new();
    let mut config: AgentConfig = scratch.config();
    config.pages.lock = Lock::Never;
    config.pages.huge = kbtp_agent::Huge::Never;
    let agent = Running::start(&config);
    let pages = agent.target().welcome().pages.clone();
    assert_eq!(
        pages.page_size,
        u64::try_from(rustix::param::page_size()).unwrap()
    );
    assert_eq!((pages.huge, pages.locked), (false, 0));
    assert_eq!(pages.shortfall, "", "what was not wished is not missed");
}
