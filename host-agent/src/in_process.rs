//! The agent of a target that runs alone: no socket, and the memory goes with the process.

use crate::agent::{Agent, Facts, Standing};
use crate::driver::Clock;
use crate::store::Backing;
use crate::{AgentConfig, AgentError};
use kbtp_control::{
    AgentEvent, AgentLink, ControlError, FromAgent, HandOver, Hello, PoolAttachment, RegionGrant,
    RegionName, Role, SideAttachment, StatusReport, ToAgent, VERSION, Welcome, WireGrant,
};
use kbtp_memory::Region;
use std::os::fd::BorrowedFd;

/// An agent and its one target in one process. The requests and answers are those of the socket; only the memory is
/// handed over as it is.
#[derive(Debug)]
pub struct InProcess {
    agent: Agent,
    welcome: Welcome,
    standing: Standing,
    clock: Clock,
}

impl InProcess {
    /// Allocates the pool that `config` describes; its socket and allowed user are not used.
    ///
    /// # Errors
    /// [`AgentError`] if the configuration cannot be or the memory is not to be had.
    pub fn start(config: &AgentConfig) -> Result<Self, AgentError> {
        let agent = Agent::new(config, Backing::Private)?;
        let mut this = Self {
            welcome: agent.welcome(),
            agent,
            standing: Standing::New,
            clock: Clock::start(),
        };
        this.call(&ToAgent::Hello(Hello {
            version: VERSION,
            role: Role::Target,
            pid: std::process::id(),
        }))?;
        Ok(this)
    }

    fn call(&mut self, request: &ToAgent) -> Result<(FromAgent, Option<Region>), ControlError> {
        let facts = Facts {
            uptime_ms: self.clock.elapsed_ms(),
            clients: 1,
            peer_pid: Some(std::process::id()),
        };
        let reply = self.agent.answer(self.standing, request, facts);
        if let Some(standing) = reply.standing {
            self.standing = standing;
        }
        match reply.message {
            FromAgent::Refused(refusal) => Err(refusal.into()),
            message => Ok((message, reply.region)),
        }
    }
}

const fn wrong(request: &ToAgent, answer: &FromAgent) -> ControlError {
    ControlError::WrongAnswer {
        wanted: request.name(),
        got: answer.name(),
    }
}

fn whole(
    name: &str,
    grant: WireGrant,
    region: Option<Region>,
) -> Result<(RegionGrant, Region), ControlError> {
    let region = region.ok_or_else(|| ControlError::BadGrant {
        name: name.to_owned(),
        reason: "no memory came with it".to_owned(),
    })?;
    Ok((grant.into(), region))
}

impl AgentLink for InProcess {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn survives_restart(&self) -> bool {
        false
    }

    fn attach_pool(&mut self) -> Result<PoolAttachment, ControlError> {
        let request = ToAgent::AttachPool {
            hand_over: HandOver::Memfd,
        };
        let (message, region) = self.call(&request)?;
        let FromAgent::PoolGrant { grant, fresh, .. } = message else {
            return Err(wrong(&request, &message));
        };
        let (grant, region) = whole("pool", grant, region)?;
        Ok(PoolAttachment {
            grant,
            region,
            geometry: self.welcome.geometry,
            fresh,
        })
    }

    fn attach_side(&mut self, name: &RegionName, len: u64) -> Result<SideAttachment, ControlError> {
        let request = ToAgent::AttachSide {
            name: name.clone(),
            len,
            hand_over: HandOver::Memfd,
        };
        let (message, region) = self.call(&request)?;
        let FromAgent::SideGrant { grant, fresh, .. } = message else {
            return Err(wrong(&request, &message));
        };
        let (grant, region) = whole(name.as_str(), grant, region)?;
        Ok(SideAttachment {
            grant,
            region,
            fresh,
        })
    }

    fn drop_side(&mut self, name: &RegionName) -> Result<bool, ControlError> {
        let request = ToAgent::DropSide { name: name.clone() };
        match self.call(&request)?.0 {
            FromAgent::Dropped { existed } => Ok(existed),
            other => Err(wrong(&request, &other)),
        }
    }

    fn ping(&mut self) -> Result<(), ControlError> {
        match self.call(&ToAgent::Ping)?.0 {
            FromAgent::Pong => Ok(()),
            other => Err(wrong(&ToAgent::Ping, &other)),
        }
    }

    fn status(&mut self) -> Result<StatusReport, ControlError> {
        match self.call(&ToAgent::Status)?.0 {
            FromAgent::Status(report) => Ok(report),
            other => Err(wrong(&ToAgent::Status, &other)),
        }
    }

    fn detach(&mut self) -> Result<(), ControlError> {
        match self.call(&ToAgent::Detach)?.0 {
            FromAgent::Detached => Ok(()),
            other => Err(wrong(&ToAgent::Detach, &other)),
        }
    }

    /// Never one: it ends when its process ends.
    fn next_event(&mut self) -> Result<Option<AgentEvent>, ControlError> {
        Ok(None)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_control::Refusal;

    #[test]
    fn the_same_calls_work_without_a_socket() {
        let mut agent = InProcess::start(&AgentConfig::new("", 4096, 8)).unwrap();
        assert!(!agent.survives_restart());
        let pool = agent.attach_pool().unwrap();
        assert_eq!(pool.region.len(), 8 * 4096);
        assert_eq!(pool.geometry.blocks, 8);
        assert!(pool.fresh);
        assert!(!agent.attach_pool().unwrap().fresh);
        assert_eq!(pool.grant.incarnation, agent.welcome().incarnation);

        let name = RegionName::new("table").unwrap();
        let table = agent.attach_side(&name, 4096).unwrap();
        assert!(table.fresh);
        table.region.write(0, b"kept").unwrap();
        let again = agent.attach_side(&name, 4096).unwrap();
        assert!(!again.fresh);
        let mut octets = [0; 4];
        again.region.read(0, &mut octets).unwrap();
        assert_eq!(&octets, b"kept");
        assert!(matches!(
            agent.attach_side(&name, 8192),
            Err(ControlError::Refused(Refusal::SideLength { .. }))
        ));
        assert!(agent.drop_side(&name).unwrap());
        assert!(agent.attach_side(&name, 8192).unwrap().fresh);

        agent.ping().unwrap();
        let report = agent.status().unwrap();
        assert_eq!(report.target_pid, Some(std::process::id()));
        assert_eq!(agent.next_event().unwrap(), None);
        assert!(agent.event_fd().is_none());
        agent.detach().unwrap();
        assert!(matches!(
            agent.attach_pool(),
            Err(ControlError::Refused(Refusal::NotTarget { .. }))
        ));
    }
}
