//! Tenants and their trust domains (profile, P9; draft, section 6.4; docs/adr/0012).

use super::{DirectoryError, TenantConfig};
use crate::TenantKey;
use crate::auth;
use crate::limits::{TENANT_NAME_MAX, TENANTS_MAX};
use crate::pool::Domain;
use kbtp_memory::crc32c;
use kbtp_wire::{Auth, AuthMode, Challenge, InitiatorId};
use std::collections::BTreeMap;

/// The trust domain of all tenants marked "shared".
const SHARED: Domain = Domain(1);

/// The number of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TenantIndex(usize);

#[derive(Debug)]
struct Tenant {
    name: String,
    key: Option<TenantKey>,
    domain: Domain,
    /// In the configuration; a tenant that is only found in range records cannot open sessions.
    configured: bool,
    /// Its handle ranges, with and without a session.
    ranges: u32,
}

/// All tenants.
#[derive(Debug)]
pub(super) struct Tenants {
    list: Vec<Tenant>,
    by_name: BTreeMap<String, TenantIndex>,
    /// Stands in for the key of a tenant that has none, so that both take the same time.
    no_key: TenantKey,
}

impl Tenants {
    pub(super) fn new(configs: &[TenantConfig]) -> Result<Self, DirectoryError> {
        let mut tenants = Self {
            list: Vec::new(),
            by_name: BTreeMap::new(),
            no_key: TenantKey::new([0_u8; 32]),
        };
        for config in configs {
            let wrong = |problem| {
                Err(DirectoryError::Tenant {
                    name: config.name.clone(),
                    problem,
                })
            };
            if tenants.list.len() >= TENANTS_MAX {
                return wrong("there are too many tenants");
            }
            if config.name.len() > TENANT_NAME_MAX {
                return wrong("its name is longer than 255 octets");
            }
            if tenants.by_name.contains_key(&config.name) {
                return wrong("another tenant has the same name");
            }
            tenants.add(&config.name, config.key.clone(), config.shared, true);
        }
        if configs.is_empty() {
            tenants.add("", None, false, true);
        }
        Ok(tenants)
    }

    /// The tenant of a range record; one that is configured no more keeps a trust domain of its own.
    pub(super) fn of_record(&mut self, name: &str) -> TenantIndex {
        match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name, None, false, false),
        }
    }

    pub(super) fn name(&self, index: TenantIndex) -> &str {
        self.list.get(index.0).map_or("", |tenant| &tenant.name)
    }

    pub(super) fn domain(&self, index: TenantIndex) -> Domain {
        self.list
            .get(index.0)
            .map_or(Domain(0), |tenant| tenant.domain)
    }

    /// Handle ranges of a tenant.
    pub(super) fn ranges(&self, index: TenantIndex) -> u32 {
        self.list.get(index.0).map_or(0, |tenant| tenant.ranges)
    }

    /// A tenant has a range more.
    pub(super) fn has_more(&mut self, index: TenantIndex) {
        if let Some(tenant) = self.list.get_mut(index.0) {
            tenant.ranges = tenant.ranges.saturating_add(1);
        }
    }

    /// A tenant has a range less.
    pub(super) fn has_less(&mut self, index: TenantIndex) {
        if let Some(tenant) = self.list.get_mut(index.0) {
            tenant.ranges = tenant.ranges.saturating_sub(1);
        }
    }

    /// Tenants that may come.
    pub(super) fn configured(&self) -> usize {
        self.list.iter().filter(|tenant| tenant.configured).count()
    }

    /// Ranges to be kept for the others if each tenant is to have `kept`. Cost: a pass over the tenants.
    pub(super) fn kept_for_others(&self, index: TenantIndex, kept: u32) -> u64 {
        let others = self
            .list
            .iter()
            .zip(0..)
            .filter(|(tenant, other)| tenant.configured && *other != index.0);
        others
            .map(|(tenant, _)| u64::from(kept.saturating_sub(tenant.ranges)))
            .sum()
    }

    /// Whether all tenants trust each other, so that the whole pool is one trust domain.
    pub(super) fn one_domain(&self) -> bool {
        let mut domains = self.list.iter().map(|tenant| tenant.domain);
        let first = domains.next();
        domains.all(|domain| Some(domain) == first)
    }

    /// The trust domain of the whole pool, if there is only one.
    pub(super) fn only_domain(&self) -> Option<Domain> {
        self.list
            .first()
            .map(|tenant| tenant.domain)
            .filter(|_| self.one_domain())
    }

    /// The tenant that a HELLO names and, with Auth Mode 1, proves to be.
    //= kbtp-p7-not-authorized-hello
    pub(super) fn authenticate(
        &self,
        mode: AuthMode,
        challenge: &Challenge,
        initiator: &InitiatorId,
        name: Option<&str>,
        auth: Option<&Auth>,
    ) -> Option<TenantIndex> {
        let index = self.by_name.get(name.unwrap_or("")).copied();
        let tenant = index
            .and_then(|index| self.list.get(index.0))
            .filter(|t| t.configured);
        let known = match mode {
            AuthMode::None => tenant.is_some(),
            AuthMode::Hmac => {
                let auth = auth?;
                let key = tenant.and_then(|tenant| tenant.key.as_ref());
                // An unknown tenant costs what a wrong proof costs.
                let proven = auth::proves(
                    auth,
                    key.unwrap_or(&self.no_key),
                    challenge,
                    initiator,
                    name.unwrap_or(""),
                );
                proven & key.is_some() & name.is_some()
            }
        };
        index.filter(|_| known)
    }

    fn add(
        &mut self,
        name: &str,
        key: Option<TenantKey>,
        shared: bool,
        configured: bool,
    ) -> TenantIndex {
        let index = TenantIndex(self.list.len());
        let domain = if shared {
            SHARED
        } else {
            self.own_domain(name)
        };
        self.list.push(Tenant {
            name: name.to_owned(),
            key,
            domain,
            configured,
            ranges: 0,
        });
        self.by_name.insert(name.to_owned(), index);
        index
    }

    /// The trust domain of a tenant's own: the same whenever a tenant of this name is made, since each block remembers
    /// whose octets it holds. (Should two names meet in one number, the second takes the next.)
    fn own_domain(&self, name: &str) -> Domain {
        let mut number = crc32c::crc32c(name.as_bytes());
        loop {
            let taken = self.list.iter().any(|tenant| tenant.domain.0 == number);
            if !taken && !matches!(number, 0 | u32::MAX) && number != SHARED.0 {
                return Domain(number);
            }
            number = number.wrapping_add(1);
        }
    }
}
