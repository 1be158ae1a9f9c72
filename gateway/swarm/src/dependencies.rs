//! The secrets and configs that managers have sent to this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use swarm::task_spec::Runtime;
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::ITEMS_MAX;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::session::assignments::Change;

/// The secrets and configs of the node, by id. `Debug` shows none of their bytes.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    secrets: BTreeMap<String, Arc<swarm::Secret>>,
    configs: BTreeMap<String, Arc<swarm::Config>>,
}

/// The content of a secret or config.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    /// Its bytes.
    pub(crate) data: &'a [u8],
    /// The name of the template language; `None` if it is no template.
    pub(crate) templating: Option<&'a str>,
}

// === impl Dependencies ===

impl Dependencies {
    /// Adds or replaces a secret.
    pub(crate) fn put_secret(&mut self, secret: Arc<swarm::Secret>) {
        self.secrets.insert(secret.id.clone(), secret);
    }

    /// Adds or replaces a config.
    pub(crate) fn put_config(&mut self, config: Arc<swarm::Config>) {
        self.configs.insert(config.id.clone(), config);
    }

    /// Forgets what a complete list does not name: the agent that has it may not know what an earlier one was sent.
    pub(crate) fn retain(&mut self, list: &[Change]) {
        let mut secrets = BTreeSet::new();
        let mut configs = BTreeSet::new();
        for change in list {
            match change {
                Change::Secret(secret) => drop(secrets.insert(&secret.id)),
                Change::Config(config) => drop(configs.insert(&config.id)),
                Change::Volume(_)
                | Change::Task(_)
                | Change::TaskGone(_)
                | Change::VolumeGone(_)
                | Change::SecretGone(_)
                | Change::ConfigGone(_) => {}
            }
        }
        self.secrets.retain(|id, _| secrets.contains(id));
        self.configs.retain(|id, _| configs.contains(id));
    }

    /// Forgets a secret.
    pub(crate) fn remove_secret(&mut self, id: &str) {
        self.secrets.remove(id);
    }

    /// Forgets a config.
    pub(crate) fn remove_config(&mut self, id: &str) {
        self.configs.remove(id);
    }

    /// Those to which a task refers, shared with these. Short, whatever the task is.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many references.
    pub(crate) fn of_task(&self, task: &swarm::Task) -> Result<Self> {
        let mut own = Self::default();
        let runtime = task.spec.as_ref().and_then(|spec| spec.runtime.as_ref());
        let Some(Runtime::Container(container)) = runtime else {
            return Ok(own);
        };
        let count = container
            .secrets
            .len()
            .saturating_add(container.configs.len());
        if count > ITEMS_MAX {
            let why = format!("the task has {count} secrets and configs, and may have {ITEMS_MAX}");
            return Err(Error::invalid("container.secrets", why));
        }
        for reference in &container.secrets {
            let secret = self.secret_for(&reference.secret_id, &task.id);
            own.secrets
                .extend(secret.map(|secret| (secret.id.clone(), Arc::clone(secret))));
        }
        for reference in &container.configs {
            let config = self.configs.get(&reference.config_id);
            own.configs
                .extend(config.map(|config| (config.id.clone(), Arc::clone(config))));
        }
        Ok(own)
    }

    /// Returns whether a secret or config is a template.
    pub(crate) fn has_templates(&self) -> bool {
        let secrets = self
            .secrets
            .values()
            .filter_map(|secret| Payload::of_secret(secret));
        let configs = self
            .configs
            .values()
            .filter_map(|config| Payload::of_config(config));
        secrets
            .chain(configs)
            .any(|payload| payload.templating.is_some())
    }

    /// The secret for a task. One of a driver that must not be reused has an id of its own for each task.
    pub(crate) fn secret(&self, id: &str, task: &str) -> Option<Payload<'_>> {
        Payload::of_secret(self.secret_for(id, task)?)
    }

    /// The config of this id.
    pub(crate) fn config(&self, id: &str) -> Option<Payload<'_>> {
        Payload::of_config(self.configs.get(id)?)
    }

    fn secret_for(&self, id: &str, task: &str) -> Option<&Arc<swarm::Secret>> {
        self.secrets
            .get(&format!("{id}.{task}"))
            .or_else(|| self.secrets.get(id))
    }
}

// === impl Payload ===

impl<'a> Payload<'a> {
    fn of_secret(secret: &'a swarm::Secret) -> Option<Self> {
        let swarm::Secret {
            id: _,
            meta: _,
            spec,
            internal: _,
        } = secret;
        // The driver is the manager's business: what it answered is in the data.
        let swarm::SecretSpec {
            annotations: _,
            data,
            templating,
            driver: _,
        } = spec.as_ref()?;
        Some(Self::new(data, templating.as_ref()))
    }

    fn of_config(config: &'a swarm::Config) -> Option<Self> {
        let swarm::Config {
            id: _,
            meta: _,
            spec,
        } = config;
        let swarm::ConfigSpec {
            annotations: _,
            data,
            templating,
        } = spec.as_ref()?;
        Some(Self::new(data, templating.as_ref()))
    }

    fn new(data: &'a [u8], templating: Option<&'a swarm::Driver>) -> Self {
        let templating = templating
            .map(|driver| driver.name.as_str())
            .filter(|name| !name.is_empty());
        Self { data, templating }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_tasks::secret;

    #[test]
    fn secret_of_the_task_itself_takes_precedence() {
        let mut dependencies = Dependencies::default();
        dependencies.put_secret(Arc::new(secret("s1", b"all", false)));
        dependencies.put_secret(Arc::new(secret("s1.t1", b"own", false)));
        let data = |task: &str| dependencies.secret("s1", task).unwrap().data.to_vec();
        assert_eq!((data("t1"), data("t2")), (b"own".to_vec(), b"all".to_vec()));
        dependencies.remove_secret("s1");
        assert!(
            dependencies.secret("s1", "t2").is_none() && dependencies.secret("s1", "t1").is_some()
        );
    }
}
