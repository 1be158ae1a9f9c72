//! Attaches, checks and detaches a container with the chain of plugins (CNI specification, section 3).

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use switchyard_crash_points::{CrashPoint, reach};
use tokio::time::{Instant, timeout};

use crate::attachment::Attachment;
use crate::conf::{NetworkList, PluginConf, type_of};
use crate::error::Error;
use crate::journal;
use crate::loopback;
use crate::plugin::{Call, Plugins};
use crate::result::CniResult;
use crate::verb::Verb;

/// The key of the result of the plugin before, or of ADD.
const PREVIOUS_RESULT: &str = "prevResult";
/// The keys of the attachments that GC leaves alone. The second one is that of an earlier text of the specification: a plugin
/// that was written by it would take all attachments for left over.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// A network that containers can be attached to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Network {
    list: Arc<NetworkList>,
    plugins: Plugins,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// Every plugin found the attachment unchanged.
    Passed,
    /// The configuration disables CHECK.
    Disabled,
    /// The configuration's version has no CHECK.
    NotInVersion,
}

impl Network {
    /// A network from a list that was loaded.
    #[must_use]
    pub fn new(list: Arc<NetworkList>, plugins: Plugins) -> Self {
        Self { list, plugins }
    }

    /// Its configuration.
    #[must_use]
    pub fn list(&self) -> &NetworkList {
        &self.list
    }

    /// The plugins that are run, in the order of ADD: all but `loopback`.
    fn programs(&self) -> impl DoubleEndedIterator<Item = &PluginConf> {
        let plugins = self.list.plugins.iter();
        plugins.filter(|plugin| !loopback::is_loopback(plugin))
    }

    /// Checks that all plugins of the chain that are run are installed; for readiness reports. Blocks on the file system,
    /// and on one that hangs for ever.
    ///
    /// # Errors
    /// [`Error::PluginNotFound`].
    pub fn check_installed(&self) -> Result<(), Error> {
        for plugin in self.programs() {
            self.plugins.find(&self.list.name, type_of(plugin))?;
            // The IPAM plugin is run by the plugin itself.
            if let Some(ipam) = plugin
                .get("ipam")
                .and_then(|ipam| ipam.get("type"))
                .and_then(Value::as_str)
            {
                self.plugins.find(&self.list.name, ipam)?;
            }
        }
        Ok(())
    }

    /// Attaches a container: ADD of each plugin in order, each given the result of the one before. The loopback device of
    /// its namespace is up already, so that `loopback` is not run.
    ///
    /// If one fails, DEL of the whole chain follows before this returns. Not idempotent: an attachment has to
    /// be detached before it is made again. Cancel safety: none; dropping the future kills the running
    /// plugin, nothing is undone, and [`Network::del`] must follow. [`Network::add_saved`] makes that
    /// possible after a crash too.
    ///
    /// # Errors
    /// [`Error::Attachment`], [`Error::PluginNotFound`] or [`Error::PluginDirs`] before any plugin was run; else
    /// [`Error::Add`] with the first failure, and the failure of the rollback if there was one.
    pub async fn add(&self, attachment: &Attachment) -> Result<CniResult, Error> {
        self.add_noting(attachment, None).await
    }

    /// As [`Network::add`], with the result of each plugin appended to the file at `journal` before the next
    /// one runs.
    pub(crate) async fn add_noting(
        &self,
        attachment: &Attachment,
        journal: Option<&Path>,
    ) -> Result<CniResult, Error> {
        attachment.check()?;
        if attachment.netns.is_none() {
            return Err(Error::Attachment {
                what: "container",
                value: attachment.container_id.clone(),
                why: "has no network namespace to attach to a network",
            });
        }
        // Checked for all plugins first, so that a missing one needs no rollback, which would fail for the
        // same reason.
        let network = self.clone();
        let deadline = Instant::now() + self.plugins.limits().plugin;
        let check = move || network.check_installed();
        self.plugins
            .access_dirs(&self.list.name, deadline, check)
            .await??;
        let mut made = None;
        match self.add_chain(attachment, journal, &mut made).await {
            Ok(()) => made.ok_or_else(|| Error::Conf {
                path: self.list.source.clone(),
                source: crate::error::ConfError::NoPlugins,
            }),
            Err(error) => Err(self.undo(attachment, made.as_ref(), error).await),
        }
    }

    /// Runs ADD of the chain. `made` receives the result of the last plugin that succeeded, also after a
    /// failure: some plugins know only from it what to undo.
    async fn add_chain(
        &self,
        attachment: &Attachment,
        journal: Option<&Path>,
        made: &mut Option<CniResult>,
    ) -> Result<(), Error> {
        for plugin in &self.list.plugins {
            let previous = made.as_ref().map(|result| &result.raw);
            let version = self.list.cni_version;
            let parsed = match (loopback::is_loopback(plugin), previous) {
                (true, Some(_)) => continue,
                (true, None) => CniResult::from_value(loopback::result(attachment), version),
                (false, previous) => {
                    let previous = previous.map(|result| (PREVIOUS_RESULT, result));
                    let output = self
                        .call(plugin, Verb::Add, Some(attachment), previous.as_slice())
                        .await?;
                    reach(CrashPoint::PluginAdded);
                    CniResult::parse(&output, version)
                }
            };
            let parsed = parsed.map_err(|source| Error::Result {
                plugin: type_of(plugin).to_owned(),
                source,
            })?;
            let result = &made.insert(parsed).raw;
            // After each plugin: after a kill, DEL gets the result of the last one that has run.
            if let Some(journal) = journal {
                journal::append(journal, result).await?;
            }
        }
        Ok(())
    }

    /// Detaches after a failure, with a timeout of its own, and returns the error that reports both.
    async fn undo(
        &self,
        attachment: &Attachment,
        result: Option<&CniResult>,
        failed: Error,
    ) -> Error {
        let limit = self.plugins.limits().undo;
        let container_id = attachment.container_id.clone();
        let network = self.list.name.clone();
        let undone = match timeout(limit, self.del(attachment, result)).await {
            Ok(undone) => undone,
            Err(_) => Err(Error::UndoDeadline {
                container_id: container_id.clone(),
                network: network.clone(),
                after: limit,
            }),
        };
        Error::Add {
            container_id,
            network,
            source: Box::new(failed),
            undo: undone.err().map(Box::new),
        }
    }

    /// Runs CHECK of each plugin, which compares the attachment with `result`, until one fails.
    ///
    /// Cancel safety: dropping the future kills the running plugin; a check changes nothing.
    ///
    /// # Errors
    /// The error of the first plugin that failed, or why it could not be run.
    pub async fn check(
        &self,
        attachment: &Attachment,
        result: &CniResult,
    ) -> Result<CheckOutcome, Error> {
        attachment.check()?;
        if !self.list.cni_version.has_check() {
            return Ok(CheckOutcome::NotInVersion);
        }
        if self.list.disable_check {
            return Ok(CheckOutcome::Disabled);
        }
        for plugin in self.programs() {
            let made = [(PREVIOUS_RESULT, &result.raw)];
            self.call(plugin, Verb::Check, Some(attachment), &made)
                .await?;
        }
        Ok(CheckOutcome::Passed)
    }

    /// Detaches a container: DEL of each plugin, last first. Idempotent, by the specification's rule for
    /// plugins.
    ///
    /// Every plugin is run, also after one failed, because each frees resources of its own. A `netns` of
    /// `None` means to the plugins that the namespace does not exist any more. `result` is what
    /// [`Network::add`] returned, if that is known. Cancel safety: dropping the future kills the running
    /// plugin; call it again.
    ///
    /// # Errors
    /// The first failure; then parts of the attachment may remain, and it is to be called again.
    pub async fn del(
        &self,
        attachment: &Attachment,
        result: Option<&CniResult>,
    ) -> Result<(), Error> {
        attachment.check()?;
        let previous = result
            .filter(|_| self.list.cni_version.has_check())
            .map(|result| (PREVIOUS_RESULT, &result.raw));
        let mut first = Ok(());
        for plugin in self.programs().rev() {
            match self
                .call(plugin, Verb::Del, Some(attachment), previous.as_slice())
                .await
            {
                Ok(_) => {}
                // By the specification no cleanup is needed then.
                Err(error) if error.is_no_failure_of(Verb::Del) => {}
                Err(error) if first.is_ok() => first = Err(error),
                Err(error) => {
                    tracing::warn!(%error, sandbox = attachment.container_id, "another plugin failed on DEL")
                }
            }
            reach(CrashPoint::PluginDeleted);
        }
        first
    }

    /// Asks each plugin whether ADD can succeed, until one says that it cannot. One that does not have STATUS says nothing.
    ///
    /// Cancel safety: dropping the future kills the running plugin; STATUS changes nothing.
    ///
    /// # Errors
    /// The error of the first plugin that refused, or why it could not be run.
    pub async fn status(&self) -> Result<(), Error> {
        if !self.list.cni_version.has_status() {
            return Ok(());
        }
        for plugin in self.programs() {
            match self.call(plugin, Verb::Status, None, &[]).await {
                Ok(_) => {}
                Err(error) if error.is_no_failure_of(Verb::Status) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Runs GC of each plugin: it removes what it still has of attachments to this network that are not among `valid`, by the
    /// ids of their containers and the names of their interfaces. Every plugin is run, also after one failed. Does nothing if
    /// the version has no GC or the configuration disables it; a plugin that does not have it is passed over.
    ///
    /// The caller sees to it that no ADD or DEL of the network runs meanwhile, and that `valid` has all attachments of whoever
    /// uses a network of this name on the node. Cancel safety: dropping the future kills the running plugin; call it again.
    ///
    /// # Errors
    /// The first failure; then something may be left.
    pub async fn gc(&self, valid: &[(String, String)]) -> Result<(), Error> {
        if !self.list.cni_version.has_status() || self.list.disable_gc {
            return Ok(());
        }
        let valid: Value = valid
            .iter()
            .map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname }))
            .collect();
        let added = VALID_ATTACHMENTS.map(|key| (key, &valid));
        let mut first = Ok(());
        for plugin in self.programs() {
            match self.call(plugin, Verb::Gc, None, &added).await {
                Ok(_) => {}
                Err(error) if error.is_no_failure_of(Verb::Gc) => {}
                Err(error) if first.is_ok() => first = Err(error),
                Err(error) => {
                    tracing::warn!(%error, network = self.list.name, "another plugin failed on GC")
                }
            }
        }
        first
    }

    /// Runs a plugin. `added` are the keys that the command adds to the configuration.
    async fn call(
        &self,
        plugin: &PluginConf,
        verb: Verb,
        attachment: Option<&Attachment>,
        added: &[(&str, &Value)],
    ) -> Result<Vec<u8>, Error> {
        let config = self.request(plugin, attachment, added);
        let config = config.to_string();
        let call = Call {
            plugin: type_of(plugin),
            network: &self.list.name,
            verb,
            attachment,
            config: config.as_bytes(),
        };
        self.plugins.call(call).await
    }

    /// The configuration that is passed to a plugin: its own, with the keys that the specification makes the
    /// runtime add and remove.
    fn request(
        &self,
        plugin: &PluginConf,
        attachment: Option<&Attachment>,
        added: &[(&str, &Value)],
    ) -> Value {
        let is_runtime_key = |key: &str| {
            matches!(key, "capabilities" | PREVIOUS_RESULT) || key.starts_with("cni.dev/")
        };
        let mut request = Map::new();
        request.insert(
            "cniVersion".to_owned(),
            self.list.cni_version.as_str().into(),
        );
        request.insert("name".to_owned(), self.list.name.clone().into());
        for (key, value) in plugin {
            if !is_runtime_key(key) && !request.contains_key(key) {
                request.insert(key.clone(), value.clone());
            }
        }
        let capabilities = attachment.map(|attachment| attachment.capabilities.to_map());
        let capabilities = capabilities.unwrap_or_default();
        if let Some(ips) = capabilities.get("ips") {
            // The convention for plugins that do not declare the capability; configurations seldom do.
            let args = object_in(&mut request, "args");
            object_in(args, "cni").insert("ips".to_owned(), ips.clone());
        }
        let declared = plugin.get("capabilities").and_then(Value::as_object);
        let declares = |name: &str| {
            declared.and_then(|declared| declared.get(name)) == Some(&Value::Bool(true))
        };
        let runtime_config: Map<_, _> = capabilities
            .into_iter()
            .filter(|(name, _)| declares(name))
            .collect();
        if !runtime_config.is_empty() {
            request.insert("runtimeConfig".to_owned(), Value::Object(runtime_config));
        }
        for (key, value) in added {
            request.insert((*key).to_owned(), (*value).clone());
        }
        Value::Object(request)
    }
}

/// The object under a key, which is made if there is none.
fn object_in<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was made an object")
}

#[cfg(test)]
mod tests;
