//! Routing: the components that judge the tasks of a domain.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::RewardSettings;

/// A set of domains. In a configuration it is a list of names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DomainSet {
    /// All domains.
    #[default]
    All,
    /// The named ones.
    Only(BTreeSet<String>),
}

impl DomainSet {
    /// The set without domains.
    pub fn none() -> Self {
        Self::Only(BTreeSet::new())
    }

    /// True if the domain is in the set.
    pub fn contains(&self, domain: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(domain),
        }
    }

    /// The domains that are in one of the sets.
    fn union(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Only(mut own), Self::Only(other)) => {
                own.extend(other.iter().cloned());
                Self::Only(own)
            }
            _ => Self::All,
        }
    }
}

impl Serialize for DomainSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_none(),
            Self::Only(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DomainSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeSet::deserialize(deserializer).map(Self::Only)
    }
}

/// Index of the component that decides whether a task of `domain` is solved: the one called `named`, or else the first
/// verifier. The iterator gives the name, the domains and whether it is a verifier of each component.
pub(crate) fn outcome_index<'c>(
    named: Option<&str>,
    domain: &str,
    components: impl Iterator<Item = (&'c str, &'c DomainSet, bool)>,
) -> Option<usize> {
    let mut first = None;
    for (index, (name, domains, is_verifier)) in components.enumerate() {
        if !is_verifier || !domains.contains(domain) {
            continue;
        }
        if named == Some(name) {
            return Some(index);
        }
        first = first.or(Some(index));
    }
    first
}

impl RewardSettings {
    /// True if a component judges the tasks of a domain.
    pub fn judges(&self, domain: &str) -> bool {
        self.components.iter().any(|component| component.domains.contains(domain))
    }

    /// True if there is a verifier, for all domains or for some.
    pub fn has_verifier(&self) -> bool {
        self.components.iter().any(|component| component.kind.is_verifier())
    }

    /// Domains whose tasks have an outcome verifier.
    pub fn verified(&self) -> DomainSet {
        let verifiers = self.components.iter().filter(|component| component.kind.is_verifier());
        verifiers.fold(DomainSet::none(), |all, component| all.union(&component.domains))
    }

    /// Domains that components name, for messages.
    pub fn named_domains(&self) -> BTreeSet<&str> {
        let named = self.components.iter().filter_map(|component| match &component.domains {
            DomainSet::All => None,
            DomainSet::Only(names) => Some(names),
        });
        named.flatten().map(String::as_str).collect()
    }
}
