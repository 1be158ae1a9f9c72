//! The secrets and configs that managers have sent to this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

    /// The secret for a task. One of a driver that must not be reused has an id of its own for each task.
    pub(crate) fn secret(&self, id: &str, task: &str) -> Option<Payload<'_>> {
        let secret = self.secrets.get(&format!("{id}.{task}")).or_else(|| self.secrets.get(id))?;
        let swarm::Secret { id: _, meta: _, spec, internal: _ } = &**secret;
        // The driver is the manager's business: what it answered is in the data.
        let swarm::SecretSpec { annotations: _, data, templating, driver: _ } = spec.as_ref()?;
        Some(Payload::new(data, templating.as_ref()))
    }

    /// The config of this id.
    pub(crate) fn config(&self, id: &str) -> Option<Payload<'_>> {
        let swarm::Config { id: _, meta: _, spec } = &**self.configs.get(id)?;
        let swarm::ConfigSpec { annotations: _, data, templating } = spec.as_ref()?;
        Some(Payload::new(data, templating.as_ref()))
    }
}

// === impl Payload ===

impl<'a> Payload<'a> {
    fn new(data: &'a [u8], templating: Option<&'a swarm::Driver>) -> Self {
        let templating = templating.map(|driver| driver.name.as_str()).filter(|name| !name.is_empty());
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
        assert!(dependencies.secret("s1", "t2").is_none() && dependencies.secret("s1", "t1").is_some());
    }
}
