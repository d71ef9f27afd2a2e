//! What the agent answers. No socket and no clock: requests in, answers out.
//!
//! A client moves one way only:
//!
//! ```text
//! New -- Hello(Observer) --> Observer
//!  |
//!  +-- Hello(Target) ------> Holder -- Detach --> Observer
//! ```
//!
//! There is at most one Holder; a second Hello(Target) is refused. What is not allowed is refused and changes nothing.

use crate::function::{self, Function};
use crate::store::{Backing, Store};
use crate::{AgentConfig, AgentError};
use kbtp_control::{
    Exports, FromAgent, HandOver, Hello, Mechanism, Mechanisms, Refusal, RegionName, Role,
    StatusReport, ToAgent, VERSION, Welcome,
};
use kbtp_memory::Region;
use tracing::{error, info, warn};

/// Where a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has not said Hello.
    New,
    /// It looks.
    Observer,
    /// It is the target.
    Holder,
}

/// What the agent cannot know of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) uptime_ms: u64,
    pub(crate) clients: u32,
    /// The client's process as the kernel names it.
    pub(crate) peer_pid: Option<u32>,
}

/// What to do for a client.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) message: FromAgent,
    /// The region whose memory goes with it.
    pub(crate) region: Option<Region>,
    /// Where the client stands now; `None`: close it.
    pub(crate) standing: Option<Standing>,
}

/// The agent without its sockets.
#[derive(Debug)]
pub(crate) struct Agent {
    store: Store,
    exports: Exports,
    /// From which the pool is granted to another function, if that was asked for.
    function: Option<Box<dyn Function>>,
    holder_pid: Option<u32>,
    targets: u64,
    draining: bool,
}

impl Agent {
    /// Allocates the pool.
    pub(crate) fn new(config: &AgentConfig, backing: Backing) -> Result<Self, AgentError> {
        let store = Store::new(config, backing)?;
        let pages = store.pages();
        info!(
            incarnation = %store.incarnation(),
            blocks = config.blocks,
            block_size = config.block_size,
            page_size = pages.page_size,
            huge = pages.huge,
            locked = pages.locked,
            "the pool is there"
        );
        if let Some(ordinary) = store.ordinary_pages() {
            // Nobody required them: no reason for an alarm.
            info!("{ordinary}");
        }
        let unmet = store.unmet();
        if !unmet.is_empty() {
            warn!("the pool works, but: {}", unmet.join("; "));
        }
        let open = |device: &String| {
            let opened = function::open(device, store.memory());
            opened.map_err(|reason| AgentError::Function {
                device: device.clone(),
                reason,
            })
        };
        let function = config.grant_from.as_ref().map(open).transpose()?;
        Ok(Self {
            store,
            exports: Exports::default(),
            function,
            holder_pid: None,
            targets: 0,
            draining: false,
        })
    }

    /// No new target and no memory from now on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Takes the exported pool back: which grant its target is to be told of, if there is one.
    pub(crate) const fn revoke(&mut self) -> Option<u64> {
        self.exports.revoke()
    }

    pub(crate) const fn held(&self) -> bool {
        self.holder_pid.is_some()
    }

    /// The holder's connection is closed.
    pub(crate) fn release(&mut self) {
        self.end_grant();
        if let Some(pid) = self.holder_pid.take() {
            info!(pid, "the target let go; its memory is kept");
        }
    }

    /// Answers one request.
    pub(crate) fn answer(&mut self, from: Standing, request: &ToAgent, facts: Facts) -> Reply {
        match (from, request) {
            (Standing::New, ToAgent::Hello(hello)) => self.hello(*hello, facts),
            (Standing::New, other) => Reply::last(unexpected(other)),
            (_, ToAgent::Hello(_)) => Reply::no(from, unexpected(request)),
            (_, ToAgent::Ping) => Reply::say(from, FromAgent::Pong),
            (_, ToAgent::Status) => Reply::say(from, FromAgent::Status(self.status(facts))),
            (Standing::Holder, ToAgent::AttachPool { hand_over }) => self.grant_pool(*hand_over),
            (
                Standing::Holder,
                ToAgent::AttachSide {
                    name,
                    len,
                    hand_over,
                },
            ) => self.grant_side(name, *len, *hand_over),
            (Standing::Holder, ToAgent::DropSide { name }) => {
                let existed = self.store.drop_side(name);
                info!(%name, existed, "side region dropped");
                Reply::say(from, FromAgent::Dropped { existed })
            }
            (Standing::Holder, ToAgent::AttachExported { mechanisms }) => self.export(*mechanisms),
            (Standing::Holder, ToAgent::Released { epoch, key }) => {
                match self.exports.released(*epoch, key) {
                    Ok(()) => {
                        self.end_grant();
                        info!(epoch, "the exported pool is released");
                        Reply::say(from, FromAgent::ReleaseNoted { epoch: *epoch })
                    }
                    Err(refusal) => Reply::no(from, refusal),
                }
            }
            (Standing::Holder, ToAgent::Detach) => {
                self.release();
                Reply::say(Standing::Observer, FromAgent::Detached)
            }
            // Attach, Drop and Detach of who is not the target; and what a later version may add.
            (_, other) => Reply::no(
                from,
                Refusal::NotTarget {
                    request: other.name().to_owned(),
                },
            ),
        }
    }

    fn hello(&mut self, hello: Hello, facts: Facts) -> Reply {
        if hello.version != VERSION {
            return Reply::last(Refusal::Version {
                speaks: VERSION,
                got: hello.version,
            });
        }
        let standing = match hello.role {
            Role::Observer => Standing::Observer,
            Role::Target if self.draining => return Reply::last(Refusal::Draining),
            Role::Target => {
                if let Some(pid) = self.holder_pid {
                    return Reply::last(Refusal::Busy { pid });
                }
                let pid = facts.peer_pid.unwrap_or(hello.pid);
                self.holder_pid = Some(pid);
                self.targets = self.targets.saturating_add(1);
                info!(pid, "a target is welcome");
                Standing::Holder
            }
        };
        Reply::say(standing, FromAgent::Welcome(self.welcome()))
    }

    pub(crate) fn welcome(&self) -> Welcome {
        Welcome {
            version: VERSION,
            incarnation: self.store.incarnation(),
            geometry: self.store.config().geometry(),
            pages: self.store.pages(),
        }
    }

    fn grant_pool(&mut self, hand_over: HandOver) -> Reply {
        if self.draining {
            return Reply::no(Standing::Holder, Refusal::Draining);
        }
        let (grant, region, fresh) = self.store.pool();
        let message = FromAgent::PoolGrant {
            grant: grant.into(),
            hand_over,
            fresh,
        };
        Reply::give(message, region)
    }

    fn export(&mut self, mechanisms: Mechanisms) -> Reply {
        let from = Standing::Holder;
        if self.draining {
            return Reply::no(from, Refusal::Draining);
        }
        let speaks = self.function.as_ref().map_or(Mechanisms::EMULATED, |_| {
            Mechanisms::EMULATED.with(Mechanisms::ALIAS)
        });
        let none = || Refusal::Mechanism {
            speaks: speaks.to_string(),
            asked: mechanisms.to_string(),
        };
        let Self {
            store,
            exports,
            function,
            ..
        } = self;
        let function = function
            .as_mut()
            .filter(|_| mechanisms.contain(Mechanisms::ALIAS));
        let made = exports.grant(|epoch| {
            let mut grant = store.export(epoch, Mechanism::Emulated)?;
            match function {
                Some(function) => {
                    let allowed = function.allow(&grant);
                    grant.mechanism = allowed.map_err(|reason| Refusal::Memory { reason })?;
                }
                None if mechanisms.contain(Mechanisms::EMULATED) => {}
                None => return Err(none()),
            }
            Ok(grant)
        });
        match made {
            // One that is there already may be of another kind.
            Ok(Some(grant)) if !mechanisms.contain(grant.mechanism.kind()) => {
                Reply::no(from, none())
            }
            Ok(Some(grant)) => {
                let by = grant.mechanism.kind();
                info!(epoch = grant.epoch, %by, "the pool is exported");
                if by == Mechanisms::EMULATED {
                    let (_, region, _) = self.store.pool();
                    Reply::give(FromAgent::Exported(grant), region)
                } else {
                    Reply::say(from, FromAgent::Exported(grant))
                }
            }
            Ok(None) => Reply::no(from, Refusal::Revoked),
            Err(refusal) => Reply::no(from, refusal),
        }
    }

    /// The other side uses the grant no more, or is gone. Memory that came beside a frame went with its mapping; a key ends here,
    /// and with it each alias: a device that still used one would fail, and write nothing.
    fn end_grant(&mut self) {
        if let Some(function) = &mut self.function
            && let Err(reason) = function.forbid()
        {
            error!(%reason, "a key to the pool could not be ended; it ends with this process");
        }
        self.exports.forget();
    }

    fn grant_side(&mut self, name: &RegionName, len: u64, hand_over: HandOver) -> Reply {
        if self.draining {
            return Reply::no(Standing::Holder, Refusal::Draining);
        }
        match self.store.side(name, len) {
            Ok((grant, region, fresh)) => {
                info!(%name, len, fresh, "side region granted");
                let message = FromAgent::SideGrant {
                    grant: grant.into(),
                    hand_over,
                    fresh,
                };
                Reply::give(message, region)
            }
            Err(refusal) => {
                warn!(%name, len, %refusal, "side region refused");
                Reply::no(Standing::Holder, refusal)
            }
        }
    }

    fn status(&self, facts: Facts) -> StatusReport {
        StatusReport {
            incarnation: self.store.incarnation(),
            pid: std::process::id(),
            uptime_ms: facts.uptime_ms,
            target_pid: self.holder_pid,
            targets: self.targets,
            clients: facts.clients,
            draining: self.draining,
            geometry: self.store.config().geometry(),
            pages: self.store.pages(),
            regions: self.store.regions(),
        }
    }
}

impl Reply {
    const fn say(standing: Standing, message: FromAgent) -> Self {
        Self {
            message,
            region: None,
            standing: Some(standing),
        }
    }

    const fn give(message: FromAgent, region: Region) -> Self {
        Self {
            message,
            region: Some(region),
            standing: Some(Standing::Holder),
        }
    }

    const fn no(standing: Standing, refusal: Refusal) -> Self {
        Self::say(standing, FromAgent::Refused(refusal))
    }

    const fn last(refusal: Refusal) -> Self {
        Self {
            message: FromAgent::Refused(refusal),
            region: None,
            standing: None,
        }
    }
}

fn unexpected(request: &ToAgent) -> Refusal {
    Refusal::Unexpected {
        request: request.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_control::AccessKey;

    const FACTS: Facts = Facts {
        uptime_ms: 5,
        clients: 1,
        peer_pid: Some(77),
    };

    fn agent() -> Agent {
        Agent::new(&AgentConfig::new("/x", 4096, 4), Backing::Memfd).unwrap()
    }

    fn hello(role: Role) -> ToAgent {
        ToAgent::Hello(Hello {
            version: VERSION,
            role,
            pid: 1,
        })
    }

    fn side(name: &str, len: u64) -> ToAgent {
        ToAgent::AttachSide {
            name: RegionName::new(name).unwrap(),
            len,
            hand_over: HandOver::Memfd,
        }
    }

    fn requests() -> Vec<ToAgent> {
        vec![
            hello(Role::Target),
            hello(Role::Observer),
            ToAgent::AttachPool {
                hand_over: HandOver::Memfd,
            },
            side("table", 4096),
            ToAgent::DropSide {
                name: RegionName::new("table").unwrap(),
            },
            ToAgent::Ping,
            ToAgent::Status,
            ToAgent::Detach,
            ToAgent::AttachExported {
                mechanisms: Mechanisms::EMULATED.with(Mechanisms::ALIAS),
            },
            ToAgent::AttachExported {
                mechanisms: Mechanisms::ALIAS,
            },
            ToAgent::Released {
                epoch: 1,
                key: AccessKey::new([1; 32]),
            },
        ]
    }

    /// What is answered and where the client stands then.
    fn row(agent: &mut Agent, from: Standing, request: &ToAgent) -> String {
        let reply = agent.answer(from, request, FACTS);
        let answer = match &reply.message {
            FromAgent::Refused(refusal) => {
                let refusal = format!("{refusal:?}");
                refusal.split([' ', '{']).next().unwrap().to_owned()
            }
            other => other.name().to_owned(),
        };
        let grants = matches!(
            reply.message,
            FromAgent::PoolGrant { .. } | FromAgent::SideGrant { .. } | FromAgent::Exported(_)
        );
        assert_eq!(reply.region.is_some(), grants);
        let standing = reply
            .standing
            .map_or_else(|| "closed".to_owned(), |s| format!("{s:?}"));
        format!("{answer}>{standing}")
    }

    #[test]
    fn each_request_in_each_standing_is_answered_as_the_table_says() {
        let table = [
            (
                false,
                Standing::New,
                "Welcome>Holder Welcome>Observer Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed",
            ),
            (
                false,
                Standing::Observer,
                "Unexpected>Observer Unexpected>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer Pong>Observer Status>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer",
            ),
            (
                false,
                Standing::Holder,
                "Unexpected>Holder Unexpected>Holder PoolGrant>Holder SideGrant>Holder Dropped>Holder Pong>Holder Status>Holder Detached>Observer Exported>Holder Mechanism>Holder NoGrant>Holder",
            ),
            (
                true,
                Standing::New,
                "Draining>closed Welcome>Observer Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed Unexpected>closed",
            ),
            (
                true,
                Standing::Observer,
                "Unexpected>Observer Unexpected>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer Pong>Observer Status>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer NotTarget>Observer",
            ),
            (
                true,
                Standing::Holder,
                "Unexpected>Holder Unexpected>Holder Draining>Holder Draining>Holder Dropped>Holder Pong>Holder Status>Holder Detached>Observer Draining>Holder Draining>Holder NoGrant>Holder",
            ),
        ];
        for (draining, standing, want) in table {
            let got: Vec<String> = requests()
                .iter()
                .map(|request| {
                    let mut agent = agent();
                    if standing == Standing::Holder {
                        agent.answer(Standing::New, &hello(Role::Target), FACTS);
                    }
                    if draining {
                        agent.drain();
                    }
                    row(&mut agent, standing, request)
                })
                .collect();
            assert_eq!(got.join(" "), want, "{standing:?}, draining: {draining}");
        }
    }

    #[test]
    fn an_exported_pool_is_one_grant_until_it_is_released() {
        let mut agent = agent();
        agent.answer(Standing::New, &hello(Role::Target), FACTS);
        let ask = |agent: &mut Agent| {
            let mechanisms = Mechanisms::EMULATED;
            let request = ToAgent::AttachExported { mechanisms };
            agent.answer(Standing::Holder, &request, FACTS).message
        };
        let FromAgent::Exported(first) = ask(&mut agent) else {
            panic!("not exported")
        };
        assert_eq!(first.check(), Ok(()));
        assert_eq!(ask(&mut agent), FromAgent::Exported(first.clone()));
        assert_eq!(agent.revoke(), Some(first.epoch));
        assert_eq!(ask(&mut agent), FromAgent::Refused(Refusal::Revoked));
        let released = ToAgent::Released {
            epoch: first.epoch,
            key: first.key.clone(),
        };
        let noted = agent.answer(Standing::Holder, &released, FACTS).message;
        assert_eq!(noted, FromAgent::ReleaseNoted { epoch: first.epoch });
        let FromAgent::Exported(second) = ask(&mut agent) else {
            panic!("not exported")
        };
        assert_eq!(second.epoch, first.epoch + 1);
        assert!(second.key != first.key, "each grant has a key of its own");
        // A target that is gone has released it.
        agent.release();
        assert_eq!(agent.revoke(), None);
    }

    /// A function that notes whose grants are allowed.
    #[derive(Debug, Default)]
    struct Noted {
        live: std::sync::Arc<std::sync::Mutex<Vec<u64>>>,
        refuses: bool,
    }

    impl Function for Noted {
        fn allow(&mut self, grant: &kbtp_control::PoolGrant) -> Result<Mechanism, String> {
            if self.refuses {
                return Err("no more keys".to_owned());
            }
            let live = self.live.lock();
            live.map_err(|error| error.to_string())?.push(grant.epoch);
            Ok(Mechanism::Alias {
                vhca_id: 5,
                mkey_index: 6,
            })
        }

        fn forbid(&mut self) -> Result<(), String> {
            let live = self.live.lock();
            live.map_err(|error| error.to_string())?.clear();
            Ok(())
        }
    }

    #[test]
    fn a_pool_is_granted_by_a_key_of_the_hosts_function_until_it_is_released() {
        let noted = Noted::default();
        let live = std::sync::Arc::clone(&noted.live);
        let mut agent = agent();
        agent.function = Some(Box::new(noted));
        agent.answer(Standing::New, &hello(Role::Target), FACTS);
        let ask = |agent: &mut Agent, mechanisms| {
            let request = ToAgent::AttachExported { mechanisms };
            agent.answer(Standing::Holder, &request, FACTS)
        };
        let reply = ask(&mut agent, Mechanisms::ALIAS);
        let FromAgent::Exported(grant) = reply.message else {
            panic!("{:?}", reply.message)
        };
        assert!(reply.region.is_none(), "no memory goes beside it");
        assert_eq!(grant.check(), Ok(()));
        assert_eq!(grant.mechanism.kind(), Mechanisms::ALIAS);
        assert_eq!(*live.lock().unwrap(), [grant.epoch]);
        // The same grant is not made twice, nor another way beside it.
        let reply = ask(&mut agent, Mechanisms::ALIAS);
        assert_eq!(reply.message, FromAgent::Exported(grant.clone()));
        assert_eq!(live.lock().unwrap().len(), 1);
        let reply = ask(&mut agent, Mechanisms::EMULATED);
        assert!(matches!(
            reply.message,
            FromAgent::Refused(Refusal::Mechanism { .. })
        ));
        // Revoked it is still reached; released, the key is gone.
        assert_eq!(agent.revoke(), Some(grant.epoch));
        assert_eq!(live.lock().unwrap().len(), 1);
        let wrong = ToAgent::Released {
            epoch: grant.epoch,
            key: AccessKey::new([1; 32]),
        };
        agent.answer(Standing::Holder, &wrong, FACTS);
        assert_eq!(live.lock().unwrap().len(), 1);
        let released = ToAgent::Released {
            epoch: grant.epoch,
            key: grant.key.clone(),
        };
        agent.answer(Standing::Holder, &released, FACTS);
        assert_eq!(live.lock().unwrap().len(), 0);
        // A target that is gone without a word: its aliases end with the key.
        ask(&mut agent, Mechanisms::ALIAS);
        assert_eq!(live.lock().unwrap().len(), 1);
        agent.release();
        assert_eq!(live.lock().unwrap().len(), 0);
    }

    #[test]
    fn a_device_that_refuses_a_key_grants_nothing() {
        let mut agent = agent();
        agent.function = Some(Box::new(Noted {
            refuses: true,
            ..Noted::default()
        }));
        agent.answer(Standing::New, &hello(Role::Target), FACTS);
        let mechanisms = Mechanisms::ALIAS;
        let request = ToAgent::AttachExported { mechanisms };
        let message = agent.answer(Standing::Holder, &request, FACTS).message;
        let reason = "no more keys".to_owned();
        assert_eq!(message, FromAgent::Refused(Refusal::Memory { reason }));
        assert_eq!(agent.revoke(), None);
    }

    #[test]
    fn an_agent_without_the_device_it_should_grant_from_does_not_start() {
        let mut config = AgentConfig::new("/x", 4096, 4);
        config.grant_from = Some("mlx5_of_nowhere".to_owned());
        let said = Agent::new(&config, Backing::Memfd).unwrap_err().to_string();
        assert!(said.contains("granted from mlx5_of_nowhere"), "{said}");
        assert!(said.contains("leave that device out"), "{said}");
    }

    #[test]
    fn one_target_at_a_time_and_its_process_is_named() {
        let mut agent = agent();
        assert_eq!(
            row(&mut agent, Standing::New, &hello(Role::Target)),
            "Welcome>Holder"
        );
        let reply = agent.answer(Standing::New, &hello(Role::Target), FACTS);
        assert_eq!(reply.message, FromAgent::Refused(Refusal::Busy { pid: 77 }));
        agent.release();
        assert_eq!(
            row(&mut agent, Standing::New, &hello(Role::Target)),
            "Welcome>Holder"
        );
    }

    #[test]
    fn another_version_is_told_ours() {
        let other = ToAgent::Hello(Hello {
            version: VERSION + 1,
            role: Role::Target,
            pid: 1,
        });
        let reply = agent().answer(Standing::New, &other, FACTS);
        let want = Refusal::Version {
            speaks: VERSION,
            got: VERSION + 1,
        };
        assert_eq!(reply.message, FromAgent::Refused(want));
        assert_eq!(reply.standing, None);
    }

    fn side_grant(agent: &mut Agent, name: &str, len: u64) -> Result<(u32, bool), Refusal> {
        match agent
            .answer(Standing::Holder, &side(name, len), FACTS)
            .message
        {
            FromAgent::SideGrant { grant, fresh, .. } => {
                Ok((kbtp_control::RegionGrant::from(grant).stag.0, fresh))
            }
            FromAgent::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_side_region_is_made_once_and_keeps_its_stag() {
        let mut agent = agent();
        let (stag, fresh) = side_grant(&mut agent, "ring", 4096).unwrap();
        assert!(fresh);
        assert_eq!(side_grant(&mut agent, "ring", 4096), Ok((stag, false)));
        assert_ne!(side_grant(&mut agent, "table", 4096).unwrap().0, stag);
        let name = RegionName::new("ring").unwrap();
        assert_eq!(
            side_grant(&mut agent, "ring", 8192),
            Err(Refusal::SideLength {
                name: name.clone(),
                have: 4096,
                asked: 8192
            })
        );
        agent.answer(Standing::Holder, &ToAgent::DropSide { name }, FACTS);
        assert!(side_grant(&mut agent, "ring", 8192).unwrap().1);
    }

    #[test]
    fn side_regions_are_bounded_in_number_and_octets() {
        let mut config = AgentConfig::new("/x", 4096, 4);
        config.side_limit = Some(20 * 4096);
        let mut agent = Agent::new(&config, Backing::Memfd).unwrap();
        let refused = Refusal::SideSize {
            asked: 0,
            left: 20 * 4096,
        };
        assert_eq!(side_grant(&mut agent, "none", 0), Err(refused));
        for i in 0..kbtp_control::limits::MAX_SIDE_REGIONS {
            side_grant(&mut agent, &format!("r{i}"), 4096).unwrap();
        }
        let refused = Refusal::SideCount { limit: 16 };
        assert_eq!(side_grant(&mut agent, "more", 4096), Err(refused));
        let name = RegionName::new("r0").unwrap();
        agent.answer(Standing::Holder, &ToAgent::DropSide { name }, FACTS);
        let refused = Refusal::SideSize {
            asked: 6 * 4096,
            left: 5 * 4096,
        };
        assert_eq!(side_grant(&mut agent, "long", 6 * 4096), Err(refused));
        assert!(side_grant(&mut agent, "fits", 5 * 4096).unwrap().1);
    }

    #[test]
    fn a_report_counts_targets_grants_and_locked_octets() {
        let mut agent = agent();
        agent.answer(Standing::New, &hello(Role::Target), FACTS);
        side_grant(&mut agent, "ring", 4096).unwrap();
        side_grant(&mut agent, "ring", 4096).unwrap();
        let FromAgent::Status(report) = agent
            .answer(Standing::Observer, &ToAgent::Status, FACTS)
            .message
        else {
            panic!("no report");
        };
        assert_eq!(report.target_pid, Some(77));
        assert_eq!(
            (report.targets, report.uptime_ms, report.clients),
            (1, 5, 1)
        );
        let rows: Vec<_> = report
            .regions
            .iter()
            .map(|r| (r.name.as_str(), r.len, r.grants))
            .collect();
        assert_eq!(rows, [("pool", 4 * 4096, 0), ("ring", 4096, 2)]);
        assert!(report.locked() <= 5 * 4096);
    }
}
