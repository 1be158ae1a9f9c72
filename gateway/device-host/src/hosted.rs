//! Which plugins there are, and what they have listed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use switchyard_core::device::{DeviceGroup, Health};
use switchyard_core::id::Owner;
use switchyard_core::{Error, Result};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use crate::config::Config;
use crate::from_proto::{ListedDevices, quoted};
use crate::inventory::Groups;
use crate::report::LastError;

/// The most resources that plugins may register while the daemon lives.
const RESOURCES_MAX: usize = 64;

/// The name of the groups of resources: vendor and type are the parts of the resource, so that a job asks for `device "acme.com/tpu"`.
const GROUP_NAME: &str = "default";

/// What vendors' plugins have listed, and how they are called. Clones are the same.
#[derive(Debug, Clone)]
pub struct Hosted {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reserved: ReservedNames,
    /// How many devices of a resource each owner may hold at most.
    quotas: BTreeMap<String, BTreeMap<Owner, usize>>,
    state: Mutex<State>,
    groups: watch::Sender<Arc<Vec<DeviceGroup>>>,
    failures: [AtomicU64; Failure::ALL.len()],
}

/// What the configuration's own groups are called, which no plugin can have.
#[derive(Debug, Clone, Default)]
pub struct ReservedNames {
    /// Their resources.
    pub resources: Vec<String>,
    /// Their vendors, types and names.
    pub names: Vec<[String; 3]>,
}

/// What fails of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Its registration was refused.
    Refused,
    /// It did not answer when it was called back.
    Unreachable,
    /// Its connection or its stream ended.
    Ended,
    /// It answered a call with an error.
    Failed,
    /// It did not answer a call in time.
    Late,
    /// Its answer or its list cannot be taken as it is.
    Malformed,
}

/// Why devices of a plugin cannot be given to anybody, whatever it has listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The plugin has ended.
    Ended,
    /// The plugin hangs from the beginning.
    Silent,
}

#[derive(Debug)]
pub(crate) struct State {
    /// In the order in which they were registered first.
    pub(crate) resources: Vec<RegisteredResource>,
    /// Why no plugin can register now.
    pub(crate) fault: Option<String>,
    /// The registration that failed last.
    pub(crate) refused: Option<LastError>,
    /// The number of the newest connection.
    newest: u64,
}

/// A resource that was registered once.
#[derive(Debug)]
pub(crate) struct RegisteredResource {
    pub(crate) name: String,
    /// The socket of its newest plugin.
    pub(crate) endpoint: String,
    /// The number of its newest connection.
    connection: u64,
    /// `None` after that has ended.
    pub(crate) plugin: Option<ConnectedPlugin>,
    /// Since when its plugin is connected, is silent, or has ended.
    pub(crate) since: SystemTime,
    /// Its newest plugin wants to be told before a container is made.
    pre_start: bool,
    /// What was listed last; `None` before that.
    pub(crate) listed: Option<ListedDevices>,
    /// Why its devices cannot be given to anybody now.
    pub(crate) fault: Option<Fault>,
    /// What failed last.
    pub(crate) last_error: Option<LastError>,
}

#[derive(Debug)]
pub(crate) struct ConnectedPlugin {
    plugin: Plugin,
    /// Ends the connection's stream.
    _stream: DropGuard,
}

/// A plugin that is connected.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    pub(crate) channel: Channel,
    /// It wants to be told before a container is made.
    pub(crate) pre_start: bool,
    /// It says which devices it prefers.
    pub(crate) preferred: bool,
}

/// The connection that a plugin was given.
#[derive(Debug, Clone)]
pub(crate) struct PluginConnection {
    pub(crate) resource: String,
    number: u64,
    /// Ends its stream, when it is over or another one has come for the resource.
    pub(crate) over: CancellationToken,
}

// === impl Failure ===

impl Failure {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Refused, Self::Unreachable, Self::Ended, Self::Failed, Self::Late, Self::Malformed];

    /// It in one word, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Ended => "ended",
            Self::Failed => "failed",
            Self::Late => "late",
            Self::Malformed => "malformed",
        }
    }
}

// === impl Taken ===

impl ReservedNames {
    /// Whether this resource, or the group that would be made of it, is one of the configuration's own.
    #[must_use]
    pub fn has(&self, resource: &str) -> bool {
        let own = group(resource);
        let is_same = |name: &[String; 3]| *name == [&*own.vendor, &*own.kind, &*own.name];
        self.resources.iter().any(|taken| taken == resource) || self.names.iter().any(is_same)
    }
}

// === impl Fault ===

impl Fault {
    /// What is told of the devices. The same each time: an agent registers its node again for each other text.
    const fn text(self) -> &'static str {
        match self {
            Self::Ended => "the plugin of its vendor has ended",
            Self::Silent => "the plugin of its vendor does not list its devices",
        }
    }
}

// === impl Hosted ===

impl Hosted {
    /// No plugin has registered yet, and none can.
    #[must_use]
    pub fn new(taken: ReservedNames, config: &Config) -> Self {
        let shared = Shared {
            reserved: taken,
            quotas: config.quotas(),
            state: Mutex::new(State {
                resources: Vec::new(),
                fault: Some("the directory is not there yet".to_owned()),
                refused: None,
                newest: 0,
            }),
            groups: watch::Sender::default(),
            failures: Default::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The groups of what plugins have listed, kept up to date.
    #[must_use]
    pub fn groups(&self) -> Groups {
        self.shared.groups.subscribe()
    }

    /// Says why no plugin can register now; `None` if they can.
    pub(crate) fn set_fault(&self, fault: Option<String>) {
        self.state().fault = fault;
    }

    /// Something of a plugin has failed.
    pub(crate) fn record_failure(&self, resource: &str, failure: Failure, why: &str) {
        self.count(failure);
        if let Some(known) = self.state().resources.iter_mut().find(|known| known.name == resource) {
            known.last_error = Some(LastError::now(why));
        }
    }

    /// A registration has failed.
    pub(crate) fn record_registration_failure(&self, failure: Failure, error: &Error) {
        self.count(failure);
        self.state().refused = Some(LastError::now(&error.report()));
    }

    fn count(&self, failure: Failure) {
        self.shared.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often something has failed so far.
    pub(crate) fn count_of(&self, failure: Failure) -> u64 {
        self.shared.failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Whether a plugin may register this resource.
    ///
    /// # Errors
    /// `AlreadyExists` if the configuration has it; `ResourceExhausted` if there are too many.
    pub(crate) fn check(&self, resource: &str) -> Result<()> {
        if self.shared.reserved.has(resource) {
            return Err(Error::already_exists(format!(
                "a group of devices.groups in the gateway's configuration is {resource} already: give it another resource, or take it out"
            )));
        }
        let state = self.state();
        let known = state.resources.iter().any(|known| known.name == resource);
        if !known && state.resources.len() >= RESOURCES_MAX {
            return Err(Error::exhausted(format!(
                "{RESOURCES_MAX} resources were registered since the gateway has started, and no more can be"
            )));
        }
        Ok(())
    }

    /// A plugin is connected. One that had the resource before is not asked any more; its devices stay as they are until the new one lists
    /// its own.
    ///
    /// # Errors
    /// Those of [`Hosted::check`].
    pub(crate) fn connect(
        &self,
        resource: &str,
        endpoint: &str,
        plugin: Plugin,
        over: CancellationToken,
    ) -> Result<PluginConnection> {
        self.check(resource)?;
        let mut state = self.state();
        state.newest += 1;
        let number = state.newest;
        let pre_start = plugin.pre_start;
        let connected = ConnectedPlugin { plugin, _stream: over.clone().drop_guard() };
        match state.resources.iter_mut().find(|known| known.name == resource) {
            Some(known) => {
                (known.connection, known.pre_start) = (number, pre_start);
                (known.plugin, known.since) = (Some(connected), SystemTime::now());
                endpoint.clone_into(&mut known.endpoint);
            }
            None => state.resources.push(RegisteredResource {
                name: resource.to_owned(),
                endpoint: endpoint.to_owned(),
                connection: number,
                plugin: Some(connected),
                since: SystemTime::now(),
                pre_start,
                listed: None,
                fault: None,
                last_error: None,
            }),
        }
        Ok(PluginConnection { resource: resource.to_owned(), number, over })
    }

    /// A plugin has listed its devices.
    pub(crate) fn list(&self, connection: &PluginConnection, listed: ListedDevices) {
        if let Some((count, why)) = &listed.left_out {
            let text = format!(
                "its list is not taken as it is: {count} entries are left out, the first since {why}"
            );
            self.record_failure(&connection.resource, Failure::Malformed, &text);
            tracing::warn!(
                resource = connection.resource,
                entries = count,
                first = why,
                "a plugin's list is not taken as it is"
            );
        }
        self.change(connection, |resource| {
            if resource.fault == Some(Fault::Silent) {
                resource.since = SystemTime::now();
            }
            (resource.listed, resource.fault) = (Some(listed), None);
        });
    }

    /// A plugin has not listed anything for a while.
    pub(crate) fn set_silent(&self, connection: &PluginConnection) {
        self.count(Failure::Late);
        tracing::warn!(
            resource = connection.resource,
            "a plugin that has registered does not list its devices"
        );
        self.change(connection, |resource| {
            (resource.fault, resource.since) = (Some(Fault::Silent), SystemTime::now());
            resource.last_error = Some(LastError::now("it has registered, and does not list its devices"));
        });
    }

    /// A connection has ended: its devices are unhealthy until the plugin registers again.
    pub(crate) fn end(&self, connection: &PluginConnection, why: &str) {
        let is_newest = self.change(connection, |resource| {
            (resource.plugin, resource.fault) = (None, Some(Fault::Ended));
            (resource.since, resource.last_error) = (SystemTime::now(), Some(LastError::now(why)));
        });
        if is_newest {
            self.count(Failure::Ended);
            tracing::warn!(
                resource = connection.resource,
                why,
                "a plugin has ended: its devices are unhealthy until it registers again"
            );
        }
    }

    /// Whether a plugin has ever registered this resource.
    pub(crate) fn has_registered(&self, resource: &str) -> bool {
        self.state().resources.iter().any(|known| known.name == resource)
    }

    /// Whether the plugin of a resource, or the one that it had, wants to be told before a container is made.
    pub(crate) fn wants_pre_start(&self, resource: &str) -> bool {
        self.state().resources.iter().any(|known| known.name == resource && known.pre_start)
    }

    /// The plugin of a resource, with the vendor's ids of these devices.
    ///
    /// # Errors
    /// `Unavailable` without a plugin; `FailedPrecondition` for a device that it does not list (any more).
    pub(crate) fn plugin(&self, resource: &str, devices: &[String]) -> Result<(Plugin, Vec<String>)> {
        let state = self.state();
        let known = state.resources.iter().find(|known| known.name == resource);
        let away = || {
            Error::unavailable(format!(
                "the plugin of {resource} is not connected: see whether it runs, and that it registers here"
            ))
        };
        let plugin = known.and_then(|known| known.plugin.as_ref()).ok_or_else(away)?.plugin.clone();
        let vendors = known.and_then(|known| known.listed.as_ref()).map(|listed| &listed.vendors);
        let vendor = |id: &String| {
            vendors.and_then(|vendors| vendors.get(id)).cloned().ok_or_else(|| {
                Error::failed_precondition(format!(
                    "the plugin of {resource} has no device {} any more",
                    quoted(id)
                ))
            })
        };
        let ids = devices.iter().map(vendor).collect::<Result<_>>()?;
        Ok((plugin, ids))
    }

    /// Changes what is known by a connection, and tells of it; not if there is a newer one. Says whether it is the newest.
    fn change(&self, connection: &PluginConnection, change: impl FnOnce(&mut RegisteredResource)) -> bool {
        let mut state = self.state();
        let newest = |known: &&mut RegisteredResource| {
            known.name == connection.resource && known.connection == connection.number
        };
        let Some(resource) = state.resources.iter_mut().find(newest) else { return false };
        change(resource);
        let groups: Vec<DeviceGroup> =
            state.resources.iter().filter_map(|resource| self.group(resource)).collect();
        self.shared.groups.send_if_modified(|told| {
            let is_new = **told != groups;
            if is_new {
                *told = Arc::new(groups);
            }
            is_new
        });
        true
    }

    /// The group of a resource's devices, if they were ever listed.
    fn group(&self, resource: &RegisteredResource) -> Option<DeviceGroup> {
        let mut devices = resource.listed.as_ref()?.devices.clone();
        if let Some(fault) = resource.fault {
            devices.iter_mut().for_each(|device| device.health = Health::Unhealthy(fault.text().to_owned()));
        }
        let quota = self.shared.quotas.get(&resource.name).cloned().unwrap_or_default();
        Some(DeviceGroup { devices, quota, ..group(&resource.name) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The group of a resource, without its devices.
fn group(resource: &str) -> DeviceGroup {
    let (vendor, kind) = resource.split_once('/').unwrap_or((resource, ""));
    DeviceGroup { resource: resource.to_owned(), ..DeviceGroup::new(vendor, kind, GROUP_NAME) }
}

/// The vendors' ids and ours.
pub(crate) fn by_vendors<'a>(ids: &'a [String], vendors: &'a [String]) -> BTreeMap<&'a str, &'a str> {
    vendors.iter().map(String::as_str).zip(ids.iter().map(String::as_str)).collect()
}
