//! The state of the hosted plugins: which ones are connected, and the devices that they have listed.
//!
//! Longer than 500 lines because one state machine has all its transitions here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::device::{DeviceGroup, Health};
use switchyard_core::id::{Owner, SlotId};
use switchyard_core::reload::Reloadable;
use switchyard_core::{Error, Result};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use crate::config::Config;
use crate::from_proto::{ListedDevices, quoted};
use crate::inventory::Groups;
use crate::last_error::LastError;

/// The most resources that plugins may register in the lifetime of the daemon.
const RESOURCES_MAX: usize = 64;

/// The name of a plugin's device group. Vendor and type are the two parts of the resource name, so that a
/// Nomad job asks for `device "acme.com/tpu"`.
const GROUP_NAME: &str = "default";

/// The devices that vendors' plugins have listed, and the connections to the plugins. Clones share the state.
#[derive(Debug, Clone)]
pub struct Hosted {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rules: Reloadable<Rules>,
    state: Mutex<State>,
    groups: watch::Sender<Arc<Vec<DeviceGroup>>>,
    failures: [AtomicU64; Failure::ALL.len()],
}

/// The configuration of the plugins.
#[derive(Debug)]
struct Rules {
    /// True if plugins may register; if not, no device of theirs is offered.
    enabled: bool,
    reserved: ReservedNames,
    /// Maximum number of devices of a resource for each owner.
    quotas: BTreeMap<String, BTreeMap<Owner, usize>>,
}

/// The names of the groups in the configuration; a plugin cannot have them.
#[derive(Debug, Clone, Default)]
pub struct ReservedNames {
    /// Their resource names.
    pub resources: Vec<String>,
    /// Their vendors, types and names.
    pub names: Vec<[String; 3]>,
}

/// The kinds of failures of a plugin, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Its registration was refused.
    Refused,
    /// It did not answer when it was called back during its registration.
    Unreachable,
    /// Its connection or its stream ended.
    Ended,
    /// It answered a call with an error.
    Failed,
    /// It did not answer a call in time.
    Late,
    /// Its answer or its list was invalid, wholly or in parts.
    Malformed,
}

/// The reason why no device of a plugin can be allocated, whatever it has listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The plugin's connection or stream has ended.
    Ended,
    /// The plugin has not sent its first list in time.
    Silent,
}

#[derive(Debug)]
pub(crate) struct State {
    /// In the order of their first registration.
    pub(crate) resources: Vec<RegisteredResource>,
    /// The reason why no plugin can register at present; `None` if they can.
    pub(crate) fault: Option<String>,
    /// The last registration that failed.
    pub(crate) refused: Option<LastError>,
    /// The number of the newest connection; numbers increase.
    newest: u64,
}

/// A resource that a plugin has registered since the daemon started.
#[derive(Debug)]
pub(crate) struct RegisteredResource {
    pub(crate) name: String,
    /// The name of its newest plugin's socket.
    pub(crate) endpoint: String,
    /// The number of its newest connection.
    connection: u64,
    /// `None` after the newest connection has ended.
    pub(crate) plugin: Option<ConnectedPlugin>,
    /// Since when the plugin is in its present state: connected, silent, or ended.
    pub(crate) since: SystemTime,
    /// True if its newest plugin requires PreStartContainer.
    pre_start: bool,
    /// The last list; `None` before the first one.
    pub(crate) listed: Option<ListedDevices>,
    /// The reason why its devices cannot be allocated at present.
    pub(crate) fault: Option<Fault>,
    /// The last failure.
    pub(crate) last_error: Option<LastError>,
}

#[derive(Debug)]
pub(crate) struct ConnectedPlugin {
    plugin: Plugin,
    /// Dropping it ends the connection's stream.
    _stream: DropGuard,
}

/// A connected plugin and its options.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    pub(crate) channel: Channel,
    /// True if it requires PreStartContainer.
    pub(crate) pre_start: bool,
    /// True if it answers GetPreferredAllocation.
    pub(crate) preferred: bool,
}

/// Identifies one connection of a plugin.
#[derive(Debug, Clone)]
pub(crate) struct PluginConnection {
    pub(crate) resource: String,
    number: u64,
    /// Cancelled when the connection is over, or when another plugin has registered the resource: it ends the
    /// stream.
    pub(crate) over: CancellationToken,
}

// === impl Failure ===

impl Failure {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::Unreachable,
        Self::Ended,
        Self::Failed,
        Self::Late,
        Self::Malformed,
    ];

    /// The kind in one word, for metrics.
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

// === impl ReservedNames ===

impl ReservedNames {
    /// Returns whether the configuration has this resource, or a group of the same name as the group of this
    /// resource.
    #[must_use]
    pub fn has(&self, resource: &str) -> bool {
        let own = group(resource);
        self.resources.iter().any(|taken| taken == resource)
            || self
                .names
                .iter()
                .any(|name| *name == [&*own.vendor, &*own.kind, &*own.name])
    }
}

// === impl Fault ===

impl Fault {
    /// The reason given for unhealthy devices. It is constant: a Nomad agent registers its node again
    /// whenever the text changes.
    const fn text(self) -> &'static str {
        match self {
            Self::Ended => "the plugin of its vendor has ended",
            Self::Silent => "the plugin of its vendor does not list its devices",
        }
    }
}

// === impl Hosted ===

impl Hosted {
    /// Initially no plugin is registered, and none can register until the directory is opened.
    #[must_use]
    pub fn new(reserved: ReservedNames, config: &Config) -> Self {
        let shared = Shared {
            rules: Rules::new(reserved, config).into(),
            state: Mutex::new(State {
                resources: Vec::new(),
                fault: Some("the directory is not there yet".to_owned()),
                refused: None,
                newest: 0,
            }),
            groups: watch::Sender::default(),
            failures: Default::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The device groups of the plugins, kept up to date.
    #[must_use]
    pub fn groups(&self) -> Groups {
        self.shared.groups.subscribe()
    }

    /// Replaces the names that plugins cannot have, and the quotas, as a reload of the configuration does. The
    /// devices of a plugin that has registered under such a name are left out from now on, and those of all
    /// plugins if these may not register any more; an owner that holds more devices than its new quota keeps
    /// them.
    pub fn reconfigure(&self, reserved: ReservedNames, config: &Config) {
        self.shared.rules.set(Rules::new(reserved, config));
        self.publish(&self.state());
    }

    /// Sets why no plugin can register at present; `None` if they can.
    pub(crate) fn set_fault(&self, fault: Option<String>) {
        self.state().fault = fault;
    }

    /// Counts a failure of a plugin, and keeps it as the resource's last error.
    pub(crate) fn record_failure(&self, resource: &str, failure: Failure, why: &str) {
        self.count(failure);
        if let Some(known) = self
            .state()
            .resources
            .iter_mut()
            .find(|known| known.name == resource)
        {
            known.last_error = Some(LastError::now(why));
        }
    }

    /// The text of the last failure of a resource.
    fn last_error_of(&self, resource: &str) -> Option<String> {
        let state = self.state();
        let known = state
            .resources
            .iter()
            .find(|known| known.name == resource)?;
        known.last_error.as_ref().map(|error| error.text.clone())
    }

    /// Counts a failed registration, and keeps it as the last one.
    pub(crate) fn record_registration_failure(&self, failure: Failure, error: &Error) {
        self.count(failure);
        self.state().refused = Some(LastError::now(&error.report()));
    }

    fn count(&self, failure: Failure) {
        self.shared.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of failures of a kind.
    pub(crate) fn count_of(&self, failure: Failure) -> u64 {
        self.shared.failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Checks that a plugin may register this resource.
    ///
    /// # Errors
    /// `AlreadyExists` if the configuration has it; `ResourceExhausted` if too many resources were
    /// registered.
    pub(crate) fn check(&self, resource: &str) -> Result<()> {
        if self.shared.rules.get().reserved.has(resource) {
            return Err(Error::already_exists(format!(
                "a group of devices.groups in the gateway's configuration has the resource {resource} already: change its resource, or remove it"
            )));
        }
        let state = self.state();
        let known = state.resources.iter().any(|known| known.name == resource);
        if !known && state.resources.len() >= RESOURCES_MAX {
            return Err(Error::exhausted(format!(
                "{RESOURCES_MAX} resources were registered since the gateway was started, which is the most"
            )));
        }
        Ok(())
    }

    /// Makes a plugin the newest one of its resource. An earlier plugin of the resource is no longer called;
    /// its devices stay as they are until the new plugin lists its own.
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
        // Checked again: the configuration may have changed during the call to the plugin.
        self.check(resource)?;
        let mut state = self.state();
        state.newest += 1;
        let number = state.newest;
        let pre_start = plugin.pre_start;
        let connected = ConnectedPlugin {
            plugin,
            _stream: over.clone().drop_guard(),
        };
        match state
            .resources
            .iter_mut()
            .find(|known| known.name == resource)
        {
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
        Ok(PluginConnection {
            resource: resource.to_owned(),
            number,
            over,
        })
    }

    /// Stores the devices that a plugin has listed.
    pub(crate) fn list(&self, connection: &PluginConnection, listed: ListedDevices) {
        if let Some((count, why)) = &listed.left_out {
            let text = format!(
                "its list is invalid in parts: entries are left out ({count}), the first since {why}"
            );
            // A plugin may send the same list ten times a second.
            if self.last_error_of(&connection.resource).as_deref() != Some(text.as_str()) {
                tracing::warn!(
                    resource = connection.resource,
                    entries = count,
                    first = why,
                    "entries of a plugin's list of devices are invalid and left out"
                );
            }
            self.record_failure(&connection.resource, Failure::Malformed, &text);
        }
        self.change(connection, |resource| {
            if resource.fault == Some(Fault::Silent) {
                resource.since = SystemTime::now();
            }
            (resource.listed, resource.fault) = (Some(listed), None);
        });
    }

    /// Marks the devices of a plugin as unhealthy because its first list is late.
    pub(crate) fn set_silent(&self, connection: &PluginConnection) {
        self.count(Failure::Late);
        tracing::warn!(
            resource = connection.resource,
            "a plugin that has registered does not list its devices"
        );
        self.change(connection, |resource| {
            (resource.fault, resource.since) = (Some(Fault::Silent), SystemTime::now());
            resource.last_error = Some(LastError::now(
                "it has registered, and does not list its devices",
            ));
        });
    }

    /// Ends a connection: its devices are unhealthy until the plugin registers again.
    pub(crate) fn end(&self, connection: &PluginConnection, why: &str) {
        let is_newest = self.change(connection, |resource| {
            (resource.plugin, resource.fault) = (None, Some(Fault::Ended));
            (resource.since, resource.last_error) = (SystemTime::now(), Some(LastError::now(why)));
        });
        // The end of a plugin that was replaced is expected.
        if is_newest {
            self.count(Failure::Ended);
            tracing::warn!(
                resource = connection.resource,
                reason = why,
                "a plugin has ended: its devices are unhealthy until it registers again"
            );
        }
    }

    /// Returns whether a plugin has registered this resource since the daemon started.
    pub(crate) fn has_registered(&self, resource: &str) -> bool {
        self.state()
            .resources
            .iter()
            .any(|known| known.name == resource)
    }

    /// Returns whether the newest plugin of a resource, connected or not, requires PreStartContainer.
    pub(crate) fn wants_pre_start(&self, resource: &str) -> bool {
        self.state()
            .resources
            .iter()
            .any(|known| known.name == resource && known.pre_start)
    }

    /// The connected plugin of a resource, with the vendor's ids of these devices.
    ///
    /// # Errors
    /// `Unavailable` without a connected plugin; `FailedPrecondition` for a device that it does not list, or
    /// no longer lists.
    pub(crate) fn plugin(
        &self,
        resource: &str,
        devices: &[SlotId],
    ) -> Result<(Plugin, Vec<String>)> {
        let state = self.state();
        let known = state.resources.iter().find(|known| known.name == resource);
        let away = || {
            Error::unavailable(format!(
                "the plugin of {resource} is not connected: check that it runs, and that it registers here"
            ))
        };
        let plugin = known
            .and_then(|known| known.plugin.as_ref())
            .ok_or_else(away)?
            .plugin
            .clone();
        let vendors = known
            .and_then(|known| known.listed.as_ref())
            .map(|listed| &listed.vendors);
        let vendor = |id: &SlotId| {
            vendors
                .and_then(|vendors| vendors.get(id.as_str()))
                .cloned()
                .ok_or_else(|| {
                    Error::failed_precondition(format!(
                        "the plugin of {resource} has no device {} any more",
                        quoted(id.as_str())
                    ))
                })
        };
        let ids = devices.iter().map(vendor).collect::<Result<_>>()?;
        Ok((plugin, ids))
    }

    /// Applies `change` to the resource of a connection and publishes the groups, unless there is a newer
    /// connection. Returns whether the connection is the newest.
    fn change(
        &self,
        connection: &PluginConnection,
        change: impl FnOnce(&mut RegisteredResource),
    ) -> bool {
        let mut state = self.state();
        let newest = |known: &&mut RegisteredResource| {
            known.name == connection.resource && known.connection == connection.number
        };
        let Some(resource) = state.resources.iter_mut().find(newest) else {
            return false;
        };
        change(resource);
        self.publish(&state);
        true
    }

    /// Publishes the groups if they have changed.
    fn publish(&self, state: &State) {
        let rules = self.shared.rules.get();
        let groups: Vec<DeviceGroup> = state
            .resources
            .iter()
            .filter(|resource| rules.enabled && !rules.reserved.has(&resource.name))
            .filter_map(|resource| resource.group(&rules))
            .collect();
        self.shared.groups.send_if_modified(|current| {
            let is_new = **current != groups;
            if is_new {
                *current = Arc::new(groups);
            }
            is_new
        });
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

// === impl Rules ===

impl Rules {
    fn new(reserved: ReservedNames, config: &Config) -> Self {
        Self {
            enabled: config.enabled,
            reserved,
            quotas: config.quotas(),
        }
    }
}

// === impl RegisteredResource ===

impl RegisteredResource {
    /// The group of its devices; `None` if they were never listed.
    fn group(&self, rules: &Rules) -> Option<DeviceGroup> {
        let mut devices = self.listed.as_ref()?.devices.clone();
        if let Some(fault) = self.fault {
            devices
                .iter_mut()
                .for_each(|device| device.health = Health::Unhealthy(fault.text().to_owned()));
        }
        let quota = rules.quotas.get(&self.name).cloned().unwrap_or_default();
        Some(DeviceGroup {
            devices,
            quota,
            ..group(&self.name)
        })
    }
}

/// The group of a resource, without devices.
fn group(resource: &str) -> DeviceGroup {
    let (vendor, kind) = resource.split_once('/').unwrap_or((resource, ""));
    DeviceGroup {
        resource: resource.to_owned(),
        ..DeviceGroup::new(vendor, kind, GROUP_NAME)
    }
}

/// Maps vendors' ids to ours.
pub(crate) fn by_vendors<'a>(
    ids: &'a [SlotId],
    vendors: &'a [String],
) -> BTreeMap<&'a str, &'a SlotId> {
    vendors.iter().map(String::as_str).zip(ids).collect()
}

#[cfg(test)]
mod tests;
