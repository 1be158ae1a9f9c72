//! The parts of an incident: steps that make it, signs that show it, and guards that end it.

use std::any::Any;
use std::time::Duration;

use super::node::DrillNode;
use crate::node::Containerd;
use crate::root::PrivateRoot;

/// An incident of the list.
#[derive(Debug, Clone, Copy)]
pub struct ListedIncident {
    /// Its number.
    pub number: u8,
    /// The place where it can be made.
    pub place: Place,
    /// A form of it that is made elsewhere, if there is one.
    pub elsewhere: Option<&'static str>,
}

/// The place where an incident can be made.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// A private node on this machine.
    Here(Setup),
    /// Another one: the text says which, and why.
    Elsewhere(&'static str),
}

/// The steps that make an incident.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The containerd of the node.
    pub containerd: Containerd,
    /// True if everything is in the network namespace of the manager of a swarm.
    pub is_in_swarm: bool,
    /// Prepares the root of the node before its daemon runs, and gives more configuration.
    pub prepare: fn(&PrivateRoot) -> String,
    /// Makes the incident on the running node.
    pub make: fn(&DrillNode) -> Incident,
}

/// An incident that stands until this is dropped.
#[derive(Debug)]
pub struct Incident {
    /// The name of a pod or a task that users ask about.
    pub object: String,
    /// The sign that it is there.
    pub sign: Sign,
    /// Its guards. Dropping them, in this order, ends it.
    parts: Vec<Box<dyn Any>>,
}

/// A sign that an incident is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// This alert fires.
    Alert(&'static str),
    /// The orchestrator has reported so many lines.
    Reported(usize),
    /// Nothing but that it has lasted so long.
    Lasts(Duration),
}

// === impl Setup ===

impl Setup {
    /// On a node with a managed containerd, without more configuration.
    #[must_use]
    pub const fn plain(make: fn(&DrillNode) -> Incident) -> Self {
        Self::prepared(no_configuration, make)
    }

    /// On a node with a managed containerd.
    #[must_use]
    pub const fn prepared(
        prepare: fn(&PrivateRoot) -> String,
        make: fn(&DrillNode) -> Incident,
    ) -> Self {
        Self {
            containerd: Containerd::Managed,
            is_in_swarm: false,
            prepare,
            make,
        }
    }

    /// On a node beside a containerd that is not the daemon's own.
    #[must_use]
    pub const fn external(make: fn(&DrillNode) -> Incident) -> Self {
        Self {
            containerd: Containerd::External,
            ..Self::plain(make)
        }
    }

    /// On a node beside the manager of a swarm.
    #[must_use]
    pub const fn in_swarm(make: fn(&DrillNode) -> Incident) -> Self {
        Self {
            is_in_swarm: true,
            ..Self::plain(make)
        }
    }
}

fn no_configuration(_: &PrivateRoot) -> String {
    String::new()
}

// === impl Incident ===

impl Incident {
    /// An incident about which users name this pod or task.
    #[must_use]
    pub fn new(object: &str, sign: Sign) -> Self {
        Self {
            object: object.to_owned(),
            sign,
            parts: Vec::new(),
        }
    }

    /// Adds a part.
    #[must_use]
    pub fn with(mut self, part: impl Any) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Adds parts of one kind.
    #[must_use]
    pub fn with_all<T: Any>(mut self, parts: impl IntoIterator<Item = T>) -> Self {
        for part in parts {
            self.parts.push(Box::new(part));
        }
        self
    }
}
